#pragma once

#include "source.hpp"
#include "verbs/states.hpp"
#include "wait_backend.hpp"

#include <verbena/reactor.hpp>

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace verbena::detail {

class async_source;
class completion_pump;
class reactor_core;

/// One completion queue attached to a reactor.
class attached_queue final : public cq_attachment {
  public:
    attached_queue(completion_pump& pump, std::shared_ptr<completion_queue_state> queue,
                   std::shared_ptr<async_source> events, std::span<poll_slot> slots, const attach_options& options);
    ~attached_queue();

    reactor_core& reactor() const noexcept;
    completion_queue_state& queue() const noexcept { return *queue_; }

    /// Polls until the queue is empty or the budget is spent, and hands each entry to its operation.
    unsigned drain(unsigned budget) noexcept;
    /// The same into a few entries on the stack, at most as many as the queue can hold: part of a quiesce.
    void sweep() noexcept;
    /// Asks for an event. It must be drained once more before sleeping. False: it was not newly armed.
    bool arm() noexcept;
    /// Whether it need not be polled: an event will tell.
    bool silent() const noexcept { return failed() || (armed_ && !found_while_armed_); }
    /// No event will ever tell of it.
    bool only_polled() const noexcept;
    void took_event() noexcept;
    /// The device has lost entries of it: their operations would wait for ever.
    void overran() noexcept;
    void device_lost() noexcept;
    const auto& foreign() const noexcept { return foreign_; }
    /// The safety re-poll's look, once a tick. True: an event was lost, and the queue will be armed anew.
    bool event_lost() noexcept;

    bool on_reactor_thread() const noexcept override;
    void about_to_resize() noexcept override;
    void resized() noexcept override;

  private:
    friend class completion_pump;
    bool failed() const noexcept { return most_ == 0; }
    unsigned take(unsigned room) noexcept;
    /// After the slots were full.
    [[gnu::noinline]] unsigned drain_on(unsigned budget, unsigned taken) noexcept;
    void fail() noexcept;
    /// The arm is not relied on any more, but its event may be on the way.
    void forget_arm() noexcept;
    void disarmed() noexcept;
    /// Its event is on the way, and no further one comes before that was taken.
    void found_armed() noexcept;

    completion_pump& pump_;
    std::shared_ptr<completion_queue_state> queue_;
    std::shared_ptr<async_source> events_; ///< of its context, for as long as it is attached
    ibv_wc* entries_;                      ///< the poll slots
    unsigned most_;                        ///< as many; 0 once it has failed
    std::shared_ptr<const std::function<void(const work_completion&)>> foreign_; ///< may be null
    bool armed_ = false;
    bool found_while_armed_ = false;
    bool overdue_ = false; ///< so it was at the last tick already

  public:
    bool polled = true; ///< in every round; its reactor's to change
};

/// One completion channel and its attached queues, or the queues that have none. The only place that knows the order
/// get event → ack → drain → arm → drain.
class completion_pump final : public watch {
  public:
    completion_pump(reactor_core& reactor, std::shared_ptr<completion_channel_state> channel) noexcept
        : reactor_(reactor), channel_(std::move(channel)) {}
    ~completion_pump();

    reactor_core& reactor() const noexcept { return reactor_; }
    const completion_channel_state* channel() const noexcept { return channel_.get(); }
    bool empty() const noexcept { return queues_.empty(); }
    bool ended() const noexcept { return ended_; }
    attached_queue* find(const completion_queue_state& queue) const noexcept;
    attached_queue& add(std::unique_ptr<attached_queue> queue);
    void remove(attached_queue& queue) noexcept;
    const std::vector<std::unique_ptr<attached_queue>>& queues() const noexcept { return queues_; }

    /// Readable when an armed queue has something; -1: they can only be polled.
    int fd() const noexcept { return channel_ && !ended_ ? channel_->native->fd : -1; }
    /// The descriptor reported its end: everyone who waits for it is told.
    void fail() noexcept;

    // watch: the channel is readable
    void ready(unsigned events) noexcept override;

    /// The device of this context is gone: its queues fail, and the channel is neither watched nor read any more.
    void device_lost(const context_state& context) noexcept;
    /// Takes and acks every event there is.
    void take_all_events() noexcept;

  private:
    bool take_event() noexcept;

    reactor_core& reactor_;
    std::shared_ptr<completion_channel_state> channel_; ///< null: queues that are only polled
    std::vector<std::unique_ptr<attached_queue>> queues_;
    std::size_t armed_ = 0;
    std::size_t owing_ = 0; ///< of its queues
    bool ended_ = false;    ///< the channel has reported its end

    friend class attached_queue;
};

} // namespace verbena::detail
