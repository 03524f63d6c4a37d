#pragma once

#include "process.hpp"
#include "verbs/states.hpp"
#include "work_queue.hpp"

#include <verbena/detail/timer.hpp>
#include <verbena/verbs/queue_pair.hpp>

#include <infiniband/verbs.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

namespace verbena::detail {

class queue_pair_core;
class reactor_core;
class receiver_core;

/// One membership of a queue pair in a list of its reactor.
struct pair_link : list_node {
    explicit pair_link(queue_pair_core& p) noexcept : pair(&p) {}
    queue_pair_core* pair;
};

/// Who works on a queue pair of which nothing need be outstanding.
class queue_pair_user {
  public:
    virtual void queue_pair_gone() noexcept = 0;

  protected:
    ~queue_pair_user() = default;
};

/// What does not change after the creation of a queue pair.
struct queue_pair_setup {
    std::shared_ptr<protection_domain_state> domain;
    std::shared_ptr<completion_queue_state> send_cq;
    std::shared_ptr<completion_queue_state> recv_cq;
    std::shared_ptr<shared_receive_queue_state> srq; ///< may be null
    queue_pair_type type = queue_pair_type::rc;
    verbena::post_mode post_mode = verbena::post_mode::immediate;
    std::uint32_t max_send = 0;
    std::uint32_t max_recv = 0;
    std::uint32_t max_send_slices = 0;
    std::uint32_t max_recv_slices = 0;
    std::uint32_t max_inline = 0;
    std::chrono::milliseconds keepalive{0};
    std::uint8_t port = 1;
    std::uint8_t gid_index = 0;
    std::uint32_t psn = 0;
    verbena::endpoint local;
};

/// A queue pair as the runtime sees it: posts, matches completions to operations, fails, and quiesces.
///
/// Software ends an operation only in `quiesce`, after the device has let go of the queue pair.
class queue_pair_core {
  public:
    /// Takes over `native` and the reservations in the completion queues.
    queue_pair_core(queue_pair_setup setup, ibv_qp* native);
    ~queue_pair_core();
    queue_pair_core(const queue_pair_core&) = delete;
    queue_pair_core& operator=(const queue_pair_core&) = delete;

    const queue_pair_setup& setup() const noexcept { return setup_; }
    ibv_qp* native() const noexcept { return native_; }
    reactor_core* reactor() const noexcept { return reactor_; }
    void set_local(const verbena::endpoint& local) noexcept { setup_.local = local; }
    void set_connected() noexcept { connected_ = true; }
    bool connected() const noexcept { return connected_; }
    bool failed() const noexcept { return failed_; }
    /// Told when it is closed or destroyed; null: nobody.
    queue_pair_user* user() const noexcept { return user_; }
    void set_user(queue_pair_user* user) noexcept { user_ = user; }
    /// Whether a verb may be called on it: not `closed`, and of this process.
    result<void> usable(const char* verb) const {
        if (native_ == nullptr) return error(errc::closed, verb);
        if (process_.forked()) return fork_error(verb);
        return {};
    }
    /// How operations that fall with the queue pair end.
    completion_outcome fallen() const noexcept;

    // From coroutines.
    int submit(operation_state& operation);
    /// After a short way that the device refused. True: it will be resumed all the same.
    static bool refused_directly(operation_state& operation, int answer) noexcept;
    bool submit(flush_state& flush) noexcept;
    bool submit(drain_state& drain) noexcept;
    /// The coroutine of an operation that has not ended is being destroyed.
    void leave(operation_state& operation) noexcept;
    void cancel(operation_state& operation, errc cause) noexcept;
    result<void> send_detached(const work_request& request, pool_token token) noexcept;
    result<void> post_by_hand(const work_request& request, std::uint64_t wr_id) noexcept;

    // For the receiver.
    result<void> adopt(receiver_core& receiver);
    bool post_receive(receiver_core& receiver, std::uint32_t slot, memory_slice slice) noexcept;

    // From the reactor.
    /// Whether somebody waits for what is outstanding as a whole.
    bool awaited() const noexcept { return !flushes_.empty() || !drains_.empty(); }
    /// The device takes no more from the shared receive queue for this queue pair.
    void note_last_wqe() noexcept;
    bool last_wqe() const noexcept { return last_wqe_; }
    /// One of its requests was flushed. If no failure is known, with two completion queues it may lie in the other one.
    void look_for_cause(bool sends) noexcept;
    /// Collects what its completion queues hold now.
    void sweep() noexcept;
    /// A completion of this queue pair failed. Acts later, in `attend`, when the batch has been read.
    void note_failure(std::error_code code, std::uint32_t vendor_error) noexcept;
    /// A completion queue of it cannot be polled any more.
    void lose_queue(std::error_code cause) noexcept;
    /// Until the next post has looked.
    void close_short_way() noexcept { open_to_ = no_thread; }
    void want_attention() noexcept;
    void want_flush() noexcept;
    /// After a batch: reacts to a failure, posts what waited for room, ends flushes.
    void attend() noexcept;
    /// Posts the batch: receives first.
    void flush() noexcept;
    /// Takes the queue pair from the device, collects what had completed, and ends the rest with `cause` as root cause.
    /// The error state, then RESET or destruction; afterwards no buffer of it is touched any more.
    void quiesce(std::error_code cause) noexcept;
    void unbind() noexcept;
    bool uses(const completion_queue_state& queue) const noexcept {
        return setup_.send_cq.get() == &queue || setup_.recv_cq.get() == &queue;
    }

