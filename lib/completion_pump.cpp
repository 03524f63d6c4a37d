#include "completion_pump.hpp"

#include "check.hpp"
#include "reactor_core.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <utility>

#include <poll.h>

namespace verbena::detail {
namespace {

constexpr std::uint32_t ack_batch = 64;

void pay_acks(completion_queue_state& queue) noexcept {
    if (queue.unacked_events > 0 && !queue.process.forked())
        ibv_ack_cq_events(queue.native, std::exchange(queue.unacked_events, 0));
}

} // namespace

attached_queue::attached_queue(completion_pump& pump, std::shared_ptr<completion_queue_state> queue,
                               std::shared_ptr<async_source> events, std::span<poll_slot> slots,
                               const attach_options& options)
    : pump_(pump), queue_(std::move(queue)), events_(std::move(events)), entries_(native(slots.data())),
      most_(static_cast<unsigned>(std::min<std::size_t>(slots.size(), INT_MAX))) {
    if (queue_->owes_event) ++pump_.owing_;
    if (options.foreign)
        foreign_ = std::make_shared<const std::function<void(const work_completion&)>>(options.foreign);
}

attached_queue::~attached_queue() {
    forget_arm();
    if (queue_->owes_event) --pump_.owing_;
    pay_acks(*queue_);
    pump_.reactor().forget(*this);
    queue_->attachment.store(nullptr);
}

reactor_core& attached_queue::reactor() const noexcept { return pump_.reactor(); }

inline unsigned attached_queue::take(unsigned room) noexcept {
    if (room == 0) [[unlikely]] // it has failed, or the budget is spent
        return 0;
    reactor_core& reactor = pump_.reactor();
    const int taken = ibv_poll_cq(queue_->native, static_cast<int>(room), entries_);
    ++reactor.counters.polls;
    if (taken <= 0) {
        if (taken < 0) [[unlikely]]
            fail();
        ++reactor.counters.empty_polls;
        return 0;
    }
    if (armed_) [[unlikely]]
        found_armed();
    reactor.dispatch(entries_, taken, *this);
    return static_cast<unsigned>(taken);
}

unsigned attached_queue::drain(unsigned budget) noexcept {
    const unsigned room = std::min(most_, budget);
    const unsigned taken = take(room);
    return taken < room ? taken : drain_on(budget, taken);
}

unsigned attached_queue::drain_on(unsigned budget, unsigned taken) noexcept {
    for (unsigned now = taken, room = taken; now == room && room != 0; taken += now) {
        room = std::min(most_, budget - taken);
        now = take(room);
    }
    return taken;
}

void attached_queue::sweep() noexcept {
    if (failed()) return;
    std::array<ibv_wc, 16> entries;
    const auto most = static_cast<int>(queue_->capacity.load());
    int total = 0;
    while (total < most) {
        const int polled = ibv_poll_cq(queue_->native, static_cast<int>(entries.size()), entries.data());
        if (polled < 0) fail();
        if (polled <= 0) break;
        pump_.reactor().dispatch(entries.data(), polled, *this);
        total += polled;
    }
    if (armed_ && total > 0) found_armed();
}

void attached_queue::fail() noexcept {
    most_ = 0;
    queue_->failed.store(true);
    pump_.reactor().queue_failed(*queue_, errc::queue_failed);
}

void attached_queue::overran() noexcept {
    sweep();
    if (!failed()) fail();
}

void attached_queue::device_lost() noexcept {
    queue_->failed.store(true); // what lies in it is still polled
    forget_arm();
    pump_.reactor().queue_failed(*queue_, errc::device_removed);
}

bool attached_queue::arm() noexcept {
    if (armed_ || failed() || pump_.fd() < 0) return false;
    // For all completions: one armed for solicited ones only would never report a send.
    if (!check_errno_value("ibv_req_notify_cq", [this] { return ibv_req_notify_cq(queue_->native, 0); })) {
        fail();
        return false;
    }
    ++pump_.reactor().counters.arms;
    armed_ = true;
    found_while_armed_ = false;
    ++pump_.armed_;
    return true;
}

bool attached_queue::only_polled() const noexcept { return !failed() && !armed_; }

void attached_queue::took_event() noexcept {
    if (++queue_->unacked_events >= ack_batch) pay_acks(*queue_);
    if (armed_) --pump_.armed_;
    if (std::exchange(queue_->owes_event, false)) --pump_.owing_;
    disarmed();
}

void attached_queue::forget_arm() noexcept {
    if (!armed_) return;
    --pump_.armed_;
    if (!std::exchange(queue_->owes_event, true)) ++pump_.owing_;
    disarmed();
}

void attached_queue::disarmed() noexcept {
    armed_ = found_while_armed_ = overdue_ = false;
    pump_.reactor().poll_again(*this);
}

void attached_queue::found_armed() noexcept {
    found_while_armed_ = true;
    pump_.reactor().poll_again(*this);
}

bool attached_queue::event_lost() noexcept {
    const bool silent = armed_ && found_while_armed_;
    const bool lost = silent && overdue_;
    overdue_ = silent && !lost;
    if (lost) forget_arm();
    return lost;
}

bool attached_queue::on_reactor_thread() const noexcept { return pump_.reactor().on_thread(); }

void attached_queue::about_to_resize() noexcept { pump_.take_all_events(); }

void attached_queue::resized() noexcept { forget_arm(); }

completion_pump::~completion_pump() {
    queues_.clear();
    if (auto* backend = reactor_.backend(); backend != nullptr && watching()) (void)backend->remove(*this).has_value();
    if (channel_) channel_->owner.store(nullptr);
}

attached_queue* completion_pump::find(const completion_queue_state& queue) const noexcept {
    for (const auto& attached : queues_)
        if (&attached->queue() == &queue) return attached.get();
    return nullptr;
}

attached_queue& completion_pump::add(std::unique_ptr<attached_queue> queue) {
    return *queues_.emplace_back(std::move(queue));
}

void completion_pump::remove(attached_queue& queue) noexcept {
    take_all_events();
    std::erase_if(queues_, [&](const auto& attached) { return attached.get() == &queue; });
}

void completion_pump::fail() noexcept { device_lost(*channel_->context); }

void completion_pump::device_lost(const context_state& context) noexcept {
    if (ended_ || (channel_ && channel_->context.get() != &context)) return;
    if (channel_) {
        ended_ = true;
        if (auto* backend = reactor_.backend()) (void)backend->remove(*this).has_value();
    }
    for (const auto& queue : queues_)
        if (queue->queue().context.get() == &context) queue->device_lost();
}

bool completion_pump::take_event() noexcept {
    if (ended_) return false;
    // Never by reading the descriptor: what providers do on the way keeps their arm sequence.
    ibv_cq* native = nullptr;
    void* context = nullptr;
    result<int> got = 0;
    do {
        got =
            check_minus_one("ibv_get_cq_event", [&] { return ibv_get_cq_event(channel_->native, &native, &context); });
    } while (!got && got.error().code() == system_code(EINTR));
    if (!got) {
        if (got.error().code() != system_code(EAGAIN)) fail();
        return false;
    }
    ++reactor_.counters.events;
    auto& state = *static_cast<completion_queue_state*>(context);
    auto* queue = static_cast<attached_queue*>(state.attachment.load());
    if (queue != nullptr && &queue->reactor() == &reactor_) {
        queue->took_event();
    } else {
        state.owes_event = false;
        ibv_ack_cq_events(native, 1);
        ++reactor_.counters.unattached_events;
    }
    return true;
}

void completion_pump::ready(unsigned events) noexcept {
    // Every arm gives one event at most, so that no more than one for each armed queue is owed: the read that would say
    // EAGAIN is saved. An event that stays unread makes mlx5 ignore the next arm of its queue: what forgotten arms
    // still send is taken too, and everything when nothing was expected.
    const bool unexpected = armed_ + owing_ == 0;
    while ((unexpected || armed_ + owing_ > 0) && take_event()) {}
    if ((events & terminal_events) != 0) fail();
}

void completion_pump::take_all_events() noexcept {
    if (!channel_ || channel_->context->process.forked()) return;
    while (take_event()) {}
    for (const auto& queue : queues_) pay_acks(queue->queue());
}

} // namespace verbena::detail
