#include "device.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

// Private to rdma-core, but used by ibv_devinfo: what sysfs calls the types of GIDs.
extern "C" __attribute__((visibility("default"))) int ibv_query_gid_type(struct ibv_context* context, uint8_t port,
                                                                         unsigned index, unsigned* type);

namespace verbena::sim {
namespace {

constexpr std::size_t graveyard_size = 4096;

constexpr traits mlx5_traits{.character = character::mlx5,
                             .firmware = "16.35.2000",
                             .vendor_id = 0x02c9,
                             .vendor_part_id = 4119,
                             .max_cqe = (1 << 20) - 1,
                             .max_qp_wr = 32768,
                             .max_sge = 30,
                             .max_srq_wr = 32767,
                             .max_inline = 1024,
                             .moderation = {.max_cq_count = 65535, .max_cq_period = 4095}};
constexpr traits rxe_traits{.character = character::rxe,
                            .firmware = "",
                            .vendor_id = 0xffffff,
                            .vendor_part_id = 0,
                            .max_cqe = 32767,
                            .max_qp_wr = 1048576,
                            .max_sge = 32,
                            .max_srq_wr = 1048576,
                            .max_inline = 480,
                            .moderation = {}};

bool chosen(std::string_view name) {
    const char* wanted = std::getenv("VERBENA_SIM_DEVICES");
    if (wanted == nullptr || *wanted == '\0') return true;
    for (std::string_view rest = wanted;;) {
        const auto comma = rest.find(',');
        if (rest.substr(0, comma) == name) return true;
        if (comma == std::string_view::npos) return false;
        rest.remove_prefix(comma + 1);
    }
}

void fill_attributes(const device& d, ibv_device_attr& a) {
    a = {};
    std::snprintf(a.fw_ver, sizeof a.fw_ver, "%s", d.kind.firmware);
    a.node_guid = a.sys_image_guid = d.guid;
    a.max_mr_size = ~std::uint64_t{0};
    a.page_size_cap = 0xfffff000;
    a.vendor_id = d.kind.vendor_id;
    a.vendor_part_id = d.kind.vendor_part_id;
    a.max_qp = 65535;
    a.max_qp_wr = d.kind.max_qp_wr;
    a.device_cap_flags = IBV_DEVICE_CURR_QP_STATE_MOD | IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_SYS_IMAGE_GUID |
                         IBV_DEVICE_PORT_ACTIVE_EVENT;
    a.max_sge = a.max_sge_rd = a.max_srq_sge = d.kind.max_sge;
    a.max_cq = 1 << 20;
    a.max_cqe = d.kind.max_cqe;
    a.max_mr = (1 << 24) - 1;
    a.max_pd = 1 << 20;
    a.max_qp_rd_atom = a.max_qp_init_rd_atom = d.is_mlx5() ? 16 : 128;
    a.max_res_rd_atom = a.max_qp * a.max_qp_rd_atom;
    a.atomic_cap = IBV_ATOMIC_HCA;
    a.max_ah = 1 << 20;
    a.max_srq = 65535;
    a.max_srq_wr = d.kind.max_srq_wr;
    a.max_pkeys = 1;
    a.local_ca_ack_delay = 16;
    a.phys_port_cnt = 1;
}

void fill_port(ibv_port_attr& p) {
    p = {};
    p.state = IBV_PORT_ACTIVE;
    p.max_mtu = IBV_MTU_4096;
    p.active_mtu = IBV_MTU_4096;
    p.gid_tbl_len = 16;
    p.port_cap_flags = IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS;
    p.max_msg_sz = max_message;
    p.pkey_tbl_len = 1;
    p.max_vl_num = 1;
    p.active_width = 2; // 4X
    p.active_speed = 32;
    p.phys_state = 5; // LinkUp
    p.link_layer = IBV_LINK_LAYER_ETHERNET;
}

int query_port(ibv_context* context, std::uint8_t port, ibv_port_attr* attributes, std::size_t size) {
    device& d = device_of(context);
    if (const auto f = fault_of(d, "ibv_query_port")) return answer(*f, convention::positive_errno);
    const locked guard(d);
    if (!answers(*state_of(context))) return EIO;
    if (port != 1) return EINVAL;
    ibv_port_attr full;
    fill_port(full);
    std::memcpy(attributes, &full, std::min(size, sizeof full));
    return 0;
}

int query_device_ex(ibv_context* context, const ibv_query_device_ex_input*, ibv_device_attr_ex* attributes,
                    std::size_t size) {
    ibv_device_attr_ex full{};
    if (const int failure = ibv_query_device(context, &full.orig_attr)) return failure;
    full.phys_port_cnt_ex = 1;
    full.cq_mod_caps = device_of(context).kind.moderation;
    std::memcpy(attributes, &full, std::min(size, sizeof full));
    return 0;
}

/// Not of this library: another's device, or a pointer to nowhere.
bool known(ibv_device* entry) {
    return std::ranges::any_of(all_devices(), [&](device* d) { return &d->entry == entry; });
}

} // namespace

// transfer.cpp, completion.cpp
int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad);
int post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad);
int post_srq_recv(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad);
int poll_cq(ibv_cq* cq, int count, ibv_wc* entries);
int req_notify_cq(ibv_cq* cq, int solicited_only);
int modify_cq(ibv_cq* cq, ibv_modify_cq_attr* wanted);
ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* wanted);

