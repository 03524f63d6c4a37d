#pragma once

#include "clock.hpp"

#include <algorithm>
#include <chrono>

/// Time that passes only when told to: `wait_until` answers by jumping.
class manual_clock final : public verbena::detail::clock_source {
  public:
    using time_point = verbena::detail::time_point;

    time_point now() noexcept override { return now_; }
    void wait_until(time_point t) noexcept override { now_ = std::max(now_, t); }
    void advance(std::chrono::nanoseconds by) noexcept { now_ += by; }

  private:
    time_point now_{std::chrono::hours{1}};
};
