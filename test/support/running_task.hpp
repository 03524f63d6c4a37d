#pragma once

#include <verbena/detail/continuation.hpp>
#include <verbena/task.hpp>

#include <utility>

namespace support {

/// Awaits a task without a coroutine: starts it when it is made, destroys it when it is destroyed.
template <class T>
class running_task : verbena::detail::continuation {
  public:
    explicit running_task(verbena::task<T> t)
        : continuation(
              [](void* self) { static_cast<running_task*>(static_cast<continuation*>(self))->resumed_ = true; }),
          awaiter_(std::move(t).operator co_await()), ended_at_once_(!awaiter_.await_suspend(handle())) {}

    bool ended() const noexcept { return ended_at_once_ || resumed_; }
    bool ended_at_once() const noexcept { return ended_at_once_; }
    T get() { return awaiter_.await_resume(); }

  private:
    verbena::detail::task_awaiter<T> awaiter_;
    bool resumed_ = false;
    bool ended_at_once_;
};

} // namespace support
