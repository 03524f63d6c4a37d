#pragma once

#include "check.hpp"
#include "wait_backend.hpp"

#include <atomic>
#include <cstdint>

#include <sys/eventfd.h>
#include <unistd.h>

namespace verbena::detail {

/// Ends a wait from another thread. The eventfd is written only when the waiter sleeps, hence read only then.
class waker final : public watch {
  public:
    static result<int> open_eventfd() {
        return check_minus_one("eventfd", [] { return eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC); });
    }

    /// Takes the eventfd over.
    explicit waker(int fd) noexcept : fd_(fd) {}
    ~waker() { ::close(fd_); }

    int fd() const noexcept { return fd_; }

    /// Thread-safe. What the caller wrote before is visible to the waiter once its wait has returned.
    void wake() noexcept {
        if (state_.exchange(state::notified) != state::parked) return;
        const std::uint64_t one = 1;
        // Fails only if the counter is full, and then the eventfd is readable all the same.
        [[maybe_unused]] const auto written = ::write(fd_, &one, sizeof one);
    }

    /// False if `wake` came first: do not sleep. Otherwise a call of `unpark` must follow the sleep.
    bool park() noexcept {
        auto expected = state::running;
        if (state_.compare_exchange_strong(expected, state::parked)) return true;
        unpark();
        return false;
    }
    /// An exchange, not a store: it must see what every `wake` that it overwrites has published. A `wake` that has seen
    /// `parked` may write its eventfd after this: one early return of a later wait.
    void unpark() noexcept { state_.exchange(state::running); }

    void ready(unsigned) noexcept override {
        std::uint64_t count = 0;
        [[maybe_unused]] const auto got = ::read(fd_, &count, sizeof count);
    }

  private:
    enum class state : unsigned { running, parked, notified };

    std::atomic<state> state_{state::running};
    int fd_;
};

} // namespace verbena::detail
