#include "reactor_core.hpp"

#include "check.hpp"
#include "epoll_backend.hpp"
#include "ring.hpp"

#include <verbena/detail/broken_rule.hpp>
#include <verbena/log.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <system_error>
#include <utility>

#include <poll.h>

namespace verbena::detail {
namespace {

constinit thread_local reactor_core* running_here = nullptr;

constexpr unsigned run_budget = 256;
constexpr unsigned run_rounds = 8; // of drain and resume in a turn, while there are completions
constexpr unsigned collect_budget = 64;
constexpr std::size_t silent_at_once = 64;
constexpr std::uint64_t busy_look = 256; // turns
constexpr unsigned measured_first = 5;   // parks, as many as the median is of,
constexpr unsigned measured_every = 64;

// While it lives, what coroutines of this thread make ready goes to the reactor's list.
class running {
  public:
    explicit running(reactor_core& reactor) noexcept
        : before_(exchange_current_queue(&reactor.ready)), reactor_(reactor), outer_(std::exchange(innermost, this)) {
        running_here = &reactor;
    }
    ~running() {
        innermost = outer_;
        exchange_current_queue(before_);
        if (outer_ != nullptr) running_here = &outer_->reactor_;
    }
    running(const running&) = delete;
    running& operator=(const running&) = delete;

    /// Whom all that run on this thread, one in a coroutine of the other, were to resume.
    static void forget_all() noexcept {
        for (const running* r = innermost; r != nullptr; r = r->outer_) r->reactor_.ready.forget_all();
    }

  private:
    static constinit thread_local running* innermost;

