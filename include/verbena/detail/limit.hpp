#pragma once

#include <verbena/detail/stop.hpp>
#include <verbena/detail/timer.hpp>
#include <verbena/reactor.hpp>

#include <chrono>
#include <coroutine>
#include <memory>
#include <optional>
#include <stop_token>
#include <system_error>
#include <utility>

namespace verbena::detail {

class stop_inbox;

/// What a limit ends when it strikes.
class limited {
  public:
    virtual void end(errc cause, list<ready_node>& woken) noexcept = 0;

  protected:
    ~limited() = default;
};

/// A deadline on this thread's reactor.
class VERBENA_API deadline : private timer {
  public:
    static constexpr errc cause = errc::timed_out;

    explicit deadline(std::chrono::nanoseconds timeout) noexcept : timeout_(timeout) {}
    /// Why it cannot be, or has struck already; `errc{}` if it goes on.
    errc begin(limited& target) noexcept;

  private:
    void expired() noexcept override;

    std::chrono::nanoseconds timeout_;
    limited* target_ = nullptr;
};

/// One who waits for a stop: put into the inbox of its reactor by whichever thread requests it.
struct stop_node : list_node {
    virtual void stopped() noexcept = 0;

  protected:
    ~stop_node() = default;
};

/// A stop that any thread may request.
class VERBENA_API stop_request : private stop_node {
  public:
    static constexpr errc cause = errc::stopped;

    explicit stop_request(std::stop_token token) noexcept : token_(std::move(token)) {}
    ~stop_request();
    errc begin(limited& target) noexcept;

  private:
    struct callback {
        stop_request& self;
        void operator()() const noexcept { self.requested(); }
    };
    void requested() noexcept;
    void stopped() noexcept override;

    std::stop_token token_;
    std::shared_ptr<stop_inbox> inbox_;
    std::optional<std::stop_callback<callback>> callback_;
    limited* target_ = nullptr;
};

template <class T>
struct as_result {
    using type = result<T>;
};
template <class T>
struct as_result<result<T>> {
    using type = result<T>;
};

template <class Awaitable>
concept limitable = cancellable<awaiter_of<Awaitable>> || passes_stop<awaiter_of<Awaitable>>;

template <class Awaitable, class Limit>
class limited_awaiter final : private limited {
    using held = decltype(get_awaiter(std::declval<Awaitable>()));
    using awaiter = std::remove_reference_t<held>;
    using given = decltype(std::declval<awaiter&>().await_resume());
    using gives = typename as_result<given>::type;

  public:
    template <class Argument>
    limited_awaiter(Awaitable&& awaitable, Argument&& argument)
        : awaiter_(get_awaiter(std::forward<Awaitable>(awaitable))), limit_(std::forward<Argument>(argument)) {}

    static constexpr bool ends_singly = requires { requires awaiter::ends_singly; };

    bool await_ready() { return awaiter_.await_ready(); }
    bool await_suspend(std::coroutine_handle<> waiting) {
        refused_ = limit_.begin(*this);
        return refused_ == errc{} && suspend(awaiter_, waiting);
    }
    gives await_resume() {
        if (refused_ != errc{}) return error(refused_, "await");
        if constexpr (requires { awaiter_.cancelled(); })
            if (awaiter_.cancelled() != errc{}) return error(awaiter_.cancelled(), "await");
        try {
            if constexpr (std::is_void_v<given>) {
                awaiter_.await_resume();
                return {};
            } else {
                return awaiter_.await_resume();
            }
        } catch (const std::system_error& e) {
            // What a stop made a task throw.
            if (ended_ == errc{} || e.code() != make_code(ended_)) throw;
            return error(ended_, "await");
        }
    }

    void cancel(errc cause, list<ready_node>& woken) noexcept { end(cause, woken); }

  private:
    void end(errc cause, list<ready_node>& woken) noexcept override {
        if (ended_ != errc{}) return;
        ended_ = cause;
        if constexpr (cancellable<awaiter>)
            awaiter_.cancel(cause, woken);
        else
            awaiter_.pass_stop(cause, woken);
    }

    errc refused_{};
    errc ended_{};
    held awaiter_;
    Limit limit_; ///< last, so that it is gone first
};

} // namespace verbena::detail
