#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#ifndef VERBENA_SIM_API
#define VERBENA_SIM_API __attribute__((visibility("default")))
#endif

struct ibv_context;
struct ibv_cq;
struct ibv_qp;
struct ibv_srq;

/// The simulated device of verbena-sim, from outside.
namespace verbena::sim {

struct device;

/// How a device behaves where real providers differ.
enum class character : std::uint8_t {
    mlx5, ///< sim0; takes what ibv_modify_cq asks for, and delays no event by it
    rxe,  ///< sim1
};

/// Where a device can call a function of yours. Nothing is locked meanwhile: it may use all verbs, which then call no
/// function themselves.
enum class point : std::uint8_t {
    post_send_begins, ///< ibv_post_send has been called
    post_send_ends,   ///< the requests are accepted, perhaps completed; the verb has not returned
    post_recv_begins, ///< ibv_post_recv or ibv_post_srq_recv has been called
    post_recv_ends,   ///< the receives are accepted
    arm_begins,       ///< ibv_req_notify_cq has been called; the queue is not armed yet
    arm_ends,         ///< it is armed
    poll_begins,      ///< ibv_poll_cq has been called
    poll_ends,        ///< what was found is decided; with none, this lies between poll and arm
    event_taken,      ///< ibv_get_cq_event is about to return an event
};
inline constexpr std::size_t point_count = 9; ///< enumerators of `point`

/// What a point was reached with; the other is null.
struct point_reached {
    point where; ///< which it is
    ibv_cq* cq;  ///< of arms, polls and events
    ibv_qp* qp;  ///< of posts; null for a shared receive queue
};

/// How a failing verb says so. `natural` is what libibverbs documents for it: NULL or -1 with `errno`, or an errno
/// value.
enum class convention : std::uint8_t {
    natural,            ///< as documented
    positive_errno,     ///< an errno value
    negative_errno,     ///< the negative of one
    minus_one_and_errno ///< -1, and `errno`
};

/// How a verb is to fail.
struct fault {
    std::uint64_t call = 1;                                ///< the n-th call from now on
    int value = 0;                                         ///< an errno value; of ibv_poll_cq the answer itself
    sim::convention convention = sim::convention::natural; ///< how it says so
    std::uint32_t accepted = 0; ///< of a chain of work requests: how many are taken before the one that fails
    std::uint64_t times = 1;    ///< so many calls in a row

    /// As `accepted`: all of them, and the call that fails names none.
    static constexpr std::uint32_t all = ~std::uint32_t{0};
};

/// A completion that was held back. The device has finished with the request.
struct held_completion {
    std::uint64_t id;     ///< for `control::release`
    ibv_cq* cq;           ///< where it will be polled
    std::uint64_t wr_id;  ///< of its request
    int status;           ///< an `ibv_wc_status`
    std::uint32_t qp_num; ///< of its queue pair
    bool is_receive;      ///< from the receive queue
};

/// What became of the work requests. At any time
/// accepted = completed + flushed + silent + purged + dropped + outstanding, and
/// completed + flushed = polled + unpolled + removed.
struct ledger {
    std::uint64_t accepted = 0;     ///< by the post verbs
    std::uint64_t completed = 0;    ///< an entry with any status but a flush was put into a completion queue
    std::uint64_t flushed = 0;      ///< likewise with a flush
    std::uint64_t silent = 0;       ///< unsignaled, and done
    std::uint64_t purged = 0;       ///< by RESET or destruction, before there was an entry
    std::uint64_t dropped = 0;      ///< their entry met a full queue, or one that had overrun before
    std::uint64_t outstanding = 0;  ///< held completions count here
    std::uint64_t polled = 0;       ///< entries that ibv_poll_cq took
    std::uint64_t removed = 0;      ///< entries purged, unpolled, by RESET or the destruction of a queue
    std::uint64_t unpolled = 0;     ///< entries in completion queues now
    std::uint64_t consumed = 0;     ///< of `polled`: by polls that failed, so that the program never saw them
    std::uint64_t events = 0;       ///< completion events put into channels
    std::uint64_t ignored_arms = 0; ///< of queues that were armed already
};

/// Choices of a seeded run. All times pass on the manual clock.
struct seeded_options {
    std::chrono::nanoseconds max_delay{10'000}; ///< of an execution, a completion, an event
    std::uint32_t max_batch = 4;                ///< requests executed at once
    std::chrono::nanoseconds verb_time{50};     ///< what each post, poll and arm takes: a program that spins gets on
};

/// The remote control of one simulated device. Thread-safe, except that seeded runs are for one thread.
/// Errors are std::invalid_argument: no such device, verb, queue.
class control {
  public:
    /// By its name, "sim0" or "sim1".
    VERBENA_SIM_API explicit control(std::string_view device);
    /// By a context that is open on it.
    VERBENA_SIM_API explicit control(ibv_context* context);

