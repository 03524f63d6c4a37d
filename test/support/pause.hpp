#pragma once

#include <verbena/detail/list.hpp>
#include <verbena/detail/ready.hpp>

#include <coroutine>
#include <cstddef>

namespace support {

/// Where coroutines wait until the test resumes them by hand: `co_await here.wait()`. One that is destroyed leaves.
class pause {
    class awaiter : verbena::detail::ready_node {
      public:
        explicit awaiter(pause& p) noexcept : pause_(p) {}
        bool await_ready() const noexcept { return false; }
        void await_suspend(std::coroutine_handle<> coroutine) noexcept {
            continuation = coroutine;
            pause_.waiters_.push_back(*this);
        }
        void await_resume() const noexcept {}

      private:
        pause& pause_;
    };
    class operation {
      public:
        explicit operation(pause& p) noexcept : pause_(&p) {}
        awaiter operator co_await() && noexcept { return awaiter(*pause_); }

      private:
        pause* pause_;
    };

  public:
    operation wait() noexcept { return operation(*this); }

    std::size_t waiting() const {
        std::size_t count = 0;
        waiters_.for_each([&](auto&) { ++count; });
        return count;
    }
    /// Resumes the first that waits, from here: no queue is in between.
    void resume() { waiters_.pop_front().continuation.resume(); }

  private:
    verbena::detail::list<verbena::detail::ready_node> waiters_;
};

/// Counts the copies of itself that live: one for every frame or callable that holds it.
class tracker {
  public:
    explicit tracker(int& alive) noexcept : alive_(&alive) { ++*alive_; }
    tracker(const tracker& other) noexcept : alive_(other.alive_) { ++*alive_; }
    tracker& operator=(const tracker&) = delete;
    ~tracker() { --*alive_; }

  private:
    int* alive_;
};

} // namespace support
