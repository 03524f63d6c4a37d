#pragma once

#include <verbena/detail/cancellable_wait.hpp>
#include <verbena/result.hpp>

#include <infiniband/verbs.h>

#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace verbena {

/// What happened: the IBV_EVENT_* of ibv_get_async_event(3), with their values. A newer library may give others.
/// Source: ibv_get_async_event(3).
enum class async_event_kind : int {
    completion_queue_error = IBV_EVENT_CQ_ERR,                ///< it overran: entries are lost
    queue_pair_fatal = IBV_EVENT_QP_FATAL,                    ///< it failed, and no completion could say so
    queue_pair_request_error = IBV_EVENT_QP_REQ_ERR,          ///< the peer sent what is no valid request
    queue_pair_access_error = IBV_EVENT_QP_ACCESS_ERR,        ///< the peer asked for what it may not do
    communication_established = IBV_EVENT_COMM_EST,           ///< the first message came, to a queue pair in RTR
    send_queue_drained = IBV_EVENT_SQ_DRAINED,                ///< nothing is in progress after the move to SQD
    path_migrated = IBV_EVENT_PATH_MIG,                       ///< the alternate path is in use
    path_migration_error = IBV_EVENT_PATH_MIG_ERR,            ///< the alternate path could not be taken
    device_fatal = IBV_EVENT_DEVICE_FATAL,                    ///< the device is lost
    port_active = IBV_EVENT_PORT_ACTIVE,                      ///< its link is up
    port_error = IBV_EVENT_PORT_ERR,                          ///< its link is down
    lid_change = IBV_EVENT_LID_CHANGE,                        ///< the port has another LID
    pkey_change = IBV_EVENT_PKEY_CHANGE,                      ///< the port's table of partition keys changed
    subnet_manager_change = IBV_EVENT_SM_CHANGE,              ///< another manages the port's subnet
    shared_receive_queue_error = IBV_EVENT_SRQ_ERR,           ///< it failed: no more receives from it
    shared_receive_queue_limit = IBV_EVENT_SRQ_LIMIT_REACHED, ///< `shared_receive_queue_options::limit`
    last_receive_taken = IBV_EVENT_QP_LAST_WQE_REACHED, ///< the failed queue pair takes no more of its shared receives
    client_reregister = IBV_EVENT_CLIENT_REREGISTER,    ///< the subnet manager forgot what was registered with it
    gid_change = IBV_EVENT_GID_CHANGE,                  ///< the port's table of GIDs changed
    work_queue_fatal = IBV_EVENT_WQ_FATAL,              ///< a work queue that was made without this library failed
};

/// What it happened to.
enum class async_element : std::uint8_t {
    device,               ///< all of it
    port,                 ///< one of its ports
    queue_pair,           ///< a `verbena::queue_pair`, or one made without this library
    completion_queue,     ///< likewise
    shared_receive_queue, ///< likewise
    work_queue            ///< made without this library
};

/// One asynchronous event.
struct async_event {
    async_event_kind kind{};                       ///< what happened
    async_element element = async_element::device; ///< to what
    /// The port; `queue_pair::qp_num()`; the `handle` of the completion or shared receive queue's `native_handle()`;
    /// `wq_num`; 0 for the device. The object may be gone by now, and its number in use again.
    std::uint32_t number = 0;

    friend bool operator==(const async_event&, const async_event&) noexcept = default;
};

namespace detail {
class event_stream_core;

/// The part of an awaiter of `event_stream::next` that the stream knows.
class event_wait : public cancellable_wait {
  public:
    VERBENA_API explicit event_wait(event_stream_core& stream) noexcept;
    VERBENA_API ~event_wait();
    /// True: an event, or the end, is there already.
    VERBENA_API bool take() noexcept;
    VERBENA_API void wait(std::coroutine_handle<> waiting) noexcept;
    VERBENA_API result<async_event> finish();

  private:
    std::shared_ptr<event_stream_core> stream_;
    bool entitled_ = false; ///< the front of the queue is its own
    bool misused_ = false;  ///< on another thread
    bool finished_ = false;
};
} // namespace detail

/// The next event.
///
/// Completes when   an event is there, or none will come: those that came before the end are handed out first.
/// In flight        any number of waits, served in their order.
/// Errors           `device_removed`; `closed` if the stream was destroyed, `not_attached` if its reactor was;
///                  `wrong_thread`.
/// Cancel safety    class 2; nothing is lost: an event that woke a wait which is then destroyed goes to the next one.
/// Thread           reactor-bound.
///
///     while (auto event = co_await events.next()) fmt::print("{}\n", *event);
class [[nodiscard]] next_event_operation {
  public:
    using result_type = result<async_event>;

    class awaiter : public detail::event_wait {
      public:
        using event_wait::event_wait;
        bool await_ready() noexcept { return take(); }
        void await_suspend(std::coroutine_handle<> waiting) noexcept { wait(waiting); }
        result<async_event> await_resume() { return finish(); }
    };

    explicit next_event_operation(detail::event_stream_core& stream) noexcept : stream_(&stream) {}
    awaiter operator co_await() && noexcept { return awaiter(*stream_); }

  private:
    detail::event_stream_core* stream_;
};

/// The asynchronous events of a context, from `reactor::events`. Every stream gets every event that is read while it
/// exists, also when several reactors share the context. Keeps the last 256 that nobody has taken, and its context.
/// Destroying it ends its waits with `closed`. Thread: reactor-bound. Move-only.
class VERBENA_API event_stream {
  public:
    static constexpr std::size_t capacity = 256; ///< events kept that nobody has taken

    event_stream(event_stream&& other) noexcept = default;
    event_stream& operator=(event_stream&& other) noexcept {
        core_.swap(other.core_);
        return *this;
    }
    ~event_stream();

    /// See `next_event_operation`.
    next_event_operation next() noexcept { return next_event_operation(*core_); }
    /// How many events were lost since nobody took them in time, the oldest first, or the reactor did not run.
    std::uint64_t dropped() const noexcept;

  private:
    friend class reactor;
    explicit event_stream(std::shared_ptr<detail::event_stream_core> core) noexcept : core_(std::move(core)) {}

    std::shared_ptr<detail::event_stream_core> core_;
};

} // namespace verbena
