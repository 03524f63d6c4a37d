#pragma once

#include <verbena/detail/ready.hpp>
#include <verbena/error.hpp>
#include <verbena/result.hpp>

#include <coroutine>

namespace verbena::detail {

/// Base of the awaiters of waits that posted nothing: to end one, unlinking it is enough. It is in a list of those who
/// wait, then among those to resume, then in none. Reactor-bound.
class cancellable_wait : public ready_node {
  public:
    static constexpr bool ends_singly = true;

    /// Ends the wait if it goes on, and puts it on `woken`; if completion was first, does nothing.
    void cancel(errc cause, list<ready_node>& woken) noexcept {
        if (state_ != state::waiting) return;
        state_ = state::cancelled;
        cause_ = cause;
        unlink();
        woken.push_back(*this);
    }
    /// Why it was cancelled; `errc{}` if it was not. `await_resume` of one that was, throws.
    errc cancelled() const noexcept { return cause_; }

  protected:
    void wait_in(list<cancellable_wait>& waiters, std::coroutine_handle<> coroutine) noexcept {
        continuation = coroutine;
        state_ = state::waiting;
        waiters.push_back(*this);
    }

    bool waiting() const noexcept { return state_ == state::waiting; }
    bool woken() const noexcept { return state_ == state::woken; }
    void throw_if_cancelled(const char* verb) const {
        if (cause_ != errc{}) [[unlikely]]
            throw_error(error(cause_, verb));
    }

  private:
    friend void wake_first(list<cancellable_wait>& waiters, list<ready_node>& ready) noexcept;

    enum class state : unsigned char { idle, waiting, woken, cancelled };
    state state_ = state::idle;
    errc cause_{};
};

/// Moves the first of `waiters` behind the nodes of `ready`, which the caller gives to `resume_soon`.
inline void wake_first(list<cancellable_wait>& waiters, list<ready_node>& ready) noexcept {
    cancellable_wait& first = waiters.pop_front();
    first.state_ = cancellable_wait::state::woken;
    ready.push_back(first);
}

inline void wake_all(list<cancellable_wait>& waiters, list<ready_node>& ready) noexcept {
    while (!waiters.empty()) wake_first(waiters, ready);
}

} // namespace verbena::detail
