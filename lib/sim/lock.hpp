#pragma once

#include <sched.h>
#include <sys/single_threaded.h>

#include <atomic>

namespace verbena::sim {

/// Guards one device. While the process has one thread, no atomic instruction is paid.
class spin_lock {
  public:
    void lock() noexcept {
        if (__libc_single_threaded) {
            held_.store(true, std::memory_order_relaxed);
            return;
        }
        for (unsigned tries = 0; held_.exchange(true, std::memory_order_acquire); ++tries)
            while (held_.load(std::memory_order_relaxed)) {
                // The holder may have lost its processor.
                if (tries > 64) sched_yield();
                ++tries;
            }
    }
    void unlock() noexcept { held_.store(false, std::memory_order_release); }

  private:
    std::atomic<bool> held_{false};
};

} // namespace verbena::sim
