#include "async_events.hpp"

#include "check.hpp"
#include "reactor_core.hpp"

#include <verbena/detail/broken_rule.hpp>

#include <algorithm>
#include <cerrno>
#include <utility>

#include <poll.h>

namespace verbena::detail {
namespace {

using kind = async_event_kind;

constexpr std::size_t many_notices = 1024;

/// The element lives until the event is acked.
async_source::notice resolve(const ibv_async_event& native) noexcept {
    const auto what = static_cast<kind>(native.event_type);
    const auto& e = native.element;
    switch (what) {
    case kind::completion_queue_error: return {{what, async_element::completion_queue, e.cq->handle}, e.cq->cq_context};
    case kind::queue_pair_fatal:
    case kind::queue_pair_request_error:
    case kind::queue_pair_access_error:
    case kind::communication_established:
    case kind::send_queue_drained:
    case kind::path_migrated:
    case kind::path_migration_error:
    case kind::last_receive_taken: return {{what, async_element::queue_pair, e.qp->qp_num}, e.qp->qp_context};
    case kind::shared_receive_queue_error:
    case kind::shared_receive_queue_limit:
        return {{what, async_element::shared_receive_queue, e.srq->handle}, e.srq->srq_context};
    case kind::work_queue_fatal: return {{what, async_element::work_queue, e.wq->wq_num}, nullptr};
    case kind::port_active:
    case kind::port_error:
    case kind::lid_change:
    case kind::pkey_change:
    case kind::subnet_manager_change:
    case kind::client_reregister:
    case kind::gid_change: return {{what, async_element::port, static_cast<std::uint32_t>(e.port_num)}, nullptr};
    case kind::device_fatal: break;
    }
    return {{what, async_element::device, 0}, nullptr};
}

} // namespace

// ---- streams

event_stream_core::event_stream_core(std::shared_ptr<async_source> source) noexcept : source_(std::move(source)) {
    source_->streams().push_back(*this);
}

bool event_stream_core::on_thread() const noexcept {
    return !source_ || source_->reactor() == nullptr || source_->reactor()->on_thread();
}

error event_stream_core::misuse(const char* verb) const { return source_->reactor()->refused(verb); }

void event_stream_core::push(const async_event& event) {
    if (events_.size() == event_stream::capacity) {
        events_.drop_oldest();
        ++dropped_;
    }
    events_.push(event);
    wake_next();
}

void event_stream_core::wake_next() noexcept {
    list<ready_node> woken;
    events_.wake_next(woken);
    if (!woken.empty()) source_->reactor()->ready.splice(woken);
}

void event_stream_core::end(errc cause) noexcept {
    if (ended_) return;
    ended_ = true;
    cause_ = cause;
    unlink();
    list<ready_node> woken;
    events_.wake_all(woken);
    if (auto* reactor = source_->reactor()) reactor->ready.splice(woken);
}

void event_stream_core::close() noexcept {
    if (!on_thread() && !source_->reactor()->process.forked())
        broken_rule("an event stream was destroyed on another thread than the one that runs its reactor");
    end(errc::closed);
    source_.reset();
}

event_wait::event_wait(event_stream_core& stream) noexcept : stream_(stream.shared_from_this()) {}

event_wait::~event_wait() {
    if (!woken() || finished_) return;
    stream_->events().keep_promise();
    stream_->wake_next();
}

bool event_wait::take() noexcept {
    misused_ = !stream_->on_thread();
    entitled_ = !misused_ && stream_->events().something_to_take();
    return misused_ || entitled_ || stream_->ended();
}

void event_wait::wait(std::coroutine_handle<> waiting) noexcept { wait_in(stream_->events().waiters(), waiting); }

result<async_event> event_wait::finish() {
    if (misused_) return stream_->misuse("event_stream::next");
    finished_ = true;
    if (cancelled() != errc{}) return error(cancelled(), "event_stream::next");
    if (woken()) stream_->events().keep_promise();
    if ((woken() || entitled_) && !stream_->events().empty()) return stream_->events().take();
    return stream_->end_error();
}

// ---- sources

namespace {

/// What the peer's completion says of the same failure.
errc cause_of(async_event_kind event) noexcept {
    switch (event) {
    case async_event_kind::queue_pair_access_error: return errc::access_denied;
    case async_event_kind::queue_pair_request_error: return errc::message_too_long;
    case async_event_kind::path_migration_error: return errc::peer_unreachable;
    default: return errc::connection_reset;
    }
}

} // namespace

async_source::async_source(reactor_core& reactor, std::shared_ptr<context_state> context)
    : reactor_(&reactor), context_(std::move(context)) {
    const std::lock_guard lock(context_->events_mutex);
    context_->event_sources.push_back(this);
}

async_source::~async_source() {
    if (reactor_ == nullptr) return;
    leave();
    reactor_->forget(*this);
}

result<void> async_source::start(wait_backend& backend) {
    if (ended_) return {};
    return backend.add(*this, context_->native->async_fd, POLLIN);
}

/// Once the mutex is free, no other thread knows of this source.
void async_source::leave() noexcept {
    if (!context_->process.forked()) { // where nobody would unlock it if another thread held it
        const std::lock_guard lock(context_->events_mutex);
        std::erase(context_->event_sources, this);
    }
    if (auto* backend = reactor_->backend()) (void)backend->remove(*this).has_value();
}

void async_source::reactor_gone() noexcept {
    leave();
    reactor_ = nullptr;
    while (!streams_.empty()) streams_.front().end(errc::not_attached);
}

void async_source::ready(unsigned events) noexcept {
    read((events & terminal_events) != 0);
    serve();
}

void async_source::read(bool over) noexcept {
    context_state& shared = *context_;
    const std::lock_guard lock(shared.events_mutex);
    // Of a device that is gone nothing is fetched: its objects may be in destruction.
    while (!shared.lost.load()) {
        ibv_async_event native{};
        const auto got =
            check_minus_one("ibv_get_async_event", [&] { return ibv_get_async_event(shared.native, &native); });
        if (!got) {
            if (got.error().code() == system_code(EINTR)) continue;
            if (over || got.error().code() != system_code(EAGAIN)) shared.lost.store(true);
            break;
        }
        const notice n = resolve(native);
        // At once: the destruction of the element waits for it, perhaps on another thread.
        ibv_ack_async_event(&native);
        if (n.event.kind == kind::device_fatal) shared.lost.store(true);
        for (async_source* each : shared.event_sources) each->keep(n);
    }
    for (async_source* other : shared.event_sources)
        if (other != this && (shared.lost.load() || !other->mail_.empty())) other->reactor_->mail();
}

/// A reactor that does not run must not gather without a limit what is raised again and again.
void async_source::keep(const notice& n) {
    if (mail_.size() >= many_notices && std::find(mail_.begin(), mail_.end(), n) != mail_.end())
        ++repeated_;
    else
        mail_.push_back(n);
}

void async_source::serve() noexcept {
    if (ended_) return;
    served_.clear();
    std::uint64_t repeated = 0;
    bool lost = false;
    {
        const std::lock_guard lock(context_->events_mutex);
        served_.swap(mail_); // both keep their memory
        std::swap(repeated, repeated_);
        lost = context_->lost.load(); // together with the event that says so
    }
    for (const notice& n : served_) {
        // What befell one queue of a device that is gone would hide why.
        if (!lost) react(n);
        streams_.for_each([&](event_stream_core& stream) { stream.push(n.event); });
    }
    streams_.for_each([&](event_stream_core& stream) { stream.add_dropped(repeated); });
    if (!lost) return;
    ended_ = true;
    leave();
    reactor_->device_lost(*context_);
    while (!streams_.empty()) streams_.front().end(errc::device_removed);
}

void async_source::react(const notice& n) noexcept {
    const auto with_pair = [&](auto&& f) {
        reactor_->pairs.for_each([&](pair_link& link) {
            const auto* native = link.pair->native();
            if (native != nullptr && native->qp_context == n.identity && native->qp_num == n.event.number)
                f(*link.pair);
        });
    };
    switch (n.event.kind) {
    case kind::completion_queue_error:
        for (const auto& pump : reactor_->pumps())
            for (const auto& queue : pump->queues())
                if (&queue->queue() == n.identity) queue->overran();
        return;
    case kind::queue_pair_fatal:
    case kind::queue_pair_request_error:
    case kind::queue_pair_access_error:
    case kind::path_migration_error:
        with_pair([&](queue_pair_core& pair) {
            // A failed completion says more.
            pair.sweep();
            pair.note_failure(make_code(cause_of(n.event.kind)), 0);
        });
        return;
    case kind::last_receive_taken: with_pair([](queue_pair_core& pair) { pair.note_last_wqe(); }); return;
    case kind::shared_receive_queue_error:
        reactor_->receivers.for_each([&](receiver_link& link) {
            const auto* srq = link.receiver->shared_queue();
            if (srq != nullptr && srq->native->srq_context == n.identity)
                link.receiver->fail(
                    error(errc::queue_failed, "receiver").with_note("the device reports its shared receive queue"));
        });
        return;
    default: return;
    }
}

} // namespace verbena::detail

namespace verbena {

event_stream::~event_stream() {
    if (core_) core_->close();
}
std::uint64_t event_stream::dropped() const noexcept { return core_->dropped(); }

} // namespace verbena
