#pragma once

#include <chrono>

namespace verbena {

/// What a reactor does when nothing happens. Thread-safe: a value.
class wait_policy {
  public:
    /// Never sleeps: least latency, one core busy all the time. The only policy for queues without a channel.
    static constexpr wait_policy spin_forever() noexcept { return wait_policy(std::chrono::nanoseconds::max()); }
    /// Polls for so long after something happened, then sleeps until there is an event.
    static constexpr wait_policy spin_then_park(std::chrono::nanoseconds spin) noexcept {
        return wait_policy(spin < std::chrono::nanoseconds::zero() ? std::chrono::nanoseconds::zero() : spin);
    }
    /// Sleeps as soon as nothing is there.
    static constexpr wait_policy park_at_once() noexcept { return wait_policy(std::chrono::nanoseconds::zero()); }

    constexpr bool parks() const noexcept { return spin_ != std::chrono::nanoseconds::max(); }
    constexpr std::chrono::nanoseconds spin() const noexcept { return spin_; }
    friend constexpr bool operator==(wait_policy, wait_policy) noexcept = default;

  private:
    explicit constexpr wait_policy(std::chrono::nanoseconds spin) noexcept : spin_(spin) {}
    std::chrono::nanoseconds spin_;
};

} // namespace verbena
