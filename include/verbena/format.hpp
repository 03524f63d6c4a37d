#pragma once

/// @file
/// How the library's types print with fmt. Including this header is what makes a program need fmt.

#include <verbena/async_event.hpp>
#if __has_include(<verbena/cm/socket_address.hpp>) // of builds with librdmacm
#include <verbena/cm/socket_address.hpp>
#endif
#include <verbena/error.hpp>
#include <verbena/log.hpp>
#include <verbena/reactor.hpp>
#include <verbena/receiver.hpp>
#include <verbena/verbs/address_handle.hpp>
#include <verbena/verbs/buffer_pool.hpp>
#include <verbena/verbs/completion_queue.hpp>
#include <verbena/verbs/memory_region.hpp>
#include <verbena/verbs/queue_pair.hpp>
#include <verbena/verbs/shared_receive_queue.hpp>

#include <fmt/format.h>

#include <arpa/inet.h>

#include <utility>

/// @cond internal
namespace verbena::detail {

/// Base of the formatters: takes no format specification but `{}`.
struct plain_formatter {
    constexpr auto parse(fmt::format_parse_context& context) { return context.begin(); }
};

constexpr const char* name_of(log_level level) noexcept {
    switch (level) {
    case log_level::debug: return "debug";
    case log_level::info: return "info";
    case log_level::warning: return "warning";
    case log_level::error: return "error";
    }
    return "unknown";
}

constexpr const char* name_of(async_event_kind kind) noexcept {
    switch (kind) {
    case async_event_kind::completion_queue_error: return "completion queue error";
    case async_event_kind::queue_pair_fatal: return "queue pair fatal";
    case async_event_kind::queue_pair_request_error: return "queue pair request error";
    case async_event_kind::queue_pair_access_error: return "queue pair access error";
    case async_event_kind::communication_established: return "communication established";
    case async_event_kind::send_queue_drained: return "send queue drained";
    case async_event_kind::path_migrated: return "path migrated";
    case async_event_kind::path_migration_error: return "path migration error";
    case async_event_kind::device_fatal: return "device fatal";
    case async_event_kind::port_active: return "port active";
    case async_event_kind::port_error: return "port error";
    case async_event_kind::lid_change: return "LID change";
    case async_event_kind::pkey_change: return "P_Key change";
    case async_event_kind::subnet_manager_change: return "subnet manager change";
    case async_event_kind::shared_receive_queue_error: return "shared receive queue error";
    case async_event_kind::shared_receive_queue_limit: return "shared receive queue limit";
    case async_event_kind::last_receive_taken: return "last receive taken";
    case async_event_kind::client_reregister: return "client reregister";
    case async_event_kind::gid_change: return "GID change";
    case async_event_kind::work_queue_fatal: return "work queue fatal";
    }
    return "unknown";
}

constexpr const char* name_of(async_element element) noexcept {
    switch (element) {
    case async_element::device: return "device";
    case async_element::port: return "port";
    case async_element::queue_pair: return "queue pair";
    case async_element::completion_queue: return "completion queue";
    case async_element::shared_receive_queue: return "shared receive queue";
    case async_element::work_queue: return "work queue";
    }
    return "unknown";
}

constexpr const char* name_of(link_layer link) noexcept {
    switch (link) {
    case link_layer::unspecified: return "unspecified";
    case link_layer::infiniband: return "InfiniBand";
    case link_layer::ethernet: return "Ethernet";
    }
    return "unknown";
}

constexpr const char* name_of(gid_type type) noexcept {
    switch (type) {
    case gid_type::infiniband: return "InfiniBand";
    case gid_type::roce_v1: return "RoCE v1";
    case gid_type::roce_v2: return "RoCE v2";
    }
    return "unknown";
}

constexpr const char* name_of(completion_opcode opcode) noexcept {
    switch (opcode) {
    case completion_opcode::send: return "send";
    case completion_opcode::rdma_write: return "RDMA write";
    case completion_opcode::rdma_read: return "RDMA read";
    case completion_opcode::compare_and_swap: return "compare and swap";
    case completion_opcode::fetch_and_add: return "fetch and add";
    case completion_opcode::bind_memory_window: return "bind memory window";
    case completion_opcode::local_invalidate: return "local invalidate";
    case completion_opcode::receive: return "receive";
    case completion_opcode::receive_rdma_write: return "receive of RDMA write";
    }
    return "unknown";
}

constexpr const char* name_of(queue_pair_type type) noexcept {
    switch (type) {
    case queue_pair_type::rc: return "RC";
    case queue_pair_type::ud: return "UD";
    }
    return "unknown";
}

constexpr const char* name_of(queue_pair_state state) noexcept {
    switch (state) {
    case queue_pair_state::reset: return "RESET";
    case queue_pair_state::init: return "INIT";
    case queue_pair_state::ready_to_receive: return "RTR";
    case queue_pair_state::ready_to_send: return "RTS";
    case queue_pair_state::drained: return "SQD";
    case queue_pair_state::send_error: return "SQE";
    case queue_pair_state::error: return "ERR";
    }
    return "unknown";
}

constexpr const char* name_of(post_mode mode) noexcept {
    switch (mode) {
    case post_mode::immediate: return "immediate";
    case post_mode::batched: return "batched";
    }
    return "unknown";
}

constexpr const char* name_of(work_kind kind) noexcept {
    switch (kind) {
    case work_kind::send: return "send";
    case work_kind::recv: return "recv";
    case work_kind::write: return "RDMA write";
    case work_kind::read: return "RDMA read";
    case work_kind::fetch_add: return "fetch and add";
    case work_kind::compare_swap: return "compare and swap";
    }
    return "unknown";
}

} // namespace verbena::detail