    ready_queue* before_;
    reactor_core& reactor_;
    running* outer_;
};
constinit thread_local running* running::innermost = nullptr;

// Users' functions may throw: the others are called all the same.
template <class Range, class F>
void call_all(Range& range, F&& f) {
    std::exception_ptr first;
    for (auto& element : range) {
        try {
            f(element);
        } catch (...) {
            if (!first) first = std::current_exception();
        }
    }
    if (first) std::rethrow_exception(first);
}

// Forbidden (EPERM, EACCES), left out or hidden (ENOSYS), or too old (EINVAL: none of its flags; else what `make_ring`
// misses). What has run out, as memory or descriptors, is no reason: the reactor would be slower for ever and not know.
bool is_unavailable(const error& io_uring) {
    return io_uring == errc::access_denied || io_uring == errc::unsupported || io_uring == errc::invalid_argument;
}

result<std::unique_ptr<wait_backend>> make_backend() {
    auto ring = make_ring();
    if (ring || !is_unavailable(ring.error())) return ring;
    auto instead = make_epoll_backend();
    // One line, not one for each reactor: the next would fail for the same reason.
    static std::atomic<int> said{0};
    const int reason = ring.error().code().value();
    if (instead && said.exchange(reason) != reason)
        log(log_level::warning, fmt::format("reactors sleep on epoll(7): {}", ring.error().message()));
    return instead;
}

} // namespace

reactor_core::reactor_core(const reactor_options& options, std::unique_ptr<clock_source> clock,
                           std::unique_ptr<wait_backend> backend)
    : options_(options), clock_(clock ? std::move(clock) : std::make_unique<real_clock>()), given_(std::move(backend)),
      check_interval_(options.safety_repoll) {}

reactor_core::~reactor_core() {
    if (!on_thread_or_forked()) broken_rule("a reactor was destroyed on another thread than the one that runs it");
    // Before their queue pairs fail: that the reactor is gone is what they are to report.
    while (!receivers.empty()) receivers.pop_front().receiver->reactor_gone();
    while (!pairs.empty()) {
        queue_pair_core& pair = *pairs.front().pair;
        pair.quiesce(make_code(errc::not_attached));
        pair.unbind();
    }
    while (!readables_.empty()) (void)unwatch(readables_.front()).has_value();
    for (readable_source* source : std::exchange(readable_sources_, {})) {
        unwatch(*source);
        source->reactor_gone();
    }
    for (async_source* source : std::exchange(event_sources_, {})) source->reactor_gone();
    if (backend_)
        for (const auto& pump : pumps_) {
            pump->take_all_events();
            if (pump->fd() >= 0) (void)backend_->remove(*pump).has_value();
        }
    pumps_.clear();
    waker_.store(nullptr);
    stops->close();
    if (running_here == this) running_here = nullptr;
}

reactor_core* reactor_core::here() noexcept { return running_here; }

void reactor_core::leave_to_parent() noexcept {
    if (running_here == nullptr) return;
    running::forget_all();
    running_here = nullptr;
}

result<void> reactor_core::start(bool with_handle) {
    if (!on_thread()) return refused(with_handle ? "reactor::native_handle" : "reactor::run");
    if (backend_) return {};
    auto backend = given_        ? result<std::unique_ptr<wait_backend>>(std::move(given_))
                   : with_handle ? make_epoll_backend()
                                 : make_backend();
    if (!backend) return std::move(backend).error();
    backend_ = std::move(backend).value();
    for (const auto& pump : pumps_)
        if (auto watching = watch_channel(*pump); !watching) {
            backend_.reset();
            return watching;
        }
    for (async_source* source : event_sources_)
        if (auto watching = source->start(*backend_); !watching) {
            backend_.reset();
            return watching;
        }
    for (readable_source* source : readable_sources_) {
        if (!source->watched_from_the_start()) continue;
        if (auto watching = watch(*source); !watching) {
            backend_.reset();
            return watching;
        }
    }
    readables_.for_each([this](readable_watch& wait) { watch_readable(wait); });
    owner_.store(number_thread(), std::memory_order_relaxed);
    counters.backend = backend_->name();
    waker_.store(backend_.get());
    stops->open(*backend_);
    return {};
}

result<void> reactor_core::watch_channel(completion_pump& pump) {
    if (!backend_ || pump.fd() < 0) return {};
    return backend_->add(pump, pump.fd(), POLLIN);
}

result<std::shared_ptr<async_source>> reactor_core::share_events(const std::shared_ptr<context_state>& context,
                                                                 const char* verb) {
    if (context->lost.load()) return error(errc::device_removed, verb);
    for (async_source* source : event_sources_)
        if (&source->context() == context.get()) return source->shared_from_this();
    auto source = std::make_shared<async_source>(*this, context);
    event_sources_.push_back(source.get());
    if (backend_)
        if (auto watching = source->start(*backend_); !watching) return std::move(watching).error();
    return source;
}

result<std::shared_ptr<event_stream_core>> reactor_core::events(const std::shared_ptr<context_state>& context) {
    constexpr auto verb = "reactor::events";
    if (!on_thread()) return refused(verb);
    if (!context) return error(errc::invalid_argument, verb).with_note("an empty context");
    if (context->process.forked()) return fork_error(verb);
    auto source = share_events(context, verb);
    if (!source) return std::move(source).error();
    return std::make_shared<event_stream_core>(std::move(source).value());
}

void reactor_core::mail() noexcept {
    mail_waiting_.store(true);
    {
        const std::lock_guard lock(posted_mutex_);
        posted_waiting_.store(true);
    }
    if (wait_backend* backend = waker_.load()) backend->wake();
}

void reactor_core::device_lost(const context_state& context) noexcept {
    for (const auto& pump : pumps_) pump->device_lost(context);
    // One that was closing leaves.
    for (readable_source* source : std::vector(readable_sources_)) source->device_lost(context);
    receivers.for_each([&](receiver_link& link) {
        if (link.receiver->domain()->context.get() == &context)
            link.receiver->fail(error(errc::device_removed, "receiver"));
    });
}

void reactor_core::watch_readable(readable_watch& wait) noexcept {
    if (!wait.linked()) readables_.push_back(wait);
    if (!backend_) return; // until the start
    if (auto added = backend_->add(wait, wait.fd(), POLLIN); !added) wait.end(std::move(added));
}

result<void> reactor_core::unwatch(readable_watch& wait) noexcept {
    wait.unlink();
    return backend_ && wait.watching() ? backend_->remove(wait) : result<void>{};
}

attached_queue* reactor_core::attachment_of(const completion_queue_state& queue) const noexcept {
    for (const auto& pump : pumps_)
        if (attached_queue* attached = pump->find(queue)) return attached;
    return nullptr;
}

result<void> reactor_core::attach(std::shared_ptr<completion_queue_state> queue, std::span<poll_slot> slots,
                                  const attach_options& options) {
    constexpr auto verb = "reactor::attach";
    if (!on_thread()) return refused(verb);
    if (!queue) return error(errc::invalid_argument, verb).with_note("an empty completion queue");
    if (queue->process.forked()) return fork_error(verb);
    if (slots.empty()) return error(errc::invalid_argument, verb).with_note("no poll slots");
    if (!queue->channel && options_.wait.parks())
        return error(errc::invalid_argument, verb)
            .with_note("a completion queue without a channel cannot wake a reactor: make it with one, or spin_forever");
    if (queue->attachment.load() != nullptr)
        return error(errc::attached, verb)
            .with_note(attachment_of(*queue) != nullptr ? "to this reactor" : "to another reactor");
    auto events = share_events(queue->context, verb);
    if (!events) return std::move(events).error();
    (*events)->serve();
    const auto* channel = queue->channel.get();
    auto found = std::find_if(pumps_.begin(), pumps_.end(), [&](const auto& p) { return p->channel() == channel; });
    if (found != pumps_.end() && (*found)->ended()) return error(errc::device_removed, verb);
    std::unique_ptr<completion_pump> fresh;
    if (found == pumps_.end()) {
        if (channel != nullptr) {
            const void* nobody = nullptr;
            if (!queue->channel->owner.compare_exchange_strong(nobody, this))
                return error(errc::invalid_argument, verb).with_note("its channel belongs to another reactor");
        }
        fresh = std::make_unique<completion_pump>(*this, queue->channel);
        if (auto watching = watch_channel(*fresh); !watching) return watching;
    }
    completion_pump& pump = fresh ? *fresh : **found;
    auto attached = std::make_unique<attached_queue>(pump, queue, *events, slots, options);
    cq_attachment* none = nullptr;
    // The attachment's destructor would take away what another reactor has put there.
    if (!queue->attachment.compare_exchange_strong(none, attached.get()))
        broken_rule("one completion queue was attached by two threads at once");
    queues_.push_back(attached.get());
    polled_.reserve(queues_.capacity());
    polled_.push_back(attached.get());
    pump.add(std::move(attached));
    if (fresh) pumps_.push_back(std::move(fresh));
    pump.take_all_events();
    return {};
}

result<void> reactor_core::detach(completion_queue_state& queue) {
    constexpr auto verb = "reactor::detach";
    if (!on_thread()) return refused(verb);
    attached_queue* attached = attachment_of(queue);
    if (attached == nullptr) return error(errc::not_attached, verb).with_note("not to this reactor");
    pairs.for_each([&](pair_link& link) {
        if (!link.pair->uses(queue)) return;
        link.pair->quiesce(make_code(errc::not_attached));
        link.pair->unbind();
    });
    const auto pump =
        std::find_if(pumps_.begin(), pumps_.end(), [&](const auto& p) { return p->find(queue) != nullptr; });
    (*pump)->remove(*attached);
    if ((*pump)->empty()) {
        if (backend_ && (*pump)->fd() >= 0)
            if (auto removed = backend_->remove(**pump); !removed) return removed;
        pumps_.erase(pump);
    }
    return {};
}

result<void> reactor_core::attach(readable_source& source) {
    if (source.watched_from_the_start())
        if (auto watching = watch(source); !watching) return watching;
    readable_sources_.push_back(&source);
    return {};
}

result<void> reactor_core::watch(readable_source& source) {
    if (!backend_ || source.watching()) return {};
    return backend_->add(source, source.fd(), POLLIN);
}

void reactor_core::unwatch(readable_source& source) noexcept {
    source.unlink();
    if (backend_ && source.watching()) (void)backend_->remove(source).has_value();
}

void reactor_core::detach(readable_source& source) noexcept {
    unwatch(source);
    std::erase(readable_sources_, &source);
}

void reactor_core::forget(attached_queue& queue) noexcept {
    std::erase(queues_, &queue);
    std::erase(polled_, &queue);
}

void reactor_core::sweep(completion_queue_state& queue) noexcept {
    if (process.forked()) return;
    if (attached_queue* attached = attachment_of(queue)) attached->sweep();
}

queue_pair_core* reactor_core::find_pair(std::uint32_t qp_num) noexcept {
    queue_pair_core* found = nullptr;
    pairs.for_each([&](pair_link& link) {
        if (link.pair->setup().local.qp_num == qp_num) found = link.pair;
    });
    return found;
}

queue_pair_core* reactor_core::find_pair(const void* identity) noexcept {
    queue_pair_core* found = nullptr;
    pairs.for_each([&](pair_link& link) {
        const ibv_qp* native = link.pair->native();
        if (native != nullptr && native->qp_context == identity) found = link.pair;
    });
    return found;
}

void reactor_core::queue_failed(completion_queue_state& queue, errc cause) noexcept {
    pairs.for_each([&](pair_link& link) {
        if (link.pair->uses(queue)) link.pair->lose_queue(make_code(cause));
    });
    receivers.for_each([&](receiver_link& link) {
        if (link.receiver->uses(queue)) link.receiver->fail(error(cause, "receiver"));
    });
}

void reactor_core::dispatch_slowly(work_queue& queue, const ibv_wc& wc, attached_queue& from) noexcept {
    ++outstanding;
    if (queue.complete(*this, wc)) return;
    if (table_entry* entry = table.find(wc.wr_id))
        entry->receiver->completed(*this, *entry, wc);
    else
        stray(wc, from);
}

void reactor_core::stray(const ibv_wc& wc, attached_queue& from) noexcept {
    if (work_queues.ours(wc.wr_id) || table.ours(wc.wr_id)) {
        ++counters.stale;
        return;
    }
    ++counters.foreign;
    if (from.foreign()) strays_.push_back({from.foreign(), work_completion(wc)});
}

void reactor_core::flush_batches() noexcept {
    while (!batches.empty()) batches.front().pair->flush();
}

inline unsigned reactor_core::drain(unsigned budget) noexcept {
    unsigned total = 0;
    // Reading one may add others.
    for (std::size_t i = 0; i < polled_.size(); ++i) total += polled_[i]->drain(budget);
    if (!readable.empty()) [[unlikely]]
        total += drain_readable(budget);
    return total;
}

unsigned reactor_core::drain_readable(unsigned budget) noexcept {
    unsigned total = 0;
    list<readable_source> now; // what is left to read comes in the next turn
    for (now.splice(readable); !now.empty();) total += now.pop_front().drain(budget);
    return total;
}

void reactor_core::settle() noexcept {
    while (!attention.empty()) attention.front().pair->attend();
    if (std::exchange(returned_receives, false))
        receivers.for_each([](receiver_link& link) { link.receiver->post_returned(); });
}

inline unsigned reactor_core::resume(unsigned budget) {
    if (ready.empty()) return 0;
    const unsigned resumed = ready.run(budget);
    counters.resumes += resumed;
    return resumed;
}

unsigned reactor_core::serve_timers(unsigned budget) noexcept {
    if (timers.empty()) return 0;
    return timers.expire(clock_->now(), budget, [](timer_node& node) { static_cast<timer&>(node).expired(); });
}

unsigned reactor_core::serve_posted() {
    if (!posted_waiting_.load()) return 0;
    std::vector<std::function<void()>> functions;
    {
        const std::lock_guard lock(posted_mutex_);
        functions.swap(posted_);
        posted_waiting_.store(false);
    }
    const bool mail = mail_waiting_.exchange(false);
    if (mail)
        for (async_source* source : event_sources_) source->serve();
    call_all(functions, [this](auto& function) {
        if (!process.forked()) function();
    });
    return static_cast<unsigned>(functions.size()) + (mail ? 1 : 0);
}

unsigned reactor_core::serve_strays() {
    if (strays_.empty()) return 0;
    const auto strays = std::exchange(strays_, {});
    call_all(strays, [this](const auto& stray) {
        if (!process.forked()) (*stray.take)(stray.completion);
    });
    return static_cast<unsigned>(strays.size());
}

/// Takes completions and resumes whom they are for.
inline unsigned reactor_core::round(unsigned budget) {
    if (!batches.empty()) [[unlikely]]
        flush_batches();
    const unsigned drained = drain(budget);
    if (!attention.empty() || returned_receives) [[unlikely]]
        settle();
    return drained + resume(budget);
}

/// Several rounds, while there is something to do. What else there may be waits no longer for that than for one large
/// batch.
unsigned reactor_core::rounds(const root_base& root) {
    unsigned done = 0;
    for (unsigned left = run_rounds; left > 0 && done < run_budget; --left) {
        const unsigned now = round(run_budget);
        done += now;
        if (now == 0 || root.done() || stopping_.load(std::memory_order_relaxed) || process.forked()) break;
    }
    return done;
}

/// What else there may be to do in a turn.
unsigned reactor_core::serve_others(unsigned budget) {
    unsigned done = serve_strays();
    if (process.forked()) return done; // by what was called: the rest of the turn is the parent's
    done += serve_posted();
    if (process.forked()) return done;
    if (stops->waiting()) done += stops->serve();
    done += serve_timers(budget);
    // One that is never idle has no ticks.
    if (polled_.size() != queues_.size() && counters.turns % busy_look == 0 && check_interval_.count() > 0) [[unlikely]]
        done += look_at_silent();
    if (backend_->pending()) done += backend_->collect(collect_budget);
    flush_batches();
    settle();
    return done;
}

std::optional<time_point> reactor_core::next_wake(unsigned& found) {
    auto wake = timers.earliest();
    if (check_interval_ > std::chrono::nanoseconds::zero() && outstanding + table.used() > 0) {
        const time_point now = clock_->now();
        if (next_check_ <= now) {
            found = check_queues();
            next_check_ = after(now, check_interval_);
        }
        if (!wake || next_check_ < *wake) wake = next_check_;
    }
    return wake;
}

unsigned reactor_core::look_at_silent() noexcept {
    unsigned found = 0;
    for (std::size_t left = std::min(queues_.size(), silent_at_once); left > 0; --left) {
        attached_queue& queue = *queues_[next_looked_at_++ % queues_.size()];
        if (!queue.polled) found += queue.drain(run_budget);
    }
    return found;
}

// An entry without an event waits for a tick, or for as many as it takes to look at all queues. What was found so tells
// a lost event from a late one.
unsigned reactor_core::check_queues() noexcept {
    const unsigned found = look_at_silent();
    for (attached_queue* queue : polled_) {
        if (!queue->event_lost()) continue;
        ++counters.rescued;
        // A second loss is no accident.
        check_interval_ = counters.rescued > 1 ? std::chrono::milliseconds{1} : check_interval_;
    }
    return found;
}

/// Arms every queue. False: there is something to do.
bool reactor_core::may_sleep(std::optional<time_point>& deadline) {
    unsigned entries = 0;
    deadline = next_wake(entries);
    bool armed = false;
    for (attached_queue* queue : polled_) armed = queue->arm() || armed;
    if (armed) entries += drain(run_budget);
    std::erase_if(polled_, [](attached_queue* queue) {
        queue->polled = !queue->silent();
        return !queue->polled;
    });
    settle();
    return entries == 0 && ready.empty() && readable.empty() && batches.empty() && strays_.empty() &&
           !posted_waiting_.load() && !stops->waiting();
}

result<unsigned> reactor_core::park(bool& found) {
    found = true;
    std::optional<time_point> deadline;
    if (!may_sleep(deadline) || stopping_.load()) return 0;
    ++counters.parks;
    auto woken = backend_->wait(deadline);
    if (!woken) return woken;
    found = *woken > 0;
    if (found) ++counters.wakes;
    return woken;
}

// CPU time is what spinning would use up as well, and the only part of a park that can be told from the sleep in it:
// how late its thread was woken depends on when the event came, which nobody says. Other threads do not disturb it.
// Reading it is a system call, so most parks go unmeasured, and all that never reached the wait.
result<unsigned> reactor_core::park_measured(bool& found) {
    const auto parks = counters.parks;
    if (parks >= measured_first && parks % measured_every != 0) return park(found);
    const auto before = clock_->cpu_time();
    auto woken = park(found);
    if (counters.parks == parks) return woken;
    if (const auto cost = clock_->cpu_time() - before; cost > cost.zero()) budget_.parked(cost);
    return woken;
}

void reactor_core::run_until(root_base& root) {
    start().value();
    const running current(*this);
    ready.push(root);
    const bool adapts = options_.wait.adapts();
    auto spin = options_.wait.spin();
    bool idle = false;
    time_point idle_since{};
    time_point idle_until{};
    while (!root.done()) {
        if (process.forked()) throw_error(refused("reactor::run"));
        if (stopping_.load() && stopping_.exchange(false)) throw_error(error(errc::stopped, "reactor::run"));
        ++counters.turns;
        const unsigned done = rounds(root);
        if (serve_others(run_budget) + done > 0) {
            // Up to the last look at the clock: what this turn did took time as well, and no turn with work reads it.
            if (adapts && idle) budget_.observed(idle_until - idle_since);
            idle = false;
            continue;
        }
        if (root.done() || !options_.wait.parks()) continue;
        if (adapts) spin = budget_.spin_for();
        if (adapts || spin > std::chrono::nanoseconds::zero()) {
            idle_until = clock_->now();
            if (!idle) idle_since = idle_until;
            idle = true;
            if (idle_until - idle_since < spin) continue;
        }
        bool found = false;
        if (adapts) {
            // Not over when something woke it: it may be an event of what was found before.
            park_measured(found).value();
            idle_until = clock_->now();
        } else {
            park(found).value();
            if (found) idle = false;
        }
    }
}

result<unsigned> reactor_core::poll(unsigned budget) {
    if (auto started = start(); !started) return std::move(started).error();
    const running current(*this);
    ++counters.turns;
    // Whoever calls this looks for himself: no event need come first.
    if (polled_.size() != queues_.size())
        for (attached_queue* queue : queues_) poll_again(*queue);
    const unsigned done = round(budget);
    return done + serve_others(budget);
}

result<int> reactor_core::native_handle() {
    if (auto started = start(true); !started) return std::move(started).error();
    const running current(*this); // limits that are set before the first poll are this one's
    if (backend_->handle() < 0)
        return error(errc::in_use, "reactor::native_handle")
            .with_note("it sleeps by itself since its first run or poll: ask for the handle before");
    return backend_->handle();
}

result<wait_state> reactor_core::prepare_wait() {
    constexpr auto verb = "reactor::prepare_wait";
    if (!on_thread()) return refused(verb);
    if (!backend_ || backend_->handle() < 0)
        return error(errc::invalid_argument, verb).with_note("ask for the native_handle first");
    const running current(*this);
    std::optional<time_point> deadline;
    if (!may_sleep(deadline)) return wait_state::ready;
    const bool only_polled = std::ranges::any_of(polled_, [](const attached_queue* q) { return q->only_polled(); });
    if (only_polled || !backend_->prepare(deadline)) return wait_state::ready;
    ++counters.parks;
    return wait_state::armed;
}

void reactor_core::stop() noexcept {
    if (process.forked()) return;
    stopping_.store(true);
    if (wait_backend* backend = waker_.load()) backend->wake();
}

void reactor_core::post(std::function<void()> function) {
    if (process.forked()) return; // another thread may have held the mutex
    {
        const std::lock_guard lock(posted_mutex_);
        posted_.push_back(std::move(function));
        posted_waiting_.store(true);
    }
    if (wait_backend* backend = waker_.load()) backend->wake();
}

reactor_stats reactor_core::stats() const noexcept {
    reactor_stats stats = counters;
    stats.outstanding = outstanding + table.used();
    if (backend_) stats.enters = backend_->counters().enters;
    return stats;
}

} // namespace verbena::detail
