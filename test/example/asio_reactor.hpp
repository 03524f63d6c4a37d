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

/// The reactor must not have run or polled before. It outlives this, and this everything that is awaited through it.
/// As long as this lives `io.run()` has something to wait for: end it with `io.stop()`.
class asio_reactor {
  public:
    asio_reactor(asio::io_context& io, verbena::reactor& reactor)
        : reactor_(reactor), handle_(io, reactor.native_handle().value()) {
        turn();
    }
    ~asio_reactor() { handle_.release(); } // the descriptor is the reactor's
    asio_reactor(const asio_reactor&) = delete;
    asio_reactor& operator=(const asio_reactor&) = delete;

    /// Runs a task on the reactor: `auto text = co_await verbs.run(fetch(qp, inbox));`. If the Asio coroutine is
    /// cancelled, the task is told to stop; if it is destroyed, so is the task.
    template <class T>
    asio::awaitable<T> run(verbena::task<T> work) {
        verbena::scope scope; // in the frame: what is awaited here dies with it
        outcome<T> out;
        co_await asio::async_initiate<const asio::use_awaitable_t<>, void()>(
            [&](auto handler) {
                if (auto slot = asio::get_associated_cancellation_slot(handler); slot.is_connected())
                    slot.assign([this, &scope](asio::cancellation_type) {
                        scope.request_stop();
                        turn();
                    });
                // Asio goes on after the turn, not within it: there the scope may end.
                auto done = std::make_shared<decltype(handler)>(std::move(handler));
                scope.spawn(finish(std::move(work), out, [done] { asio::post(std::move(*done)); }));
                turn();
            },
            asio::use_awaitable);
        if (out.failure) std::rethrow_exception(out.failure);
        if constexpr (!std::is_void_v<T>) co_return std::move(*out.value);
    }

    /// After anything else that was begun on the reactor outside of it.
    void turn() {
        do
            while (reactor_.poll().value() > 0) {}
        while (reactor_.prepare_wait().value() == verbena::wait_state::ready);
        if (std::exchange(waiting_, true)) return;
        handle_.async_wait(handle_.wait_read, [this](const asio::error_code& failed) {
            if (failed) return; // this has been destroyed
            waiting_ = false;
            turn();
        });
    }

  private:
    template <class T>
    struct outcome {
        std::optional<std::conditional_t<std::is_void_v<T>, std::monostate, T>> value;
        std::exception_ptr failure;
    };

    template <class T, class Done>
    static verbena::task<> finish(verbena::task<T> work, outcome<T>& out, Done done) {
        try {
            if constexpr (std::is_void_v<T>)
                co_await std::move(work);
            else
                out.value.emplace(co_await std::move(work));
        } catch (...) {
            out.failure = std::current_exception();
        }
        done();
    }

    verbena::reactor& reactor_;
    asio::posix::stream_descriptor handle_;
    bool waiting_ = false;
};
// README: end