template <>
struct fmt::formatter<verbena::errc> : verbena::detail::plain_formatter {
    auto format(verbena::errc condition, fmt::format_context& context) const {
        return fmt::format_to(context.out(), "{}", verbena::make_code(condition).message());
    }
};

template <>
struct fmt::formatter<verbena::error> : verbena::detail::plain_formatter {
    auto format(const verbena::error& e, fmt::format_context& context) const {
        return fmt::format_to(context.out(), "{}", e.message());
    }
};

template <>
struct fmt::formatter<verbena::log_level> : verbena::detail::plain_formatter {
    auto format(verbena::log_level level, fmt::format_context& context) const {
        return fmt::format_to(context.out(), "{}", verbena::detail::name_of(level));
    }
};

template <>
struct fmt::formatter<verbena::link_layer> : verbena::detail::plain_formatter {
    auto format(verbena::link_layer link, fmt::format_context& context) const {
        return fmt::format_to(context.out(), "{}", verbena::detail::name_of(link));
    }
};

template <>
struct fmt::formatter<verbena::gid_type> : verbena::detail::plain_formatter {
    auto format(verbena::gid_type type, fmt::format_context& context) const {
        return fmt::format_to(context.out(), "{}", verbena::detail::name_of(type));
    }
};

template <>
struct fmt::formatter<verbena::gid> : verbena::detail::plain_formatter {
    auto format(const verbena::gid& id, fmt::format_context& context) const {
        char text[INET6_ADDRSTRLEN] = "";
        inet_ntop(AF_INET6, id.bytes.data(), text, sizeof text);
        return fmt::format_to(context.out(), "{}", static_cast<const char*>(text));
    }
};

template <>
struct fmt::formatter<verbena::gid_entry> : verbena::detail::plain_formatter {
    auto format(const verbena::gid_entry& entry, fmt::format_context& context) const {
        return fmt::format_to(context.out(), "gid[{}] {} ({})", entry.index, entry.gid, entry.type);
    }
};

template <>
struct fmt::formatter<verbena::port_attributes> : verbena::detail::plain_formatter {
    auto format(const verbena::port_attributes& port, fmt::format_context& context) const {
        return fmt::format_to(context.out(), "port({}, {}, MTU {}, LID {})", port.link, ibv_port_state_str(port.state),
                              port.active_mtu, port.lid);
    }
};

template <>
struct fmt::formatter<verbena::context> : verbena::detail::plain_formatter {
    auto format(const verbena::context& context, fmt::format_context& out) const {
        return fmt::format_to(out.out(), "context({})", context ? context.name().c_str() : "empty");
    }
};

template <>
struct fmt::formatter<verbena::protection_domain> : verbena::detail::plain_formatter {
    auto format(const verbena::protection_domain& domain, fmt::format_context& context) const {
        if (!domain) return fmt::format_to(context.out(), "protection_domain(empty)");
        return fmt::format_to(context.out(), "protection_domain({}, handle {})", domain.context().name(),
                              domain.native_handle()->handle);
    }
};

