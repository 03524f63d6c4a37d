#pragma once

#include <verbena/detail/awaitable.hpp>
#include <verbena/detail/cancellable_wait.hpp>
#include <verbena/detail/continuation.hpp>
#include <verbena/detail/export.hpp>
#include <verbena/detail/list.hpp>
#include <verbena/detail/outcome.hpp>
#include <verbena/task.hpp>

#include <cstddef>
#include <exception>
#include <optional>
#include <utility>
#include <variant>

namespace verbena {
class scope;
}

namespace verbena::detail {

/// A spawned task, without its types. Counted by its scope, as long as that has an interest in it, and by its handle
/// and those who wait for it. Linked into one of the scope's lists: the children that run, or the failures that nobody
/// has seen.
class VERBENA_API child_base : public list_node {
  public:
    virtual ~child_base();

    void retain() noexcept { ++references_; }
    void release() noexcept;

    bool ended() const noexcept { return state_ != state::running; }
    /// Where to wait for the end. Ends the program if another coroutine waits there.
    list<cancellable_wait>& waiters() noexcept;
    /// Before the outcome is taken: checks that there is one, and that it is taken once. The scope reports it no more.
    void take();

  protected:
    explicit child_base(scope& owner) noexcept : owner_(&owner) {}

    /// The task has ended, its outcome is stored and its frame gone. `*this` may be gone when it returns.
    void finished();

  private:
    friend verbena::scope;

    enum class state : unsigned char { running, finished, destroyed, taken };

    virtual void stop(errc cause, list<ready_node>& woken) noexcept = 0;
    /// Destroys the frame, then the callable that made it.
    virtual void drop_frame() noexcept = 0;
    virtual std::exception_ptr exception() const noexcept = 0;

    state state_ = state::running;
    std::size_t references_ = 1;
    scope* owner_; // null: the scope does not count it any more
    list<cancellable_wait> waiters_;
};

template <class T>
class child_state : public child_base {
  public:
    T take_result() {
        take();
        return result_.take();
    }

  protected:
    using child_base::child_base;

    outcome<T> result_;

  private:
    std::exception_ptr exception() const noexcept final { return result_.exception(); }
};

template <class T, class Callable = std::monostate>
class child_record final : public child_state<T>, private continuation {
  public:
    child_record(scope& owner, task<T> t)
        : child_state<T>(owner), continuation(&resumed), awaiter_(std::move(t).operator co_await()) {}
    template <class F>
    child_record(scope& owner, std::in_place_t, F&& f)
        : child_state<T>(owner), continuation(&resumed), callable_(std::in_place, std::forward<F>(f)),
          awaiter_((*callable_)().operator co_await()) {}

    void inherit_stop(errc cause) noexcept { awaiter_.inherit_stop(cause); }
    void start() {
        if (!detail::start(awaiter_, handle())) end();
    }

  private:
    static void resumed(void* self) { static_cast<child_record*>(static_cast<continuation*>(self))->end(); }

    void end() {
        this->result_.take_over(awaiter_.result());
        drop_frame();
        this->finished();
    }
    void stop(errc cause, list<ready_node>& woken) noexcept override { awaiter_.pass_stop(cause, woken); }
    void drop_frame() noexcept override {
        awaiter_.drop_frame();
        callable_.reset();
    }

    std::optional<Callable> callable_;
    task_awaiter<T> awaiter_;
};

/// Counts a child.
template <class T>
class child_pointer {
  public:
    child_pointer() noexcept = default;
    explicit child_pointer(child_state<T>& state) noexcept : state_(&state) { state_->retain(); }
    child_pointer(const child_pointer& other) noexcept : state_(other.state_) {
        if (state_) state_->retain();
    }
    child_pointer(child_pointer&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}
    child_pointer& operator=(child_pointer other) noexcept {
        std::swap(state_, other.state_);
        return *this;
    }
    ~child_pointer() {
        if (state_) state_->release();
    }

    explicit operator bool() const noexcept { return state_ != nullptr; }
    child_state<T>* operator->() const noexcept { return state_; }

  private:
    child_state<T>* state_ = nullptr;
};

} // namespace verbena::detail
