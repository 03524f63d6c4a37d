#pragma once

// What a process made belongs to it alone. After fork(2) the child has copies of all handles, but the descriptors, the
// rings and the device's queues behind them are the parent's: it may forget them, and nothing else.

#include <verbena/error.hpp>

#include <atomic>
#include <cstdint>

namespace verbena::detail {

/// Another one in every child of fork(2), and in its children. (Not of vfork(2), posix_spawn(3) and a bare clone(2).)
extern constinit std::atomic<std::uint32_t> process_number;

/// A member of what must not be touched in another process than that of its maker.
class process_mark {
  public:
    process_mark() : number_(watched_process()) {}
    /// Whether this process is not the one that made it.
    bool forked() const noexcept { return number_ != process_number.load(std::memory_order_relaxed); }

  private:
    /// From the first call on, forks are noticed.
    static std::uint32_t watched_process();

    std::uint32_t number_;
};

inline constexpr const char* fork_note = "this process is a fork of the one that made it";

inline error fork_error(const char* verb) { return error(errc::wrong_thread, verb).with_note(fork_note); }

/// Asked for by every operation, so it lies where no call is needed to find it. Takes 8 bytes of the room that the C
/// library keeps for libraries which are loaded late.
extern constinit thread_local std::uint64_t number_here __attribute__((tls_model("initial-exec")));

/// Never the same for two threads, also if one has ended. 0: this thread has not called `number_thread`, or not since
/// this process was forked from it.
inline std::uint64_t thread_number() noexcept { return number_here; }
std::uint64_t number_thread() noexcept;

} // namespace verbena::detail