std::vector<device*>& all_devices() {
    static auto* const devices = [] {
        auto* list = new std::vector<device*>;
        if (chosen("sim0")) list->push_back(new device("sim0", mlx5_traits, 0));
        if (chosen("sim1")) list->push_back(new device("sim1", rxe_traits, 1));
        return list;
    }();
    return *devices;
}

device::device(const char* name, const traits& t, std::uint32_t index) : kind(t) {
    entry.node_type = IBV_NODE_CA;
    entry.transport_type = IBV_TRANSPORT_IB;
    std::snprintf(entry.name, sizeof entry.name, "%s", name);
    std::snprintf(entry.dev_name, sizeof entry.dev_name, "uverbs-%s", name);
    std::snprintf(entry.dev_path, sizeof entry.dev_path, "/nowhere/infiniband_verbs/%s", entry.dev_name);
    std::snprintf(entry.ibdev_path, sizeof entry.ibdev_path, "/nowhere/infiniband/%s", name);
    entry.dev = this;
    const auto last = static_cast<std::uint8_t>(index + 1);
    gids[0] = {{0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0xff, 0xfe, 0, 0, last}};
    gids[1] = {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last}};
    std::memcpy(&guid, &gids[0].raw[8], sizeof guid);
}

void device::bury(std::function<void()> free_it) {
    graveyard.push_back(std::move(free_it));
    if (graveyard.size() <= graveyard_size) return;
    graveyard.front()();
    graveyard.pop_front();
}

void device::raise(ibv_event_type type, ibv_context* context, void* element, std::uint32_t& generated) {
    open_context& c = *state_of(context);
    if (c.magic != alive || c.removed) return;
    const async_record record{reinterpret_cast<std::uintptr_t>(element), static_cast<std::uint32_t>(type), 0};
    c.async->push(&record);
    ++generated;
}

void device::forget_async(ibv_context* context, std::uint64_t element, std::uint32_t& generated) {
    open_context& c = *state_of(context);
    if (generated == 0 || c.magic != alive) return;
    generated -= static_cast<std::uint32_t>(c.async->remove([&](const void* record) {
        const auto& r = *static_cast<const async_record*>(record);
        return r.element == element && r.type != IBV_EVENT_DEVICE_FATAL;
    }));
}

void device::spend(std::chrono::nanoseconds time) {
    if (control.seeded) later.advance(time);
}

void device::remove() {
    listed = false;
    for (auto& p : pending) later.cancel(p.delivery);
    counts.purged += pending.size();
    counts.outstanding -= pending.size();
    pending.clear();
    for (open_context* c : contexts) {
        if (c->removed) continue;
        std::uint32_t unused = 0;
        raise(IBV_EVENT_DEVICE_FATAL, &c->context, nullptr, unused);
        c->removed = true;
        for (auto& f : c->on_remove) f();
        for (channel* ch : c->channels) ch->events->set_error();
        for (queue_pair* q : c->pairs) {
            later.cancel(q->run);
            q->mute = true;
        }
    }
    for (queue_pair* qp : std::exchange(blocked, {})) {
        later.cancel(qp->deadline);
        qp->blocked = obstacle::none;
        if (qp->waits_for != nullptr) --qp->waits_for->waiting_senders;
        qp->waits_for = nullptr;
    }
}

} // namespace verbena::sim

using namespace verbena::sim;

