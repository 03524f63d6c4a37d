#pragma once

#include <concepts>
#include <coroutine>
#include <type_traits>
#include <utility>
#include <variant>

namespace verbena::detail {

/// The awaiter that `co_await` would make of `awaitable`: by value, or a reference to `awaitable` if it is one itself.
template <class Awaitable>
decltype(auto) get_awaiter(Awaitable&& awaitable) {
    if constexpr (requires { std::forward<Awaitable>(awaitable).operator co_await(); })
        return std::forward<Awaitable>(awaitable).operator co_await();
    else if constexpr (requires { operator co_await(std::forward<Awaitable>(awaitable)); })
        return operator co_await(std::forward<Awaitable>(awaitable));
    else
        return std::forward<Awaitable>(awaitable);
}

template <class Awaitable>
using awaiter_of = std::remove_cvref_t<decltype(get_awaiter(std::declval<Awaitable>()))>;

template <class Awaitable>
using await_result = decltype(std::declval<awaiter_of<Awaitable>&>().await_resume());

/// `void` has no objects; where one is needed it is this.
template <class T>
using void_to_monostate = std::conditional_t<std::is_void_v<T>, std::monostate, T>;

template <class Awaiter>
void_to_monostate<decltype(std::declval<Awaiter&>().await_resume())> await_resume(Awaiter& awaiter) {
    if constexpr (std::is_void_v<decltype(awaiter.await_resume())>) {
        awaiter.await_resume();
        return {};
    } else {
        return awaiter.await_resume();
    }
}

/// Calls `await_suspend`. False: complete already, and the waiter is not resumed. True: it will be, or has been.
template <class Awaiter>
bool suspend(Awaiter& awaiter, std::coroutine_handle<> waiter) {
    using answer = decltype(awaiter.await_suspend(waiter));
    if constexpr (std::is_void_v<answer>) {
        awaiter.await_suspend(waiter);
        return true;
    } else if constexpr (std::same_as<answer, bool>) {
        return awaiter.await_suspend(waiter);
    } else {
        const std::coroutine_handle<> next = awaiter.await_suspend(waiter);
        if (next == waiter) return false;
        next.resume();
        return true;
    }
}

/// Does what `co_await` does up to the suspension, for a `waiter` that is no coroutine. Answers as `suspend`.
template <class Awaiter>
bool start(Awaiter& awaiter, std::coroutine_handle<> waiter) {
    return !awaiter.await_ready() && suspend(awaiter, waiter);
}

} // namespace verbena::detail
