// librdmacm as far as lib/cm uses it, within this process and on the simulated device, whose kernel has none. What the
// kernel does to others is done at once: events queue up in their channels, in order. As in the kernel, a request's
// identifier hears of nothing until it accepts, an event that moves with its identifier wakes nobody, and private
// data is filled up with zeros.

#include "simulated_cm.hpp"

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

constexpr std::size_t request_bytes = 56, acceptance_bytes = 196, rejection_bytes = 148;

enum class state { idle, listening, connecting, requested, accepting, established, over };

struct channel;

struct identifier {
    rdma_cm_id id{}; ///< what callers have
    channel* in = nullptr;
    identifier* peer = nullptr;
    state now = state::idle;
    bool told = false; ///< that the peer leaves
    std::uint32_t qp_num = 0;
    std::uint64_t unacked = 0;
};

struct event {
    rdma_cm_event native{};
    std::array<std::byte, 256> data{};
    identifier* owner = nullptr; ///< of a request: the listener
};

struct channel {
    rdma_event_channel native{};
    std::deque<event*> events;
};

std::mutex mutex; // guards all below, and all of the above
std::vector<identifier*> identifiers;
std::uint64_t channels = 0, blocked = 0;
std::map<std::string, int> refusals;
ibv_context* verbs = nullptr;

identifier& of(rdma_cm_id* id) { return *reinterpret_cast<identifier*>(id); }
channel& of(rdma_event_channel* c) { return *reinterpret_cast<channel*>(c); }

int fails(int error) {
    errno = error;
    return -1;
}
bool refused(const char* function) {
    const auto found = refusals.find(function);
    if (found == refusals.end()) return false;
    errno = found->second;
    refusals.erase(found);
    return true;
}
#define SIMULATED_CALL()                                                                                               \
    const std::lock_guard lock(mutex);                                                                                 \
    if (refused(__func__)) return -1

ibv_context* device() {
    if (verbs != nullptr) return verbs;
    ibv_device** const all = ibv_get_device_list(nullptr);
    const char* const wanted = std::getenv("VERBENA_DEVICE");
    for (ibv_device** each = all; *each != nullptr && verbs == nullptr; ++each)
        if (wanted == nullptr || std::string_view(ibv_get_device_name(*each)) == wanted) verbs = ibv_open_device(*each);
    ibv_free_device_list(all);
    return verbs;
}

/// The GID of an IPv4 address, and its index.
ibv_gid gid_of_device(int& index) {
    constexpr std::array<std::uint8_t, 12> mapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    ibv_gid gid{};
    for (index = 0; ibv_query_gid(device(), 1, index, &gid) == 0; ++index)
        if (std::memcmp(gid.raw, mapped.data(), mapped.size()) == 0) return gid;
    std::abort();
}

const sockaddr_in* v4(const sockaddr* address) {
    return address->sa_family == AF_INET ? reinterpret_cast<const sockaddr_in*>(address) : nullptr;
}
bool is_of_device(const sockaddr* address) {
    int index = 0;
    const ibv_gid gid = gid_of_device(index);
    return v4(address) != nullptr && std::memcmp(&v4(address)->sin_addr, gid.raw + 12, 4) == 0;
}
std::uint16_t port_of(const identifier& i) { return i.id.route.addr.src_sin.sin_port; }

void push(channel& to, event* e) {
    to.events.push_back(e);
    eventfd_write(to.native.fd, 1);
}
void tell(identifier& to, rdma_cm_event_type type, int status = 0, const rdma_conn_param* said = nullptr,
          std::size_t room = 0) {
    // Of what nobody has accepted yet, the kernel tells nothing.
    if (to.now == state::requested) return;
    auto* const e = new event;
    e->owner = &to;
    e->native.id = &to.id;
    e->native.event = type;
    e->native.status = status;
    if (room > 0) {
        std::copy_n(static_cast<const std::byte*>(said->private_data), said->private_data_len, e->data.data());
        e->native.param.conn.private_data = e->data.data();
        e->native.param.conn.private_data_len = static_cast<std::uint8_t>(room);
    }
    push(*to.in, e);
}
void reject(identifier& who, int reason, const rdma_conn_param& said = {}) {
    identifier* const peer = who.peer;
    who.now = state::over;
    if (peer == nullptr) return;
    who.peer = peer->peer = nullptr;
    if (peer->now == state::connecting || peer->now == state::accepting)
        tell(*peer, RDMA_CM_EVENT_REJECTED, reason, &said, rejection_bytes);
    peer->now = state::over;
}

identifier* create(channel& in, void* context) {
    auto* const made = new identifier;
    made->id.context = context;
    made->id.channel = &in.native;
    made->in = &in;
    identifiers.push_back(made);
    return made;
}
void place(identifier& i) {
    i.id.verbs = device();
    i.id.port_num = 1;
}

