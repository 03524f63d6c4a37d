#pragma once

// README: asio adapter
// A reactor inside an asio::io_context that one thread runs: copy it into a program that uses both.

#include <verbena/verbena.hpp>

#if defined(__clang__) && !defined(ASIO_HAS_CO_AWAIT) // Asio of Debian 12 does not see that clang++ has coroutines
#define ASIO_HAS_CO_AWAIT 1
#define ASIO_HAS_STD_COROUTINE 1
#endif
#include <asio.hpp>

#include <exception>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

/// The reactor must not have run or polled before. It outlives this, and this everything that is awaited through it.
/// As long as this lives `io.run()` has something to wait for: end it with `io.stop()`. What a posted function throws
/// leaves from `io.run()`, which can be called again. Before fork(2) and after it Asio wants `io.notify_fork`.
class asio_reactor {
  public:
    asio_reactor(asio::io_context& io, verbena::reactor& reactor)
        : io_(io), reactor_(reactor), handle_(io, reactor.native_handle().value()) {
        turn_soon();
    }
    asio_reactor(const asio_reactor&) = delete;
    asio_reactor& operator=(const asio_reactor&) = delete;

    /// Runs a task on the reactor: `auto text = co_await verbs.run(fetch(qp, inbox));`. If the Asio coroutine is
    /// cancelled, the task is told to stop, and awaited; if it is destroyed, as with its io_context, so is the task.
    template <class T>
    asio::awaitable<T> run(verbena::task<T> work) {
        // In this frame: what is awaited here dies with it. The timer waits for the end of the task, not for a time.
        asio::steady_timer ended(io_, asio::steady_timer::time_point::max());
        outcome<T> out;
        verbena::scope scope;
        scope.spawn(finish(reactor_, std::move(work), out, ended));
        const bool throws = co_await asio::this_coro::throw_if_cancelled();
        co_await asio::this_coro::throw_if_cancelled(false);
        for (turn_soon(); !out.ended; turn_soon()) {
            asio::error_code cancelled;
            co_await ended.async_wait(asio::redirect_error(asio::use_awaitable, cancelled));
            if (!out.ended) scope.spawn(stop(reactor_, scope));
        }
        co_await asio::this_coro::throw_if_cancelled(throws);
        if (out.failure) std::rethrow_exception(out.failure);
        if constexpr (!std::is_void_v<T>) co_return std::move(*out.value);
    }

    /// After anything else that was begun on the reactor outside of it.
    void turn_soon() {
        if (std::exchange(posted_, true)) return;
        asio::post(io_, [this, alive = std::weak_ptr(alive_)] {
            if (alive.expired()) return;
            posted_ = false;
            turn();
        });
    }

  private:
    template <class T>
    struct outcome {
        bool ended = false;
        std::optional<std::conditional_t<std::is_void_v<T>, std::monostate, T>> value;
        std::exception_ptr failure;
    };

    template <class T>
    static verbena::task<> finish(verbena::reactor& reactor, verbena::task<T> work, outcome<T>& out,
                                  asio::steady_timer& ended) {
        co_await reactor.yield(); // the rest is within a turn of this reactor, whose limits it then has
        try {
            if constexpr (std::is_void_v<T>)
                co_await std::move(work);
            else
                out.value.emplace(co_await std::move(work));
        } catch (...) {
            out.failure = std::current_exception();
        }
        out.ended = true;
        ended.cancel(); // Asio goes on after the turn, not within it: there the scope may end
    }

    static verbena::task<> stop(verbena::reactor& reactor, verbena::scope& scope) {
        co_await reactor.yield();
        scope.request_stop();
    }

    /// One turn, so that Asio's own work gets its own.
    void turn() {
        std::exception_ptr thrown;
        bool more = true;
        try {
            more = reactor_.poll().value() > 0 || reactor_.prepare_wait().value() == verbena::wait_state::ready;
        } catch (...) { // of a posted function, or a foreign coroutine
            thrown = std::current_exception();
        }
        if (more)
            turn_soon();
        else
            wait();
        if (thrown) std::rethrow_exception(thrown);
    }
    void wait() {
        if (std::exchange(waiting_, true)) return;
        handle_.async_wait(handle_.wait_read, [this](const asio::error_code& failed) {
            if (failed) return; // this has been destroyed
            waiting_ = false;
            turn();
        });
    }

    /// The descriptor is the reactor's.
    struct borrowed : asio::posix::stream_descriptor {
        using asio::posix::stream_descriptor::basic_stream_descriptor;
        ~borrowed() { release(); }
    };

    asio::io_context& io_;
    verbena::reactor& reactor_;
    borrowed handle_;
    std::shared_ptr<char> alive_ = std::make_shared<char>();
    bool posted_ = false;
    bool waiting_ = false;
};
// README: end
