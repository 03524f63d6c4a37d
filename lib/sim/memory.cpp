// Protection domains, memory regions, address handles.

#include "device.hpp"

#include <linux/capability.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>

namespace verbena::sim {
namespace {

/// Of all devices of the process, as the kernel counts them.
std::atomic<std::uint64_t> locked_bytes{0};

bool may_lock_all() {
    __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
    __user_cap_data_struct data[2]{};
    if (syscall(SYS_capget, &header, data) != 0) return false;
    return (data[0].effective & 1U << CAP_IPC_LOCK) != 0;
}

/// Whether the memory is there and may be written if it must be; brings it in, as pinning does. An errno value.
int populate(std::uintptr_t begin, std::size_t bytes, bool writable) {
    const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    const auto first = begin / page * page;
    const auto length = (begin + bytes - first + page - 1) / page * page;
    constexpr int populate_read = 22, populate_write = 23; // MADV_POPULATE_*, since Linux 5.14
    auto* const memory = reinterpret_cast<void*>(first);
    if (madvise(memory, length, populate_read) != 0) {
        if (errno != EINVAL) return EFAULT;
        // An older kernel: at least, is it mapped?
        return msync(memory, length, MS_ASYNC) == 0 ? 0 : EFAULT;
    }
    return !writable || madvise(memory, length, populate_write) == 0 ? 0 : EFAULT;
}

ibv_mr* register_memory(const char* verb, ibv_pd* pd, void* memory, std::size_t bytes, std::uint64_t begin,
                        unsigned access) {
    if (!usable(static_cast<domain*>(pd))) return fail_with<ibv_mr>(EINVAL);
    device& d = device_of(pd->context);
    if (const auto f = fault_of(d, verb)) return fail_with<ibv_mr>(f->value);
    access &= ~static_cast<unsigned>(IBV_ACCESS_OPTIONAL_RANGE);
    constexpr unsigned remote_writes = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
    constexpr unsigned supported =
        IBV_ACCESS_LOCAL_WRITE | remote_writes | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_HUGETLB;
    if ((access & remote_writes) != 0 && (access & IBV_ACCESS_LOCAL_WRITE) == 0) return fail_with<ibv_mr>(EINVAL);
    if ((access & ~supported) != 0) return fail_with<ibv_mr>(EOPNOTSUPP);
    const auto address = reinterpret_cast<std::uintptr_t>(memory);
    if (bytes == 0 || address + bytes < address) return fail_with<ibv_mr>(EINVAL);
    const std::uint64_t limit = may_lock_all() ? RLIM_INFINITY : [] {
        rlimit l{};
        getrlimit(RLIMIT_MEMLOCK, &l);
        return l.rlim_cur;
    }();
    if (locked_bytes.fetch_add(bytes) + bytes > limit) {
        locked_bytes -= bytes;
        return fail_with<ibv_mr>(ENOMEM);
    }
    if (const int failure = populate(address, bytes, (access & IBV_ACCESS_LOCAL_WRITE) != 0)) {
        locked_bytes -= bytes;
        return fail_with<ibv_mr>(failure);
    }
    auto mr = std::make_unique<region>();
    mr->context = pd->context;
    mr->pd = pd;
    mr->addr = memory;
    mr->length = bytes;
    mr->magic = alive;
    mr->access = access;
    mr->begin = (access & IBV_ACCESS_ZERO_BASED) != 0 ? 0 : begin;
    const locked guard(d);
    const int trouble = !answers(*state_of(pd->context)) ? EIO : 0;
    mr->lkey = trouble == 0 ? d.regions.add(mr.get()) : 0;
    if (mr->lkey == 0) {
        locked_bytes -= bytes;
        return fail_with<ibv_mr>(trouble != 0 ? trouble : ENOMEM);
    }
    constexpr unsigned remote = remote_writes | IBV_ACCESS_REMOTE_READ;
    mr->rkey = d.is_mlx5() || (access & remote) != 0 ? mr->lkey : 0;
    mr->handle = ++d.last_handle;
    ++static_cast<domain*>(pd)->users;
    return mr.release();
}

/// The index of a GID in the port's table, or -1.
int gid_index(const device& d, const ibv_gid& gid) {
    for (int i = 0; i < gid_count; ++i)
        if (std::memcmp(&d.gids[static_cast<std::size_t>(i)], &gid, sizeof gid) == 0) return i;
    return -1;
}

bool is_ipv4(const std::uint8_t* header) { return (header[0] >> 4) == 4; }

std::uint16_t ipv4_checksum(const std::uint8_t* header) {
    std::uint32_t sum = 0;
    for (int i = 0; i < 20; i += 2) sum += static_cast<std::uint32_t>(header[i] << 8 | header[i + 1]);
    while (sum > 0xffff) sum = (sum & 0xffff) + (sum >> 16);
    return static_cast<std::uint16_t>(~sum);
}

ibv_gid mapped(const std::uint8_t* ipv4) {
    ibv_gid gid{};
    gid.raw[10] = gid.raw[11] = 0xff;
    std::memcpy(gid.raw + 12, ipv4, 4);
    return gid;
}

} // namespace

bool mapped_ipv4(const ibv_gid& gid) {
    const ibv_gid same = mapped(gid.raw + 12);
    return std::memcmp(&same, &gid, sizeof gid) == 0;
}

// An IPv4 header takes the last 20 of the 40 bytes (RoCE v2, InfiniBand annex A17).
std::array<std::byte, sizeof(ibv_grh)> network_header(const ibv_gid& from, const ibv_gid& to, std::uint32_t payload,
                                                      const ibv_global_route& route) {
    std::array<std::byte, sizeof(ibv_grh)> bytes{};
    auto* const at = reinterpret_cast<std::uint8_t*>(bytes.data());
    const auto put16 = [](std::uint8_t* where, std::uint32_t value) {
        where[0] = static_cast<std::uint8_t>(value >> 8);
        where[1] = static_cast<std::uint8_t>(value);
    };
    if (mapped_ipv4(from) && mapped_ipv4(to)) {
        auto* const ip = at + 20;
        ip[0] = 0x45;
        ip[1] = route.traffic_class;
        put16(ip + 2, 20 + 8 + 12 + 8 + payload + 4);
        ip[6] = 0x40; // don't fragment
        ip[8] = route.hop_limit;
        ip[9] = IPPROTO_UDP;
        std::memcpy(ip + 12, from.raw + 12, 4);
        std::memcpy(ip + 16, to.raw + 12, 4);
        put16(ip + 10, ipv4_checksum(ip));
        return bytes;
    }
    put16(at, 0x6000U | static_cast<std::uint32_t>(route.traffic_class) << 4);
    put16(at + 4, 8 + 12 + 8 + payload + 4);
    at[6] = IPPROTO_UDP;
    at[7] = route.hop_limit;
    std::memcpy(at + 8, &from, sizeof from);
    std::memcpy(at + 24, &to, sizeof to);
    return bytes;
}

} // namespace verbena::sim

