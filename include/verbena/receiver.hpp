#pragma once

#include <verbena/detail/ready.hpp>
#include <verbena/verbs/address_handle.hpp>
#include <verbena/verbs/queue_pair.hpp>

#include <coroutine>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

namespace verbena {

namespace detail {
class receiver_core;

/// The part of an awaiter of `receiver::next` that the receiver knows.
struct next_state : ready_node {
    static constexpr std::uint32_t none = UINT32_MAX;

    receiver_core* receiver = nullptr;
    std::uint32_t slot = none; ///< the message handed to it
    bool ended = false;        ///< there will be none
    bool waited = false;       ///< it holds a reference
    bool queued = false;       ///< it is among those that wait
    errc cause{};              ///< why it was ended early

    static constexpr bool ends_singly = true;

    explicit next_state(receiver_core* r) noexcept : receiver(r) {}
    VERBENA_API void cancel(errc why, list<ready_node>& woken) noexcept;
    VERBENA_API ~next_state();
    /// True: a message, or the end, is there already.
    VERBENA_API bool take() noexcept;
    VERBENA_API void wait() noexcept;
};
} // namespace detail

/// A received message. Move-only. Its buffer goes back to the receiver, and is posted again, when it dies; it may
/// outlive the receiver, the queue pair and the reactor, since it owns a share of the memory. Thread: reactor-bound.
class VERBENA_API message {
  public:
    message(message&& other) noexcept : receiver_(std::exchange(other.receiver_, nullptr)), slot_(other.slot_) {}
    message& operator=(message&& other) noexcept {
        std::swap(receiver_, other.receiver_);
        std::swap(slot_, other.slot_);
        return *this;
    }
    ~message();

    /// The bytes that came, as a slice that can be sent on: `bytes().bytes()` is a span. UD: without the GRH.
    memory_slice bytes() const noexcept;
    std::optional<std::uint32_t> immediate() const noexcept; ///< the peer's immediate data in host order, if any
    /// The queue pair of this side that it came to.
    std::uint32_t qp_num() const noexcept;
    /// UD: the queue pair that sent it.
    std::uint32_t source_qp() const noexcept;
    /// UD: a handle for answers to the sender. Errors: as `address_handle::create` from a completion.
    /// Source: ibv_init_ah_from_wc(3).
    result<address_handle> reply_address() const;

  private:
    friend class detail::receiver_core;
    friend class next_operation;
    message(detail::receiver_core* receiver, std::uint32_t slot) noexcept : receiver_(receiver), slot_(slot) {}

    detail::receiver_core* receiver_; ///< holds one reference
    std::uint32_t slot_ = 0;
};

/// The next message.
///
/// Completes when   a message is there, or none will come: what had arrived before the end is handed out first.
/// In flight        any number of waits, served in their order.
/// Errors           the failure that ended the receiver, `closed` if it was destroyed, `not_attached` if its reactor
///                  was.
/// Cancel safety    class 2; nothing is lost: a message already handed to a destroyed wait goes to the next one.
/// Thread           reactor-bound.
class [[nodiscard]] next_operation {
  public:
    using result_type = result<message>;

    class awaiter : public detail::next_state {
      public:
        using next_state::next_state;
        bool await_ready() noexcept { return take(); }
        void await_suspend(std::coroutine_handle<> waiting) noexcept {
            continuation = waiting;
            wait();
        }
        VERBENA_API result<message> await_resume();
    };

    explicit next_operation(detail::receiver_core* receiver) noexcept : receiver_(receiver) {}
    awaiter operator co_await() && noexcept { return awaiter(receiver_); }

  private:
    detail::receiver_core* receiver_;
};

/// How much is received into.
struct receiver_options {
    std::uint32_t depth = 0;         ///< receives kept posted; at most the queue's capacity; 0: all of it
    std::uint32_t message_bytes = 0; ///< the longest message; UD: without the GRH
};

/// Counters since the receiver was made.
struct receiver_stats {
    std::uint64_t messages = 0; ///< handed out
    std::uint64_t dropped = 0;  ///< arrived after the receiver was destroyed
    std::uint64_t failed = 0;   ///< receives that ended without a message
};

/// Keeps `depth` receives posted on a queue pair or a shared receive queue and hands the messages out in the order of
/// their completions. A queue pair has one receiver or awaits `recv`, never both (`in_use`); a shared receive queue is
/// posted to by its receiver only, and one queue pair's failure does not end it.
/// Destroying it ends its waits with `closed`; what arrives later is dropped and counted; the queue pair stays open.
/// Thread: reactor-bound. Move-only.
class VERBENA_API receiver {
  public:
    /// Registers `depth × message_bytes` and posts them all. Errors: `not_attached`: the queue pair's completion queues
    /// are attached to no reactor; `invalid_argument`: no bytes, or deeper than the queue; `in_use`: its receives have
    /// a user; `resource`; `wrong_thread`. Sources: ibv_reg_mr(3), ibv_post_recv(3).
    static result<receiver> create(queue_pair& qp, const receiver_options& options);
    /// The receive queue of every queue pair made with it must be attached to `reactor`. Errors: `invalid_argument`:
    /// one is not, or sizes as above; `in_use`: it has a receiver; `resource`; `wrong_thread`. Sources: ibv_reg_mr(3),
    /// ibv_post_srq_recv(3).
    static result<receiver> create(class reactor& reactor, const shared_receive_queue& srq,
                                   const receiver_options& options);
    receiver(receiver&& other) noexcept : core_(std::exchange(other.core_, nullptr)) {}
    receiver& operator=(receiver&& other) noexcept {
        std::swap(core_, other.core_);
        return *this;
    }
    ~receiver();

    /// See `next_operation`.
    next_operation next() noexcept { return next_operation(core_); }
    /// What ended it; without a code while it has not ended.
    verbena::error error() const;
    receiver_stats stats() const noexcept; ///< up to now

  private:
    explicit receiver(detail::receiver_core* core) noexcept : core_(core) {}

    detail::receiver_core* core_; ///< holds one reference
};

} // namespace verbena
