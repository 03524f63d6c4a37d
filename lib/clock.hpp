#pragma once

#include <verbena/detail/timer_queue.hpp>

#include <chrono>
#include <thread>

#include <time.h>

namespace verbena::detail {

/// The monotonic clock all deadlines are measured by. A test replaces it to make time pass without waiting.
class clock_source {
  public:
    virtual ~clock_source() = default;
    virtual time_point now() noexcept = 0;
    /// Returns when `now()` is `t` or later.
    virtual void wait_until(time_point t) noexcept = 0;
    /// The CPU time that the calling thread has used. It stands still where nobody counts it.
    virtual std::chrono::nanoseconds cpu_time() noexcept { return {}; }
};

/// The end of time for what would lie behind it.
template <class Duration>
time_point after(time_point now, Duration duration) noexcept {
    const bool ends = duration < std::chrono::floor<Duration>(time_point::max() - now);
    return ends ? now + duration : time_point::max();
}

class real_clock final : public clock_source {
  public:
    time_point now() noexcept override { return std::chrono::steady_clock::now(); }
    void wait_until(time_point t) noexcept override { std::this_thread::sleep_until(t); }
    /// A system call.
    std::chrono::nanoseconds cpu_time() noexcept override {
        timespec used{};
        ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
        return std::chrono::seconds{used.tv_sec} + std::chrono::nanoseconds{used.tv_nsec};
    }
};

} // namespace verbena::detail