using namespace verbena::sim;

extern "C" {

ibv_pd* ibv_alloc_pd(ibv_context* context) {
    device& d = device_of(context);
    if (const auto f = fault_of(d, "ibv_alloc_pd")) return fail_with<ibv_pd>(f->value);
    auto pd = std::make_unique<domain>();
    pd->context = context;
    pd->magic = alive;
    const locked guard(d);
    if (!answers(*state_of(context))) return fail_with<ibv_pd>(EIO);
    pd->handle = ++d.last_handle;
    return pd.release();
}

int ibv_dealloc_pd(ibv_pd* pd) {
    auto* state = static_cast<domain*>(pd);
    if (!usable(state)) return EINVAL;
    device& d = device_of(pd->context);
    if (const auto f = fault_of(d, "ibv_dealloc_pd")) return answer(*f, convention::positive_errno);
    const locked guard(d);
    if (state->users != 0 && answers(*state_of(pd->context))) return EBUSY;
    state->magic = dead;
    d.bury([state] { delete state; });
    return 0;
}

ibv_mr* ibv_reg_mr(ibv_pd* pd, void* memory, size_t bytes, int access) {
    return register_memory("ibv_reg_mr", pd, memory, bytes, reinterpret_cast<std::uintptr_t>(memory),
                           static_cast<unsigned>(access));
}
ibv_mr* ibv_reg_mr_iova(ibv_pd* pd, void* memory, size_t bytes, uint64_t begin, int access) {
    return register_memory("ibv_reg_mr", pd, memory, bytes, begin, static_cast<unsigned>(access));
}
ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* memory, size_t bytes, uint64_t begin, unsigned access) {
    return register_memory("ibv_reg_mr", pd, memory, bytes, begin, access);
}

