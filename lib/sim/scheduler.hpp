#pragma once

#include "lock.hpp"

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

namespace verbena::sim {

/// What a device does later. On the real clock one thread, started with the first action, runs what is due; on the
/// manual clock only `step` and `advance` do. Every member but `now` is called, and every action runs, with the
/// device's lock held. Actions of equal time run in the order of their addition.
class scheduler {
  public:
    using time = std::chrono::nanoseconds; ///< since the clock's epoch
    struct id {
        time when{};
        std::uint64_t order = 0; ///< 0: none
        explicit operator bool() const noexcept { return order != 0; }
        auto operator<=>(const id&) const = default;
    };

    explicit scheduler(spin_lock& lock) : lock_(lock) {}
    scheduler(const scheduler&) = delete;
    scheduler& operator=(const scheduler&) = delete;

    time now() const noexcept;
    bool manual() const noexcept { return manual_; }
    /// The manual clock starts at 0. What was pending keeps its distance from now.
    void set_manual(bool manual);

    id add(time delay, std::function<void()> action);
    /// Forgets an action that may have run.
    void cancel(id& action) noexcept;

    std::optional<time> next() const noexcept;
    /// Manual clock: moves it to the first action and runs that. False: there was none.
    bool step();
    /// Manual clock: runs everything due until then.
    void advance(time by);

  private:
    bool run_first();
    void run_thread();
    void tell_thread();

    spin_lock& lock_;
    std::map<id, std::function<void()>> actions_;
    std::uint64_t last_order_ = 0;
    bool manual_ = false;
    time manual_now_{};

    std::mutex mutex_; ///< of the thread's sleep; taken while the device's lock is held, never the other way round
    std::condition_variable changed_;
    time wake_at_ = time::max();
    bool thread_runs_ = false;
};

} // namespace verbena::sim