/// With the mutex.
void destroy(identifier& gone) {
    std::erase(identifiers, &gone);
    std::vector<identifier*> untaken;
    std::erase_if(gone.in->events, [&](event* e) {
        if (e->owner != &gone) return false;
        if (e->native.event == RDMA_CM_EVENT_CONNECT_REQUEST) untaken.push_back(&of(e->native.id));
        delete e;
        eventfd_t one = 0;
        eventfd_read(gone.in->native.fd, &one);
        return true;
    });
    for (identifier* each : untaken) destroy(*each);
    if (gone.now == state::established && gone.peer != nullptr) {
        gone.peer->peer = nullptr;
        if (!gone.told) tell(*gone.peer, RDMA_CM_EVENT_DISCONNECTED);
    } else {
        reject(gone, gone.now == state::requested ? 28 : 4);
    }
    if (gone.unacked > 0) ++blocked;
    delete &gone;
}

} // namespace

namespace cm {

void remove_device() {
    const std::lock_guard lock(mutex);
    for (identifier* each : identifiers) tell(*each, RDMA_CM_EVENT_DEVICE_REMOVAL);
}
std::uint64_t blocked_destructions() {
    const std::lock_guard lock(mutex);
    return blocked;
}
std::uint64_t open_objects() {
    const std::lock_guard lock(mutex);
    return identifiers.size() + channels;
}
void refuse_next(const char* function, int error) {
    const std::lock_guard lock(mutex);
    refusals[function] = error;
}

} // namespace cm

