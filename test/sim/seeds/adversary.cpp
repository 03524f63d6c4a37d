#include "adversary.hpp"

#include "backend.hpp"
#include "reactor_core.hpp"

#include <infiniband/verbs.h>

#include <cerrno>
#include <chrono>
#include <deque>
#include <list>
#include <optional>
#include <stdexcept>
#include <stop_token>
#include <system_error>
#include <utility>
#include <vector>

namespace seeds::adversary {
namespace {

constexpr std::uint32_t operations_wanted = 200;
constexpr std::uint32_t crowd_count = 4;
constexpr std::size_t most_connections = 24;
constexpr std::uint64_t most_steps = 500'000;

enum class mark : std::uint8_t { issued, done, failed, arrived, sleeps, woke, harm, ends };
constexpr std::array<const char*, 8> mark_names{"issued", "done", "FAILED", "arrived",
                                                "sleeps", "woke", "harm",   "ends"};

/// What can be done to the load at any moment, by whoever runs.
enum class harm : std::uint8_t {
    destroy_crowd,
    destroy_crowd_too,
    stop_crowd,
    request_stop,
    destroy_pair,
    destroy_receiver,
    end_pair,
    detach,
    reactor_stop,
    posted_function,
    exception,
    verb_fault,
    verb_fault_too,
    verb_fault_three,
    queue_fault,
    refused_creation,
    event,
    starve_flushes,
    resize,
    drop_messages,
};
constexpr std::array<const char*, 20> harm_names{
    "destroys a scope",    "destroys a scope", "stops a scope",   "requests a stop",   "destroys a pair",
    "destroys a receiver", "ends a pair",      "detaches",        "stops the reactor", "posts a function",
    "posts an exception",  "breaks a verb",    "breaks a verb",   "breaks a verb",     "breaks a queue",
    "breaks a creation",   "troubles events",  "starves flushes", "resizes",           "drops messages"};

enum class ending : std::uint8_t { stop, close, frames_first, reactor_first, detach };
constexpr std::array<const char*, 5> ending_names{"stop", "close", "frames first", "reactor first", "detach"};

/// What the posted functions throw.
struct outrage {};

/// The choices of a seed that hold from its begin to its end.
struct parameters {
    parameters(std::uint64_t number, dice& d) noexcept
        : seed(number), late(!d.one_in(4)), calm(d.one_in(3)), removes(!calm && d.one_in(5)),
          breaks_posts(!calm && d.one_in(2)), breaks_destruction(d.one_in(4)), breaks_queues(!calm && d.one_in(4)),
          breaks_creation(d.one_in(2)), detaches(!calm && d.one_in(2)), loses_events(d.one_in(4)),
          keepalive(d.one_in(6)), spin(time_may_stand() ? 0 : std::array{0, 0, 500, 2000}[d.below(4)]),
          slots(d.between(1, 32)), queues(d.between(2, 4)), channels(d.one_in(4) ? 2 : 1), small_queues(d.one_in(2)),
          shared(d.one_in(3)), collects(d.one_in(2)), wakes_early(d.one_in(2)),
          max_delay(std::array{1'000, 10'000, 30'000}[d.below(3)]), max_batch(d.between(1, 6)),
          violence(d.between(4, 20)), end(static_cast<ending>(d.below(5))) {}

    std::uint64_t seed;
    bool late;
    bool calm; ///< the first connection is harmed by nobody, and nothing may fail there
    bool removes;
    bool breaks_posts;       ///< and changes of state
    bool breaks_destruction; ///< then never RESET
    bool breaks_queues;      ///< polls, arms, reads of events
    bool breaks_creation;
    bool detaches;
    bool loses_events; ///< then the safety re-poll is on
    bool keepalive;
    int spin;
    std::uint32_t slots;
    std::uint32_t queues;
    std::uint32_t channels;
    bool small_queues; ///< completion queues that must grow
    bool shared;       ///< a shared receive queue
    bool collects;
    bool wakes_early;
    int max_delay;
    std::uint32_t max_batch;
    std::uint32_t violence; ///< a harm after every so many operations
    ending end;

    /// The manual clock moves by polls: without a queue a reactor that spins would spin for ever.
    bool time_may_stand() const noexcept { return removes || breaks_queues || detaches; }
    /// Every completion must wake the reactor.
    /// But with queues detached the shared receive queue feeds queue pairs that the reactor does not know yet.
    bool events_come() const noexcept { return !removes && !breaks_queues && !loses_events && !(shared && detaches); }
    sim::character character() const noexcept { return seed % 2 == 0 ? sim::character::mlx5 : sim::character::rxe; }
    void print() const noexcept {
        std::printf("  device sim%d, spin %d ns, %u slots, %u queues%s on %u channels, events within %d ns, batches of "
                    "%u, a harm every %u%s%s%s%s%s%s%s%s%s%s%s%s, at the end: %s\n",
                    static_cast<int>(seed % 2), spin, slots, queues, small_queues ? " that grow" : "", channels,
                    max_delay, max_batch, violence, late ? ", late writes" : "", calm ? ", calm" : "",
                    removes ? ", removal" : "", breaks_posts ? ", broken posts" : "",
                    breaks_destruction ? ", broken destructions" : "", breaks_queues ? ", broken queues" : "",
                    breaks_creation ? ", broken creations" : "", detaches ? ", detaches" : "",
                    loses_events ? ", lost events" : "", keepalive ? ", keepalive" : "", shared ? ", an SRQ" : "",
                    collects ? ", collects" : "", ending_names[static_cast<std::size_t>(end)]);
    }
};

struct connection;

/// A buffer of an unsignaled send, which the device reads without telling when it has done.
struct lent {
    buffer memory;
    std::uint64_t order;
    bool posted = false;
};

struct end {
    std::optional<vb::queue_pair> qp;
    std::uint32_t qp_num = 0; ///< also of one that was destroyed
    std::optional<vb::receiver> inbox;
    std::uint32_t depth = 0; ///< of the receiver
    bool shares = false;     ///< the shared receive queue
    std::array<const ibv_cq*, 2> queues{};
    std::list<lent> sends;
    std::uint64_t lent_count = 0;
    connection* of = nullptr;
};

struct connection {
    connection() {
        for (end& e : ends) e.of = this;
    }
    std::array<end, 2> ends;
    bool datagram = false;
    bool calm = false;
    std::uint32_t depth = 0;
};

/// A message on its way.
struct letter {
    const end* to = nullptr;
    std::uint32_t length = 0;
    bool immediate = false;
    bool writes = false; ///< RDMA write with immediate: the receive gets no bytes
    bool refused = false;
    bool arrived = false;
};

struct kept_message {
    vb::message message;
    std::uint64_t number;
    bool has_bytes;
    void check() const {
        if (has_bytes && !has_number(message.bytes().bytes(), number))
            failed("the bytes of a message changed while it was held");
    }
};

class attempt;
class load;
load* current = nullptr; ///< for print_state

class load {
  public:
    load(world& w, std::uint64_t seed, totals& sum)
        : world_(w), seed_(seed), sum_(sum), dice_(seed ^ 0xadadadad), is_(seed, dice_),
          first_number_((seed & 0xffff) << 16), last_number_(first_number_) {}
    load(const load&) = delete;
    load& operator=(const load&) = delete;

    void run();
    void print() const noexcept;
    /// Whether the device can be used again.
    bool spoilt() const noexcept { return removed_; }

    totals counts;

  private:
    friend class attempt;

    // One operation each, under any limit; they end when it has ended.
    template <class Operation>
    vb::task<typename Operation::result_type> limited(attempt& o, Operation operation);
    template <class Operation>
    static vb::task<typename Operation::result_type> plain(Operation operation);
    vb::task<> send(connection& c, unsigned side, kind k);
    vb::task<> send_detached(connection& c, unsigned side, bool pooled);
    vb::task<> flush(connection& c, unsigned side);
    vb::task<> write(connection& c, unsigned side, kind k);
    vb::task<> read(connection& c, unsigned side);
    vb::task<> atomic(connection& c, unsigned side, bool swaps);
    vb::task<> chain(connection& c, unsigned side);
    vb::task<> receive(connection& c, unsigned side);
    vb::task<> next(end& e);
    vb::task<> next_or_sleep(end& e);
    vb::task<> both(connection& c, unsigned side);
    vb::task<> nested(connection& c, unsigned side);
    vb::task<> wait(connection& c);
    vb::task<> pause();
    vb::task<> finish(connection& c, unsigned side, bool closes);

    vb::task<> one(connection& c, unsigned side, bool may_nest);
    vb::task<> worker(connection& c, std::uint32_t count, const vb::scope* crowd);
    vb::task<> conduct();
    vb::task<> finale();
    vb::task<> join_all();

    // What can be done at any moment. `own`: the scope that the caller runs in.
    void do_harm(const vb::scope* own);
    void break_a_verb();
    void refuse_destruction(end& e);
    void break_a_queue();
    void break_a_creation();
    void trouble_events();
    void detach(std::size_t queue);
    void attach(std::size_t queue);
    void drop_pair(end& e);
    void drop_receiver(end& e);
    void renew_queue(std::size_t queue);

    void build();
    bool make_connection();
    void start_receiver(end& e);
    void crowd(connection& c);
    bool spawn(vb::scope& scope, vb::task<> t) {
        ++spawning_;
        scope.spawn(std::move(t));
        --spawning_;
        return true;
    }
    void drive();
    void tear_down();
    void balance();

    static bool lives(const end& e);
    static bool alive(const connection& c);
    bool creation_may_fail() const noexcept {
        return is_.breaks_posts || is_.breaks_queues || is_.breaks_creation || is_.detaches || removed_;
    }
    vb::receiver& inbox_of(end& e) { return e.shares ? *shared_inbox_ : *e.inbox; }
    bool has_inbox(const end& e) const { return e.shares ? shared_inbox_.has_value() : e.inbox.has_value(); }
    letter& letter_of(std::uint64_t number) {
        if (number <= first_number_ || number > last_number_) failed("a message names an operation that never was");
        return letters_[number - first_number_ - 1];
    }
    std::uint64_t arrived(std::uint32_t qp_num, std::uint32_t length, std::optional<std::uint32_t> immediate,
                          std::span<const std::byte> bytes);
    void got(vb::message m, end& e, std::optional<kept_message>& held);
    connection* victim();
    std::stop_token some_token();
    nanoseconds now() const { return world_.control.now() - started_; }
    nanoseconds some_time() { return nanoseconds{dice_.between(1, 20'000)}; }
    std::uint32_t some_length() { return 8 * dice_.between(1, most_bytes / 8); }
    int some_errno() { return std::array{ENOMEM, EINVAL, EPERM, EFAULT, EBUSY, ENOSPC}[dice_.below(6)]; }
    sim::convention some_convention() { return static_cast<sim::convention>(dice_.below(4)); }
    end& some_end(connection& c) { return c.ends[dice_.below(2)]; }

    world& world_;
    std::uint64_t seed_;
    totals& sum_;
    dice dice_;
    parameters is_;
    std::uint64_t first_number_;
    std::uint64_t last_number_;
    nanoseconds started_{};

    std::uint64_t issued_ = 0;
    std::uint64_t resumed_ = 0;
    std::uint64_t abandoned_ = 0;
    std::uint64_t requests_issued_ = 0;
    std::uint64_t requests_posted_ = 0;
    std::uint64_t requests_done_ = 0;
    std::uint64_t receives_posted_ = 0; ///< at most, by receivers
    std::uint64_t marks_ = 0;           ///< at most, that the runtime posted for itself; without keepalive
    unsigned spawning_ = 0;
    bool closing_ = false;
    bool removed_ = false;
    bool scope_stopped_ = false;
    bool queues_broke_ = false;
    bool attached_again_ = false; ///< a queue that had failed
    bool has_detached_ = false;

    std::vector<const ibv_cq*> unpolled_; ///< attached queues whose poll was made to fail
    std::vector<ibv_qp*> refused_;        ///< queue pairs that could not be destroyed

    // In the order in which what is left over may live longest.
    std::vector<kept_message> kept_;
    std::vector<letter> letters_;
    std::array<vb::poll_slot, 32> slots_;
    std::vector<vb::completion_channel> channels_;
    std::vector<vb::completion_queue> queues_;
    std::vector<vb::completion_queue> old_queues_;
    std::vector<bool> attached_;
    vb::shared_receive_queue srq_;
    std::optional<vb::receiver> shared_inbox_;
    std::uint32_t shared_depth_ = 0;
    std::vector<std::unique_ptr<connection>> connections_;
    std::vector<kept_message> held_;
    std::array<std::stop_source, 3> stops_;
    std::vector<std::unique_ptr<vb::scope>> crowds_;
    std::vector<std::unique_ptr<vb::scope>> leaving_; ///< were told to stop
    std::unique_ptr<vb::scope> calm_crowd_;
    std::unique_ptr<vb::scope> stage_;
    vb::event done_;
    stepping_backend* backend_ = nullptr;
    std::unique_ptr<vb::reactor> reactor_;
};

/// An operation of the program, from its issue to its one resume. If its frame dies before, it was abandoned.
class attempt {
  public:
    attempt(load& l, connection* c, kind k, std::uint32_t requests = 1)
        : calm(c != nullptr && c->calm), load_(l), kind_(k), requests_(requests) {
        number = ++l.last_number_;
        l.letters_.emplace_back();
        ++l.issued_;
        ++l.counts[k];
        if (calm) ++l.counts[fact::calm_operations];
        l.requests_issued_ += requests;
        events.add(l.now(), mark::issued, k, number);
    }
    attempt(const attempt&) = delete;
    attempt& operator=(const attempt&) = delete;
    ~attempt() {
        if (resumes_ == 0) ++load_.abandoned_;
    }

    void resumed(bool good) {
        if (++resumes_ != 1) failed("an operation was resumed twice");
        ++load_.resumed_;
        if (good) load_.requests_posted_ += requests_;
        if (good && awaited) load_.requests_done_ += requests_;
        events.add(load_.now(), good ? mark::done : mark::failed, kind_, number);
    }
    /// Answers whether it ended well; if not, whether it may have failed like that is checked.
    template <class T>
    bool ended(const vb::result<T>& result) {
        resumed(result.has_value());
        if (!result) judge(result.error());
        if (result) ++load_.counts[fact::ended_well];
        return result.has_value();
    }
    /// A wait without a result: it was ended early.
    void thrown(const std::system_error& e) {
        resumed(false);
        judge(vb::error(e.code(), "await"));
    }

    std::uint64_t number;
    bool calm;
    bool timed = false;
    bool stoppable = false;
    bool posts = true;
    bool awaited = true; ///< its end says that the device has done it

  private:
    void judge(const vb::error& e) {
        using vb::errc;
        auto& counts = load_.counts;
        const auto wrong = [&](const char* what) { failed(std::string(what) + ": " + e.message()); };
        if (calm && !load_.closing_) wrong("an operation failed on a connection that nobody harms");
        const bool by_system = e.code().category() == std::system_category();
        if (e == errc::timed_out) {
            if (!timed) wrong("an operation without a deadline timed out");
            ++counts[fact::timed_out];
            if (posts) ++counts[fact::timed_out_posted];
        } else if (e == errc::stopped) {
            if (!stoppable && !load_.scope_stopped_) wrong("an operation was stopped that nobody stopped");
            ++counts[fact::stopped];
        } else if (e == errc::connection_reset) {
            // Where the peer's request broke both ends, flushes are the first that is heard.
            if (e.code() == vb::make_code(errc::connection_reset) && e.root_cause() == e.code())
                wrong("an operation fell with its connection, for no reason");
            ++counts[fact::connection_resets];
        } else if (e == errc::queue_failed) {
            if (!load_.queues_broke_ && !load_.removed_) wrong("a queue failed that nobody broke");
            ++counts[fact::queue_failures];
        } else if (e == errc::not_attached) {
            if (!load_.has_detached_) wrong("nobody detached a queue");
            ++counts[fact::not_attached];
        } else if (e == errc::device_removed) {
            if (!load_.removed_ && !load_.queues_broke_) wrong("the device is there");
            ++counts[fact::device_removed];
        } else if (by_system) {
            if (!load_.is_.breaks_posts) wrong("a verb failed that nobody broke");
            ++counts[kind_ == kind::chain ? fact::half_chains : fact::refused_posts];
        } else if (e.code().category() == vb::completion_category()) {
            ++counts[fact::root_failures];
        } else if (!(e == errc::closed) && !(e == errc::resource)) {
            wrong("an operation failed as none may");
        }
    }

    load& load_;
    kind kind_;
    std::uint32_t requests_;
    std::uint32_t resumes_ = 0;
};

// ---- what arrives

std::uint64_t load::arrived(std::uint32_t qp_num, std::uint32_t length, std::optional<std::uint32_t> immediate,
                            std::span<const std::byte> bytes) {
    std::uint64_t number = immediate.value_or(0);
    if (!immediate) {
        if (length < sizeof number) failed("a message is shorter than any that was sent");
        std::memcpy(&number, bytes.data(), sizeof number);
    }
    letter& l = letter_of(number);
    events.add(now(), mark::arrived, kind::next, number);
    if (l.to == nullptr || l.to->qp_num != qp_num) failed("a message arrived where it was not sent to");
    if (std::exchange(l.arrived, true)) failed("a message arrived twice");
    if (l.refused) failed("a message arrived whose post was refused");
    if (l.length != length || l.immediate != immediate.has_value())
        failed("a message has another length or immediate value than it was sent with");
    if (!l.writes && !has_number(bytes.first(length), number))
        failed("a message's bytes are not those of its operation");
    return number;
}

/// A message is checked, then dropped, or held by the caller, by the load, or beyond everything.
void load::got(vb::message m, end& e, std::optional<kept_message>& held) {
    const auto bytes = m.bytes();
    const auto number = arrived(m.qp_num(), bytes.length, m.immediate(), bytes.bytes());
    kept_message k{std::move(m), number, !letter_of(number).writes};
    // Some receives must stay with the device.
    if (e.of->calm) return;
    switch (dice_.below(8)) {
    case 0: kept_.push_back(std::move(k)); break;
    case 1: held_.push_back(std::move(k)); break;
    case 2:
    case 3: held.emplace(std::move(k)); break;
    default: break;
    }
}

std::stop_token load::some_token() {
    auto& source = stops_[dice_.below(3)];
    if (source.stop_requested()) ++counts[fact::stopped_before];
    auto token = source.get_token();
    if (source.stop_requested() && dice_.one_in(2)) source = std::stop_source();
    return token;
}

// ---- the operations

template <class Operation>
vb::task<typename Operation::result_type> load::plain(Operation operation) {
    auto given = co_await std::move(operation);
    co_return std::move(given);
}

template <class Operation>
vb::task<typename Operation::result_type> load::limited(attempt& o, Operation operation) {
    const auto how = o.calm ? 0 : dice_.below(24);
    const nanoseconds time{dice_.one_in(16) ? 0 : dice_.between(1, 60'000)};
    switch (how) {
    case 1:
    case 2: {
        o.timed = true;
        auto given = co_await vb::with_timeout(std::move(operation), time);
        co_return std::move(given);
    }
    case 3: {
        o.stoppable = true;
        auto given = co_await vb::with_stop(std::move(operation), some_token());
        co_return std::move(given);
    }
    case 4: {
        o.timed = o.stoppable = true;
        auto given = co_await vb::with_stop(vb::with_timeout(std::move(operation), time), some_token());
        co_return std::move(given);
    }
    case 5: {
        o.timed = true;
        auto given = co_await vb::with_timeout(plain(std::move(operation)), time);
        co_return std::move(given);
    }
    case 6: {
        o.stoppable = true;
        auto given = co_await vb::with_stop(plain(std::move(operation)), some_token());
        co_return std::move(given);
    }
    default: {
        auto given = co_await std::move(operation);
        co_return std::move(given);
    }
    }
}

vb::task<> load::send(connection& c, unsigned side, kind k) {
    end& from = c.ends[side];
    end& to = c.ends[1 - side];
    const bool signaled = k != kind::send_unsignaled && (k != kind::send_datagram || !dice_.one_in(4));
    std::uint32_t length = some_length();
    if (k == kind::send_inline) length = std::min(length, from.qp->max_inline() / 8 * 8);
    buffer own(world_.memory);
    attempt o(*this, &c, k);
    o.awaited = signaled;
    put_number(own.bytes(length), o.number);
    letter_of(o.number) = {.to = &to, .length = length, .immediate = k == kind::send_immediate};
    const auto slice = own.slice(length);
    std::uint64_t order = 0;
    if (!signaled) from.sends.push_back({std::move(own), order = ++from.lent_count});
    const bool solicited = dice_.one_in(4);
    vb::result<void> sent;
    switch (k) {
    case kind::send_immediate:
        sent = co_await limited(
            o, from.qp->send_with_immediate(slice, static_cast<std::uint32_t>(o.number), {.solicited = solicited}));
        break;
    case kind::send_inline: sent = co_await limited(o, from.qp->send(vb::inline_data(own.bytes(length)))); break;
    case kind::send_datagram: {
        const vb::ud_destination destination(world_.way.native_handle(), to.qp_num, qkey);
        sent = co_await limited(o, from.qp->send_to(destination, slice, {.signaled = signaled}));
        break;
    }
    default: sent = co_await limited(o, from.qp->send(slice, {.signaled = signaled, .solicited = solicited}));
    }
    if (!o.ended(sent)) co_return;
    for (lent& l : from.sends)
        if (l.order == order) l.posted = true;
}

vb::task<> load::send_detached(connection& c, unsigned side, bool pooled) {
    end& from = c.ends[side];
    attempt o(*this, &c, pooled ? kind::send_detached_pool : kind::send_detached_inline);
    o.posts = o.awaited = false;
    const std::uint32_t length = 8 * dice_.between(1, pooled ? most_bytes / 8 : from.qp->max_inline() / 8);
    letter& l = letter_of(o.number);
    l = {.to = &c.ends[1 - side], .length = length};
    auto taken = pooled ? world_.pool.try_acquire() : std::nullopt;
    if (pooled && !taken) {
        o.resumed(false);
        co_return;
    }
    std::array<std::byte, most_bytes> bytes;
    put_number(bytes, o.number);
    if (taken) {
        taken->resize(length);
        put_number(taken->bytes(), o.number);
    }
    const auto sent = taken ? from.qp->send_detached(*std::move(taken))
                            : from.qp->send_detached(vb::inline_data(std::span(bytes).first(length)));
    if (!sent) l.refused = true;
    if (!sent && sent.error() == vb::errc::resource) // the queue was full
        o.resumed(false);
    else
        o.ended(sent);
}

vb::task<> load::flush(connection& c, unsigned side) {
    end& e = c.ends[side];
    attempt o(*this, &c, kind::flushed, 0);
    o.posts = false;
    ++marks_;
    std::vector<std::uint64_t> orders; // of those posted so far
    for (const lent& l : e.sends)
        if (l.posted) orders.push_back(l.order);
    const auto flushed = co_await limited(o, e.qp->flushed());
    if (o.ended(flushed))
        std::erase_if(e.sends, [&](const lent& l) { return std::ranges::binary_search(orders, l.order); });
}

vb::task<> load::write(connection& c, unsigned side, kind k) {
    end& from = c.ends[side];
    buffer local(world_.memory);
    buffer remote(world_.memory);
    const std::uint32_t length = some_length();
    attempt o(*this, &c, k);
    put_number(local.bytes(length), o.number);
    auto there = remote.remote(length);
    vb::result<void> written;
    if (k == kind::write_immediate) {
        letter_of(o.number) = {.to = &c.ends[1 - side], .length = length, .immediate = true, .writes = true};
        written = co_await limited(
            o, from.qp->write_with_immediate(local.slice(length), there, static_cast<std::uint32_t>(o.number)));
    } else {
        if (k == kind::wrong_key) there.rkey ^= 0x55;
        written = co_await limited(o, from.qp->write(local.slice(length), there));
    }
    if (!o.ended(written)) co_return;
    if (k == kind::wrong_key) failed("a write with a wrong key ended well");
    if (!has_number(remote.bytes(length), o.number)) failed("an RDMA write completed, but its bytes are not there");
}

vb::task<> load::read(connection& c, unsigned side) {
    buffer local(world_.memory);
    buffer remote(world_.memory);
    const std::uint32_t length = some_length();
    attempt o(*this, &c, kind::read);
    put_number(remote.bytes(length), o.number);
    const auto got = co_await limited(o, c.ends[side].qp->read(local.slice(length), remote.remote(length)));
    if (o.ended(got) && !has_number(local.bytes(length), o.number))
        failed("an RDMA read completed, but its bytes are not there");
}

vb::task<> load::atomic(connection& c, unsigned side, bool swaps) {
    end& from = c.ends[side];
    buffer local(world_.memory);
    buffer remote(world_.memory);
    attempt o(*this, &c, swaps ? kind::compare_swap : kind::fetch_add);
    put_number(remote.bytes(8), o.number);
    vb::result<std::uint64_t> before = std::uint64_t{0};
    if (swaps)
        before = co_await limited(o, from.qp->compare_swap(local.slice(8), remote.remote(8), o.number, ~o.number));
    else
        before = co_await limited(o, from.qp->fetch_add(local.slice(8), remote.remote(8), ~o.number - o.number));
    if (!o.ended(before)) co_return;
    if (*before != o.number || local.word() != o.number || remote.word() != ~o.number)
        failed("an atomic operation completed with another value");
}

/// A write, and the message that tells of it; sometimes with a read between them.
vb::task<> load::chain(connection& c, unsigned side) {
    end& from = c.ends[side];
    const bool long_one = c.depth >= 3 && dice_.one_in(2);
    buffer local(world_.memory);
    buffer remote(world_.memory);
    buffer back(world_.memory);
    const std::uint32_t length = some_length();
    attempt o(*this, &c, kind::chain, long_one ? 3 : 2);
    ++marks_;
    put_number(local.bytes(length), o.number);
    letter_of(o.number) = {.to = &c.ends[1 - side], .length = length};
    const vb::write_request write{
        .local = local.slice(length), .remote = remote.remote(length), .signaled = dice_.one_in(2)};
    const vb::send_request send{.local = local.slice(length)};
    vb::result<void> done;
    if (long_one) {
        const vb::read_request read{.local = back.slice(length), .remote = remote.remote(length), .signaled = false};
        done = co_await limited(o, from.qp->chain(write, read, send));
    } else {
        done = co_await limited(o, from.qp->chain(write, send));
    }
    if (!o.ended(done)) co_return;
    if (!has_number(remote.bytes(length), o.number)) failed("a chain completed, but its write is not there");
    if (long_one && !has_number(back.bytes(length), o.number)) failed("a chain completed, but its read is not there");
}

vb::task<> load::receive(connection& c, unsigned side) {
    end& e = c.ends[side];
    const std::uint32_t head = c.datagram ? header_bytes : 0;
    buffer b(world_.memory);
    attempt o(*this, &c, kind::recv);
    const auto received = co_await limited(o, e.qp->recv(b.slice(most_bytes + head)));
    if (o.ended(received))
        arrived(e.qp_num, received->byte_len, received->immediate, b.bytes(most_bytes + head).subspan(head));
}

vb::task<> load::next(end& e) {
    std::optional<kept_message> held;
    {
        attempt o(*this, e.of, e.shares ? kind::next_shared : kind::next, 0);
        o.posts = false;
        auto message = co_await limited(o, inbox_of(e).next());
        if (!o.ended(message)) co_return;
        got(*std::move(message), e, held);
    }
    if (!held) co_return;
    co_await pause();
    held->check();
}

vb::task<> load::next_or_sleep(end& e) {
    std::optional<kept_message> held;
    {
        attempt o(*this, e.of, kind::any, 0);
        o.posts = false;
        auto first = co_await vb::when_any(inbox_of(e).next(), reactor_->sleep_for(some_time()));
        if (first.index() == 1) {
            o.resumed(true);
            co_return;
        }
        auto& message = std::get<0>(first);
        if (!o.ended(message)) co_return;
        got(*std::move(message), e, held);
    }
    if (!held) co_return;
    co_await pause();
    held->check();
}

vb::task<> load::both(connection& c, unsigned side) {
    end& e = c.ends[side];
    buffer local(world_.memory);
    buffer remote(world_.memory);
    attempt w(*this, &c, kind::both), r(*this, &c, kind::both);
    put_number(local.bytes(8), w.number);
    put_number(remote.bytes(8), r.number);
    const auto first = remote.remote(8);
    auto [read, written] = co_await vb::when_all(limited(r, e.qp->read(local.slice(8, 8), first)),
                                                 limited(w, e.qp->write(local.slice(8), first)));
    const bool both_well = int{r.ended(read)} + int{w.ended(written)} == 2;
    if (both_well && remote.word() != w.number) failed("a write of two operations completed, but it is not there");
}

/// Operations of a scope that lives in this frame; joined, or destroyed with them under way.
vb::task<> load::nested(connection& c, unsigned side) {
    attempt o(*this, &c, kind::nested, 0);
    o.posts = false;
    const bool joins = c.calm || dice_.one_in(2);
    {
        vb::scope inner;
        for (std::uint32_t n = dice_.between(1, 3); n > 0 && c.ends[side].qp; --n) spawn(inner, one(c, side, false));
        if (joins)
            co_await inner.join();
        else
            co_await reactor_->sleep_for(nanoseconds{dice_.between(1, 3'000)});
    }
    o.resumed(true);
}

/// Waits for what a sibling does.
vb::task<> load::wait(connection& c) {
    attempt o(*this, nullptr, kind::wait, 0);
    o.posts = false;
    o.timed = true;
    auto& scope = *crowds_[dice_.below(crowd_count)];
    ++spawning_;
    const auto child = scope.spawn(worker(c, 1, &scope));
    --spawning_;
    const auto waited = co_await vb::with_timeout(child.wait(), nanoseconds{dice_.between(1, 50'000)});
    o.ended(waited);
}

vb::task<> load::pause() {
    if (dice_.one_in(3)) {
        attempt o(*this, nullptr, kind::yield, 0);
        o.posts = false;
        co_await reactor_->yield();
        o.resumed(true);
        co_return;
    }
    attempt o(*this, nullptr, kind::sleep, 0);
    o.posts = false;
    const nanoseconds until = now() + nanoseconds{dice_.between(1, 5'000)};
    co_await reactor_->sleep_for(until - now());
    o.resumed(true);
    if (now() < until) failed("a timer came too early");
}

vb::task<> load::finish(connection& c, unsigned side, bool closes) {
    end& e = c.ends[side];
    attempt o(*this, nullptr, closes ? kind::close : kind::drain, 0);
    o.posts = false;
    // Not as one conditional expression inside co_await: g++ 12.
    auto operation = closes ? e.qp->close() : e.qp->drain();
    const auto report = co_await std::move(operation);
    if (!o.ended(report)) co_return;
    counts[fact::missing] += report->missing;
    e.sends.clear();
}

// ---- who issues them

vb::task<> load::one(connection& c, unsigned side, bool may_nest) {
    end& e = c.ends[side];
    // Half of what is done is to receive.
    if (dice_.one_in(2) && !c.calm) {
        if (!e.shares && e.depth == 0) return receive(c, side);
        if (has_inbox(e)) return dice_.one_in(4) ? next_or_sleep(e) : next(e);
    }
    if (c.datagram) return send(c, side, kind::send_datagram);
    switch (dice_.below(may_nest ? 24 : 20)) {
    case 0:
    case 1: return send(c, side, kind::send);
    case 2: return send(c, side, kind::send_immediate);
    case 3: return send(c, side, kind::send_inline);
    case 4:
    case 5:
    case 6: return send(c, side, kind::send_unsignaled);
    case 7: return send_detached(c, side, false);
    case 8: return send_detached(c, side, true);
    case 9:
    case 10: return write(c, side, kind::write);
    case 11: return write(c, side, kind::write_immediate);
    case 12:
    case 13: return read(c, side);
    case 14: return atomic(c, side, false);
    case 15: return atomic(c, side, true);
    case 16: return c.depth >= 2 ? chain(c, side) : read(c, side);
    case 17: return flush(c, side);
    case 18: return both(c, side);
    case 19: return c.calm || !dice_.one_in(4) ? read(c, side) : write(c, side, kind::wrong_key);
    case 20:
    case 21: return nested(c, side);
    case 22: return c.calm ? pause() : wait(c);
    default: return pause();
    }
}

vb::task<> load::worker(connection& c, std::uint32_t count, const vb::scope* crowd) {
    try {
        for (; count > 0; --count) {
            const auto side = dice_.below(2);
            if (!c.ends[side].qp) co_return;
            co_await one(c, side, true);
            if (!alive(c) && !dice_.one_in(4)) co_return;
            // From here on other coroutines, resumed with this one, may die.
            if (dice_.one_in(is_.violence)) do_harm(crowd);
        }
    } catch (const std::system_error& e) {
        // What a stop, or the end of a sibling's scope, makes of waits that have no result.
        const vb::error why(e.code(), "");
        if (!(why == vb::errc::stopped) && !(why == vb::errc::closed) && !(why == vb::errc::timed_out))
            failed(std::string("a coroutine threw: ") + e.what());
    }
}

/// Messages for the connection that nobody harms.
void load::crowd(connection& c) {
    auto& scope = c.calm ? *calm_crowd_ : *crowds_[dice_.below(crowd_count)];
    for (std::uint32_t n = dice_.between(1, c.calm ? 2 : 6); n > 0; --n)
        spawn(scope, worker(c, dice_.between(1, 5), &scope));
}

bool load::lives(const end& e) {
    if (!e.qp) return false;
    const auto state = e.qp->state();
    return state && *state == vb::queue_pair_state::ready_to_send;
}
bool load::alive(const connection& c) { return lives(c.ends[0]) && lives(c.ends[1]); }

vb::task<> load::conduct() {
    co_await reactor_->yield(); // deadlines need a reactor that runs
    std::uint32_t rounds = dice_.between(10, 30);
    for (std::uint32_t round = 0; issued_ < operations_wanted + 10 || rounds > 0; ++round) {
        if (rounds > 0) --rounds;
        if (round > 2000) failed("the load does not get to its operations");
        for (std::size_t i = 0; i < queues_.size(); ++i)
            if (!attached_[i] && dice_.one_in(3)) attach(i);
        std::size_t living = 0;
        for (const auto& c : connections_) living += alive(*c) ? 1 : 0;
        if (living < 2 && connections_.size() < most_connections) make_connection();
        for (std::uint32_t n = dice_.between(1, 2); n > 0 && !connections_.empty(); --n) {
            connection* c = nullptr;
            for (int tries = 0; tries < 6 && (c == nullptr || (!alive(*c) && !dice_.one_in(8))); ++tries)
                c = connections_[dice_.below(static_cast<std::uint32_t>(connections_.size()))].get();
            crowd(*c);
        }
        if (dice_.one_in(3)) do_harm(nullptr);
        // Long enough for drains to run out of their time, and for lost events to be noticed.
        if (dice_.one_in(is_.loses_events ? 8 : 32))
            co_await reactor_->sleep_for(std::chrono::milliseconds{dice_.between(50, 350)});
        else if (dice_.one_in(4))
            co_await reactor_->yield();
        else
            co_await reactor_->sleep_for(some_time());
    }
    if (is_.removes) {
        removed_ = true;
        events.add(now(), mark::harm, kind::send, 0);
        world_.control.remove();
        for (std::uint32_t n = dice_.below(4); n > 0; --n) {
            crowd(*connections_[dice_.below(static_cast<std::uint32_t>(connections_.size()))]);
            if (dice_.one_in(2)) do_harm(nullptr);
            co_await reactor_->sleep_for(some_time());
        }
    }
    // Longer than any reactor spins, so that each parks at least once.
    co_await reactor_->sleep_for(nanoseconds{20'000});
    for (const auto& c : connections_)
        for (const end& e : c->ends)
            if (e.inbox && e.qp && lives(e) && std::ranges::find_first_of(e.queues, unpolled_) != e.queues.end())
                failed("a queue pair lives on although its completion queue cannot be polled");
    closing_ = true;
    co_await finale();
    done_.set();
}

vb::task<> load::join_all() {
    for (auto* list : {&crowds_, &leaving_})
        for (auto& scope : *list) co_await scope->join();
    co_await calm_crowd_->join();
}

/// The end, as far as it takes a running reactor.
vb::task<> load::finale() {
    if (is_.end == ending::stop) {
        scope_stopped_ = true;
        for (auto& scope : crowds_) scope->request_stop();
        calm_crowd_->request_stop();
        co_await join_all();
    } else if (is_.end == ending::close) {
        for (auto& c : connections_)
            for (unsigned side = 0; side < 2; ++side) {
                end& e = c->ends[side];
                if (dice_.one_in(2)) drop_receiver(e);
                if (e.qp) co_await finish(*c, side, true);
                drop_receiver(e);
            }
        if (shared_inbox_) shared_inbox_.reset();
        co_await join_all();
    }
}

// ---- harm

connection* load::victim() {
    if (connections_.empty()) return nullptr;
    auto& c = *connections_[dice_.below(static_cast<std::uint32_t>(connections_.size()))];
    return c.calm ? nullptr : &c;
}

void load::drop_pair(end& e) {
    e.qp.reset();
    e.sends.clear();
}

void load::drop_receiver(end& e) {
    if (!e.inbox) return;
    const auto stats = e.inbox->stats();
    receives_posted_ += stats.messages + stats.failed;
    if (!held_.empty() || !kept_.empty()) ++counts[fact::messages_out];
    e.inbox.reset();
}

void load::do_harm(const vb::scope* own) {
    // While something is being spawned, who knows whose frames are on the stack.
    if (spawning_ > 0 || closing_) return;
    const auto what = static_cast<harm>(dice_.below(static_cast<std::uint32_t>(harm_names.size())));
    events.add(now(), mark::harm, kind::send, static_cast<std::uint64_t>(what));
    connection* const c = victim();
    const auto queue = dice_.below(is_.queues);
    switch (what) {
    case harm::destroy_crowd:
    case harm::destroy_crowd_too: {
        auto& scope = crowds_[dice_.below(crowd_count)];
        if (scope.get() == own) return;
        ++counts[fact::crowds_destroyed];
        scope.reset();
        scope = std::make_unique<vb::scope>();
        return;
    }
    case harm::stop_crowd: {
        scope_stopped_ = true;
        ++counts[fact::crowds_stopped];
        auto& scope = crowds_[dice_.below(crowd_count)];
        leaving_.push_back(std::exchange(scope, std::make_unique<vb::scope>()));
        leaving_.back()->request_stop();
        return;
    }
    case harm::request_stop: {
        ++counts[fact::stops_requested];
        auto& source = stops_[dice_.below(3)];
        source.request_stop();
        return;
    }
    case harm::destroy_pair:
        if (c == nullptr) return;
        ++counts[fact::pairs_destroyed];
        return drop_pair(some_end(*c));
    case harm::destroy_receiver:
        if (c == nullptr) return;
        if (end& e = some_end(*c); e.inbox) {
            ++counts[fact::receivers_destroyed];
            drop_receiver(e);
        }
        return;
    case harm::end_pair: {
        if (c == nullptr) return;
        const auto side = dice_.below(2);
        const bool closes = dice_.one_in(2);
        if (c->ends[side].qp) spawn(*crowds_[dice_.below(crowd_count)], finish(*c, side, closes));
        return;
    }
    case harm::detach:
        if (!is_.detaches || !attached_[queue]) return;
        detach(queue);
        if (dice_.one_in(2))
            attach(queue);
        else
            ++counts[fact::detached_for_long];
        return;
    case harm::reactor_stop: ++counts[fact::reactor_stops]; return reactor_->stop();
    case harm::posted_function:
        reactor_->post([this] {
            ++counts[fact::functions];
            do_harm(nullptr);
        });
        return;
    case harm::exception:
        reactor_->post([this] {
            ++counts[fact::exceptions];
            throw outrage{};
        });
        return;
    case harm::verb_fault:
    case harm::verb_fault_too:
    case harm::verb_fault_three: return break_a_verb();
    case harm::queue_fault: return break_a_queue();
    case harm::refused_creation: return break_a_creation();
    case harm::event: return trouble_events();
    case harm::starve_flushes:
        if (c == nullptr) return;
        if (end& e = some_end(*c); e.qp && e.qp->native_handle() != nullptr) {
            ++counts[fact::starved_flushes];
            world_.control.flush_only(e.qp->native_handle(), dice_.below(4));
        }
        return;
    case harm::resize: {
        ++counts[fact::resizes];
        const auto resized = queues_[queue].resize(dice_.between(1, 256));
        if (resized || removed_ || resized.error() == vb::errc::in_use ||
            resized.error() == vb::errc::invalid_argument || is_.breaks_creation)
            return;
        failed("a queue could not be resized: " + resized.error().message());
    }
    case harm::drop_messages:
        for (const auto& k : held_) k.check();
        held_.clear();
        return;
    }
}

void load::break_a_verb() {
    auto& control = world_.control;
    if (!is_.breaks_posts) return;
    ++counts[fact::verb_faults];
    sim::fault fault{.call = dice_.between(1, 6),
                     .value = some_errno(),
                     .convention = some_convention(),
                     .accepted = dice_.below(3),
                     .times = dice_.one_in(8) ? 3u : 1u};
    switch (dice_.below(6)) {
    case 0:
    case 1: return control.fail("ibv_post_send", fault);
    case 2: return control.fail("ibv_post_recv", fault);
    case 3: return control.fail("ibv_query_qp", fault);
    case 4: return control.fail("ibv_post_srq_recv", fault);
    default:
        // Of one queue pair never both: nobody could promise then that its buffers are quiet.
        fault.call = dice_.between(1, 4);
        if (is_.breaks_destruction) {
            connection* const c = victim();
            return c != nullptr ? refuse_destruction(some_end(*c)) : void();
        }
        ++counts[fact::resets_refused];
        return control.fail("ibv_modify_qp", fault);
    }
}

/// The device keeps the queue pair, which was reset, until the end.
void load::refuse_destruction(end& e) {
    if (!e.qp || e.qp->native_handle() == nullptr || removed_) return;
    ++counts[fact::destructions_refused];
    refused_.push_back(e.qp->native_handle());
    world_.control.fail("ibv_destroy_qp", {.value = some_errno(), .convention = some_convention()});
    drop_pair(e);
}

void load::break_a_queue() {
    auto& control = world_.control;
    if (!is_.breaks_queues) return;
    const auto queue = dice_.below(is_.queues);
    queues_broke_ = true;
    ++counts[fact::queue_faults];
    switch (dice_.below(6)) {
    case 0:
        if (attached_[queue]) unpolled_.push_back(queues_[queue].native_handle());
        control.fail_poll(queues_[queue].native_handle(), dice_.below(4));
        // A reactor that waits for the event of such a queue would learn of it by a tick alone.
        return control.spurious_event(queues_[queue].native_handle());
    case 1: return control.fail("ibv_poll_cq", {.call = dice_.between(1, 30), .value = dice_.one_in(2) ? -1 : -EIO});
    case 2:
        return control.fail("ibv_req_notify_cq",
                            {.call = dice_.between(1, 4), .value = some_errno(), .convention = some_convention()});
    case 3:
        return control.fail("ibv_get_cq_event", {.call = dice_.between(1, 4),
                                                 .value = dice_.one_in(2) ? EINTR : some_errno(),
                                                 .convention = dice_.one_in(2) ? sim::convention::natural
                                                                               : sim::convention::negative_errno});
    default: return renew_queue(queue);
    }
}

/// Another queue in the place of one that may have failed.
void load::renew_queue(std::size_t queue) {
    if (removed_) return;
    if (attached_[queue]) detach(queue);
    old_queues_.push_back(queues_[queue]);
    auto made = vb::completion_queue::create(world_.device, 16, {.channel = channels_[dice_.below(is_.channels)]});
    if (made)
        queues_[queue] = *std::move(made);
    else if (!is_.breaks_creation)
        failed("a completion queue could not be made: " + made.error().message());
    attach(queue);
}

/// The verb that makes something fails, and the program is told so with the very code.
void load::break_a_creation() {
    if (!is_.breaks_creation || removed_) return;
    auto& control = world_.control;
    const int value = some_errno();
    const auto expect = [&](const char* verb, auto&& make) {
        control.fail(verb, {.value = value});
        const auto made = make();
        if (made) failed(std::string(verb) + " was refused, but the program was told nothing");
        if (made.error().code() != std::error_code(value, std::system_category()))
            failed(std::string(verb) + " was refused, but with another error: " + made.error().message());
        ++counts[fact::creations_refused];
    };
    const auto& cq = queues_[dice_.below(is_.queues)];
    switch (dice_.below(8)) {
    case 0: return expect("ibv_create_comp_channel", [&] { return vb::completion_channel::create(world_.device); });
    case 1: return expect("ibv_create_cq", [&] { return vb::completion_queue::create(world_.device, 4); });
    case 2: return expect("ibv_alloc_pd", [&] { return vb::protection_domain::create(world_.device); });
    case 3: return expect("ibv_reg_mr", [&] { return vb::memory_region::allocate(world_.domain, 64); });
    case 4:
        return expect("ibv_create_srq", [&] { return vb::shared_receive_queue::create(world_.domain, {.max_wr = 4}); });
    case 5:
        return expect("ibv_create_qp", [&] {
            return vb::queue_pair::create(world_.domain, {.send_cq = cq, .recv_cq = cq, .max_send = 1, .max_recv = 1});
        });
    case 6:
        return expect("ibv_create_ah", [&] {
            return vb::address_handle::create(world_.domain, {.destination = world_.device.gids(1).value().back().gid});
        });
    default:
        control.fail("ibv_resize_cq", {.value = value, .convention = some_convention()});
        if (cq.resize(200)) failed("ibv_resize_cq was refused, but the program was told nothing");
        ++counts[fact::creations_refused];
    }
}

void load::trouble_events() {
    auto& control = world_.control;
    ibv_cq* const cq = queues_[dice_.below(is_.queues)].native_handle();
    switch (dice_.below(is_.loses_events ? 4 : 2)) {
    case 0: ++counts[fact::spurious_events]; return control.spurious_event(cq);
    case 1: ++counts[fact::doubled_events]; return control.double_events(cq, 1);
    default: ++counts[fact::lost_events]; return control.drop_events(cq, dice_.between(1, 2));
    }
}

void load::detach(std::size_t queue) {
    has_detached_ = true;
    ++counts[fact::detaches];
    reactor_->detach(queues_[queue]).value();
    std::erase(unpolled_, queues_[queue].native_handle());
    attached_[queue] = false;
}

void load::attach(std::size_t queue) {
    if (queues_broke_) attached_again_ = true;
    const auto attached = reactor_->attach(queues_[queue], std::span(slots_).first(is_.slots));
    const bool channel_ended = removed_ || queues_broke_;
    if (!attached && channel_ended && attached.error() == vb::errc::device_removed) return;
    attached.value();
    attached_[queue] = true;
}

// ---- from nothing to nothing

void load::start_receiver(end& e) {
    if (e.shares || !e.qp || e.depth == 0) return;
    receives_posted_ += e.depth;
    auto made = vb::receiver::create(*e.qp, {.depth = e.depth, .message_bytes = most_bytes});
    if (made)
        e.inbox = *std::move(made);
    else if (!creation_may_fail())
        failed("a receiver could not be made: " + made.error().message());
}

bool load::make_connection() {
    auto made = std::make_unique<connection>();
    connection& c = *made;
    c.calm = is_.calm && connections_.empty();
    c.datagram = !c.calm && dice_.one_in(6);
    c.depth = dice_.between(1, 16);
    const bool batched = dice_.one_in(2);
    const auto refuse = [&](const vb::error& e) {
        if (!creation_may_fail()) failed("a connection could not be made: " + e.message());
        return false;
    };
    for (unsigned side = 0; side < 2; ++side) {
        end& e = c.ends[side];
        vb::queue_pair_options options{.send_cq = queues_[dice_.below(is_.queues)],
                                       .recv_cq = queues_[dice_.below(is_.queues)],
                                       .max_send = c.depth,
                                       .max_recv = dice_.between(1, 16)};
        options.type = c.datagram ? vb::queue_pair_type::ud : vb::queue_pair_type::rc;
        options.post_mode = batched ? vb::post_mode::batched : vb::post_mode::immediate;
        if (is_.keepalive && !c.datagram && !c.calm) options.keepalive = std::chrono::milliseconds{1};
        if (srq_ && side == 1 && !c.datagram && !c.calm && dice_.one_in(2)) {
            options.srq = srq_;
            e.shares = true;
        } else if (c.calm || dice_.one_in(2)) {
            e.depth = dice_.between(1, options.max_recv);
        }
        e.queues = {options.send_cq.native_handle(), options.recv_cq.native_handle()};
        auto qp = vb::queue_pair::create(world_.domain, options);
        if (!qp) return refuse(qp.error());
        e.qp = *std::move(qp);
        e.qp_num = e.qp->qp_num();
    }
    vb::connection_options options{.retry_cnt = 2, .rnr_retry = 7, .timeout = 4, .min_rnr_timer = 1};
    if (!c.calm) options.rnr_retry = static_cast<std::uint8_t>(dice_.between(1, 7));
    const bool receives_first = dice_.one_in(2);
    if (receives_first)
        for (end& e : c.ends) start_receiver(e);
    for (unsigned side = 0; side < 2; ++side) {
        auto& qp = *c.ends[side].qp;
        const auto ready = c.datagram ? qp.activate(qkey) : qp.connect(c.ends[1 - side].qp->endpoint(), options);
        if (!ready) {
            refuse(ready.error());
            for (end& e : c.ends) drop_receiver(e);
            return false;
        }
    }
    if (!receives_first)
        for (end& e : c.ends) start_receiver(e);
    ++counts[fact::connections];
    connections_.push_back(std::move(made));
    return true;
}

void load::build() {
    auto& control = world_.control;
    control.clear_ledger();
    control.forgive();
    control.write_late(is_.late);
    control.seed(seed_,
                 {.max_delay = nanoseconds{is_.max_delay}, .max_batch = is_.max_batch, .verb_time = nanoseconds{100}});
    started_ = control.now();
    events.restart();
    world_.memory.restart(false);
    for (std::uint32_t i = 0; i < crowd_count; ++i) crowds_.push_back(std::make_unique<vb::scope>());
    calm_crowd_ = std::make_unique<vb::scope>();
    stage_ = std::make_unique<vb::scope>();
    letters_.reserve(1024);

    backend_options options{.collects = is_.collects};
    options.event_delay = is_.events_come() ? nanoseconds{is_.max_delay} : nanoseconds::max();
    if (is_.wakes_early) options.returns_early = [this] { return dice_.one_in(16); };
    options.on_sleep = [this](bool begins) {
        events.add(now(), begins ? mark::sleeps : mark::woke, kind::send, 0);
        if (backend_->steps() > most_steps) failed("the seed does not end");
    };
    auto backend = std::make_unique<stepping_backend>(control, std::move(options));
    backend_ = backend.get();
    reactor_.reset(
        new vb::reactor(vb::detail::access::make_reactor<vb::reactor>(std::make_unique<vb::detail::reactor_core>(
            vb::reactor_options{.wait = vb::wait_policy::spin_then_park(nanoseconds{is_.spin}),
                                .safety_repoll = std::chrono::milliseconds{is_.loses_events ? 100 : 0}},
            std::make_unique<device_clock>(control), std::move(backend)))));

    for (std::uint32_t i = 0; i < is_.channels; ++i)
        channels_.push_back(vb::completion_channel::create(world_.device).value());
    attached_.resize(is_.queues);
    for (std::uint32_t i = 0; i < is_.queues; ++i) {
        // Of three queues or more on two channels, at least two share the first.
        const auto& channel = channels_[i > 1 && i + 1 == is_.queues ? is_.channels - 1 : 0];
        queues_.push_back(
            vb::completion_queue::create(world_.device, is_.small_queues ? 1 : 64, {.channel = channel}).value());
        attach(i);
    }
    if (is_.shared) {
        shared_depth_ = dice_.between(2, 16);
        srq_ = vb::shared_receive_queue::create(world_.domain, {.max_wr = shared_depth_}).value();
    }
    for (std::uint32_t n = dice_.between(2, 3); n > 0; --n) make_connection();
    if (is_.shared) {
        shared_inbox_ =
            vb::receiver::create(*reactor_, srq_, {.depth = shared_depth_, .message_bytes = most_bytes}).value();
        receives_posted_ += shared_depth_;
    }
    if (is_.calm) {
        // Both ends take whatever comes.
        for (end& e : connections_.front()->ends)
            spawn(*calm_crowd_, [](load& l, end& to) -> vb::task<> {
                try {
                    while (to.inbox && !l.closing_) co_await l.next(to);
                } catch (const std::system_error&) {}
            }(*this, e));
    }
}

void load::drive() {
    for (;;) {
        try {
            reactor_->run([](vb::event& done) -> vb::task<> { co_await done.wait(); }(done_));
            return;
        } catch (const outrage&) {
        } catch (const std::system_error& e) {
            if (!(vb::error(e.code(), "") == vb::errc::stopped)) throw;
        }
    }
}

void load::tear_down() {
    const auto drop_frames = [&] {
        crowds_.clear();
        leaving_.clear();
        calm_crowd_.reset();
        stage_.reset();
    };
    const auto drop_queue_pairs = [&] {
        for (auto& c : connections_)
            for (auto& e : c->ends) {
                const bool receiver_first = dice_.one_in(2);
                if (receiver_first) drop_receiver(e);
                drop_pair(e);
                drop_receiver(e);
            }
        if (shared_inbox_) {
            const auto stats = shared_inbox_->stats();
            receives_posted_ += stats.messages + stats.failed;
        }
        shared_inbox_.reset();
        for (ibv_qp* qp : std::exchange(refused_, {}))
            if (ibv_destroy_qp(qp) != 0) failed("a queue pair whose destruction was refused is gone");
        srq_ = {};
    };
    switch (is_.end) {
    case ending::stop:
    case ending::close:
    case ending::frames_first:
        drop_frames();
        drop_queue_pairs();
        break;
    case ending::reactor_first: break;
    case ending::detach:
        has_detached_ = scope_stopped_ = true;
        for (std::size_t i = 0; i < queues_.size(); ++i)
            if (attached_[i]) reactor_->detach(queues_[i]).value();
        done_.reset();
        for (auto* list : {&crowds_, &leaving_})
            for (auto& scope : *list) scope->request_stop();
        calm_crowd_->request_stop();
        spawn(*stage_, [](load& l) -> vb::task<> {
            co_await l.join_all();
            l.done_.set();
        }(*this));
        drive();
        drop_queue_pairs();
        drop_frames();
        break;
    }
    const auto stats = reactor_->stats();
    const auto before = world_.control.ledger();
    if (is_.end != ending::reactor_first && stats.outstanding != 0)
        failed("operations are outstanding although nothing is left to complete them: " +
               std::to_string(stats.outstanding));
    counts[fact::parks] = stats.parks;
    counts[fact::rescued] = stats.rescued;
    counts.most_outstanding = backend_->most_outstanding();
    if (stats.parks == 0) failed("the reactor never parked");
    // Entries that a failed queue had kept meet new owners when it is attached again.
    if (stats.stale != 0 && !attached_again_)
        failed("completions came for operations that had ended: " + std::to_string(stats.stale));
    if (stats.foreign != 0) failed("completions came that were never the reactor's: " + std::to_string(stats.foreign));
    if (stats.rescued != 0 && !is_.loses_events) failed("events were rescued that nobody lost");
    if (stats.completions + before.consumed != before.polled)
        failed("the reactor counts " + std::to_string(stats.completions) + " completions, the device " +
               std::to_string(before.polled) + ", of which " + std::to_string(before.consumed) + " were lost");
    has_detached_ = true;
    reactor_.reset();
    backend_ = nullptr;
    const auto ledger = world_.control.ledger();
    // What a shared receive queue holds stays with it; a device that is gone tells nothing.
    if (!srq_ && !removed_ && ledger.outstanding != 0) failed("the device has requests of a reactor that is gone");
    drop_frames();
    for (const auto& k : held_) k.check();
    held_.clear();
    drop_queue_pairs();
    queues_.clear();
    old_queues_.clear();
    channels_.clear();
}

void load::balance() {
    world_.control.forgive();
    const auto l = world_.control.ledger();
    if (l.outstanding != 0 || l.dropped != 0 || l.unpolled != 0)
        failed("after the end: " + std::to_string(l.outstanding) + " outstanding, " + std::to_string(l.unpolled) +
               " unpolled, " + std::to_string(l.dropped) + " dropped");
    if (l.accepted != l.completed + l.flushed + l.silent + l.purged) failed("the device's ledger does not balance");
    if (l.completed + l.flushed != l.polled + l.removed + l.unpolled)
        failed("the ledger of the completion queues does not balance");
    if (l.consumed != 0 && !is_.breaks_queues) failed("entries were consumed by polls that nobody broke");
    if (world_.control.next()) failed("the device has something to do for nobody");
    if (l.accepted < requests_posted_ ||
        (!is_.keepalive && l.accepted > requests_issued_ + receives_posted_ + 2 * marks_))
        failed("the device accepted " + std::to_string(l.accepted) + " requests; the program posted " +
               std::to_string(requests_posted_) + " to " + std::to_string(requests_issued_) + ", its receivers up to " +
               std::to_string(receives_posted_) + ", the runtime up to " + std::to_string(2 * marks_));
    if (requests_done_ > l.completed + l.silent) failed("more requests ended well than the device completed");
    if (issued_ != resumed_ + abandoned_)
        failed(std::to_string(issued_) + " operations were issued, " + std::to_string(resumed_) + " resumed, " +
               std::to_string(abandoned_) + " abandoned");
    if (issued_ < operations_wanted) failed("the seed has too few operations: " + std::to_string(issued_));
    if (counts[fact::connections] < 2) failed("the seed has too few queue pairs");
    for (const auto& k : kept_) k.check();
    counts[fact::kept_messages] = kept_.size();
    kept_.clear();
    connections_.clear();
    if (!world_.memory.all_free()) failed("memory is still in use");
    if (!world_.memory.quiet()) failed("the device wrote to memory that had been given back");
    if (world_.pool.available() != world_.pool.count()) failed("a pool buffer did not come back");
    counts[fact::flushed] = l.flushed;
    counts[fact::purged] = l.purged;
    counts[fact::silent] = l.silent;
    counts[fact::abandoned] = abandoned_;
    ++counts[is_.character() == sim::character::mlx5 ? fact::seeds_mlx5 : fact::seeds_rxe];
    if (is_.late) ++counts[fact::seeds_late];
    if (is_.removes) ++counts[fact::seeds_removed];
    if (is_.keepalive) ++counts[fact::seeds_keepalive];
    ++counts.facts[static_cast<std::size_t>(fact::ending_stop) + static_cast<std::size_t>(is_.end)];
    counts.most_operations = counts.least_operations = issued_;
    sum_.add(counts);
}

void load::run() {
    build();
    spawn(*stage_, conduct());
    drive();
    events.add(now(), mark::ends, kind::send, 0);
    tear_down();
    balance();
}

void load::print() const noexcept {
    std::printf("seed %" PRIu64 "\n", seed_);
    is_.print();
    std::printf("  %" PRIu64 " operations issued, %" PRIu64 " resumed, %" PRIu64 " abandoned\n", issued_, resumed_,
                abandoned_);
    for (const auto& c : connections_) {
        std::printf("  connection: %s, depth %u%s;", c->datagram ? "UD" : "RC", c->depth, c->calm ? ", calm" : "");
        for (const end& e : c->ends)
            std::printf(" %s %s", e.qp ? "open" : "gone",
                        e.shares      ? "with the SRQ"
                        : e.depth > 0 ? "with a receiver"
                                      : "");
        std::printf("\n");
    }
    events.print([](std::uint8_t what, std::uint8_t of, std::uint64_t number) {
        std::printf("%-8s", mark_names[what]);
        if (what <= static_cast<std::uint8_t>(mark::arrived))
            std::printf("%-22s %08" PRIx64, kind_names[of].data(), number);
        else if (what == static_cast<std::uint8_t>(mark::harm))
            std::printf("%s", harm_names[number]);
    });
    if (reactor_) {
        const auto s = reactor_->stats();
        std::printf("  reactor: %" PRIu64 " turns, %" PRIu64 " completions, %" PRIu64 " arms, %" PRIu64
                    " events, %" PRIu64 " parks, %" PRIu64 " outstanding, %" PRIu64 " stale, %" PRIu64 " rescued\n",
                    s.turns, s.completions, s.arms, s.events, s.parks, s.outstanding, s.stale, s.rescued);
    }
    const auto l = world_.control.ledger();
    std::printf("  device: accepted %" PRIu64 " = completed %" PRIu64 " + flushed %" PRIu64 " + silent %" PRIu64
                " + purged %" PRIu64 " + dropped %" PRIu64 " + outstanding %" PRIu64 "; unpolled %" PRIu64 "\n",
                l.accepted, l.completed, l.flushed, l.silent, l.purged, l.dropped, l.outstanding, l.unpolled);
    std::printf("  arms ignored: %" PRIu64 "; queues:", l.ignored_arms);
    for (std::size_t i = 0; i < queues_.size(); ++i) {
        std::array<ibv_wc, 256> entries;
        const int unpolled = ibv_poll_cq(queues_[i].native_handle(), 256, entries.data());
        std::printf(" %s with %d entries", attached_[i] ? "attached" : "detached", unpolled);
    }
    std::printf("\n");
}

} // namespace

worlds::worlds() = default;
worlds::~worlds() = default;

std::uint64_t worlds::run(std::uint64_t seed, totals& sum) {
    auto& w = worlds_[seed % 2];
    if (!w) {
        const char* name = seed % 2 == 0 ? "sim0" : "sim1";
        sim::control(name).insert();
        w = std::make_unique<world>(name);
    }
    // What is left of a seed that failed cannot be taken down: it stays.
    current = new load(*w, seed, sum);
    current->run();
    const bool spoilt = current->spoilt();
    delete std::exchange(current, nullptr);
    const auto hash = events.hash();
    if (spoilt) w.reset();
    return hash;
}

void print_state() noexcept {
    if (current != nullptr) current->print();
}

} // namespace seeds::adversary
