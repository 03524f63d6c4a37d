#pragma once

#include <verbena/detail/cancellable_wait.hpp>
#include <verbena/detail/export.hpp>

#include <coroutine>

namespace verbena {

/// A flag that coroutines wait for, set and reset by hand. Reactor-bound. Destroying one for which a coroutine waits
/// ends the program.
class VERBENA_API event {
  public:
    class wait_operation;
    class wait_awaiter;

    /// `set`: as after `set()`.
    explicit event(bool set = false) noexcept : set_(set) {}
    event(const event&) = delete;
    event& operator=(const event&) = delete;
    ~event();

    bool is_set() const noexcept { return set_; } ///< whether a wait would complete at once
    /// Wakes all who wait, in the order in which they began; they go on even if the event is reset before they run,
    /// or destroyed.
    void set();
    /// From now on waits begin to wait; those that `set` has woken go on.
    void reset() noexcept { set_ = false; }

    /// Waits until the event is set.
    ///
    ///     co_await ready.wait();
    ///
    /// - Completes when: `set()` is called, at once if the event is set.
    /// - In flight together: any number.
    /// - Buffer lifetime: none; the event must outlive the wait.
    /// - Errors: none; where a stop ends it, it throws `std::system_error` (see with_timeout.hpp).
    /// - Cancel safety: class 2; ending or destroying a wait harms nothing else.
    /// - Thread: reactor-bound.
    wait_operation wait() noexcept;

  private:
    bool set_;
    detail::list<detail::cancellable_wait> waiters_;
};

class event::wait_awaiter : public detail::cancellable_wait {
  public:
    explicit wait_awaiter(event& e) noexcept : event_(e) {}

    bool await_ready() const noexcept { return event_.set_; }
    void await_suspend(std::coroutine_handle<> coroutine) noexcept { wait_in(event_.waiters_, coroutine); }
    void await_resume() const { throw_if_cancelled("event::wait"); }

  private:
    event& event_;
};

/// @copydoc event::wait
class [[nodiscard]] event::wait_operation {
  public:
    explicit wait_operation(event& e) noexcept : event_(&e) {}
    wait_awaiter operator co_await() && noexcept { return wait_awaiter(*event_); }

  private:
    event* event_;
};

inline event::wait_operation event::wait() noexcept { return wait_operation(*this); }

} // namespace verbena