extern "C" {

ibv_device** ibv_get_device_list(int* count) {
    auto** list = static_cast<ibv_device**>(std::calloc(all_devices().size() + 1, sizeof(ibv_device*)));
    if (list == nullptr) return fail_with<ibv_device*>(ENOMEM);
    int found = 0;
    for (device* d : all_devices()) {
        if (const auto f = fault_of(*d, "ibv_get_device_list")) {
            std::free(list);
            return fail_with<ibv_device*>(f->value);
        }
        if (d->listed) list[found++] = &d->entry;
    }
    if (count != nullptr) *count = found;
    errno = 0;
    return list;
}

void ibv_free_device_list(ibv_device** list) { std::free(list); }

const char* ibv_get_device_name(ibv_device* entry) { return entry != nullptr ? entry->name : nullptr; }

int ibv_get_device_index(ibv_device* entry) {
    return known(entry) ? static_cast<device_entry*>(entry)->dev->gids[0].raw[15] : -1;
}

__be64 ibv_get_device_guid(ibv_device* entry) {
    return known(entry) ? static_cast<device_entry*>(entry)->dev->guid : 0;
}

ibv_context* ibv_open_device(ibv_device* entry) {
    if (!known(entry)) return fail_with<ibv_context>(ENODEV);
    device& d = *static_cast<device_entry*>(entry)->dev;
    if (const auto f = fault_of(d, "ibv_open_device")) return fail_with<ibv_context>(f->value);
    auto state = std::make_unique<open_context>();
    if (state->async->fd() < 0) return nullptr;
    state->magic = alive;
    state->dev = &d;
    state->sz = sizeof(verbs_context);
    state->query_port = query_port;
    state->query_device_ex = query_device_ex;
    state->modify_cq = modify_cq;
    state->create_cq_ex = create_cq_ex;
    ibv_context& c = state->context;
    c.device = entry;
    c.ops.poll_cq = poll_cq;
    c.ops.req_notify_cq = req_notify_cq;
    c.ops.post_send = post_send;
    c.ops.post_recv = post_recv;
    c.ops.post_srq_recv = post_srq_recv;
    // Programs and libraries may ask whether it is a descriptor; nothing can be done with it.
    c.cmd_fd = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    c.async_fd = state->async->fd();
    c.num_comp_vectors = comp_vectors;
    pthread_mutex_init(&c.mutex, nullptr);
    c.abi_compat = __VERBS_ABI_IS_EXTENDED;
    const locked guard(d);
    if (!d.listed) {
        ::close(c.cmd_fd);
        return fail_with<ibv_context>(ENODEV);
    }
    d.contexts.push_back(state.get());
    return &state.release()->context;
}

int ibv_close_device(ibv_context* context) {
    if (context == nullptr || state_of(context)->magic != alive) return EINVAL;
    open_context* state = state_of(context);
    device& d = *state->dev;
    if (const auto f = fault_of(d, "ibv_close_device")) return answer(*f, convention::positive_errno);
    for (auto& f : state->on_close) f();
    const locked guard(d);
    // What the program has left goes with its context.
    for (queue_pair* qp : std::vector(state->pairs)) {
        d.clear(*qp);
        d.pairs.remove(qp->qp_num);
        d.retry_blocked(qp->qp_num);
        qp->magic = dead;
    }
    state->magic = dead;
    state->pairs.clear();
    d.contexts.remove(state);
    ::close(context->cmd_fd);
    state->async.reset();
    d.bury([state] { delete state; });
    return 0;
}

int ibv_query_device(ibv_context* context, ibv_device_attr* attributes) {
    device& d = device_of(context);
    if (const auto f = fault_of(d, "ibv_query_device")) return answer(*f, convention::positive_errno);
    const locked guard(d);
    if (!answers(*state_of(context))) return EIO;
    fill_attributes(d, *attributes);
    return 0;
}

int ibv_query_port(ibv_context* context, uint8_t port, struct _compat_ibv_port_attr* attributes) {
    // The first fields of ibv_port_attr, up to link_layer.
    return query_port(context, port, reinterpret_cast<ibv_port_attr*>(attributes),
                      offsetof(ibv_port_attr, link_layer) + 1);
}

int ibv_query_gid(ibv_context* context, uint8_t port, int index, ibv_gid* gid) {
    device& d = device_of(context);
    if (const auto f = fault_of(d, "ibv_query_gid")) return answer(*f, convention::minus_one_and_errno);
    const locked guard(d);
    ibv_port_attr attributes;
    fill_port(attributes);
    if (!answers(*state_of(context)) || port != 1 || index < 0 || index >= attributes.gid_tbl_len) {
        errno = EINVAL;
        return -1;
    }
    *gid = index < gid_count ? d.gids[static_cast<std::size_t>(index)] : ibv_gid{};
    return 0;
}

int ibv_query_gid_type(ibv_context* context, uint8_t port, unsigned index, unsigned* type) {
    ibv_gid ignored;
    *type = 1; // RoCE v2
    return ibv_query_gid(context, port, static_cast<int>(index), &ignored);
}

int _ibv_query_gid_ex(ibv_context* context, uint32_t port, uint32_t index, ibv_gid_entry* entry, uint32_t flags,
                      size_t size) {
    device& d = device_of(context);
    if (const auto f = fault_of(d, "ibv_query_gid_ex")) return answer(*f, convention::positive_errno);
    const locked guard(d);
    if (!answers(*state_of(context))) return EIO;
    if (port != 1 || flags != 0 || index >= 16) return EINVAL;
    if (index >= gid_count) return ENODATA;
    const ibv_gid_entry full{
        .gid = d.gids[index], .gid_index = index, .port_num = 1, .gid_type = IBV_GID_TYPE_ROCE_V2, .ndev_ifindex = 0};
    std::memcpy(entry, &full, std::min(size, sizeof full));
    return 0;
}

ssize_t _ibv_query_gid_table(ibv_context* context, ibv_gid_entry* entries, size_t count, uint32_t flags, size_t size) {
    if (const auto f = fault_of(device_of(context), "ibv_query_gid_table"))
        return answer(*f, convention::negative_errno);
    std::size_t found = 0;
    for (std::uint32_t index = 0; index < gid_count; ++index) {
        if (found == count) return -EINVAL; // as the kernel answers when the table has more
        auto* at = reinterpret_cast<std::byte*>(entries) + found * size;
        if (const int failure = _ibv_query_gid_ex(context, 1, index, reinterpret_cast<ibv_gid_entry*>(at), flags, size))
            return -failure;
        ++found;
    }
    return static_cast<ssize_t>(found);
}

int ibv_query_pkey(ibv_context* context, uint8_t port, int index, __be16* pkey) {
    device& d = device_of(context);
    if (const auto f = fault_of(d, "ibv_query_pkey")) return answer(*f, convention::minus_one_and_errno);
    if (port != 1 || index != 0) {
        errno = EINVAL;
        return -1;
    }
    *pkey = 0xffff;
    return 0;
}

int ibv_get_pkey_index(ibv_context* context, uint8_t port, __be16 pkey) {
    __be16 only;
    if (ibv_query_pkey(context, port, 0, &only) == 0 && pkey == only) return 0;
    errno = EINVAL;
    return -1;
}

int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
    open_context& c = *state_of(context);
    device& d = *c.dev;
    if (const auto f = fault_of(d, "ibv_get_async_event")) return answer(*f, convention::minus_one_and_errno);
    if (c.magic != alive) {
        errno = EBADF;
        return -1;
    }
    async_record record;
    if (c.async->take(&record) != 0) return -1;
    {
        const locked guard(d);
        c.async->refill();
    }
    event->event_type = static_cast<ibv_event_type>(record.type);
    static_assert(sizeof event->element == sizeof record.element);
    std::memcpy(&event->element, &record.element, sizeof record.element);
    return 0;
}

