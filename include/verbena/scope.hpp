#pragma once

#include <verbena/detail/broken_rule.hpp>
#include <verbena/detail/cancellable_wait.hpp>
#include <verbena/detail/child.hpp>
#include <verbena/detail/export.hpp>
#include <verbena/detail/list.hpp>
#include <verbena/task.hpp>

#include <concepts>
#include <coroutine>
#include <cstddef>
#include <type_traits>
#include <utility>

namespace verbena {

/// The handle of a task that a `scope` runs. Movable. It shares the outcome with the scope and may outlive it; dropping
/// it lets the task run on. Reactor-bound.
template <class T = void>
class child {
  public:
    class wait_operation;
    class wait_awaiter;

    /// Waits for the end of the child, and gives its value or throws its exception.
    ///
    ///     auto page = scope.spawn(fetch(qp, local, remote));
    ///     std::size_t length = co_await page.wait();
    ///
    /// - Completes when: the child has ended, at once if it has; or its scope is destroyed.
    /// - In flight together: one wait for each child. The outcome is taken once; a wait that was cancelled took
    ///   nothing. Breaking either rule ends the program.
    /// - Buffer lifetime: none; the operation itself keeps the outcome alive.
    /// - Errors: the child's exceptions, which `join` then does not report; `std::system_error` with `errc::closed` if
    ///   the scope was destroyed first.
    /// - Cancel safety: class 2; ending or destroying the wait leaves the child running, and it may be waited
    ///   for again.
    /// - Thread: reactor-bound.
    wait_operation wait() const {
        if (!state_) detail::broken_rule("there is no child to wait for: its handle is empty or was moved from");
        return wait_operation(state_);
    }

    child() noexcept = default;
    child(child&&) noexcept = default;
    child& operator=(child&&) noexcept = default;

  private:
    friend scope;

    explicit child(detail::child_state<T>& state) noexcept : state_(state) {}

    detail::child_pointer<T> state_;
};

/// Runs tasks side by side and ends with them. Each child has one allocation besides its frame; the frame is freed when
/// the child ends, the other when its handle is gone too, so a scope that spawns for ever does not grow.
///
///     scope connections;
///     while (auto request = co_await listener.next()) connections.spawn(serve(*std::move(request)));
///     co_await connections.join();
///
/// Reactor-bound. It must not be destroyed by one of its children while that runs, nor while a coroutine waits in
/// `join`; the latter ends the program.
class VERBENA_API scope {
  public:
    class join_operation;
    class join_awaiter;

    scope() noexcept = default;
    scope(const scope&) = delete;
    scope& operator=(const scope&) = delete;
    /// Tells the children that still run to stop, then destroys them, newest first, each by the rule of what it awaits.
    /// Those who wait for one get `errc::closed`. Exceptions that nobody took are dropped.
    ~scope();

    /// Tells all children to stop, those spawned later included; see `task`. They end by themselves: `join` waits for
    /// them.
    void request_stop() { stop_children(errc::stopped); }

    /// Runs the task up to its first suspension, here and now. Its exceptions go to `child::wait` or `join`.
    /// Throws what the allocation throws.
    template <class T>
    child<T> spawn(task<T> t) {
        return run(*new detail::child_record<T>(*this, std::move(t)));
    }

    /// Calls `make_task`, which it keeps until the task has ended: the captures of a lambda coroutine are in the
    /// lambda, not in the frame.
    ///
    ///     connections.spawn([&qp, name = std::string("left")]() -> task<> { co_await greet(qp, name); });
    template <class F>
        requires std::invocable<std::decay_t<F>&> && detail::is_task<std::invoke_result_t<std::decay_t<F>&>>
    auto spawn(F&& make_task) {
        using value = typename std::invoke_result_t<std::decay_t<F>&>::value_type;
        using record = detail::child_record<value, std::decay_t<F>>;
        return run(*new record(*this, std::in_place, std::forward<F>(make_task)));
    }

