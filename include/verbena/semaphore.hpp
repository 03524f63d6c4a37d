#pragma once

#include <verbena/detail/cancellable_wait.hpp>
#include <verbena/detail/export.hpp>

#include <coroutine>
#include <cstddef>
#include <utility>

namespace verbena {

/// A number of permits that coroutines acquire and release, in the order in which they asked: nobody overtakes one who
/// waits. Reactor-bound. Destroying one for which a coroutine waits, or to which a permit was handed and which has not
/// run since, ends the program.
class VERBENA_API semaphore {
  public:
    class acquire_operation;
    class acquire_awaiter;

    /// With `count` permits at first.
    explicit semaphore(std::size_t count) noexcept : count_(count) {}
    semaphore(const semaphore&) = delete;
    semaphore& operator=(const semaphore&) = delete;
    ~semaphore();

    /// Takes one permit.
    ///
    ///     co_await slots.acquire();
    ///
    /// - Completes when: a permit is there and all who asked before have theirs; at once if so.
    /// - In flight together: any number.
    /// - Buffer lifetime: none; the semaphore must outlive the wait.
    /// - Errors: none; where a stop ends it, it throws `std::system_error` (see with_timeout.hpp).
    /// - Cancel safety: class 2; one that ends or is destroyed takes no permit, and one that was handed a permit and
    ///   is destroyed before it has run gives it on to the next.
    /// - Thread: reactor-bound.
    acquire_operation acquire() noexcept;

    /// False if there is none to take.
    [[nodiscard]] bool try_acquire() noexcept {
        if (count_ == 0) return false; // always so while someone waits
        --count_;
        return true;
    }

    /// Gives `permits` back, or adds them.
    void release(std::size_t permits = 1);

  private:
    std::size_t count_;
    std::size_t asking_ = 0; // coroutines that suspended in acquire() and have not gone on
    detail::list<detail::cancellable_wait> waiters_;
};

class semaphore::acquire_awaiter : public detail::cancellable_wait {
  public:
    explicit acquire_awaiter(semaphore& s) noexcept : semaphore_(s) {}
    ~acquire_awaiter() {
        if (std::exchange(suspended_, false)) give_on();
    }

    bool await_ready() noexcept { return semaphore_.try_acquire(); }
    void await_suspend(std::coroutine_handle<> coroutine) noexcept {
        suspended_ = true;
        ++semaphore_.asking_;
        wait_in(semaphore_.waiters_, coroutine);
    }
    void await_resume() {
        if (std::exchange(suspended_, false)) --semaphore_.asking_;
        throw_if_cancelled("semaphore::acquire");
    }

  private:
    VERBENA_API void give_on() noexcept;

    semaphore& semaphore_;
    bool suspended_ = false;
};

/// @copydoc semaphore::acquire
class [[nodiscard]] semaphore::acquire_operation {
  public:
    explicit acquire_operation(semaphore& s) noexcept : semaphore_(&s) {}
    acquire_awaiter operator co_await() && noexcept { return acquire_awaiter(*semaphore_); }

  private:
    semaphore* semaphore_;
};

inline semaphore::acquire_operation semaphore::acquire() noexcept { return acquire_operation(*this); }

} // namespace verbena