    VERBENA_SIM_API sim::character character() const noexcept; ///< fixed by its name

    /// Completions from now on, of one queue or of all, wait until they are released.
    VERBENA_SIM_API void hold(ibv_cq* cq);
    VERBENA_SIM_API void hold(); ///< of all
    /// In the order in which the device finished the requests.
    VERBENA_SIM_API std::vector<held_completion> held() const;
    /// Delivers one, whatever else is held. False: it is not held any more.
    VERBENA_SIM_API bool release(std::uint64_t id);
    /// Delivers all that are held, in order, and holds no more. Answers how many.
    VERBENA_SIM_API std::size_t release(ibv_cq* cq);
    VERBENA_SIM_API std::size_t release(); ///< of all queues

    /// Calls `function` wherever that point is reached. An empty function takes the old one away.
    VERBENA_SIM_API void at(point where, std::function<void(const point_reached&)> function);

    /// Lets calls of a verb fail. `verb` by its name in libibverbs: "ibv_post_send".
    VERBENA_SIM_API void fail(std::string_view verb, const fault& how);
    /// Every fault that has not struck yet is forgotten.
    VERBENA_SIM_API void forgive();

    /// The next `count` events of the queue get lost: its arm is used up, nothing becomes readable.
    VERBENA_SIM_API void drop_events(ibv_cq* cq, std::uint32_t count);
    /// The next `count` events of the queue come twice.
    VERBENA_SIM_API void double_events(ibv_cq* cq, std::uint32_t count);
    /// An event now, without a completion.
    VERBENA_SIM_API void spurious_event(ibv_cq* cq);
    /// Arming a queue that is armed disarms it, as on mana. Off by default.
    VERBENA_SIM_API void redundant_arm_loses(bool on);

    /// The queue pair's next `count` requests are flushed when it fails, the others only by RESET or destruction.
    VERBENA_SIM_API void flush_only(ibv_qp* qp, std::uint32_t count);

    /// The next ibv_poll_cq of the queue consumes up to `consumed` entries and answers -2.
    VERBENA_SIM_API void fail_poll(ibv_cq* cq, std::uint32_t consumed);

    /// The device writes into receive and read buffers at the last moment it may: when it delivers the completion, and
    /// until then the buffer holds junk. A flushed or purged request's buffer gets junk at that moment.
    VERBENA_SIM_API void write_late(bool on);

    /// Puts an asynchronous event, an `ibv_event_type`, into the descriptor of the element's context. Nothing else
    /// happens: a QP_FATAL leaves the queue pair as it is.
    VERBENA_SIM_API void raise(int event, ibv_cq* cq);
    VERBENA_SIM_API void raise(int event, ibv_qp* qp);   ///< of a queue pair
    VERBENA_SIM_API void raise(int event, ibv_srq* srq); ///< of a shared receive queue
    /// Of a port, or of the device, in every context that is open.
    VERBENA_SIM_API void raise(int event, std::uint8_t port = 0);

    /// Every context that is open loses its device: descriptors become readable with POLLERR, commands fail with EIO,
    /// destructions succeed, IBV_EVENT_DEVICE_FATAL is raised, no work request completes. It is not listed until
    /// `insert`.
    VERBENA_SIM_API void remove();
    VERBENA_SIM_API void insert(); ///< lists it again, for contexts opened from now on

    /// From now on every delay, order and batch size comes from the seed, time passes on a manual clock, and the device
    /// acts only inside `step`, `advance`, and verbs.
    VERBENA_SIM_API void seed(std::uint64_t number, const seeded_options& options = {});
    /// The manual clock alone: requests execute at once, retries wait for `advance`.
    VERBENA_SIM_API void use_manual_clock();
    VERBENA_SIM_API std::chrono::nanoseconds now() const; ///< on the manual clock
    /// How long until the device does something; nothing if it waits for the program.
    VERBENA_SIM_API std::optional<std::chrono::nanoseconds> next() const;
    /// Moves the manual clock to the device's next action and lets it happen. False: there is none.
    VERBENA_SIM_API bool step();
    /// Moves the manual clock, and all that falls due happens.
    VERBENA_SIM_API void advance(std::chrono::nanoseconds by);

    /// How many verbs have been called so far. Posts, polls, arms and the taking of events count once something above
    /// has been asked for, until `reset`; acks do not count.
    VERBENA_SIM_API std::uint64_t calls() const;

    VERBENA_SIM_API sim::ledger ledger() const; ///< since the process began, or `clear_ledger`
    VERBENA_SIM_API void clear_ledger();        ///< counts anew; what is outstanding and unpolled stays

    /// Ends everything above but the ledger: delivers what is held or delayed, back to the real clock.
    VERBENA_SIM_API void reset();

  private:
    device* device_;
};

} // namespace verbena::sim
