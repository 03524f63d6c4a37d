#pragma once

#include "clock.hpp"

#include <verbena/detail/list.hpp>
#include <verbena/detail/watch.hpp> // public: a watch lives in an awaiter, in a coroutine frame
#include <verbena/result.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include <poll.h>

namespace verbena::detail {

/// The end of what can come in, whatever a read of the descriptor says.
inline constexpr unsigned terminal_events = POLLERR | POLLHUP | POLLRDHUP | POLLNVAL;

struct wait_counters {
    std::uint64_t enters = 0;  ///< system calls made to wait, to submit or to look
    std::uint64_t rearmed = 0; ///< watches that the kernel had ended by itself
    std::uint64_t ignored = 0; ///< completions that named no living registration
    std::uint64_t losses = 0;  ///< times the kernel dropped completions for lack of memory; all watches were armed anew
};

/// What a reactor sleeps on. Everything but `wake` belongs to the thread that made it.
class wait_backend {
  public:
    virtual ~wait_backend() = default;

    virtual const char* name() const noexcept = 0;

    /// Starts watching `fd` for poll(2) `events`. What is there already is reported; from then on each new occurrence
    /// is (edge-triggered), so the receiver of `ready` must take what it owes before the next one can be relied on.
    /// What it leaves may also be reported again, at once and each time: every call must take something or end its
    /// watch.
    virtual result<void> add(watch& w, int fd, unsigned events) = 0;

    /// When it returns, `ready` is not called any more and the kernel holds no reference to the descriptor: closing it
    /// has its full effect. On failure only the second is missing, until the backend is destroyed. A watch that is not
    /// in the backend is left alone.
    virtual result<void> remove(watch& w) = 0;

    /// Whether `collect` has, or may have, something to do. Makes no system call. To be asked in every turn: a backend
    /// that cannot know says yes once in so many calls.
    virtual bool pending() const noexcept = 0;

    /// Calls `ready` for at most `budget` watches, without blocking; answers for how many.
    virtual unsigned collect(unsigned budget) = 0;

    /// Blocks until something is ready, `wake` was called, a signal came or the deadline passed, then calls `ready` as
    /// `collect` does. It may return early with 0: look at the clock.
    virtual result<unsigned> wait(std::optional<time_point> deadline) = 0;

    /// Makes the present or the next `wait` return. Thread-safe; a system call only if a `wait` is going on.
    virtual void wake() noexcept = 0;

    /// What somebody else may wait for in place of `wait`, or -1: readable while a watched descriptor is.
    virtual int handle() const noexcept { return -1; }
    /// Until the next `collect` or `wait` the handle is readable from the deadline on as well, and after a `wake`.
    /// False: there is something to collect already. For backends that have a handle.
    virtual bool prepare(std::optional<time_point>) { return false; }

    const wait_counters& counters() const noexcept { return counters_; }

  protected:
    static constexpr auto no_slot = watch::no_slot;
    static std::uint32_t& slot_of(watch& w) noexcept { return w.slot_; }

    /// What a backend keeps of a watch. It is on the backend's ready list while it has events that the watch has not
    /// been told.
    struct slot_base : list_node {
        watch* owner = nullptr;
        std::uint32_t index = 0;
        std::uint32_t generation = 0;
        int fd = -1;
        unsigned interest = 0;
        unsigned events = 0;
    };

    /// They do not move while their watch is called, and are used again.
    template <class Slot>
    class slot_table {
      public:
        Slot& take(watch& w, int fd, unsigned interest) {
            if (free_.empty()) {
                const auto index = static_cast<std::uint32_t>(slots_.size());
                free_.reserve(slots_.size() + 1); // so that `release` does not allocate
                slots_.emplace_back().index = index;
                free_.push_back(index);
            }
            Slot& s = slots_[free_.back()];
            free_.pop_back();
            s.owner = &w;
            s.fd = fd;
            s.interest = interest;
            slot_of(w) = s.index;
            return s;
        }
        void release(Slot& s) noexcept {
            s.unlink();
            ++s.generation;
            slot_of(*std::exchange(s.owner, nullptr)) = no_slot;
            s.events = 0;
            free_.push_back(s.index);
        }
        std::size_t size() const noexcept { return slots_.size(); }
        Slot& operator[](std::size_t index) noexcept { return slots_[index]; }
        auto begin() noexcept { return slots_.begin(); }
        auto end() noexcept { return slots_.end(); }

      private:
        std::deque<Slot> slots_;
        std::vector<std::uint32_t> free_;
    };

    wait_counters counters_;
};

} // namespace verbena::detail