void ibv_ack_async_event(ibv_async_event* event) {
    const auto count = [](pthread_mutex_t& mutex, pthread_cond_t& changed, std::uint32_t& completed) {
        pthread_mutex_lock(&mutex);
        ++completed;
        pthread_cond_signal(&changed);
        pthread_mutex_unlock(&mutex);
    };
    switch (event->event_type) {
    case IBV_EVENT_CQ_ERR:
        count(event->element.cq->mutex, event->element.cq->cond, event->element.cq->async_events_completed);
        return;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
        count(event->element.qp->mutex, event->element.qp->cond, event->element.qp->events_completed);
        return;
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED:
        count(event->element.srq->mutex, event->element.srq->cond, event->element.srq->events_completed);
        return;
    default: return;
    }
}

int ibv_fork_init(void) { return 0; }
ibv_fork_status ibv_is_fork_initialized(void) { return IBV_FORK_UNNEEDED; }

int ibv_read_sysfs_file(const char* directory, const char* file, char* text, size_t size) {
    const std::string path = std::string(directory) + "/" + file;
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    auto length = ::read(fd, text, size);
    ::close(fd);
    if (length <= 0) return -1;
    if (text[length - 1] == '\n')
        text[--length] = '\0';
    else if (static_cast<std::size_t>(length) < size)
        text[length] = '\0';
    else
        return -1;
    return static_cast<int>(length);
}

ibv_qp_ex* ibv_qp_to_qp_ex(ibv_qp*) { return nullptr; }

} // extern "C"