extern "C" {

int access(const char* path, int mode) noexcept {
    if (std::string_view(path) == "/dev/infiniband/rdma_cm") return 0;
    return static_cast<int>(syscall(SYS_access, path, mode));
}

rdma_event_channel* rdma_create_event_channel() {
    const std::lock_guard lock(mutex);
    if (refused(__func__)) return nullptr;
    auto* const made = new channel;
    made->native.fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
    ++channels;
    return &made->native;
}
void rdma_destroy_event_channel(rdma_event_channel* gone) {
    const std::lock_guard lock(mutex);
    close(gone->fd);
    --channels;
    delete &of(gone);
}

int rdma_create_id(rdma_event_channel* in, rdma_cm_id** id, void* context, rdma_port_space) {
    SIMULATED_CALL();
    *id = &create(of(in), context)->id;
    return 0;
}
int rdma_destroy_id(rdma_cm_id* id) {
    SIMULATED_CALL();
    destroy(of(id));
    return 0;
}

int rdma_bind_addr(rdma_cm_id* id, sockaddr* at) {
    SIMULATED_CALL();
    const sockaddr_in* const address = v4(at);
    const bool loopback = address != nullptr && ntohl(address->sin_addr.s_addr) == INADDR_LOOPBACK;
    if (!loopback && !is_of_device(at)) return fails(ENODEV);
    std::uint16_t port = address->sin_port;
    for (const identifier* each : identifiers)
        if (port != 0 && each->now == state::listening && port_of(*each) == port) return fails(EADDRINUSE);
    static std::uint16_t last = 30000;
    if (port == 0) port = htons(++last);
    std::memcpy(&id->route.addr.src_sin, address, sizeof *address);
    id->route.addr.src_sin.sin_port = port;
    if (!loopback) place(of(id));
    return 0;
}
int rdma_listen(rdma_cm_id* id, int) {
    SIMULATED_CALL();
    of(id).now = state::listening;
    return 0;
}

int rdma_resolve_addr(rdma_cm_id* id, sockaddr*, sockaddr* to, int) {
    SIMULATED_CALL();
    if (!is_of_device(to)) return fails(ENODEV);
    std::memcpy(&id->route.addr.dst_sin, to, sizeof(sockaddr_in));
    id->route.addr.src_sin = id->route.addr.dst_sin;
    id->route.addr.src_sin.sin_port = 0;
    place(of(id));
    tell(of(id), RDMA_CM_EVENT_ADDR_RESOLVED);
    return 0;
}
int rdma_resolve_route(rdma_cm_id* id, int) {
    SIMULATED_CALL();
    tell(of(id), RDMA_CM_EVENT_ROUTE_RESOLVED);
    return 0;
}

int rdma_connect(rdma_cm_id* id, rdma_conn_param* param) {
    SIMULATED_CALL();
    identifier& active = of(id);
    active.qp_num = param->qp_num;
    active.now = state::connecting;
    const auto found = std::ranges::find_if(identifiers, [&](const identifier* each) {
        return each->now == state::listening && port_of(*each) == id->route.addr.dst_sin.sin_port;
    });
    if (found == identifiers.end()) {
        const rdma_conn_param nothing{};
        tell(active, RDMA_CM_EVENT_REJECTED, 8, &nothing, rejection_bytes);
        return 0;
    }
    identifier& listener = **found;
    identifier& passive = *create(*listener.in, listener.id.context);
    place(passive);
    passive.id.route.addr.src_sin = id->route.addr.dst_sin;
    passive.id.route.addr.dst_sin = id->route.addr.src_sin;
    passive.peer = &active;
    active.peer = &passive;
    tell(passive, RDMA_CM_EVENT_CONNECT_REQUEST, 0, param, request_bytes);
    event& request = *passive.in->events.back();
    request.owner = &listener;
    request.native.listen_id = &listener.id;
    passive.now = state::requested;
    return 0;
}
int rdma_accept(rdma_cm_id* id, rdma_conn_param* param) {
    SIMULATED_CALL();
    identifier& passive = of(id);
    if (passive.now != state::requested) return fails(EINVAL);
    passive.qp_num = param->qp_num;
    passive.now = state::accepting;
    tell(*passive.peer, RDMA_CM_EVENT_CONNECT_RESPONSE, 0, param, acceptance_bytes);
    return 0;
}
int rdma_establish(rdma_cm_id* id) {
    SIMULATED_CALL();
    identifier& active = of(id);
    if (active.now != state::connecting || active.peer == nullptr) return fails(EINVAL);
    active.now = active.peer->now = state::established;
    tell(*active.peer, RDMA_CM_EVENT_ESTABLISHED);
    return 0;
}
int rdma_reject(rdma_cm_id* id, const void* data, std::uint8_t bytes) {
    SIMULATED_CALL();
    rdma_conn_param said{};
    said.private_data = data;
    said.private_data_len = bytes;
    reject(of(id), 28, said);
    return 0;
}
int rdma_disconnect(rdma_cm_id* id) {
    SIMULATED_CALL();
    identifier& leaves = of(id);
    if (leaves.now != state::established) return fails(EINVAL);
    if (leaves.peer == nullptr) return 0;
    tell(*leaves.peer, RDMA_CM_EVENT_DISCONNECTED); // the request, or its answer
    leaves.peer->told = true;
    return 0;
}

int rdma_migrate_id(rdma_cm_id* id, rdma_event_channel* to) {
    SIMULATED_CALL();
    identifier& moved = of(id);
    std::erase_if(moved.in->events, [&](event* e) {
        if (e->owner != &moved) return false;
        eventfd_t one = 0;
        eventfd_read(moved.in->native.fd, &one);
        of(to).events.push_back(e);
        return true;
    });
    moved.in = &of(to);
    id->channel = to;
    return 0;
}

int rdma_init_qp_attr(rdma_cm_id* id, ibv_qp_attr* attr, int* mask) {
    SIMULATED_CALL();
    const identifier& self = of(id);
    if (self.peer == nullptr) return fails(EINVAL);
    *mask = IBV_QP_STATE;
    switch (attr->qp_state) {
    case IBV_QPS_INIT:
        attr->port_num = 1;
        *mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        return 0;
    case IBV_QPS_RTR: {
        int index = 0;
        attr->ah_attr.grh.dgid = gid_of_device(index);
        attr->ah_attr.grh.sgid_index = static_cast<std::uint8_t>(index);
        attr->ah_attr.grh.hop_limit = 64;
        attr->ah_attr.is_global = 1;
        attr->ah_attr.port_num = 1;
        attr->path_mtu = IBV_MTU_1024;
        attr->dest_qp_num = self.peer->qp_num;
        attr->max_dest_rd_atomic = UINT8_MAX; // as the peer may ask
        *mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                 IBV_QP_MIN_RNR_TIMER;
        return 0;
    }
    default:
        attr->timeout = 14;
        attr->retry_cnt = attr->rnr_retry = 7;
        attr->max_rd_atomic = UINT8_MAX;
        *mask |= IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
        return 0;
    }
}

int rdma_get_cm_event(rdma_event_channel* from, rdma_cm_event** got) {
    SIMULATED_CALL();
    channel& c = of(from);
    if (c.events.empty()) return fails(EAGAIN);
    event* const e = c.events.front();
    c.events.pop_front();
    eventfd_t one = 0;
    eventfd_read(from->fd, &one); // not there, if it moved
    ++e->owner->unacked;
    *got = &e->native;
    return 0;
}
int rdma_ack_cm_event(rdma_cm_event* done) {
    const std::lock_guard lock(mutex);
    auto* const e = reinterpret_cast<event*>(done);
    --e->owner->unacked;
    delete e;
    return 0;
}

} // extern "C"
