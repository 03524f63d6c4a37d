#pragma once

#include <verbena/async_event.hpp>
#include <verbena/detail/readable_watch.hpp>
#include <verbena/detail/ready.hpp>
#include <verbena/detail/root.hpp>
#include <verbena/detail/timer.hpp>
#include <verbena/task.hpp>
#include <verbena/verbs/completion_queue.hpp>
#include <verbena/wait_policy.hpp>

#include <chrono>
#include <coroutine>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

namespace verbena {

namespace detail {
class reactor_core;
}
class connection_manager;
namespace mlx5 {
class command_channel;
class event_channel;
} // namespace mlx5

/// How a reactor waits.
struct reactor_options {
    /// What it does when nothing happens.
    wait_policy wait = wait_policy::adaptive();
    /// How often queues are polled although no event came, while operations are outstanding: the kernel can lose an
    /// event for lack of memory. 0: never.
    std::chrono::milliseconds safety_repoll{100};
};

/// Of one queue's attachment.
struct attach_options {
    /// Gets the completions whose `wr_id` is none of the reactor's, such as those of queue pairs posted to by hand,
    /// after the batch was read, in order. Without it they are counted and dropped.
    std::function<void(const work_completion&)> foreign{};
};

/// What `reactor::prepare_wait` found.
enum class wait_state : std::uint8_t {
    ready, ///< there is something to do: poll again
    armed, ///< the handle will be readable when there is
};

/// Counters since the reactor was made.
struct reactor_stats {
    std::uint64_t turns = 0;             ///< of the loop
    std::uint64_t polls = 0;             ///< of completion queues
    std::uint64_t empty_polls = 0;       ///< those that found nothing
    std::uint64_t completions = 0;       ///< polled
    std::uint64_t resumes = 0;           ///< coroutines resumed
    std::uint64_t arms = 0;              ///< of completion queues
    std::uint64_t events = 0;            ///< taken from channels
    std::uint64_t unattached_events = 0; ///< of those, for queues that were not attached
    std::uint64_t parks = 0;             ///< sleeps on the wait backend
    std::uint64_t wakes = 0;             ///< parks that ended with something to do
    std::uint64_t enters = 0;            ///< system calls of the wait backend
    std::uint64_t rescued = 0;           ///< completions whose event the kernel lost; see `safety_repoll`
    std::uint64_t stale = 0;             ///< completions of operations that had ended
    std::uint64_t foreign = 0;           ///< completions that were never the reactor's
    std::uint64_t outstanding = 0;       ///< work requests the device has now
    /// What it sleeps on: "io_uring", or "epoll" where that is forbidden or missing, as a warning in the log says once,
    /// or where it has a `native_handle`; "none" before the first of `run`, `poll` and `native_handle`.
    const char* backend = "none";
};

/// @cond internal
namespace detail {
struct VERBENA_API sleep_state : ready_node, timer {
    static constexpr bool ends_singly = true;

    explicit sleep_state(reactor_core* r) noexcept : reactor(r) {}
    void expired() noexcept override;
    void cancel(errc cause, list<ready_node>& woken) noexcept;
    errc cancelled() const noexcept { return cause; }

    reactor_core* reactor;
    errc cause{};
};
} // namespace detail
/// @endcond

/// Waits for a time of the steady clock.
///
/// Completes when   the time has come; at once if it has already.
/// In flight        any number.
/// Errors           none; where a stop ends it, it throws `std::system_error` (see with_timeout.hpp). If the reactor is
///                  destroyed it is never resumed.
/// Cancel safety    class 2; destroying the coroutine takes it out.
/// Thread           reactor-bound.
class [[nodiscard]] sleep_operation {
  public:
    class awaiter : public detail::sleep_state {
      public:
        awaiter(detail::reactor_core* reactor, detail::time_point until) noexcept
            : sleep_state(reactor), until_(until) {}
        VERBENA_API bool await_ready() const noexcept;
        VERBENA_API void await_suspend(std::coroutine_handle<> waiting) noexcept;
        void await_resume() const {
            if (cause != errc{}) [[unlikely]]
                detail::throw_error(error(cause, "sleep"));
        }

      private:
        detail::time_point until_;
    };
    sleep_operation(detail::reactor_core* reactor, detail::time_point until) noexcept
        : reactor_(reactor), until_(until) {}
    awaiter operator co_await() && noexcept { return {reactor_, until_}; }

