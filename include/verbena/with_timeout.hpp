#pragma once

#include <verbena/detail/limit.hpp>

#include <chrono>
#include <stop_token>
#include <type_traits>
#include <utility>

namespace verbena {

/// @copydoc with_timeout
template <class Awaitable>
class [[nodiscard]] timeout_operation {
  public:
    timeout_operation(Awaitable&& awaitable, std::chrono::nanoseconds timeout)
        : awaitable_(std::move(awaitable)), timeout_(timeout) {}
    detail::limited_awaiter<Awaitable, detail::deadline> operator co_await() && {
        return {std::move(awaitable_), timeout_};
    }

  private:
    Awaitable awaitable_;
    std::chrono::nanoseconds timeout_;
};

/// @copydoc with_stop
template <class Awaitable>
class [[nodiscard]] stop_operation {
  public:
    stop_operation(Awaitable&& awaitable, std::stop_token token)
        : awaitable_(std::move(awaitable)), token_(std::move(token)) {}
    detail::limited_awaiter<Awaitable, detail::stop_request> operator co_await() && {
        return {std::move(awaitable_), std::move(token_)};
    }

  private:
    Awaitable awaitable_;
    std::stop_token token_;
};

/// Ends an operation that has not completed when the time is over. Takes any operation of this library, a task, or
/// `when_all` of them, by value.
///
///     auto got = co_await with_timeout(qp.read(local, remote), std::chrono::milliseconds{5});
///
/// What "ends" means is the operation's class:
/// - class 1, a posted work request: its queue pair fails with `timed_out` as root cause, and the coroutine goes on
///   when the device has let go of the buffers;
/// - class 2, a wait that posted nothing (`receiver::next`, an operation that still waits for room, `flushed`, an
///   event, a semaphore, `join`, `child::wait`, `sleep_for`, `wait_readable`): ends alone;
/// - class 3, a firmware command: ends alone, at once;
/// - a task is told to stop (see `task`), with everything it awaits, and ends by itself; so is each of `when_all`.
///
/// - Completes when: the operation has ended.
/// - Gives: what the operation gives, as it is if that is a `result`, else in a `result`. If the completion was there
///   it wins.
/// - In flight together: as the operation.
/// - Buffer lifetime: as the operation's; when this goes on they are the caller's.
/// - Errors: `timed_out`; at once, and without having begun, for a timeout of zero or less. `not_attached` if no
///   reactor runs, or has run or given its handle, on this thread. Otherwise the operation's. A task that a stop made
///   throw gives an error.
/// - Cancel safety: the operation's. Limits can be nested.
/// - Memory: allocates nothing.
/// - Thread: reactor-bound.
template <class Awaitable>
    requires detail::limitable<Awaitable>
timeout_operation<Awaitable> with_timeout(Awaitable awaitable, std::chrono::nanoseconds timeout) {
    return {std::move(awaitable), timeout};
}

/// As `with_timeout`, when a stop is requested, from any thread.
///
///     auto message = co_await with_stop(inbox.next(), shutdown.get_token());
///
/// - Completes when: the operation has ended.
/// - Gives: as `with_timeout`.
/// - In flight together: as the operation.
/// - Errors: `stopped`, at once and without having begun if the stop was requested before; `not_attached` as of
///   `with_timeout`; otherwise the operation's.
/// - Cancel safety: the operation's.
/// - Thread: reactor-bound; the stop is requested on any thread.
template <class Awaitable>
    requires detail::limitable<Awaitable>
stop_operation<Awaitable> with_stop(Awaitable awaitable, std::stop_token token) {
    return {std::move(awaitable), std::move(token)};
}

} // namespace verbena
