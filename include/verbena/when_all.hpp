#pragma once

#include <verbena/detail/awaitable.hpp>
#include <verbena/detail/continuation.hpp>
#include <verbena/detail/stop.hpp>
#include <verbena/task.hpp>

#include <coroutine>
#include <cstddef>
#include <exception>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace verbena {

namespace detail {

/// Counts those that have not completed, and one more while they are being started: so nobody resumes the parent
/// before it has suspended.
class when_all_count {
  public:
    bool await_ready() const noexcept { return false; }

  protected:
    template <class Awaitable>
    friend class when_all_element;

    void begin(std::size_t elements, std::coroutine_handle<> parent) noexcept {
        pending_ = elements + 1;
        parent_ = parent;
    }
    /// True: that was the last.
    bool completed() noexcept { return --pending_ == 0; }

  private:
    std::size_t pending_ = 0;
    std::coroutine_handle<> parent_;
};

/// One awaiter, made in place, and what it resumes.
template <class Awaitable>
class when_all_element : continuation {
  public:
    when_all_element(when_all_count& all, Awaitable&& awaitable)
        : continuation(&resumed), all_(all), awaiter_(stop_, std::forward<Awaitable>(awaitable)) {}

    void start() noexcept {
        try {
            if (detail::start(awaiter_, handle())) return;
        } catch (...) {
            thrown_ = std::current_exception(); // kept, as the others have begun or will
        }
        all_.completed();
    }

    void inherit_stop(errc cause) noexcept { stop_.cause = cause; }
    void pass_stop(errc cause, list<ready_node>& woken) noexcept { stop_.request(cause, woken); }

    decltype(auto) result() {
        if (thrown_) std::rethrow_exception(thrown_);
        return detail::await_resume(awaiter_);
    }

  private:
    static void resumed(void* self) {
        when_all_count& all = static_cast<when_all_element*>(static_cast<continuation*>(self))->all_;
        if (all.completed()) all.parent_.resume();
    }

    when_all_count& all_;
    std::exception_ptr thrown_;
    stop_point stop_;
    stoppable_wait<Awaitable> awaiter_;
};

template <std::size_t, class Awaitable>
struct when_all_place : when_all_element<Awaitable> {
    using when_all_element<Awaitable>::when_all_element;
};

template <class Indices, class... Awaitables>
class when_all_awaiter;

template <std::size_t... I, class... Awaitables>
class when_all_awaiter<std::index_sequence<I...>, Awaitables...> : public when_all_count,
                                                                   private when_all_place<I, Awaitables>... {
  public:
    explicit when_all_awaiter(std::tuple<Awaitables...>& awaitables)
        : when_all_place<I, Awaitables>(*this, std::get<I>(std::move(awaitables)))... {}

    bool await_suspend(std::coroutine_handle<> parent) noexcept {
        begin(sizeof...(I), parent);
        (when_all_place<I, Awaitables>::start(), ...);
        return !completed();
    }
    void inherit_stop([[maybe_unused]] errc cause) noexcept {
        (when_all_place<I, Awaitables>::inherit_stop(cause), ...);
    }
    void pass_stop([[maybe_unused]] errc cause, [[maybe_unused]] list<ready_node>& woken) noexcept {
        (when_all_place<I, Awaitables>::pass_stop(cause, woken), ...);
    }
    std::tuple<void_to_monostate<await_result<Awaitables>>...> await_resume() {
        return {when_all_place<I, Awaitables>::result()...};
    }
};

template <class T>
class when_all_tasks_awaiter : public when_all_count {
    using element = when_all_element<task<T>>;

  public:
    explicit when_all_tasks_awaiter(std::vector<task<T>>& tasks) : elements_(tasks.size()) {
        for (std::size_t i = 0; i != tasks.size(); ++i) elements_[i].emplace(*this, std::move(tasks[i]));
    }

    bool await_suspend(std::coroutine_handle<> parent) noexcept {
        begin(elements_.size(), parent);
        for (auto& e : elements_) e->start();
        return !completed();
    }
    void inherit_stop(errc cause) noexcept {
        for (auto& e : elements_) e->inherit_stop(cause);
    }
    void pass_stop(errc cause, list<ready_node>& woken) noexcept {
        for (auto& e : elements_) e->pass_stop(cause, woken);
    }
    std::vector<void_to_monostate<T>> await_resume() {
        std::vector<void_to_monostate<T>> results;
        results.reserve(elements_.size());
        for (auto& e : elements_) results.push_back(e->result());
        return results;
    }

  private:
    std::vector<std::optional<element>> elements_;
};

} // namespace detail

/// @copydoc when_all
template <class... Awaitables>
class [[nodiscard]] when_all_operation {
  public:
    explicit when_all_operation(Awaitables&&... awaitables) : awaitables_(std::move(awaitables)...) {}
    auto operator co_await() && {
        return detail::when_all_awaiter<std::index_sequence_for<Awaitables...>, Awaitables...>(awaitables_);
    }

  private:
    std::tuple<Awaitables...> awaitables_;
};

/// Of tasks, in a `std::vector`; all else as of `when_all`.
///
/// @copydetails when_all
template <class T>
class [[nodiscard]] when_all_tasks_operation {
  public:
    explicit when_all_tasks_operation(std::vector<task<T>> tasks) : tasks_(std::move(tasks)) {}
    auto operator co_await() && { return detail::when_all_tasks_awaiter<T>(tasks_); }

  private:
    std::vector<task<T>> tasks_;
};

/// Begins all of them, in order, and waits for all. Allocates nothing (a task has its own frame).
///
///     auto [sent, received] = co_await when_all(qp.send(request), qp.recv(buffer));
///
/// - Completes when: all have completed; without suspending if none of them suspends.
/// - Gives: a `std::tuple` of what each gives, `std::monostate` for void; results are not looked into.
/// - In flight together: what the elements allow.
/// - Buffer lifetime: that of the elements, each until all have completed.
/// - Errors: if any throws, the exception of the first of those in the order of the arguments, after all have
///   completed; the other outcomes are dropped.
/// - Stopping: a stop (see `task`) reaches all of them, and the wait ends with them.
/// - Cancel safety: destroying the wait destroys the elements that have not completed, last first, each by its rule.
/// - Thread: reactor-bound.
template <class... Awaitables>
when_all_operation<Awaitables...> when_all(Awaitables... awaitables) {
    return when_all_operation<Awaitables...>(std::move(awaitables)...);
}

/// The same for any number of tasks: gives a `std::vector` in their order, of `std::monostate` for void. Allocates one
/// block for the waits and one for the results.
template <class T>
when_all_tasks_operation<T> when_all(std::vector<task<T>> tasks) {
    return when_all_tasks_operation<T>(std::move(tasks));
}

} // namespace verbena
