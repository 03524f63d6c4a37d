#pragma once

#include <chrono>

namespace verbena {

/// What a reactor does when nothing happens: look again (spin), or sleep until there is an event (park). Looking costs
/// the core as long as it lasts, but sees what comes at once; to sleep and wake costs some microseconds each time, in
/// CPU time and in latency. A value.
class wait_policy {
  public:
    /// The default. Polls only as long as a park would cost, between 1 and 100 µs, and then sleeps; sleeps sooner, down
    /// to at once, where that has been cheaper lately. Each reactor learns this from the gaps between its work and from
    /// the CPU time that its parks take. Whatever the gaps, spinning and parks cost at most twice what they would with
    /// all gaps known beforehand. An idle reactor so costs what it would under `park_at_once`; one that is busy polls
    /// as under `spin_forever`; one whose gaps are longer than a park sleeps in each, which is the cheapest, not the
    /// fastest.
    static constexpr wait_policy adaptive() noexcept { return wait_policy(std::chrono::microseconds{100}, true); }
    /// Never sleeps: least latency, one core busy all the time. The only policy for queues without a channel.
    static constexpr wait_policy spin_forever() noexcept { return wait_policy(std::chrono::nanoseconds::max()); }
    /// Polls for so long after something happened, then sleeps until there is an event.
    static constexpr wait_policy spin_then_park(std::chrono::nanoseconds spin) noexcept {
        return wait_policy(spin < std::chrono::nanoseconds::zero() ? std::chrono::nanoseconds::zero() : spin);
    }
    /// Sleeps as soon as nothing is there.
    static constexpr wait_policy park_at_once() noexcept { return wait_policy(std::chrono::nanoseconds::zero()); }

    /// Whether it ever sleeps.
    constexpr bool parks() const noexcept { return spin_ != std::chrono::nanoseconds::max(); }
    constexpr bool adapts() const noexcept { return adapts_; } ///< whether it is `adaptive`
    /// The longest it polls after something happened; the maximum if it never sleeps.
    constexpr std::chrono::nanoseconds spin() const noexcept { return spin_; }
    friend constexpr bool operator==(wait_policy, wait_policy) noexcept = default;

  private:
    explicit constexpr wait_policy(std::chrono::nanoseconds spin, bool adapts = false) noexcept
        : spin_(spin), adapts_(adapts) {}
    std::chrono::nanoseconds spin_;
    bool adapts_;
};

} // namespace verbena
