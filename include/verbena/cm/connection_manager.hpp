#pragma once

#include <verbena/cm/connection.hpp>
#include <verbena/cm/connection_listener.hpp>
#include <verbena/cm/socket_address.hpp>
#include <verbena/detail/cancellable_wait.hpp>

#include <coroutine>
#include <cstdint>
#include <memory>

namespace verbena {

namespace detail {
class connection_manager_core;

/// The part of an awaiter of `connection_manager::resolve` that the manager knows.
class resolve_wait : public cancellable_wait {
  public:
    VERBENA_API resolve_wait(connection_manager_core* manager, const socket_address& to) noexcept;
    VERBENA_API ~resolve_wait();
    /// False: it has failed at once.
    VERBENA_API bool wait(std::coroutine_handle<> waiting);
    VERBENA_API result<connection> finish();
    VERBENA_API void cancel(errc cause, list<ready_node>& woken) noexcept;

  private:
    std::shared_ptr<connection_manager_core> manager_;
    socket_address to_;
    std::shared_ptr<connection_core> connection_;
    result<void> outcome_;
};
} // namespace detail

/// The way to an address: the device, the route.
///
/// Completes when   both are found; the kernel is given two seconds for each.
/// In flight        any number.
/// Errors           `not_found`: no RDMA device leads there; `peer_unreachable`: no network route, or nobody has that
///                  address; `invalid_argument`: an empty manager or address; `resource`; `closed`: the manager was
///                  destroyed; `device_removed`; `not_attached`; `wrong_thread`.
/// Cancel safety    class 2; nothing is left of it.
/// Thread           reactor-bound.
///
///     auto peer = co_await manager.resolve(address);
class [[nodiscard]] resolve_operation {
  public:
    using result_type = result<connection>;

    class awaiter : public detail::resolve_wait {
      public:
        using resolve_wait::resolve_wait;
        bool await_ready() const noexcept { return false; }
        bool await_suspend(std::coroutine_handle<> waiting) { return wait(waiting); }
        result<connection> await_resume() { return finish(); }
    };

    resolve_operation(detail::connection_manager_core* manager, const socket_address& to) noexcept
        : manager_(manager), to_(to) {}
    awaiter operator co_await() && noexcept { return {manager_, to_}; }

  private:
    detail::connection_manager_core* manager_;
    socket_address to_;
};

/// Since the manager was made. Of a connection that was moved, each manager counts what it saw.
struct connection_manager_stats {
    std::uint64_t requests = 0;     ///< that arrived
    std::uint64_t refused = 0;      ///< of those, beyond a listener's backlog
    std::uint64_t rejected = 0;     ///< of those, by `connection::reject`
    std::uint64_t established = 0;  ///< on either side
    std::uint64_t disconnected = 0; ///< of those, by either side
    std::uint64_t failed = 0;       ///< resolutions and handshakes
};

/// Resolves addresses, listens, and hears of what becomes of connections, once it is attached to a reactor
/// (`reactor::attach`). An event channel of librdmacm.
///
/// Move-only. Reactor-bound once it is attached, before that one thread at a time; `connection::move_to` may name it on
/// any thread. Destroying it ends the waits of its listeners and connections with `closed`; nothing is heard of these
/// any more, but they stay connected until they are destroyed. When its reactor is gone, all fails with `not_attached`.
/// Source: rdma_cm(7), rdma_create_event_channel(3), rdma_get_cm_event(3).
class VERBENA_API connection_manager {
  public:
    /// Errors: `unsupported`: no /dev/infiniband/rdma_cm, or no RDMA device; `access_denied`; `resource`.
    static result<connection_manager> create();

    connection_manager() noexcept;
    connection_manager(connection_manager&& other) noexcept;
    connection_manager& operator=(connection_manager&& other) noexcept;
    ~connection_manager();
    explicit operator bool() const noexcept { return core_ != nullptr; }

    /// See `resolve_operation`.
    resolve_operation resolve(const socket_address& to) const noexcept { return {core_.get(), to}; }
    /// From now on peers can ask. At 0.0.0.0 or :: on all devices; port 0: the kernel chooses.
    /// Errors: `in_use`: the port; `not_found`: the address is not of an RDMA device here; `invalid_argument`: an empty
    /// manager or address, a backlog of 0; `access_denied`; `resource`; `closed`; `wrong_thread`.
    result<connection_listener> listen(const socket_address& at, const listen_options& options = {}) const;

    connection_manager_stats stats() const noexcept; ///< up to now

  private:
    friend struct detail::access;
    explicit connection_manager(std::shared_ptr<detail::connection_manager_core> core) noexcept;

    std::shared_ptr<detail::connection_manager_core> core_;
};

} // namespace verbena
