#pragma once

#include "async_events.hpp"
#include "clock.hpp"
#include "completion_pump.hpp"
#include "operation_table.hpp"
#include "process.hpp"
#include "queue_pair_core.hpp"
#include "receiver_core.hpp"
#include "source.hpp"
#include "spin_budget.hpp"
#include "stop_inbox.hpp"
#include "wait_backend.hpp"

#include <verbena/detail/ready.hpp>
#include <verbena/detail/timer.hpp>
#include <verbena/reactor.hpp>

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace verbena::detail {

/// The loop behind `reactor`: drain, react, resume, others, park.
class reactor_core {
  public:
    /// Without a clock and a backend of the caller's: the real ones.
    explicit reactor_core(const reactor_options& options, std::unique_ptr<clock_source> clock = nullptr,
                          std::unique_ptr<wait_backend> backend = nullptr);
    ~reactor_core();
    reactor_core(const reactor_core&) = delete;
    reactor_core& operator=(const reactor_core&) = delete;

    result<void> attach(std::shared_ptr<completion_queue_state> queue, std::span<poll_slot> slots,
                        const attach_options& options);
    result<void> detach(completion_queue_state& queue);
    result<void> attach(readable_source& source);
    /// Its descriptor is looked at from now on, until the two below; to be repeated is harmless.
    result<void> watch(readable_source& source);
    void unwatch(readable_source& source) noexcept;
    void detach(readable_source& source) noexcept;
    void run_until(root_base& root);
    result<unsigned> poll(unsigned budget);
    result<int> native_handle();
    result<wait_state> prepare_wait();
    void stop() noexcept;
    void post(std::function<void()> function);
    /// A stream of the context's asynchronous events.
    result<std::shared_ptr<event_stream_core>> events(const std::shared_ptr<context_state>& context);
    /// Another reactor has read events for this one. Thread-safe.
    void mail() noexcept;
    void forget(async_source& source) noexcept { std::erase(event_sources_, &source); }
    const auto& pumps() const noexcept { return pumps_; }
    void forget(attached_queue& queue) noexcept;
    /// From now on in every round.
    void poll_again(attached_queue& queue) noexcept {
        if (!std::exchange(queue.polled, true)) polled_.push_back(&queue);
    }
    /// Everything of this context ends, after the batch.
    void device_lost(const context_state& context) noexcept;
    reactor_stats stats() const noexcept;

    /// Whether the calling thread may use what is bound to this reactor: the one that runs it, or any before that.
    /// In a child of fork(2) no thread has the number of the one that forked.
    bool on_thread() const noexcept {
        const auto owner = owner_.load(std::memory_order_relaxed);
        return owner == thread_number() || (owner == nobody && !process.forked());
    }
    bool on_own_thread() const noexcept { return owner_.load(std::memory_order_relaxed) == thread_number(); }
    /// Where it need not be an error: what is destroyed in a child of fork(2) is only forgotten there.
    bool on_thread_or_forked() const noexcept { return on_thread() || process.forked(); }
    /// Why `on_thread` says no.
    const char* refusal() const noexcept { return process.forked() ? fork_note : "another thread runs this reactor"; }
    error refused(const char* verb) const { return error(errc::wrong_thread, verb).with_note(refusal()); }
    /// In a child of fork(2): what runs here resumes nobody any more.
    static void leave_to_parent() noexcept;
    /// The one that runs, or has run last, on this thread; null: none.
    static reactor_core* here() noexcept;
    clock_source& clock() const noexcept { return *clock_; }
    wait_backend* backend() const noexcept { return backend_.get(); }
    void watch_readable(readable_watch& wait) noexcept;
    result<void> unwatch(readable_watch& wait) noexcept;
    /// Makes the wait backend, and binds the thread, if that has not been done.
    result<void> start(bool with_handle = false);

    /// A batch of one completion queue. Resumes nobody.
    void dispatch(const ibv_wc* entries, int count, attached_queue& from) noexcept;
    /// Collects what a queue holds now, as far as it belongs to operations.
    void sweep(completion_queue_state& queue) noexcept;
    /// Posts what the batched queue pairs have gathered.
    void flush_batches() noexcept;
    queue_pair_core* find_pair(std::uint32_t qp_num) noexcept;
    /// By what `fresh_identity` gave it.
    queue_pair_core* find_pair(const void* identity) noexcept;
    /// The queue cannot be polled any more: everything on it ends, after the batch.
    void queue_failed(completion_queue_state& queue, errc cause) noexcept;

    const process_mark process;
    work_queue_index work_queues;
    std::size_t outstanding = 0; ///< requests of the work queues
    operation_table table;       ///< of the shared receive queues
    ready_queue ready;
    timer_queue timers;
    list<pair_link> pairs;     ///< all that await something here
    list<pair_link> attention; ///< to be attended to after the batch
    list<pair_link> batches;   ///< have something to flush
    list<receiver_link> receivers;
    list<readable_source> readable; ///< to be drained
    bool returned_receives = false; ///< a receiver has buffers to post again
    bool looking_for_cause = false; ///< a completion queue is read in the middle of another's batch
    reactor_stats counters;
    const std::shared_ptr<stop_inbox> stops = std::make_shared<stop_inbox>();

  private:
    static constexpr std::uint64_t nobody = ~std::uint64_t{0};

    /// `queue`: whose number it is, or nobody's.
    [[gnu::noinline]] void dispatch_slowly(work_queue& queue, const ibv_wc& wc, attached_queue& from) noexcept;
    void stray(const ibv_wc& wc, attached_queue& from) noexcept;
    unsigned round(unsigned budget);
    [[gnu::noinline]] unsigned rounds(const root_base& root);
    unsigned serve_others(unsigned budget);
    unsigned drain(unsigned budget) noexcept;
    [[gnu::noinline]] unsigned drain_readable(unsigned budget) noexcept;
    /// After a batch, before anybody is resumed.
    [[gnu::noinline]] void settle() noexcept;
    unsigned resume(unsigned budget);
    unsigned serve_timers(unsigned budget) noexcept;
    unsigned serve_posted();
    unsigned serve_strays();
    bool may_sleep(std::optional<time_point>& deadline);
    result<unsigned> park(bool& found);
    /// `park` under the adaptive policy, which learns what it costs.
    result<unsigned> park_measured(bool& found);
    /// Polls up to 64 queues whose event may have been lost.
    unsigned look_at_silent() noexcept;
    unsigned check_queues() noexcept;
    /// `found`: entries without an event.
    std::optional<time_point> next_wake(unsigned& found);
    attached_queue* attachment_of(const completion_queue_state& queue) const noexcept;
    result<void> watch_channel(completion_pump& pump);
    /// The one source of this context here; it lives as long as somebody holds it.
    result<std::shared_ptr<async_source>> share_events(const std::shared_ptr<context_state>& context, const char* verb);

    struct stray_completion {
        std::shared_ptr<const std::function<void(const work_completion&)>> take;
        work_completion completion;
    };

    reactor_options options_;
    std::unique_ptr<clock_source> clock_;
    std::unique_ptr<wait_backend> given_; ///< becomes the backend at the start
    std::unique_ptr<wait_backend> backend_;
    std::vector<std::unique_ptr<completion_pump>> pumps_;
    std::vector<attached_queue*> queues_; ///< of all of them
    std::vector<attached_queue*> polled_; ///< those that are not known to be silent, with room for all
    std::size_t next_looked_at_ = 0;      ///< of the others, in `look_at_silent`
    std::vector<async_source*> event_sources_;
    std::vector<readable_source*> readable_sources_;
    std::atomic<std::uint64_t> owner_{nobody}; ///< a thread's number
    std::vector<stray_completion> strays_;
    list<readable_watch> readables_;
    spin_budget budget_; ///< of the adaptive policy
    time_point next_check_{};
    std::chrono::milliseconds check_interval_;

    std::atomic<bool> posted_waiting_{false}; ///< functions, or mail
    std::atomic<bool> mail_waiting_{false};
    std::atomic<bool> stopping_{false};
    std::mutex posted_mutex_; ///< guards the two below
    std::vector<std::function<void()>> posted_;
    std::atomic<wait_backend*> waker_{nullptr};
};

inline std::uint64_t work_queue::append(reactor_core& reactor, operation_state& operation) noexcept {
    const std::uint64_t position = next_;
    alone_[position & mask_] = &operation;
    next_ = position + 1;
    ++reactor.outstanding;
    return number_of(position);
}

inline bool work_queue::complete_next(reactor_core& reactor, const ibv_wc& wc) noexcept {
    operation_state** const place = &alone_[first_ & mask_];
    if (static_cast<std::uint32_t>(wc.wr_id) != static_cast<std::uint32_t>(first_) || *place == nullptr ||
        wc.status != IBV_WC_SUCCESS) [[unlikely]]
        return false;
    operation_state& operation = **place;
    *place = nullptr;
    ++first_;
    ++limit_;
    operation.phase_ = operation_phase::ended;
    reactor.ready.push(operation);
    if (watched) [[unlikely]]
        tell_watchers();
    return true;
}

inline void reactor_core::dispatch(const ibv_wc* entries, int count, attached_queue& from) noexcept {
    counters.completions += static_cast<std::uint64_t>(count);
    outstanding -= static_cast<std::size_t>(count); // of most, and the others take it back
    work_queue* queue = &work_queues.nobody();
    for (const ibv_wc* wc = entries; wc != entries + count; ++wc) {
        if ((wc->wr_id ^ queue->base_) >> 32 != 0) queue = &work_queues.find(wc->wr_id);
        if (!queue->complete_next(*this, *wc)) [[unlikely]]
            dispatch_slowly(*queue, *wc, from);
    }
}

} // namespace verbena::detail