template <>
struct fmt::formatter<verbena::access_flags> : verbena::detail::plain_formatter {
    auto format(verbena::access_flags flags, fmt::format_context& context) const {
        using verbena::access_flags;
        auto out = fmt::format_to(context.out(), "local_read");
        const auto add = [&](access_flags flag, const char* name) {
            if (has(flags, flag)) out = fmt::format_to(out, "|{}", name);
        };
        add(access_flags::local_write, "local_write");
        add(access_flags::remote_write, "remote_write");
        add(access_flags::remote_read, "remote_read");
        add(access_flags::remote_atomic, "remote_atomic");
        add(access_flags::relaxed_ordering, "relaxed_ordering");
        return out;
    }
};

#if __has_include(<verbena/cm/socket_address.hpp>)
template <>
struct fmt::formatter<verbena::socket_address> : verbena::detail::plain_formatter {
    auto format(const verbena::socket_address& address, fmt::format_context& context) const {
        return fmt::format_to(context.out(), "{}", address.to_string());
    }
};
#endif

template <>
struct fmt::formatter<verbena::memory_slice> : verbena::detail::plain_formatter {
    auto format(const verbena::memory_slice& slice, fmt::format_context& context) const {
        return fmt::format_to(context.out(), "memory_slice({:#x}, {} bytes, lkey {:#x})", slice.address, slice.length,
                              slice.lkey);
    }
};

template <>
struct fmt::formatter<verbena::remote_slice> : verbena::detail::plain_formatter {
    auto format(const verbena::remote_slice& slice, fmt::format_context& context) const {
        return fmt::format_to(context.out(), "remote_slice({:#x}, {} bytes, rkey {:#x})", slice.address, slice.length,
                              slice.rkey);
    }
};

template <>
struct fmt::formatter<verbena::memory_region> : verbena::detail::plain_formatter {
    auto format(const verbena::memory_region& region, fmt::format_context& context) const {
        if (!region) return fmt::format_to(context.out(), "memory_region(empty)");
        return fmt::format_to(context.out(), "memory_region({}, {} bytes, lkey {:#x}, rkey {:#x})",
                              static_cast<const void*>(region.bytes().data()), region.bytes().size(), region.lkey(),
                              region.rkey());
    }
};

template <>
struct fmt::formatter<verbena::pool_buffer> : verbena::detail::plain_formatter {
    auto format(const verbena::pool_buffer& buffer, fmt::format_context& context) const {
        if (!buffer) return fmt::format_to(context.out(), "pool_buffer(empty)");
        return fmt::format_to(context.out(), "pool_buffer({} of {} bytes)", buffer.size(), buffer.capacity());
    }
};

template <>
struct fmt::formatter<verbena::buffer_pool> : verbena::detail::plain_formatter {
    auto format(const verbena::buffer_pool& pool, fmt::format_context& context) const {
        if (!pool) return fmt::format_to(context.out(), "buffer_pool(empty)");
        return fmt::format_to(context.out(), "buffer_pool({} of {} buffers free, {} bytes each)", pool.available(),
                              pool.count(), pool.buffer_bytes());
    }
};

template <>
struct fmt::formatter<verbena::completion_channel> : verbena::detail::plain_formatter {
    auto format(const verbena::completion_channel& channel, fmt::format_context& context) const {
        if (!channel) return fmt::format_to(context.out(), "completion_channel(empty)");
        return fmt::format_to(context.out(), "completion_channel({}, fd {})", channel.context().name(), channel.fd());
    }
};

template <>
struct fmt::formatter<verbena::completion_opcode> : verbena::detail::plain_formatter {
    auto format(verbena::completion_opcode opcode, fmt::format_context& context) const {
        return fmt::format_to(context.out(), "{}", verbena::detail::name_of(opcode));
    }
};