    /// Waits until no child runs, those spawned meanwhile included, and throws the first exception of a child that no
    /// `child::wait` has taken.
    ///
    ///     co_await connections.join();
    ///
    /// - Completes when: the last child ends, at once if none runs. The scope can then be used again.
    /// - In flight together: any number; the first to go on gets the exception.
    /// - Buffer lifetime: none; the scope must outlive the wait.
    /// - Errors: the first exception of a child in the order in which they ended; the others are dropped.
    /// - Stopping: a stop of the task that joins reaches the children, and the join waits for their ends; a limit on
    ///   the join alone (`with_timeout(connections.join(), …)`) ends just that.
    /// - Cancel safety: class 2; ending or destroying a join leaves the children running.
    /// - Thread: reactor-bound.
    join_operation join() noexcept;

  private:
    friend detail::child_base;

    template <class T, class Callable>
    child<T> run(detail::child_record<T, Callable>& record) {
        child<T> handle(record);
        children_.push_back(record);
        record.inherit_stop(stop_cause_);
        record.start();
        return handle;
    }
    void stop_children(errc cause);
    void stop_children(errc cause, detail::list<detail::ready_node>& woken) noexcept;
    void report();
    void drop_unreachable_failures() noexcept;

    detail::list<detail::child_base> children_; // by age
    detail::list<detail::child_base> failures_; // in the order in which they ended
    detail::list<detail::cancellable_wait> joiners_;
    errc stop_cause_{};
    std::size_t joining_ = 0; // joiners that wait, or were woken and have not gone on
};

class scope::join_awaiter : public detail::cancellable_wait {
  public:
    explicit join_awaiter(scope& s) noexcept : scope_(s) {}
    ~join_awaiter() {
        if (suspended_) --scope_.joining_;
    }

    bool await_ready() const noexcept { return scope_.children_.empty(); }
    void await_suspend(std::coroutine_handle<> coroutine) noexcept {
        suspended_ = true;
        ++scope_.joining_;
        wait_in(scope_.joiners_, coroutine);
    }
    void await_resume() const {
        throw_if_cancelled("scope::join");
        scope_.report();
    }

    // A stop of the coroutine that joins reaches the children, and the join ends with them.
    void inherit_stop(errc cause) noexcept {
        if (cause != errc{}) scope_.stop_children(cause);
    }
    void pass_stop(errc cause, detail::list<detail::ready_node>& woken) noexcept {
        if (waiting()) scope_.stop_children(cause, woken);
    }

  private:
    scope& scope_;
    bool suspended_ = false;
};

/// @copydoc scope::join
class [[nodiscard]] scope::join_operation {
  public:
    explicit join_operation(scope& s) noexcept : scope_(&s) {}
    join_awaiter operator co_await() && noexcept { return join_awaiter(*scope_); }

  private:
    scope* scope_;
};

inline scope::join_operation scope::join() noexcept { return join_operation(*this); }

template <class T>
class child<T>::wait_awaiter : public detail::cancellable_wait {
  public:
    explicit wait_awaiter(detail::child_pointer<T> state) noexcept : state_(std::move(state)) {}

    bool await_ready() const noexcept { return state_->ended(); }
    void await_suspend(std::coroutine_handle<> coroutine) noexcept { wait_in(state_->waiters(), coroutine); }
    T await_resume() {
        throw_if_cancelled("child::wait");
        return state_->take_result();
    }

  private:
    detail::child_pointer<T> state_;
};

/// @copydoc child::wait
template <class T>
class [[nodiscard]] child<T>::wait_operation {
  public:
    explicit wait_operation(detail::child_pointer<T> state) noexcept : state_(std::move(state)) {}
    wait_awaiter operator co_await() && noexcept { return wait_awaiter(std::move(state_)); }

  private:
    detail::child_pointer<T> state_;
};

} // namespace verbena
