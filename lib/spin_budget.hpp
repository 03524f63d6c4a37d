#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>

namespace verbena::detail {

/// How long to look for work before sleeping, learnt from the gaps between work and from what sleeping costs. To rent
/// or to buy: a gap that is looked through costs its length; to park after looking for `s` costs `s` and one park; who
/// knows the future pays the less of gap and park.
///
/// For any gaps whatever, at the end of each, what was paid is at most twice what was needed, and `first_cost`. To look
/// for as long as a park costs keeps that by itself. To park earlier may lose, so it is done where it has lately been
/// cheaper, and paid from what earlier gaps have left below the bound.
///
/// When a gap that was slept through had ended is known only from the wake-up, which is late: `most_late` of it proves
/// nothing. Otherwise a device that answers at once would look slow for ever to a reactor that sleeps at once.
class spin_budget {
  public:
    using duration = std::chrono::nanoseconds;
    static constexpr duration first_cost = std::chrono::microseconds{10}; ///< of a park, until some were measured
    static constexpr duration least_cost = std::chrono::microseconds{1};
    static constexpr duration most_cost = std::chrono::microseconds{100};
    static constexpr int most_late = 4; ///< a wake-up, in costs of a park

    /// In the present gap: park when it has lasted so long, no longer than `park_cost`.
    duration spin_for() const noexcept { return spin_; }
    /// What a park is taken to cost in the present gap.
    duration park_cost() const noexcept { return cost_; }

    /// The gap has ended or, after a park, was seen to have. It was parked in if it was no shorter than `spin_for`;
    /// parks behind the first are not the choice of who wanted to sleep, and cost nothing here.
    void observed(duration gap) noexcept {
        if (gap < spin_) {
            credit_ += gap;
            lead_ = std::max(lead_, duration::zero()); // whatever the wake-ups made of other gaps
            learn(gap);
        } else {
            const duration proven = std::max(gap - most_late * cost_, duration::zero());
            credit_ += 2 * std::min(std::max(proven, spin_), cost_) - (spin_ + cost_);
            learn(proven);
        }
        cost_ = next_cost_;
        // What was saved long ago is no licence to lose it all at once.
        credit_ = std::min(credit_, 4 * cost_);
        // A look now and then: wake-ups may be later still.
        const bool look = lead_ >= duration::zero() || ++early_gaps_ % look_every == 0;
        // The worst gap ends as soon as it was parked in, and takes `cost_ - spin_`. That is never all of the credit:
        // without any even a reactor that idles for ever could not win it back.
        spin_ = look ? cost_ : std::max(cost_ - credit_ / 2, duration::zero());
    }

    /// A park was measured. From the next gap on it costs the median of the last five: a single one says little.
    void parked(duration cost) noexcept {
        recent_[next_] = cost;
        next_ = (next_ + 1) % recent_.size();
        auto sorted = recent_;
        std::ranges::sort(sorted);
        next_cost_ = std::clamp(sorted[sorted.size() / 2], least_cost, most_cost);
    }

  private:
    static constexpr int memory = 8; // gaps
    static constexpr unsigned look_every = 64;

    void learn(duration gap) noexcept { lead_ += cost_ - (gap < cost_ ? gap : 2 * cost_) - lead_ / memory; }

    duration cost_ = first_cost;
    duration spin_ = first_cost;
    duration credit_ = first_cost; ///< twice what was needed, less what was paid
    duration lead_{};              ///< what to park at once would have cost more, in the last gaps, than to look first
    unsigned early_gaps_ = 0;
    duration next_cost_ = first_cost;
    std::array<duration, 5> recent_{first_cost, first_cost, first_cost, first_cost, first_cost};
    std::size_t next_ = 0;
};

} // namespace verbena::detail