template <>
struct fmt::formatter<verbena::work_completion> : verbena::detail::plain_formatter {
    auto format(const verbena::work_completion& done, fmt::format_context& context) const {
        auto out = fmt::format_to(context.out(), "completion({:#x} on queue pair {}: ", done.wr_id(), done.qp_num());
        if (!done.ok())
            return fmt::format_to(out, "{}, vendor error {:#x})", done.status().message(), done.vendor_error());
        out = fmt::format_to(out, "{}", *done.opcode());
        if (auto bytes = done.byte_len()) out = fmt::format_to(out, ", {} bytes", *bytes);
        if (auto immediate = done.immediate()) out = fmt::format_to(out, ", immediate {:#x}", *immediate);
        return fmt::format_to(out, ")");
    }
};

template <>
struct fmt::formatter<verbena::polled_completions> : verbena::detail::plain_formatter {
    auto format(const verbena::polled_completions& polled, fmt::format_context& context) const {
        auto out = fmt::format_to(context.out(), "[");
        const char* separator = "";
        for (verbena::work_completion done : polled)
            out = fmt::format_to(out, "{}{}", std::exchange(separator, ", "), done);
        return fmt::format_to(out, "]");
    }
};

template <>
struct fmt::formatter<verbena::completion_queue> : verbena::detail::plain_formatter {
    auto format(const verbena::completion_queue& queue, fmt::format_context& context) const {
        if (!queue) return fmt::format_to(context.out(), "completion_queue(empty)");
        return fmt::format_to(context.out(), "completion_queue({}, handle {}, {} entries{}{})", queue.context().name(),
                              queue.native_handle()->handle, queue.capacity(), queue.channel() ? "" : ", no channel",
                              queue.attached() ? ", attached" : "");
    }
};

template <>
struct fmt::formatter<verbena::shared_receive_queue> : verbena::detail::plain_formatter {
    auto format(const verbena::shared_receive_queue& queue, fmt::format_context& context) const {
        if (!queue) return fmt::format_to(context.out(), "shared_receive_queue(empty)");
        return fmt::format_to(context.out(), "shared_receive_queue({}, {} receives of {} slices)",
                              queue.domain().context().name(), queue.max_wr(), queue.max_sge());
    }
};

template <>
struct fmt::formatter<verbena::address_vector> : verbena::detail::plain_formatter {
    auto format(const verbena::address_vector& address, fmt::format_context& context) const {
        auto out = fmt::format_to(context.out(), "address(port {}", address.port);
        if (address.destination) out = fmt::format_to(out, ", {} by gid[{}]", *address.destination, address.gid_index);
        if (address.lid != 0) out = fmt::format_to(out, ", LID {}", address.lid);
        return fmt::format_to(out, ")");
    }
};

template <>
struct fmt::formatter<verbena::address_handle> : verbena::detail::plain_formatter {
    auto format(const verbena::address_handle& address, fmt::format_context& context) const {
        if (!address) return fmt::format_to(context.out(), "address_handle(empty)");
        return fmt::format_to(context.out(), "address_handle({}, handle {})", address.domain().context().name(),
                              address.native_handle()->handle);
    }
};

template <>
struct fmt::formatter<verbena::queue_pair_type> : verbena::detail::plain_formatter {
    auto format(verbena::queue_pair_type type, fmt::format_context& context) const {
        return fmt::format_to(context.out(), "{}", verbena::detail::name_of(type));
    }
};

template <>
struct fmt::formatter<verbena::queue_pair_state> : verbena::detail::plain_formatter {
    auto format(verbena::queue_pair_state state, fmt::format_context& context) const {
        return fmt::format_to(context.out(), "{}", verbena::detail::name_of(state));
    }
};

template <>
struct fmt::formatter<verbena::post_mode> : verbena::detail::plain_formatter {
    auto format(verbena::post_mode mode, fmt::format_context& context) const {
        return fmt::format_to(context.out(), "{}", verbena::detail::name_of(mode));
    }
};

template <>
struct fmt::formatter<verbena::work_kind> : verbena::detail::plain_formatter {
    auto format(verbena::work_kind kind, fmt::format_context& context) const {
        return fmt::format_to(context.out(), "{}", verbena::detail::name_of(kind));
    }
};

template <>
struct fmt::formatter<verbena::endpoint> : verbena::detail::plain_formatter {
    auto format(const verbena::endpoint& e, fmt::format_context& context) const {
        return fmt::format_to(context.out(), "endpoint({} queue pair {}, psn {}, {}, gid {}, LID {}, MTU {})", e.type,
                              e.qp_num, e.psn, e.link, e.gid, e.lid, e.mtu);
    }
};