  private:
    detail::reactor_core* reactor_;
    detail::time_point until_;
};

/// Lets everybody who is ready go first.
///
/// Completes when   they have gone on; always suspends.
/// In flight        any number, in their order.
/// Errors           none; no limit ends it. If the reactor is destroyed it is never resumed.
/// Cancel safety    class 2; destroying the coroutine takes it out.
/// Thread           reactor-bound.
class [[nodiscard]] yield_operation {
  public:
    struct awaiter : detail::ready_node {
        explicit awaiter(detail::reactor_core* r) noexcept : reactor(r) {}
        detail::reactor_core* reactor;
        bool await_ready() const noexcept { return false; }
        VERBENA_API void await_suspend(std::coroutine_handle<> waiting) noexcept;
        void await_resume() const noexcept {}
    };
    explicit yield_operation(detail::reactor_core* reactor) noexcept : reactor_(reactor) {}
    awaiter operator co_await() && noexcept { return awaiter(reactor_); }

  private:
    detail::reactor_core* reactor_;
};

/// Waits for a descriptor, with no read of it.
///
/// Completes when   the descriptor is readable, or has an error or a hang-up to report: read it to see which.
/// In flight        any number, also on one descriptor; on epoll(7) each but the first takes a descriptor more.
/// Errors           EBADF, or what else the kernel says of a descriptor that cannot be polled.
/// Cancel safety    class 2; destroying the coroutine ends the watch; when that has returned the descriptor may be
///                  closed.
/// Thread           reactor-bound.
class [[nodiscard]] readable_operation {
  public:
    class awaiter : public detail::ready_node {
      public:
        VERBENA_API awaiter(detail::reactor_core* reactor, int fd) noexcept;
        VERBENA_API ~awaiter();
        bool await_ready() const noexcept { return false; }
        VERBENA_API bool await_suspend(std::coroutine_handle<> waiting);
        VERBENA_API result<void> await_resume();
        static constexpr bool ends_singly = true;
        VERBENA_API void cancel(errc cause, detail::list<detail::ready_node>& woken) noexcept;

      private:
        detail::reactor_core* reactor_;
        detail::readable_watch watch_;
    };
    readable_operation(detail::reactor_core* reactor, int fd) noexcept : reactor_(reactor), fd_(fd) {}
    awaiter operator co_await() && noexcept { return {reactor_, fd_}; }

  private:
    detail::reactor_core* reactor_;
    int fd_;
};

/// The loop: drains the attached completion queues into the caller's slots, resumes the coroutines whose operations
/// have completed, and sleeps on io_uring when there is nothing to do; on epoll(7) where io_uring is forbidden.
///
/// Until its first `run` or `poll` it belongs to its maker, one thread at a time; that call binds it to its thread.
/// Afterwards everything but `post` and `stop` is reactor-bound. In a child of fork(2) it can be destroyed, and all
/// else is refused as on a wrong thread; there `post` and `stop` do nothing.
///
/// Destroying it takes every queue pair that awaits something from the device, and resumes nobody: the suspended frames
/// stay with their owners, and what they await afterwards fails with `not_attached`.
class VERBENA_API reactor {
  public:
    /// What it sleeps on is made by the first `run` or `poll`.
    explicit reactor(const reactor_options& options = {});
    reactor(const reactor&) = delete;
    reactor& operator=(const reactor&) = delete;
    ~reactor();

    /// Polls the queue from now on, into `slots`, which must stay until it is detached; several queues may share them.
    /// Errors: `attached`: it belongs to a reactor already; `invalid_argument`: no slots, a queue without a channel
    /// under a policy that parks, or a channel that another reactor has; `device_removed`; `wrong_thread`.
    /// Sources: ibv_poll_cq(3), ibv_req_notify_cq(3), ibv_get_cq_event(3).
    result<void> attach(const completion_queue& queue, std::span<poll_slot> slots, const attach_options& options = {});
    /// Quiesces every queue pair of the queue, whose operations end with `connection_reset`, and lets it go.
    /// Errors: `not_attached`: not to this reactor; `invalid_argument`: an empty queue; `wrong_thread`.
    result<void> detach(const completion_queue& queue);

