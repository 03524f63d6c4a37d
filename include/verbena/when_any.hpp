#pragma once

#include <verbena/detail/continuation.hpp>
#include <verbena/detail/stop.hpp>

#include <coroutine>
#include <cstddef>
#include <exception>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

namespace verbena {

namespace detail {

/// A wait that can be ended, or destroyed, without harm to anything else.
template <class Awaitable>
concept ends_singly = cancellable<awaiter_of<Awaitable>> && requires { requires awaiter_of<Awaitable>::ends_singly; };

/// Who was first, and whom that resumes.
class when_any_race {
  public:
    static constexpr auto nobody = static_cast<std::size_t>(-1);

    bool await_ready() const noexcept { return false; }

  protected:
    template <std::size_t, class Awaitable>
    friend class when_any_element;

    std::size_t winner_ = nobody;
    std::coroutine_handle<> parent_; ///< null until it has suspended
};

template <std::size_t I, class Awaitable>
class when_any_element : continuation {
  public:
    when_any_element(when_any_race& race, Awaitable&& awaitable)
        : continuation(&resumed), race_(race), awaiter_(get_awaiter(std::forward<Awaitable>(awaitable))) {}

    void start() {
        if (race_.winner_ == when_any_race::nobody && !detail::start(awaiter_, handle())) race_.winner_ = I;
    }
    void cancel(errc cause, list<ready_node>& woken) noexcept { awaiter_.cancel(cause, woken); }
    decltype(auto) result() { return detail::await_resume(awaiter_); }

  private:
    static void resumed(void* self) {
        when_any_race& race = static_cast<when_any_element*>(static_cast<continuation*>(self))->race_;
        if (race.winner_ != when_any_race::nobody) return; // what it was given goes on to the next when it is destroyed
        race.winner_ = I;
        if (race.parent_) race.parent_.resume();
    }

    when_any_race& race_;
    awaiter_of<Awaitable> awaiter_;
};

template <class Indices, class... Awaitables>
class when_any_awaiter;

template <std::size_t... I, class... Awaitables>
class when_any_awaiter<std::index_sequence<I...>, Awaitables...> : public when_any_race,
                                                                   private when_any_element<I, Awaitables>... {
    using given = std::variant<void_to_monostate<await_result<Awaitables>>...>;

  public:
    static constexpr bool ends_singly = true;

    explicit when_any_awaiter(std::tuple<Awaitables...>& awaitables)
        : when_any_element<I, Awaitables>(*this, std::get<I>(std::move(awaitables)))... {}

    bool await_suspend(std::coroutine_handle<> parent) {
        (when_any_element<I, Awaitables>::start(), ...);
        if (winner_ != nobody) return false;
        parent_ = parent;
        return true;
    }
    given await_resume() { return take<0>(); }
    void cancel(errc cause, list<ready_node>& woken) noexcept {
        (when_any_element<I, Awaitables>::cancel(cause, woken), ...);
    }

  private:
    template <std::size_t K>
    given take() {
        if constexpr (K + 1 < sizeof...(I))
            if (winner_ != K) return take<K + 1>();
        using element = when_any_element<K, std::tuple_element_t<K, std::tuple<Awaitables...>>>;
        return given(std::in_place_index<K>, element::result());
    }
};

} // namespace detail

/// @copydoc when_any
template <class... Awaitables>
class [[nodiscard]] when_any_operation {
  public:
    explicit when_any_operation(Awaitables&&... awaitables) : awaitables_(std::move(awaitables)...) {}
    auto operator co_await() && {
        return detail::when_any_awaiter<std::index_sequence_for<Awaitables...>, Awaitables...>(awaitables_);
    }

  private:
    std::tuple<Awaitables...> awaitables_;
};

/// Begins all of them, in order, and goes on with the first that completes; the others are ended, and what one of them
/// may have been given meanwhile goes to the next who waits for it. Takes only waits that can be ended without harm to
/// anything else (class 2 and class 3): not a send, a receive or a task. For those, spawn a child and take its
/// `wait()`.
///
///     auto first = co_await when_any(inbox.next(), shutdown.wait());
///     if (first.index() == 1) co_return;
///
/// - Completes when: one has completed; without suspending, and without beginning the rest, if one does at once.
/// - Gives: a `std::variant` of what each gives, `std::monostate` for void, whose `index()` says which it was.
/// - In flight together: what the elements allow.
/// - Buffer lifetime: none.
/// - Errors: those of the first: results are not looked into, exceptions leave from here.
/// - Cancel safety: class 2.
/// - Thread: reactor-bound.
/// - Memory: allocates nothing.
template <class... Awaitables>
    requires(sizeof...(Awaitables) > 0 && (detail::ends_singly<Awaitables> && ...))
when_any_operation<Awaitables...> when_any(Awaitables... awaitables) {
    return when_any_operation<Awaitables...>(std::move(awaitables)...);
}

} // namespace verbena