template <>
struct fmt::formatter<verbena::queue_pair> : verbena::detail::plain_formatter {
    auto format(const verbena::queue_pair& qp, fmt::format_context& context) const {
        return fmt::format_to(context.out(), "queue_pair({} {} on {})", qp.type(), qp.qp_num(),
                              qp.domain().context().name());
    }
};

template <>
struct fmt::formatter<verbena::ud_destination> : verbena::detail::plain_formatter {
    auto format(const verbena::ud_destination& to, fmt::format_context& context) const {
        return fmt::format_to(context.out(), "ud_destination(queue pair {}, qkey {:#x})", to.qp_num(), to.qkey());
    }
};

template <>
struct fmt::formatter<verbena::work_request> : verbena::detail::plain_formatter {
    auto format(const verbena::work_request& request, fmt::format_context& context) const {
        return fmt::format_to(context.out(), "{}({} slices, {} bytes{})", request.kind, request.local.size(),
                              request.local.bytes(), request.signaled ? "" : ", unsignaled");
    }
};

template <>
struct fmt::formatter<verbena::message> : verbena::detail::plain_formatter {
    auto format(const verbena::message& message, fmt::format_context& context) const {
        auto out = fmt::format_to(context.out(), "message({} bytes on queue pair {}", message.bytes().length,
                                  message.qp_num());
        if (auto immediate = message.immediate()) out = fmt::format_to(out, ", immediate {:#x}", *immediate);
        return fmt::format_to(out, ")");
    }
};

template <>
struct fmt::formatter<verbena::receiver_stats> : verbena::detail::plain_formatter {
    auto format(const verbena::receiver_stats& stats, fmt::format_context& context) const {
        return fmt::format_to(context.out(), "{} messages, {} dropped, {} failed", stats.messages, stats.dropped,
                              stats.failed);
    }
};

template <>
struct fmt::formatter<verbena::receiver> : verbena::detail::plain_formatter {
    auto format(const verbena::receiver& receiver, fmt::format_context& context) const {
        return fmt::format_to(context.out(), "receiver({})", receiver.stats());
    }
};

template <>
struct fmt::formatter<verbena::async_event_kind> : verbena::detail::plain_formatter {
    auto format(verbena::async_event_kind kind, fmt::format_context& context) const {
        return fmt::format_to(context.out(), "{}", verbena::detail::name_of(kind));
    }
};

template <>
struct fmt::formatter<verbena::async_element> : verbena::detail::plain_formatter {
    auto format(verbena::async_element element, fmt::format_context& context) const {
        return fmt::format_to(context.out(), "{}", verbena::detail::name_of(element));
    }
};

template <>
struct fmt::formatter<verbena::async_event> : verbena::detail::plain_formatter {
    auto format(const verbena::async_event& event, fmt::format_context& context) const {
        const auto out = fmt::format_to(context.out(), "event({}, {}", event.kind, event.element);
        if (event.element == verbena::async_element::device) return fmt::format_to(out, ")");
        return fmt::format_to(out, " {})", event.number);
    }
};

template <>
struct fmt::formatter<verbena::wait_policy> : verbena::detail::plain_formatter {
    auto format(verbena::wait_policy policy, fmt::format_context& context) const {
        if (!policy.parks()) return fmt::format_to(context.out(), "spin_forever");
        if (policy.adapts()) return fmt::format_to(context.out(), "adaptive");
        if (policy == verbena::wait_policy::park_at_once()) return fmt::format_to(context.out(), "park_at_once");
        return fmt::format_to(context.out(), "spin_then_park({} ns)", policy.spin().count());
    }
};

template <>
struct fmt::formatter<verbena::reactor_stats> : verbena::detail::plain_formatter {
    auto format(const verbena::reactor_stats& s, fmt::format_context& context) const {
        return fmt::format_to(
            context.out(),
            "turns {} polls {} ({} empty) completions {} resumes {} arms {} events {} ({} unattached) "
            "parks {} wakes {} enters {} rescued {} stale {} foreign {} outstanding {} backend {}",
            s.turns, s.polls, s.empty_polls, s.completions, s.resumes, s.arms, s.events, s.unattached_events, s.parks,
            s.wakes, s.enters, s.rescued, s.stale, s.foreign, s.outstanding, s.backend);
    }
};
/// @endcond
