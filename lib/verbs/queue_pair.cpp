#include <verbena/verbs/queue_pair.hpp>

#include "../check.hpp"
#include "../queue_pair_core.hpp"
#include "states.hpp"
#include "verb.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <random>
#include <utility>

namespace verbena {
namespace {

constexpr std::uint32_t psn_mask = 0xffffff;

std::optional<ibv_mtu> mtu_code(std::uint32_t bytes) noexcept {
    switch (bytes) {
    case 256: return IBV_MTU_256;
    case 512: return IBV_MTU_512;
    case 1024: return IBV_MTU_1024;
    case 2048: return IBV_MTU_2048;
    case 4096: return IBV_MTU_4096;
    default: return std::nullopt;
    }
}

error invalid(const char* verb, std::string note) {
    return error(errc::invalid_argument, verb).with_note(std::move(note));
}

result<std::uint8_t> choose_gid(const context& device, std::uint8_t port, link_layer link,
                                std::optional<std::uint8_t> wanted, gid& value) {
    auto table = device.gids(port);
    if (!table) return std::move(table).error();
    const auto take = [&](const gid_entry& entry) {
        value = entry.gid;
        return static_cast<std::uint8_t>(entry.index);
    };
    if (wanted) {
        for (const auto& entry : *table)
            if (entry.index == *wanted) return take(entry);
        return invalid("queue_pair::create", fmt::format("port {} has no valid GID at index {}", port, *wanted));
    }
    if (link == link_layer::ethernet)
        for (const auto& entry : *table)
            if (entry.type == gid_type::roce_v2 && entry.gid.is_ipv4_mapped()) return take(entry);
    if (!table->empty()) return take(table->front());
    if (link == link_layer::ethernet)
        return error(errc::not_found, "queue_pair::create").with_note(fmt::format("port {} has no valid GID", port));
    return std::uint8_t{0};
}

result<void> check_options(const queue_pair_options& options, const ibv_device_attr& limits) {
    constexpr auto verb = "queue_pair::create";
    if (!options.send_cq || !options.recv_cq) return invalid(verb, "an empty completion queue");
    const auto within = [](std::uint32_t value, int limit) { return value <= static_cast<std::uint32_t>(limit); };
    if (options.max_send + options.max_recv == 0 || !within(options.max_send, limits.max_qp_wr) ||
        !within(options.max_recv, limits.max_qp_wr))
        return invalid(verb,
                       fmt::format("max_send {} and max_recv {}: the device takes up to {} each, and not 0 of both",
                                   options.max_send, options.max_recv, limits.max_qp_wr));
    if (options.max_send_slices == 0 || options.max_recv_slices == 0 ||
        !within(options.max_send_slices, limits.max_sge) || !within(options.max_recv_slices, limits.max_sge))
        return invalid(verb, fmt::format("a request has 1 to {} slices on this device", limits.max_sge));
    if (options.keepalive.count() < 0 || (options.keepalive.count() > 0 && options.type != queue_pair_type::rc))
        return invalid(verb, "only an RC queue pair has a keepalive, and of a positive time");
    return {};
}

} // namespace

std::array<std::byte, endpoint::encoded_bytes> endpoint::to_bytes() const noexcept {
    std::array<std::byte, encoded_bytes> out{};
    std::size_t at = 0;
    const auto put = [&](std::uint64_t value, int bytes) {
        while (bytes-- > 0) out[at++] = static_cast<std::byte>(value >> (8 * bytes));
    };
    put(qp_num, 4);
    put(psn, 4);
    put(qkey, 4);
    put(lid, 2);
    put(static_cast<std::uint64_t>(link), 1);
    put(static_cast<std::uint64_t>(type), 1);
    put(mtu / 256, 1);
    at += 7;
    std::copy(gid.bytes.begin(), gid.bytes.end(), out.begin() + at);
    return out;
}

result<endpoint> endpoint::from_bytes(std::span<const std::byte> bytes) {
    constexpr auto verb = "endpoint::from_bytes";
    if (bytes.size() != encoded_bytes)
        return invalid(verb, fmt::format("an endpoint has {} bytes, not {}", encoded_bytes, bytes.size()));
    std::size_t at = 0;
    const auto get = [&](int count) {
        std::uint64_t value = 0;
        while (count-- > 0) value = value << 8 | static_cast<std::uint64_t>(bytes[at++]);
        return value;
    };
    endpoint e;
    e.qp_num = static_cast<std::uint32_t>(get(4));
    e.psn = static_cast<std::uint32_t>(get(4));
    e.qkey = static_cast<std::uint32_t>(get(4));
    e.lid = static_cast<std::uint16_t>(get(2));
    const auto link = get(1);
    const auto type = get(1);
    e.mtu = static_cast<std::uint32_t>(get(1)) * 256;
    at += 7;
    std::copy(bytes.begin() + at, bytes.end(), e.gid.bytes.begin());
    if (e.qp_num == 0 || e.qp_num > psn_mask || e.psn > psn_mask || link > 2 || type > 1 || !mtu_code(e.mtu))
        return invalid(verb, "these bytes are no endpoint");
    e.link = static_cast<link_layer>(link);
    e.type = static_cast<queue_pair_type>(type);
    return e;
}

queue_pair::queue_pair(std::unique_ptr<detail::queue_pair_core> core) noexcept : core_(std::move(core)) {}
queue_pair::queue_pair(queue_pair&&) noexcept = default;
queue_pair& queue_pair::operator=(queue_pair&&) noexcept = default;
queue_pair::~queue_pair() = default;

result<queue_pair> queue_pair::create(const protection_domain& domain, const queue_pair_options& options) {
    constexpr auto verb = "ibv_create_qp";
    if (auto checked = detail::check_parent(domain, verb, "protection domain"); !checked) return checked.error();
    const context device = domain.context();
    if (auto checked = check_options(options, device.attributes()); !checked) return std::move(checked).error();
    detail::queue_pair_setup setup;
    setup.domain = detail::access::state(domain);
    setup.send_cq = detail::access::state(options.send_cq);
    setup.recv_cq = detail::access::state(options.recv_cq);
    if (options.srq) setup.srq = detail::access::state(*options.srq);
    if (setup.send_cq->context != setup.domain->context || setup.recv_cq->context != setup.domain->context ||
        (setup.srq && setup.srq->domain->context != setup.domain->context))
        return invalid(verb, "the completion queues or the shared receive queue belong to another context");
    setup.type = options.type;
    setup.post_mode = options.post_mode;
    setup.max_send = options.max_send;
    setup.max_recv = setup.srq ? 0 : options.max_recv;
    setup.max_send_slices = options.max_send_slices;
    setup.max_recv_slices = options.max_recv_slices;
    setup.max_inline = options.max_inline;
    setup.keepalive = options.keepalive;
    setup.port = options.port;

    auto port = device.port(options.port);
    if (!port) return std::move(port).error();
    verbena::endpoint local;
    auto gid_index = choose_gid(device, options.port, port->link, options.gid_index, local.gid);
    if (!gid_index) return std::move(gid_index).error();
    setup.gid_index = *gid_index;
    setup.psn = std::random_device{}() & psn_mask;
    local.psn = setup.psn;
    local.lid = port->lid;
    local.mtu = port->active_mtu;
    local.link = port->link;
    local.type = options.type;

    // What is awaited can never overrun a completion queue: room for all of it is set aside now.
    if (auto reserved = setup.send_cq->reserve(setup.max_send); !reserved) return std::move(reserved).error();
    if (auto reserved = setup.recv_cq->reserve(setup.max_recv); !reserved) {
        setup.send_cq->release(setup.max_send);
        return std::move(reserved).error();
    }
    const auto give_back = [&] {
        setup.send_cq->release(setup.max_send);
        setup.recv_cq->release(setup.max_recv);
    };
    if (setup.srq) {
        if (auto joined = setup.srq->join(setup.recv_cq); !joined) {
            give_back();
            return std::move(joined).error();
        }
        if (setup.srq->reactor != nullptr && !setup.srq->belongs_to(*setup.srq->reactor)) {
            setup.srq->leave(*setup.recv_cq);
            give_back();
            return error(errc::not_attached, verb)
                .with_note("the receive completion queue is not attached to the shared receive queue's reactor");
        }
    }

    ibv_qp_init_attr init{};
    init.qp_context = detail::fresh_identity();
    init.send_cq = setup.send_cq->native;
    init.recv_cq = setup.recv_cq->native;
    init.srq = setup.srq ? setup.srq->native : nullptr;
    init.cap.max_send_wr = setup.max_send;
    init.cap.max_recv_wr = setup.max_recv;
    init.cap.max_send_sge = setup.max_send_slices;
    init.cap.max_recv_sge = setup.max_recv_slices;
    init.cap.max_inline_data = setup.max_inline;
    init.qp_type = options.type == queue_pair_type::rc ? IBV_QPT_RC : IBV_QPT_UD;
    auto native = detail::check_pointer(verb, [&] { return ibv_create_qp(setup.domain->native, &init); });
    if (!native) {
        if (setup.srq) setup.srq->leave(*setup.recv_cq);
        give_back();
        return std::move(native).error();
    }
    local.qp_num = (*native)->qp_num;
    setup.local = local;
    std::unique_ptr<detail::queue_pair_core> core;
    try {
        core = std::make_unique<detail::queue_pair_core>(setup, *native);
    } catch (...) { // out of memory
        ibv_destroy_qp(*native);
        if (setup.srq) setup.srq->leave(*setup.recv_cq);
        give_back();
        throw;
    }
    queue_pair pair(std::move(core));

    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.pkey_index = options.pkey_index;
    attr.port_num = options.port;
    int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
    if (options.type == queue_pair_type::rc) {
        attr.qp_access_flags = static_cast<unsigned>(options.access);
        mask |= IBV_QP_ACCESS_FLAGS;
    } else {
        mask |= IBV_QP_QKEY;
    }
    if (auto moved = detail::check_errno_value("ibv_modify_qp", [&] { return ibv_modify_qp(*native, &attr, mask); });
        !moved)
        return std::move(moved).error();
    return pair;
}

endpoint queue_pair::endpoint() const noexcept { return core_->setup().local; }

result<void> queue_pair::connect(const verbena::endpoint& remote, const connection_options& options) {
    constexpr auto verb = "queue_pair::connect";
    if (auto checked = core_->usable(verb); !checked) return checked;
    const auto& setup = core_->setup();
    if (setup.type != queue_pair_type::rc || remote.type != queue_pair_type::rc)
        return invalid(verb, "both ends must be RC queue pairs; a UD queue pair is activated");
    if (remote.link != setup.local.link)
        return invalid(verb, "the remote endpoint is on another link layer: Ethernet and InfiniBand do not meet");
    const std::uint32_t mtu = options.mtu != 0 ? options.mtu : std::min(setup.local.mtu, remote.mtu);
    if (!mtu_code(mtu) || mtu > setup.local.mtu)
        return invalid(
            verb, fmt::format("an MTU of {}: 256, 512, 1024, 2048 or 4096, up to the port's {}", mtu, setup.local.mtu));
    if (options.retry_cnt > 7 || options.rnr_retry > 7 || options.timeout > 31 || options.min_rnr_timer > 31 ||
        options.service_level > 15)
        return invalid(verb,
                       "retry_cnt and rnr_retry are 0 to 7, timeout and min_rnr_timer 0 to 31, service_level 0 to 15");
    const auto& limits = setup.domain->context->attributes;

    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = *mtu_code(mtu);
    attr.dest_qp_num = remote.qp_num;
    attr.rq_psn = remote.psn;
    attr.max_dest_rd_atomic = static_cast<std::uint8_t>(std::min<int>(options.rd_atomic, limits.max_qp_rd_atom));
    attr.min_rnr_timer = options.min_rnr_timer;
    attr.ah_attr.dlid = remote.lid;
    attr.ah_attr.sl = options.service_level;
    attr.ah_attr.port_num = setup.port;
    // RoCE always has a global route; InfiniBand needs one only between subnets, where no LID leads.
    if (setup.local.link == link_layer::ethernet || remote.lid == 0) {
        attr.ah_attr.is_global = 1;
        attr.ah_attr.grh.dgid = remote.gid.native();
        attr.ah_attr.grh.sgid_index = setup.gid_index;
        attr.ah_attr.grh.hop_limit = options.hop_limit;
        attr.ah_attr.grh.traffic_class = options.traffic_class;
    }
    auto moved = detail::check_errno_value("ibv_modify_qp (RTR)", [&] {
        return ibv_modify_qp(core_->native(), &attr,
                             IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    });
    if (!moved) return moved;
    attr = {};
    attr.qp_state = IBV_QPS_RTS;
    attr.sq_psn = setup.psn;
    attr.timeout = options.timeout;
    attr.retry_cnt = options.retry_cnt;
    attr.rnr_retry = options.rnr_retry;
    attr.max_rd_atomic = static_cast<std::uint8_t>(std::min<int>(options.rd_atomic, limits.max_qp_init_rd_atom));
    moved = detail::check_errno_value("ibv_modify_qp (RTS)", [&] {
        return ibv_modify_qp(core_->native(), &attr,
                             IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                 IBV_QP_MAX_QP_RD_ATOMIC);
    });
    if (moved) core_->set_connected();
    return moved;
}

result<void> queue_pair::activate(std::uint32_t qkey) {
    if (auto checked = core_->usable("queue_pair::activate"); !checked) return checked;
    const auto& setup = core_->setup();
    if (setup.type != queue_pair_type::ud)
        return invalid("queue_pair::activate", "only a UD queue pair is activated; an RC one is connected");
    const auto move = [&](const char* verb, ibv_qp_attr attr, int mask) {
        return detail::check_errno_value(verb,
                                         [&] { return ibv_modify_qp(core_->native(), &attr, mask | IBV_QP_STATE); });
    };
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.qkey = qkey;
    if (auto moved = move("ibv_modify_qp (INIT)", attr, IBV_QP_QKEY); !moved) return moved;
    attr = {};
    attr.qp_state = IBV_QPS_RTR;
    if (auto moved = move("ibv_modify_qp (RTR)", attr, 0); !moved) return moved;
    attr.qp_state = IBV_QPS_RTS;
    attr.sq_psn = setup.psn;
    if (auto moved = move("ibv_modify_qp (RTS)", attr, IBV_QP_SQ_PSN); !moved) return moved;
    auto local = setup.local;
    local.qkey = qkey;
    core_->set_local(local);
    core_->set_connected();
    return {};
}

result<void> queue_pair::send_detached(inline_data data) {
    return core_->send_detached(send_request{.local = data}, {});
}

result<void> queue_pair::send_detached(pool_buffer buffer) {
    if (!buffer) return invalid("queue_pair::send_detached", "an empty buffer");
    const memory_slice slice = buffer.slice();
    const auto token = detail::access::release(std::move(buffer));
    auto sent = core_->send_detached(send_request{.local = slice}, token);
    if (!sent) detail::release_pool_buffer(token);
    return sent;
}

result<void> queue_pair::post(const work_request& request, std::uint64_t wr_id) {
    return core_->post_by_hand(request, wr_id);
}

result<queue_pair_state> queue_pair::state() const {
    if (auto checked = core_->usable("ibv_query_qp"); !checked) return checked.error();
    ibv_qp_attr attr{};
    ibv_qp_init_attr init{};
    auto asked = detail::check_errno_value("ibv_query_qp",
                                           [&] { return ibv_query_qp(core_->native(), &attr, IBV_QP_STATE, &init); });
    if (!asked) return std::move(asked).error();
    switch (attr.qp_state) {
    case IBV_QPS_RESET: return queue_pair_state::reset;
    case IBV_QPS_INIT: return queue_pair_state::init;
    case IBV_QPS_RTR: return queue_pair_state::ready_to_receive;
    case IBV_QPS_RTS: return queue_pair_state::ready_to_send;
    case IBV_QPS_SQD: return queue_pair_state::drained;
    case IBV_QPS_SQE: return queue_pair_state::send_error;
    default: return queue_pair_state::error;
    }
}

std::uint32_t queue_pair::qp_num() const noexcept { return core_->setup().local.qp_num; }
queue_pair_type queue_pair::type() const noexcept { return core_->setup().type; }
std::uint32_t queue_pair::max_inline() const noexcept { return core_->setup().max_inline; }
protection_domain queue_pair::domain() const noexcept {
    return detail::access::make<protection_domain>(core_->setup().domain);
}
ibv_qp* queue_pair::native_handle() const noexcept { return core_->native(); }

} // namespace verbena
