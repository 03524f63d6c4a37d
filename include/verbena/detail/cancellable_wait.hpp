#pragma once

#include <verbena/detail/ready.hpp>

#include <coroutine>

namespace verbena::detail {

/// Base of the awaiters of waits that posted nothing: to end one, unlinking it is enough. It is in a list of those who
/// wait, then among those to resume, then in none. Reactor-bound.
class cancellable_wait : public ready_node {
  public:
    /// True: it was still waiting and does no more. It will not be resumed: the caller resumes the coroutine, or
    /// destroys it, and does not call `await_resume`. False: completion was first.
    bool cancel() noexcept {
        if (state_ != state::waiting) return false;
        state_ = state::cancelled;
        unlink();
        return true;
    }

  protected:
    void wait_in(list<cancellable_wait>& waiters, std::coroutine_handle<> coroutine) noexcept {
        continuation = coroutine;
        state_ = state::waiting;
        waiters.push_back(*this);
    }

    bool woken() const noexcept { return state_ == state::woken; }

  private:
    friend void wake_first(list<cancellable_wait>& waiters, list<ready_node>& ready) noexcept;

    enum class state : unsigned char { idle, waiting, woken, cancelled };
    state state_ = state::idle;
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