  private:
    enum class usage : std::uint8_t { none, by_hand, awaited };
    static constexpr std::uint64_t no_thread = ~std::uint64_t{0};

    /// Finds the reactor and makes it ours. An error's outcome otherwise.
    std::optional<completion_outcome> bind() noexcept;
    /// False: refused, and why.
    bool admit(const device_request& first, std::uint32_t count, completion_outcome& why) noexcept;
    const char* mistake_in(const device_request& request) const noexcept;
    bool dispose(operation_state& operation) noexcept;
    bool withdraw(operation_state& operation) noexcept;
    [[gnu::noinline]] bool submit_slowly(operation_state& operation) noexcept;
    bool post_one(operation_state& operation) noexcept;
    void prepare(operation_state& operation) noexcept;
    [[gnu::noinline]] bool settle(operation_state& operation, std::uint32_t posted, std::error_code code) noexcept;
    static bool is_quiet(const operation_state& operation) noexcept;
    template <class Wr>
    static std::uint32_t taken_before(const Wr* bad, const operation_state& operation,
                                      Wr device_request::* wr) noexcept;
    template <class Wr>
    void flush_queue(work_queue& queue, Wr device_request::* wr) noexcept;
    void post_waiting(work_queue& queue) noexcept;
    void start_failing() noexcept;
    void end_flushes() noexcept;
    void post_marker(entry_kind kind) noexcept;
    /// False: `bad` was refused, and `why`.
    bool post(ibv_send_wr* first, ibv_send_wr*& bad, late_code& why) noexcept;
    bool post(ibv_recv_wr* first, ibv_recv_wr*& bad, late_code& why) noexcept;
    bool fail_unheard(std::error_code code) noexcept;
    template <class Wr>
    bool post_own(work_queue& queue, Wr& wr, late_code& why) noexcept;
    void end_drains() noexcept;
    bool outstanding() const noexcept;
    void keep_alive() noexcept;
    void destroy() noexcept;
    result<void> destroy_native() noexcept;
    void to_error_state() noexcept;
    void take_from_device() noexcept;
    work_queue& queue_of(const operation_state& operation) noexcept;

    const process_mark process_;
    queue_pair_setup setup_;
    ibv_qp* native_;
    reactor_core* reactor_ = nullptr;
    /// The thread whose direct posts are admitted: connected, RC, awaited, immediate, not failed; nobody waits for
    /// room, and all completions came in order.
    std::uint64_t open_to_ = no_thread;
    post_way most_direct_;
    usage usage_ = usage::none;
    bool connected_ = false;
    bool noted_ = false;   ///< a failure was noted, and not yet attended to
    bool unheard_ = false; ///< a post failed and named no request
    bool failed_ = false;  ///< nothing is posted any more
    bool lost_ = false;
    bool quiesced_ = false;
    bool destroyed_ = false;
    bool last_wqe_ = false;
    std::uint32_t missing_ = 0; ///< requests ended by `quiesce`, since no completion came
    std::error_code root_cause_;
    std::uint32_t root_vendor_error_ = 0;
    work_queue send_;
    work_queue recv_;
    list<flush_state> flushes_;
    list<drain_state> drains_;
    receiver_core* receiver_ = nullptr;
    queue_pair_user* user_ = nullptr;

  public:
    pair_link in_reactor{*this};
    pair_link in_attention{*this};
    pair_link in_batches{*this};

  private:
    /// The time for flushes is over.
    struct drain_timer final : timer {
        explicit drain_timer(queue_pair_core& p) noexcept : pair(p) {}
        void expired() noexcept override { pair.quiesce(pair.root_cause_); }
        queue_pair_core& pair;
    };
    drain_timer drain_{*this};
    struct keepalive_timer final : timer {
        explicit keepalive_timer(queue_pair_core& p) noexcept : pair(p) {}
        void expired() noexcept override { pair.keep_alive(); }
        queue_pair_core& pair;
        std::uint64_t received = 0; ///< receives posted when it expired last
    };
    keepalive_timer keepalive_{*this};
};

} // namespace verbena::detail