int ibv_dereg_mr(ibv_mr* mr) {
    auto* state = static_cast<region*>(mr);
    if (!usable(state)) return EINVAL;
    device& d = device_of(mr->context);
    if (const auto f = fault_of(d, "ibv_dereg_mr")) return answer(*f, convention::positive_errno);
    const locked guard(d);
    d.regions.remove(mr->lkey);
    locked_bytes -= mr->length;
    --static_cast<domain*>(mr->pd)->users;
    state->magic = dead;
    d.bury([state] { delete state; });
    return 0;
}

ibv_ah* ibv_create_ah(ibv_pd* pd, ibv_ah_attr* attributes) {
    if (!usable(static_cast<domain*>(pd))) return fail_with<ibv_ah>(EINVAL);
    device& d = device_of(pd->context);
    if (const auto f = fault_of(d, "ibv_create_ah")) return fail_with<ibv_ah>(f->value);
    // Ethernet: there is no way but by GID.
    if (attributes->port_num != 1 || attributes->is_global == 0 || attributes->grh.sgid_index >= gid_count)
        return fail_with<ibv_ah>(EINVAL);
    auto ah = std::make_unique<address>();
    ah->context = pd->context;
    ah->pd = pd;
    ah->magic = alive;
    ah->attributes = *attributes;
    const locked guard(d);
    if (!answers(*state_of(pd->context))) return fail_with<ibv_ah>(EIO);
    ah->handle = ++d.last_handle;
    ++static_cast<domain*>(pd)->users;
    return ah.release();
}

int ibv_destroy_ah(ibv_ah* ah) {
    auto* state = static_cast<address*>(ah);
    if (!usable(state)) return EINVAL;
    device& d = device_of(ah->context);
    if (const auto f = fault_of(d, "ibv_destroy_ah")) return answer(*f, convention::positive_errno);
    const locked guard(d);
    --static_cast<domain*>(ah->pd)->users;
    state->magic = dead;
    d.bury([state] { delete state; });
    return 0;
}

int ibv_init_ah_from_wc(ibv_context* context, uint8_t port, ibv_wc* wc, ibv_grh* grh, ibv_ah_attr* attributes) {
    device& d = device_of(context);
    if (const auto f = fault_of(d, "ibv_init_ah_from_wc")) return answer(*f, convention::minus_one_and_errno);
    *attributes = {};
    attributes->dlid = wc->slid;
    attributes->sl = wc->sl;
    attributes->src_path_bits = wc->dlid_path_bits;
    attributes->port_num = port;
    if ((wc->wc_flags & IBV_WC_GRH) == 0) return 0;
    attributes->is_global = 1;
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(grh);
    ibv_gid to;
    if (is_ipv4(bytes + 20) && ipv4_checksum(bytes + 20) == 0) {
        attributes->grh.dgid = mapped(bytes + 32);
        to = mapped(bytes + 36);
        attributes->grh.hop_limit = bytes[28];
        attributes->grh.traffic_class = bytes[21];
    } else {
        attributes->grh.dgid = grh->sgid;
        to = grh->dgid;
        attributes->grh.hop_limit = grh->hop_limit;
        attributes->grh.traffic_class = static_cast<std::uint8_t>((bytes[0] << 4) | bytes[1] >> 4);
    }
    const int index = gid_index(d, to);
    if (port != 1 || index < 0) {
        errno = EINVAL;
        return -1;
    }
    attributes->grh.sgid_index = static_cast<std::uint8_t>(index);
    return 0;
}

ibv_ah* ibv_create_ah_from_wc(ibv_pd* pd, ibv_wc* wc, ibv_grh* grh, uint8_t port) {
    ibv_ah_attr attributes;
    if (ibv_init_ah_from_wc(pd->context, port, wc, grh, &attributes) != 0) return nullptr;
    return ibv_create_ah(pd, &attributes);
}

} // extern "C"
