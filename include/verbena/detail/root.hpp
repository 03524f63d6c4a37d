#pragma once

#include <verbena/detail/outcome.hpp>
#include <verbena/detail/ready.hpp>
#include <verbena/task.hpp>

#include <coroutine>
#include <exception>
#include <type_traits>
#include <utility>

namespace verbena::detail {

/// What `run` waits for: a coroutine of nobody, with its frame.
class root_base : public ready_node {
  public:
    root_base(const root_base&) = delete;
    root_base& operator=(const root_base&) = delete;
    ~root_base() { continuation.destroy(); }
    bool done() const noexcept { return continuation.done(); }

  protected:
    struct body {
        struct promise_type {
            body get_return_object() noexcept { return {std::coroutine_handle<promise_type>::from_promise(*this)}; }
            std::suspend_always initial_suspend() const noexcept { return {}; }
            std::suspend_always final_suspend() const noexcept { return {}; }
            void return_void() const noexcept {}
            void unhandled_exception() const noexcept {} // the body catches all
        };
        std::coroutine_handle<> handle;
    };

    explicit root_base(body b) noexcept { continuation = b.handle; }
};

template <class T>
class root : public root_base {
  public:
    explicit root(task<T> main) : root_base(run(std::move(main), result_)) {}
    T take() { return result_.take(); }

  private:
    // Starts later, when `result` is alive.
    static body run(task<T> main, outcome<T>& result) {
        try {
            if constexpr (std::is_void_v<T>) {
                co_await std::move(main);
                result.set_value();
            } else {
                result.set_value(co_await std::move(main));
            }
        } catch (...) {
            result.set_exception(std::current_exception());
        }
    }

    outcome<T> result_;
};

} // namespace verbena::detail
