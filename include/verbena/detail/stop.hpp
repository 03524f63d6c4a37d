#pragma once

#include <verbena/detail/awaitable.hpp>
#include <verbena/detail/list.hpp>
#include <verbena/detail/ready.hpp>
#include <verbena/error.hpp>
#include <verbena/result.hpp>

#include <coroutine>
#include <type_traits>
#include <utility>

namespace verbena::detail {

/// `cancel(cause, woken)` ends a wait early, so that `await_resume` reports `cause`; it does nothing if the wait has
/// not begun or is over, and resumes nobody: whoever is to go on is put on `woken`, or on its reactor's list.
template <class Awaiter>
concept cancellable = requires(Awaiter& a, errc cause, list<ready_node>& woken) { a.cancel(cause, woken); };

/// What waits for several others, or for coroutines: a stop reaches those, and it ends with them. `inherit_stop` is
/// called before it begins, `errc{}` for none.
template <class Awaiter>
concept passes_stop = requires(Awaiter& a, errc cause, list<ready_node>& woken) {
    a.pass_stop(cause, woken);
    a.inherit_stop(cause);
};

template <class Awaiter>
void stop_awaiter(Awaiter& awaiter, errc cause, list<ready_node>& woken) noexcept {
    if constexpr (passes_stop<Awaiter>)
        awaiter.pass_stop(cause, woken);
    else
        awaiter.cancel(cause, woken);
}

/// Where a coroutine waits, as far as that can be ended early, and whether it was told to stop.
struct stop_point {
    void* awaiter = nullptr;
    void (*stop)(void* awaiter, errc cause, list<ready_node>& woken) noexcept = nullptr;
    errc cause{};

    void request(errc why, list<ready_node>& woken) noexcept {
        if (cause != errc{}) return;
        cause = why;
        if (awaiter != nullptr) stop(awaiter, why, woken);
    }
};

/// What a task makes of everything it awaits.
template <class Awaitable>
class stoppable_wait {
    using held = decltype(get_awaiter(std::declval<Awaitable>()));
    using awaiter = std::remove_reference_t<held>;
    using given = decltype(std::declval<awaiter&>().await_resume());
    static constexpr bool passes = passes_stop<awaiter>;
    static constexpr bool ends = cancellable<awaiter> && !passes;

  public:
    stoppable_wait(stop_point& stop, Awaitable&& awaitable)
        : stop_(stop), awaiter_(get_awaiter(std::forward<Awaitable>(awaitable))) {}
    stoppable_wait(const stoppable_wait&) = delete;
    stoppable_wait& operator=(const stoppable_wait&) = delete;
    ~stoppable_wait() {
        if constexpr (passes || ends) stop_.awaiter = nullptr;
    }

    bool await_ready() {
        if constexpr (ends)
            if (stop_.cause != errc{}) [[unlikely]] {
                stop_.awaiter = nullptr; // of an earlier wait of this expression, which is over
                return true;
            }
        if constexpr (passes) awaiter_.inherit_stop(stop_.cause);
        if constexpr (passes || ends) {
            stop_.awaiter = &awaiter_;
            stop_.stop = [](void* self, errc cause, list<ready_node>& woken) noexcept {
                stop_awaiter(*static_cast<awaiter*>(self), cause, woken);
            };
        }
        return awaiter_.await_ready();
    }
    template <class Promise>
    decltype(auto) await_suspend(std::coroutine_handle<Promise> waiting) {
        return awaiter_.await_suspend(waiting);
    }
    decltype(auto) await_resume() {
        if constexpr (ends)
            if (stop_.awaiter == nullptr) [[unlikely]] // it was told to stop before
                return refuse();
        return awaiter_.await_resume();
    }

  private:
    given refuse() const {
        const error why(stop_.cause, "await");
        if constexpr (is_result<given>)
            return why;
        else
            throw_error(why);
    }

    stop_point& stop_;
    held awaiter_;
};

} // namespace verbena::detail
