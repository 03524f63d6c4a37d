#pragma once

// What a reactor sleeps on, and the clock it reads, over a simulated device whose time is manual: sleeping makes the
// device act. Whether an event comes in time, too late or never is then a property of the seed, not of the machine.

#include "wait_backend.hpp"

#include <verbena/sim/control.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <poll.h>

namespace seeds {

namespace sim = verbena::sim;
using verbena::detail::time_point;

/// The manual clock of a device. Looking at it takes time, as polling does: so a reactor that spins with nothing to
/// poll gets on as well.
class device_clock final : public verbena::detail::clock_source {
  public:
    explicit device_clock(const sim::control& device) noexcept : device_(device) {}

    time_point now() noexcept override {
        device_.advance(std::chrono::nanoseconds{100});
        return time_point(device_.now());
    }
    void wait_until(time_point t) noexcept override {
        if (const time_point here(device_.now()); t > here) device_.advance(t - here);
    }

  private:
    sim::control device_;
};

/// A sleep that nothing can end, or should have ended already.
class wakeup_lost : public std::runtime_error {
    using runtime_error::runtime_error;
};

struct backend_options {
    /// How long after a completion its event may come: `seeded_options::max_delay`. An entry that is older, unpolled,
    /// and without a readable channel means a lost wakeup.
    std::chrono::nanoseconds event_delay{10'000};
    bool collects = false;                 ///< reports what is readable between sleeps too
    std::function<bool()> returns_early{}; ///< drawn once a sleep: it ends at once, for no reason
    std::function<void(bool begins)> on_sleep{};
};

/// Steps the device until a watched descriptor has something new, a wake came, or the deadline passed. As
/// `wait_backend` demands it is edge-triggered: what a watch leaves unread is not reported again until there is more.
class stepping_backend final : public verbena::detail::wait_backend {
  public:
    stepping_backend(const sim::control& device, backend_options options)
        : device_(device), options_(std::move(options)) {}

    const char* name() const noexcept override { return "simulated"; }

    verbena::result<void> add(verbena::detail::watch& w, int fd, unsigned events) override {
        auto free = std::ranges::find(watched_, nullptr, &watched::watch);
        if (free == watched_.end()) free = watched_.emplace(free);
        *free = {.watch = &w, .fd = fd, .events = static_cast<short>(events)};
        slot_of(w) = static_cast<std::uint32_t>(free - watched_.begin());
        return {};
    }
    verbena::result<void> remove(verbena::detail::watch& w) override {
        if (w.watching()) watched_[slot_of(w)].watch = nullptr;
        slot_of(w) = no_slot;
        return {};
    }

    bool pending() const noexcept override { return options_.collects && device_.ledger().events != collected_; }
    unsigned collect(unsigned budget) override {
        collected_ = device_.ledger().events;
        return look(collected_, budget);
    }

    verbena::result<unsigned> wait(std::optional<time_point> deadline) override {
        ++counters_.enters;
        if (options_.on_sleep) options_.on_sleep(true);
        const unsigned reported = sleep(deadline);
        if (options_.on_sleep) options_.on_sleep(false);
        return reported;
    }

    void wake() noexcept override { woken_.store(true); }

    std::uint64_t early_returns() const noexcept { return early_returns_; }
    std::uint64_t steps() const noexcept { return steps_; }
    std::uint64_t most_outstanding() const noexcept { return most_outstanding_; }

  private:
    struct watched {
        verbena::detail::watch* watch = nullptr;
        int fd = -1;
        short events = 0;
        bool was_readable = false;
        std::uint64_t seen = std::numeric_limits<std::uint64_t>::max(); ///< events of the device at the last look
    };

    unsigned sleep(std::optional<time_point> deadline) {
        if (options_.returns_early && options_.returns_early()) {
            ++early_returns_;
            return 0;
        }
        std::optional<time_point> unpolled_since;
        for (;;) {
            const auto ledger = device_.ledger();
            most_outstanding_ = std::max(most_outstanding_, ledger.outstanding);
            if (const unsigned reported = look(ledger.events, std::numeric_limits<unsigned>::max())) return reported;
            if (woken_.exchange(false)) return 0;
            const time_point now(device_.now());
            if (ledger.unpolled == 0)
                unpolled_since.reset();
            else if (!unpolled_since)
                unpolled_since = now;
            if (unpolled_since && now - *unpolled_since > options_.event_delay)
                throw wakeup_lost("a wakeup is lost: the reactor sleeps, " + std::to_string(ledger.unpolled) +
                                  " completions are unpolled, and no event came");
            if (deadline && now >= *deadline) return 0;
            const auto next = device_.next();
            if (!next && !deadline)
                throw wakeup_lost("the run is stuck: the reactor sleeps for ever, the device has nothing to do, " +
                                  std::to_string(ledger.unpolled) + " completions are unpolled, " +
                                  std::to_string(ledger.outstanding) + " requests outstanding");
            ++steps_;
            if (next && (!deadline || now + *next <= *deadline))
                device_.step();
            else
                device_.advance(*deadline - now);
        }
    }

    static bool readable(const watched& w) noexcept {
        pollfd fd{.fd = w.fd, .events = w.events, .revents = 0};
        return ::poll(&fd, 1, 0) > 0;
    }

    unsigned look(std::uint64_t events, unsigned budget) {
        unsigned reported = 0;
        // Whoever is told may add and remove watches.
        for (std::size_t i = 0; i < watched_.size() && reported < budget; ++i) {
            if (watched_[i].watch == nullptr) continue;
            pollfd fd{.fd = watched_[i].fd, .events = watched_[i].events, .revents = 0};
            const bool is = ::poll(&fd, 1, 0) > 0;
            const bool was = std::exchange(watched_[i].was_readable, is);
            const bool more = std::exchange(watched_[i].seen, events) != events;
            if (!is || (was && !more)) continue;
            ++reported;
            watched_[i].watch->ready(static_cast<unsigned short>(fd.revents));
            if (watched_[i].watch != nullptr) watched_[i].was_readable = readable(watched_[i]);
        }
        return reported;
    }

    sim::control device_;
    backend_options options_;
    std::vector<watched> watched_;
    std::atomic<bool> woken_{false};
    std::uint64_t collected_ = 0;
    std::uint64_t early_returns_ = 0;
    std::uint64_t steps_ = 0;
    std::uint64_t most_outstanding_ = 0;
};

} // namespace seeds
