#pragma once

#include <verbena/cm/connection.hpp>
#include <verbena/cm/socket_address.hpp>
#include <verbena/detail/cancellable_wait.hpp>

#include <coroutine>
#include <cstdint>
#include <memory>

namespace verbena {

namespace detail {
class listener_core;

/// The part of an awaiter of `connection_listener::next` that the listener knows.
class request_wait : public cancellable_wait {
  public:
    VERBENA_API explicit request_wait(listener_core* listener) noexcept;
    VERBENA_API ~request_wait();
    /// True: a request, or a reason why none will come, is there already.
    VERBENA_API bool take();
    VERBENA_API void wait(std::coroutine_handle<> waiting) noexcept;
    VERBENA_API result<connection> finish();

  private:
    std::shared_ptr<listener_core> listener_;
    result<void> outcome_;
    bool entitled_ = false; ///< the front of what came is its own
    bool finished_ = false;
};
} // namespace detail

/// The next request for a connection, to be accepted or rejected.
///
/// Completes when   a request is there that no earlier wait gets, or none will come.
/// In flight        any number of waits, served in their order.
/// Errors           `closed`: the listener or its manager was destroyed; `device_removed`; `invalid_argument`: an empty
///                  listener; `not_attached`; `wrong_thread`.
/// Cancel safety    class 2; nothing is lost: a request that woke a wait which is then destroyed goes to the next one.
/// Thread           reactor-bound.
///
///     while (auto request = co_await door.next()) scope.spawn(serve(std::move(*request)));
class [[nodiscard]] next_connection_operation {
  public:
    using result_type = result<connection>;

    class awaiter : public detail::request_wait {
      public:
        using request_wait::request_wait;
        bool await_ready() { return take(); }
        void await_suspend(std::coroutine_handle<> waiting) noexcept { wait(waiting); }
        result<connection> await_resume() { return finish(); }
    };

    explicit next_connection_operation(detail::listener_core* listener) noexcept : listener_(listener) {}
    awaiter operator co_await() && noexcept { return awaiter(listener_); }

  private:
    detail::listener_core* listener_;
};

/// How a listener is made.
struct listen_options {
    /// Requests that nobody has taken yet; those beyond are refused at once.
    std::uint32_t backlog = 128;
};

/// Where peers ask for connections. Move-only. Reactor-bound once its manager is attached, before that one thread at a
/// time. Destroying it ends its waits with `closed` and rejects the requests that nobody has taken.
/// Source: rdma_listen(3).
class VERBENA_API connection_listener {
  public:
    connection_listener() noexcept;
    connection_listener(connection_listener&& other) noexcept;
    connection_listener& operator=(connection_listener&& other) noexcept;
    ~connection_listener();
    explicit operator bool() const noexcept { return core_ != nullptr; }

    /// See `next_connection_operation`.
    next_connection_operation next() const noexcept { return next_connection_operation(core_.get()); }
    /// With the port that the kernel chose for port 0.
    socket_address local_address() const noexcept;

  private:
    friend struct detail::access;
    explicit connection_listener(std::shared_ptr<detail::listener_core> core) noexcept;

    std::shared_ptr<detail::listener_core> core_;
};

} // namespace verbena
