#pragma once

// The clock that a reactor reads and what it sleeps on, so that all time is the manual clock of the device: a sleep
// looks through one of the library's own backends, without blocking, and else lets the device act.

#include "clock.hpp"
#include "wait_backend.hpp"

#include <verbena/sim/control.hpp>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>

namespace fuzz {

namespace sim = verbena::sim;
using verbena::detail::time_point;

class device_clock final : public verbena::detail::clock_source {
  public:
    /// `tick`: what looking at the clock takes, so that who spins gets on.
    device_clock(const sim::control& device, std::chrono::nanoseconds tick) noexcept : device_(device), tick_(tick) {}

    time_point now() noexcept override {
        if (tick_.count() > 0) device_.advance(tick_);
        return time_point(device_.now());
    }
    void wait_until(time_point t) noexcept override {
        const time_point now(device_.now());
        if (t > now) device_.advance(t - now);
    }

  private:
    sim::control device_;
    std::chrono::nanoseconds tick_;
};

class stepping_backend final : public verbena::detail::wait_backend {
  public:
    stepping_backend(const sim::control& device, std::unique_ptr<wait_backend> inner) noexcept
        : device_(device), inner_(std::move(inner)) {}

    const char* name() const noexcept override { return inner_->name(); }
    verbena::result<void> add(verbena::detail::watch& w, int fd, unsigned events) override {
        return inner_->add(w, fd, events);
    }
    verbena::result<void> remove(verbena::detail::watch& w) override { return inner_->remove(w); }
    bool pending() const noexcept override { return inner_->pending(); }
    unsigned collect(unsigned budget) override { return inner_->collect(budget); }
    void wake() noexcept override {
        woken_.store(true);
        inner_->wake();
    }

    verbena::result<unsigned> wait(std::optional<time_point> deadline) override {
        constexpr int most_steps = 1000; // it may return early
        for (int i = 0; i < most_steps; ++i) {
            auto woken = inner_->wait(time_point(std::chrono::nanoseconds{1})); // which has passed
            if (!woken || *woken > 0 || woken_.exchange(false)) return woken;
            const time_point now(device_.now());
            if (deadline && now >= *deadline) break;
            const auto next = device_.next();
            if (next && (!deadline || *next <= *deadline - now)) {
                device_.step();
            } else if (deadline) {
                device_.advance(*deadline - now);
            } else {
                std::fprintf(stderr, "the reactor sleeps for ever, although a coroutine sleeps\n");
                std::abort();
            }
        }
        return 0u;
    }

  private:
    sim::control device_;
    std::unique_ptr<wait_backend> inner_;
    std::atomic<bool> woken_{false};
};

} // namespace fuzz