    /// Reads the channel's responses from now on, until it is closed. Errors: `attached`: a reactor reads it already;
    /// `invalid_argument`: an empty channel; `closed`; `device_removed`. For builds with DEVX
    /// (`mlx5/command_channel.hpp`).
    result<void> attach(const mlx5::command_channel& channel);
    /// Watches for the channel's events from now on, until it is destroyed. Errors as above
    /// (`mlx5/event_channel.hpp`).
    result<void> attach(const mlx5::event_channel& channel);
    /// Hears of the manager's connections from now on, until it is destroyed. For builds with librdmacm
    /// (`cm/connection_manager.hpp`).
    /// Errors: `attached`, `invalid_argument`, `closed` as above; `not_attached`: the reactor it had is gone.
    result<void> attach(const connection_manager& manager);

    /// Runs until the task has ended, and gives what it gave or throws what it threw. Throws `std::system_error`:
    /// without a wait backend; `wrong_thread`; `stopped` if `stop` came first, which destroys the task. What a foreign
    /// coroutine's `resume` throws leaves from here as well, once all others were resumed. Work left over goes on in
    /// the next `run` or `poll`.
    template <class T>
    T run(task<T> main) {
        detail::root<T> root(std::move(main));
        run_until(root);
        return root.take();
    }
    /// One turn, which never blocks; gives how much was done. A turn takes up to `budget` completions from each queue
    /// and resumes everybody who is ready, then serves all posted functions and requested stops, up to `budget` due
    /// timers and 64 descriptors (on epoll(7) in every 64th turn, and in the first after `prepare_wait`): whatever one
    /// of them has to do, it delays the others by a turn. Errors as `run`, whose budget is 256.
    result<unsigned> poll(unsigned budget = 256);

    /// For a loop of somebody else's that waits for many things, this reactor among them: a descriptor that epoll(7),
    /// poll(2) or the other's io_uring can wait for. Three calls make the contract:
    ///
    ///     const int fd = reactor.native_handle().value(); // once, before the first run or poll
    ///     const bool more = reactor.poll().value() > 0 || reactor.prepare_wait().value() == vb::wait_state::ready;
    ///     // now wait until fd is readable, or only look at what else there is if `more`; and begin again
    ///
    /// It is readable, level-triggered, while there is something to do: a completion, a descriptor that somebody waits
    /// for, a due timer, a posted function, a requested stop. It may be so in vain. It is the reactor's, to be neither
    /// read nor closed. The reactor then sleeps on epoll(7) in `run`, too.
    /// Errors: `in_use`: it has run or polled before without; `resource`; `wrong_thread`.
    result<int> native_handle();
    /// Arms every queue and sets the handle's timer. To be called after a `poll` that found nothing, at once before
    /// the wait, and again after every `poll` and after whatever was awaited outside of one. Nothing that comes between
    /// this and the wait is missed: it is `ready`, or makes the handle readable. With a queue that has no channel, and
    /// cannot wake anybody, it is always `ready`.
    /// Errors: `invalid_argument` without a `native_handle`; `wrong_thread`.
    result<wait_state> prepare_wait();

    /// Ends the `run` that goes on, or the next. Thread-safe.
    void stop() noexcept;
    /// Calls `function` on the reactor's thread, in the order of posting. Thread-safe.
    void post(std::function<void()> function);

    /// See `sleep_operation`, until so long from now.
    sleep_operation sleep_for(std::chrono::nanoseconds duration) noexcept;
    /// See `sleep_operation`.
    sleep_operation sleep_until(std::chrono::steady_clock::time_point deadline) noexcept {
        return {core_.get(), deadline};
    }
    /// See `yield_operation`.
    yield_operation yield() noexcept { return yield_operation(core_.get()); }
    /// See `readable_operation`. Source: poll(2), POLLIN.
    readable_operation wait_readable(int fd) noexcept { return {core_.get(), fd}; }

    /// The asynchronous events of a context from now on, also if no queue of it is attached, and if other reactors get
    /// them too. What was raised while nobody had a stream or an attached queue comes to the first who has.
    /// Errors: `device_removed`, `invalid_argument` for an empty context, `wrong_thread`.
    /// Source: ibv_get_async_event(3).
    result<event_stream> events(const context& context);

    reactor_stats stats() const noexcept; ///< up to now

  private:
    friend struct detail::access;
    explicit reactor(std::unique_ptr<detail::reactor_core> core) noexcept;
    void run_until(detail::root_base& root);

    std::unique_ptr<detail::reactor_core> core_;
};

} // namespace verbena
