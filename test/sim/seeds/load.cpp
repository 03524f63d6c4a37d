#include "load.hpp"

#include "backend.hpp"
#include "common.hpp"
#include "reactor_core.hpp"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <deque>
#include <list>
#include <optional>
#include <utility>
#include <vector>

namespace seeds {

namespace {

constexpr std::uint32_t operations_wanted = 200;

enum class mark : std::uint8_t { issued, done, failed, arrived, sleeps, woke, spoils, closed, ends };
constexpr std::array<const char*, 9> mark_names{"issued", "done",   "FAILED", "arrived", "sleeps",
                                                "woke",   "spoils", "closed", "ends"};

enum class sabotage : std::uint8_t {
    none,
    bad_remote_key,
    bad_local_key,
    too_long,
    destroy_queue_pair,
    abandon_tasks,
    slow_receiver, ///< with few RNR retries
};
constexpr std::array<const char*, 7> sabotage_names{
    "none", "bad remote key", "bad local key", "too long", "destroy a queue pair", "abandon tasks", "slow receiver"};

enum class teardown : std::uint8_t { close, frames_first, reactor_first, detach };
constexpr std::array<const char*, 4> teardown_names{"close", "frames first", "reactor first", "detach"};

/// The choices of a seed that hold from its begin to its end.
struct parameters {
    parameters(std::uint64_t number, dice& d) noexcept
        : seed(number), late(d.one_in(2)), spin(std::array{0, 0, 500, 2000}[d.below(4)]), slots(d.between(1, 32)),
          queues(d.between(2, 4)), channels(d.one_in(4) ? 2 : 1), connections(d.between(2, 4)),
          small_queues(d.one_in(2)), shared(d.one_in(4)), refuses(d.one_in(8)), unrest(d.one_in(2)),
          collects(d.one_in(2)), wakes_early(d.one_in(2)), max_delay(std::array{1'000, 10'000, 30'000}[d.below(3)]),
          max_batch(d.between(1, 6)), ending(static_cast<teardown>(d.below(4))) {}

    std::uint64_t seed;
    bool late;
    int spin;
    std::uint32_t slots;
    std::uint32_t queues;
    std::uint32_t channels;
    std::uint32_t connections;
    bool small_queues; ///< completion queues that must grow
    bool shared;       ///< two queue pairs share a receive queue
    bool refuses;      ///< posts fail now and then
    bool unrest;       ///< spurious and doubled events, resizes
    bool collects;
    bool wakes_early;
    int max_delay;
    std::uint32_t max_batch;
    teardown ending;

    sim::character character() const noexcept { return seed % 2 == 0 ? sim::character::mlx5 : sim::character::rxe; }
    void print() const noexcept {
        std::printf("  device sim%d, spin %d ns, %u slots, %u queues%s on %u channels, %u connections%s, events within "
                    "%d ns, batches of %u%s%s%s%s%s, at the end: %s\n",
                    static_cast<int>(seed % 2), spin, slots, queues, small_queues ? " that grow" : "", channels,
                    connections, shared ? ", an SRQ" : "", max_delay, max_batch, late ? ", late writes" : "",
                    refuses ? ", refused posts" : "", unrest ? ", unrest" : "", collects ? ", collects" : "",
                    wakes_early ? ", wakes early" : "", teardown_names[static_cast<std::size_t>(ending)]);
    }
};

struct connection;
struct end;

/// A message on its way.
struct message_sent {
    std::uint64_t number;
    std::uint32_t length;
    bool immediate;
    bool writes;         ///< RDMA write with immediate: the receive gets no bytes
    bool posted = false; ///< its operation has ended well
};

/// One direction of a connection.
struct flow {
    flow(connection& of, end& a, end& b, arena& memory) : owner(of), from(a), to(b), counter(memory), swapped(memory) {
        put_number(counter.bytes(8), 0);
        put_number(swapped.bytes(8), 0);
    }
    connection& owner;
    end& from;
    end& to;
    std::deque<message_sent> sent;        ///< not arrived yet, in the order of posting
    std::vector<std::uint64_t> must_fail; ///< overtaken, so that their operations cannot end well
    std::uint64_t messages = 0;           ///< ever sent
    bool ordered = true;                  ///< one coroutine takes the messages
    vb::event arrived_all;
    buffer counter; ///< of fetch and add
    buffer swapped; ///< of compare and swap
    std::uint64_t counter_value = 0;
    std::uint64_t swapped_value = 0;
};

/// A receiver, with the messages of it that are held.
struct mailbox {
    std::optional<vb::receiver> inbox;
    std::uint32_t depth = 0;
    std::uint32_t held = 0;
    bool closing = false;
    bool shared = false;
    connection* of = nullptr; ///< null: a shared one
};

struct end {
    std::optional<vb::queue_pair> qp;
    std::uint32_t qp_num = 0; ///< also of one that was destroyed
    mailbox own;
    mailbox* box = nullptr; ///< null: plain receives
    // What the device may read without telling when it has done. Not in the frames of those who send, since a frame may
    // be destroyed between the post and the resume.
    std::list<buffer> unsignaled_awaited;
    std::deque<buffer> unsignaled;
    std::uint64_t unsignaled_before = 0; ///< how many have left the list
    std::uint32_t awaited_sends = 0;     ///< requests
    std::uint64_t receives = 0;          ///< ever posted
    flow* out = nullptr;
    flow* in = nullptr;
};

struct connection {
    explicit connection(arena& memory)
        : ends(std::make_unique<std::array<end, 2>>()),
          flows{flow(*this, (*ends)[0], (*ends)[1], memory), flow(*this, (*ends)[1], (*ends)[0], memory)} {
        for (int i = 0; i < 2; ++i) {
            (*ends)[i].out = &flows[i];
            (*ends)[i].in = &flows[1 - i];
        }
    }
    end& side(std::uint32_t i) { return (*ends)[i]; }
    /// Failures are expected from now on, and nobody knows which messages arrive.
    void doom() {
        doomed = true;
        for (flow& f : flows) f.arrived_all.set();
    }

    std::unique_ptr<std::array<end, 2>> ends;
    std::array<flow, 2> flows;
    bool datagram = false;
    bool batched = false;
    bool may_chain = false;
    bool shares = false; ///< a receive queue
    std::uint32_t depth = 0;
    std::uint32_t receive_depth = 0;
    sabotage harm = sabotage::none;
    bool doomed = false;
    bool closing = false;           ///< likewise, by its own destruction
    std::optional<vb::scope> extra; ///< of the sabotage
    vb::scope senders;
    vb::scope listeners;
};

class load;
load* current = nullptr; ///< for print_state

class load {
  public:
    load(world& w, std::uint64_t seed, totals& sum)
        : world_(w), seed_(seed), sum_(sum), dice_(seed), is_(seed, dice_), last_number_((seed & 0xffff) << 16) {}
    load(const load&) = delete;
    load& operator=(const load&) = delete;

    void run();
    void print() const noexcept;

    totals counts;

  private:
    friend class issued;

    // One operation each; they end when it has ended.
    vb::task<> send(flow& f, kind k);
    vb::task<> send_detached(flow& f, bool pooled);
    vb::task<> flush(end& e);
    vb::task<> write(flow& f, bool immediate);
    vb::task<> read(flow& f);
    vb::task<> fetch_add(flow& f);
    vb::task<> compare_swap(flow& f);
    vb::task<> chain(flow& f);
    vb::task<> pause();

    vb::task<> one(flow& f);
    vb::task<> sender(flow& f, std::uint32_t count);
    vb::task<> saboteur(connection& c);
    vb::task<> plain_receiver(flow& f);
    vb::task<> listener(mailbox& box);
    vb::task<> hold(mailbox& box, vb::message m, std::uint64_t number);
    vb::task<> supervisor(connection& c);
    vb::task<> unrest();
    vb::task<> main();

    void build();
    void make_connection(std::uint32_t index);
    void start_receiving(connection& c, std::uint32_t side);
    void tear_down();
    void balance();

    /// Whether every operation that was issued also happened.
    bool exact(const flow& f) const noexcept { return !is_.refuses && !f.owner.doomed; }
    bool waits_for_everyone() const noexcept { return is_.ending == teardown::close; }
    std::uint64_t number_of(flow& f, std::uint32_t length, std::optional<std::uint32_t> immediate,
                            std::span<const std::byte> bytes);
    void arrived(flow& f, std::uint64_t number, std::uint32_t length, std::optional<std::uint32_t> immediate);
    void leaves(flow& f, std::uint64_t number, std::uint32_t length, bool immediate, bool writes);
    void recall(flow& f, std::uint64_t number);
    void refused(flow& f, std::uint64_t number);
    void posted(flow& f, std::uint64_t number);
    flow& flow_to(std::uint32_t qp_num);
    nanoseconds now() const { return world_.control.now() - started_; }
    nanoseconds some_time() { return nanoseconds{dice_.between(1, 20'000)}; }
    std::uint32_t some_length() { return 8 * dice_.between(1, most_bytes / 8); }

    world& world_;
    std::uint64_t seed_;
    totals& sum_;
    dice dice_;
    parameters is_;
    std::uint64_t last_number_;
    nanoseconds started_{};

    std::uint64_t issued_ = 0;
    std::uint64_t resumed_ = 0;
    std::uint64_t abandoned_ = 0;
    std::uint64_t requests_issued_ = 0;
    std::uint64_t requests_done_ = 0;
    std::uint64_t receives_posted_ = 0; ///< at most, by receivers
    std::uint64_t marks_ = 0;           ///< at most, that the runtime posted for itself
    std::uint64_t functions_ran_ = 0;
    std::uint64_t running_ = 0; ///< connections

    // In the order in which what is left over may live longest.
    std::vector<vb::message> kept_;
    std::array<vb::poll_slot, 32> slots_;
    std::vector<vb::completion_channel> channels_;
    std::vector<vb::completion_queue> queues_;
    vb::shared_receive_queue srq_;
    mailbox shared_box_;
    std::vector<std::unique_ptr<connection>> connections_;
    std::optional<vb::scope> shared_listeners_;
    std::optional<vb::scope> holders_;
    vb::event all_done_;
    stepping_backend* backend_ = nullptr;
    std::unique_ptr<vb::reactor> reactor_;
};

/// An operation of the program, from its issue to its one resume. If its frame dies before, it was abandoned.
class issued {
  public:
    issued(load& l, kind k, std::uint32_t requests = 1) : load_(l), kind_(k), requests_(requests) {
        number = ++l.last_number_;
        ++l.issued_;
        ++l.counts[k];
        l.requests_issued_ += requests;
        events.add(l.now(), mark::issued, k, number);
    }
    issued(const issued&) = delete;
    issued& operator=(const issued&) = delete;
    ~issued() {
        if (resumes_ == 0) ++load_.abandoned_;
    }

    void resumed(bool good) {
        if (++resumes_ != 1) failed("an operation was resumed twice");
        ++load_.resumed_;
        if (good) load_.requests_done_ += requests_;
        events.add(load_.now(), good ? mark::done : mark::failed, kind_, number);
    }
    /// Answers whether it ended well; if not, whether it may have failed is checked.
    template <class T>
    bool ended(connection& c, const vb::result<T>& result) {
        resumed(result.has_value());
        if (result) return true;
        const vb::error& e = result.error();
        if (e == vb::errc::connection_reset)
            ++load_.counts[fact::connection_resets];
        else if (e.code() == std::errc::not_enough_memory)
            ++load_.counts[fact::refused_posts];
        else
            ++load_.counts[fact::root_failures];
        if (c.doomed || c.closing) return false;
        if (load_.is_.refuses && e.root_cause() == std::errc::not_enough_memory) {
            // The one that was refused harms nobody, half a chain does.
            if (e == vb::errc::connection_reset || kind_ == kind::chain) c.doom();
            return false;
        }
        failed("a healthy connection's operation failed: " + e.message());
    }

    std::uint64_t number;

  private:
    load& load_;
    kind kind_;
    std::uint32_t requests_;
    std::uint32_t resumes_ = 0;
};

// ---- messages and their order

void load::leaves(flow& f, std::uint64_t number, std::uint32_t length, bool immediate, bool writes) {
    if (f.messages++ >= f.to.receives && !f.to.own.shared) ++counts[fact::ahead_of_receive];
    f.sent.push_back({.number = number, .length = length, .immediate = immediate, .writes = writes});
}

/// The device never had it.
void load::recall(flow& f, std::uint64_t number) {
    std::erase_if(f.sent, [&](const message_sent& m) { return m.number == number; });
    std::erase(f.must_fail, number);
    if (f.sent.empty()) f.arrived_all.set();
}

void load::refused(flow& f, std::uint64_t number) {
    // Nobody knows how far it got when its connection broke.
    if (!f.owner.doomed && !f.owner.closing) recall(f, number);
}

void load::posted(flow& f, std::uint64_t number) {
    if (std::ranges::find(f.must_fail, number) != f.must_fail.end())
        failed("a message that was overtaken by a later one, or never arrived, was sent without an error");
    const auto at = std::ranges::find(f.sent, number, &message_sent::number);
    if (at != f.sent.end()) at->posted = true;
}

flow& load::flow_to(std::uint32_t qp_num) {
    for (auto& c : connections_)
        for (std::uint32_t i = 0; i < 2; ++i)
            if (c->side(i).qp_num == qp_num) return *c->side(i).in;
    failed("a message names a queue pair that does not exist");
}

/// Which message it is, from what it brought.
std::uint64_t load::number_of(flow& f, std::uint32_t length, std::optional<std::uint32_t> immediate,
                              std::span<const std::byte> bytes) {
    std::uint64_t number = immediate.value_or(0);
    if (immediate) {
        const auto at = std::ranges::find(f.sent, number, &message_sent::number);
        if (at == f.sent.end()) failed("an immediate value arrived that was not sent, or twice");
        if (at->writes) return number;
    } else {
        if (length < sizeof number) failed("a message is shorter than any that was sent");
        std::memcpy(&number, bytes.data(), sizeof number);
    }
    if (!has_number(bytes.first(length), number)) failed("a message's bytes are not those of its operation");
    return number;
}

void load::arrived(flow& f, std::uint64_t number, std::uint32_t length, std::optional<std::uint32_t> immediate) {
    events.add(now(), mark::arrived, kind::next, number);
    const auto at = std::ranges::find(f.sent, number, &message_sent::number);
    if (at == f.sent.end()) failed("a message arrived that was not sent, or twice");
    if (at->length != length) failed("a message has another length than it was sent with");
    if (at->immediate != immediate.has_value() || (immediate && *immediate != number))
        failed("a message has another immediate value than it was sent with");
    if (f.ordered) {
        // Those in front are lost, or their posts were refused, of which their coroutines have not heard yet.
        for (auto before = f.sent.begin(); before != at; ++before) {
            if (f.owner.datagram)
                ++counts[fact::lost_datagrams];
            else if (before->posted)
                failed("a message was lost, or overtaken by a later one");
            else
                f.must_fail.push_back(before->number);
        }
        f.sent.erase(f.sent.begin(), at + 1);
    } else {
        f.sent.erase(at);
    }
    if (f.sent.empty()) f.arrived_all.set();
}

// ---- the operations

vb::task<> load::send(flow& f, kind k) {
    end& from = f.from;
    const bool signaled = k != kind::send_unsignaled && (k != kind::send_datagram || !dice_.one_in(4));
    std::uint32_t length = some_length();
    if (k == kind::send_inline) length = std::min(length, from.qp->max_inline() / 8 * 8);
    std::optional<buffer> own;
    auto held = from.unsignaled_awaited.end();
    buffer& b = signaled ? own.emplace(world_.memory) : *(held = from.unsignaled_awaited.emplace(held, world_.memory));
    issued o(*this, k);
    put_number(b.bytes(length), o.number);
    const auto immediate = static_cast<std::uint32_t>(o.number);
    const bool solicited = dice_.one_in(4);
    leaves(f, o.number, length, k == kind::send_immediate, false);
    if (++from.awaited_sends > f.owner.depth) ++counts[fact::queued];
    vb::result<void> sent;
    switch (k) {
    case kind::send_immediate:
        sent = co_await from.qp->send_with_immediate(b.slice(length), immediate, {.solicited = solicited});
        break;
    case kind::send_inline: sent = co_await from.qp->send(vb::inline_data(b.bytes(length))); break;
    case kind::send_unsignaled: sent = co_await from.qp->send(b.slice(length), {.signaled = false}); break;
    case kind::send_datagram: {
        const vb::ud_destination to(world_.way.native_handle(), f.to.qp_num, qkey);
        sent = co_await from.qp->send_to(to, b.slice(length), {.signaled = signaled});
        break;
    }
    default:
        if (length > 8)
            sent = co_await from.qp->send(b.slice(8), b.slice(length - 8, 8));
        else
            sent = co_await from.qp->send(b.slice(length), {.solicited = solicited});
    }
    --from.awaited_sends;
    const bool good = o.ended(f.owner, sent);
    if (!signaled) {
        if (good) from.unsignaled.push_back(std::move(b));
        from.unsignaled_awaited.erase(held);
    }
    good ? posted(f, o.number) : refused(f, o.number);
}

vb::task<> load::send_detached(flow& f, bool pooled) {
    issued o(*this, pooled ? kind::send_detached_pool : kind::send_detached_inline);
    const std::uint32_t length = 8 * dice_.between(1, pooled ? most_bytes / 8 : f.from.qp->max_inline() / 8);
    for (std::uint32_t tries = 0; f.from.qp && tries < 8; ++tries) {
        auto taken = pooled ? world_.pool.try_acquire() : std::nullopt;
        if (pooled && !taken) {
            co_await pause();
            continue;
        }
        std::array<std::byte, most_bytes> bytes;
        put_number(bytes, o.number);
        if (taken) {
            taken->resize(length);
            put_number(taken->bytes(), o.number);
        }
        leaves(f, o.number, length, false, false);
        const auto sent = taken ? f.from.qp->send_detached(*std::move(taken))
                                : f.from.qp->send_detached(vb::inline_data(std::span(bytes).first(length)));
        if (sent) {
            o.resumed(true);
            co_return posted(f, o.number);
        }
        recall(f, o.number);
        if (!(sent.error() == vb::errc::resource)) {
            o.ended(f.owner, sent);
            co_return;
        }
        ++counts[fact::detached_retries];
        co_await pause();
    }
    o.resumed(false);
}

vb::task<> load::flush(end& e) {
    issued o(*this, kind::flushed, 0);
    ++marks_;
    const std::uint64_t upto = e.unsignaled_before + e.unsignaled.size();
    const auto flushed = co_await e.qp->flushed();
    o.ended(e.out->owner, flushed);
    for (; e.unsignaled_before < upto; ++e.unsignaled_before) e.unsignaled.pop_front();
}

vb::task<> load::write(flow& f, bool immediate) {
    end& from = f.from;
    buffer local(world_.memory);
    buffer remote(world_.memory);
    const std::uint32_t length = some_length();
    issued o(*this, immediate ? kind::write_immediate : kind::write);
    put_number(local.bytes(length), o.number);
    if (immediate) leaves(f, o.number, length, true, true);
    if (++from.awaited_sends > f.owner.depth) ++counts[fact::queued];
    vb::result<void> written;
    if (immediate)
        written = co_await from.qp->write_with_immediate(local.slice(length), remote.remote(length),
                                                         static_cast<std::uint32_t>(o.number));
    else
        written = co_await from.qp->write(local.slice(length), remote.remote(length));
    --from.awaited_sends;
    if (!o.ended(f.owner, written)) {
        if (immediate) refused(f, o.number);
        co_return;
    }
    if (immediate) posted(f, o.number);
    if (!has_number(remote.bytes(length), o.number)) failed("an RDMA write completed, but its bytes are not there");
}

vb::task<> load::read(flow& f) {
    end& from = f.from;
    buffer local(world_.memory);
    buffer remote(world_.memory);
    const std::uint32_t length = some_length();
    issued o(*this, kind::read);
    put_number(remote.bytes(length), o.number);
    if (++from.awaited_sends > f.owner.depth) ++counts[fact::queued];
    const auto got = co_await from.qp->read(local.slice(length), remote.remote(length));
    --from.awaited_sends;
    if (o.ended(f.owner, got) && !has_number(local.bytes(length), o.number))
        failed("an RDMA read completed, but its bytes are not there");
}

vb::task<> load::fetch_add(flow& f) {
    buffer local(world_.memory);
    issued o(*this, kind::fetch_add);
    const std::uint64_t before = f.counter_value;
    f.counter_value += o.number;
    ++f.from.awaited_sends;
    const auto got = co_await f.from.qp->fetch_add(local.slice(8), f.counter.remote(8), o.number);
    --f.from.awaited_sends;
    if (o.ended(f.owner, got) && exact(f) && *got != before) failed("a fetch and add met a value out of order");
}

vb::task<> load::compare_swap(flow& f) {
    buffer local(world_.memory);
    issued o(*this, kind::compare_swap);
    const std::uint64_t before = std::exchange(f.swapped_value, o.number);
    ++f.from.awaited_sends;
    const auto got = co_await f.from.qp->compare_swap(local.slice(8), f.swapped.remote(8), before, o.number);
    --f.from.awaited_sends;
    if (o.ended(f.owner, got) && exact(f) && *got != before) failed("a compare and swap met a value out of order");
}

/// A write, and the message that tells of it; sometimes with a read between them.
vb::task<> load::chain(flow& f) {
    end& from = f.from;
    const bool long_one = f.owner.depth >= 3 && dice_.one_in(2);
    buffer local(world_.memory);
    buffer remote(world_.memory);
    buffer back(world_.memory);
    const std::uint32_t length = some_length();
    const std::uint32_t count = long_one ? 3 : 2;
    issued o(*this, kind::chain, count);
    ++marks_; // it may wait for more room than silent requests leave
    put_number(local.bytes(length), o.number);
    leaves(f, o.number, length, false, false);
    if ((from.awaited_sends += count) > f.owner.depth) ++counts[fact::queued];
    const vb::write_request write{
        .local = local.slice(length), .remote = remote.remote(length), .signaled = dice_.one_in(2)};
    const vb::send_request send{.local = local.slice(length)};
    vb::result<void> done;
    if (long_one) {
        const vb::read_request read{.local = back.slice(length), .remote = remote.remote(length), .signaled = false};
        done = co_await from.qp->chain(write, read, send);
    } else {
        done = co_await from.qp->chain(write, send);
    }
    from.awaited_sends -= count;
    if (!o.ended(f.owner, done)) co_return refused(f, o.number);
    posted(f, o.number);
    if (!has_number(remote.bytes(length), o.number)) failed("a chain completed, but its write is not there");
    if (long_one && !has_number(back.bytes(length), o.number)) failed("a chain completed, but its read is not there");
}

vb::task<> load::pause() {
    if (dice_.one_in(3)) {
        issued o(*this, kind::yield, 0);
        co_await reactor_->yield();
        o.resumed(true);
        co_return;
    }
    issued o(*this, kind::sleep, 0);
    const nanoseconds until = now() + nanoseconds{dice_.between(1, 5'000)};
    co_await reactor_->sleep_for(until - now());
    o.resumed(true);
    if (now() < until) failed("a timer came too early");
}

// ---- who issues them

vb::task<> load::one(flow& f) {
    if (f.owner.datagram) return send(f, kind::send_datagram);
    switch (dice_.below(20)) {
    case 0:
    case 1:
    case 2:
    case 3: return send(f, kind::send);
    case 4: return send(f, kind::send_immediate);
    case 5: return send(f, kind::send_inline);
    case 6:
    case 7:
    case 8: return send(f, kind::send_unsignaled);
    case 9: return send_detached(f, false);
    case 10: return send_detached(f, true);
    case 11:
    case 12: return write(f, false);
    case 13: return write(f, true);
    case 14: return read(f);
    case 15: return fetch_add(f);
    case 16: return compare_swap(f);
    case 17:
    case 18: return f.owner.may_chain ? chain(f) : read(f);
    default: return flush(f.from);
    }
}

vb::task<> load::sender(flow& f, std::uint32_t count) {
    for (; count > 0 && f.from.qp; --count) {
        co_await one(f);
        if (f.owner.doomed && dice_.one_in(2)) co_return;
        if (dice_.one_in(16)) co_await pause();
        if (dice_.one_in(64)) {
            ++counts[kind::posted_function];
            reactor_->post([this] { ++functions_ran_; });
        }
    }
}

vb::task<> load::saboteur(connection& c) {
    flow& f = c.flows[dice_.below(2)];
    if (c.harm == sabotage::abandon_tasks) {
        c.doom();
        // At once, while their requests wait for room or for the flush, or some time later.
        for (std::uint32_t rounds = dice_.between(1, 4); rounds > 0 && f.from.qp; --rounds) {
            c.extra.emplace();
            for (std::uint32_t n = dice_.between(1, 3); n > 0; --n) c.extra->spawn(sender(f, 20));
            if (dice_.one_in(2)) co_await reactor_->sleep_for(some_time());
            events.add(now(), mark::spoils, kind::send, static_cast<std::uint64_t>(c.harm));
            c.extra.reset();
            co_await pause();
        }
        co_return;
    }
    co_await reactor_->sleep_for(some_time());
    events.add(now(), mark::spoils, kind::send, static_cast<std::uint64_t>(c.harm));
    c.doom();
    if (!f.from.qp) co_return;
    if (c.harm == sabotage::destroy_queue_pair) {
        f.from.qp.reset();
        f.from.unsignaled_before += f.from.unsignaled.size();
        f.from.unsignaled.clear();
        co_return;
    }
    buffer local(world_.memory);
    buffer remote(world_.memory);
    put_number(local.bytes(slot_bytes), 0);
    if (c.harm == sabotage::too_long) {
        issued o(*this, kind::send);
        const auto sent = co_await f.from.qp->send(local.slice(most_bytes + 64));
        if (o.ended(c, sent)) failed("a message longer than its receive was sent");
    } else if (c.harm == sabotage::bad_remote_key) {
        issued o(*this, kind::write);
        auto wrong = remote.remote(8);
        wrong.rkey ^= 0x55;
        const auto sent = co_await f.from.qp->write(local.slice(8), wrong);
        if (o.ended(c, sent)) failed("a write with a wrong key ended well");
    } else if (c.harm == sabotage::bad_local_key) {
        issued o(*this, kind::write);
        auto wrong = local.slice(8);
        wrong.lkey ^= 0x55;
        const auto sent = co_await f.from.qp->write(wrong, remote.remote(8));
        if (o.ended(c, sent)) failed("a write with a wrong local key ended well");
    }
}

vb::task<> load::plain_receiver(flow& f) {
    connection& c = f.owner;
    const std::uint32_t head = c.datagram ? header_bytes : 0;
    while (f.to.qp) {
        buffer b(world_.memory);
        issued o(*this, kind::recv);
        ++f.to.receives;
        const auto got = co_await f.to.qp->recv(b.slice(most_bytes + head));
        if (!o.ended(c, got)) co_return;
        arrived(f, number_of(f, got->byte_len, got->immediate, b.bytes(most_bytes + head).subspan(head)), got->byte_len,
                got->immediate);
        if (c.datagram && got->source_qp != f.from.qp_num) failed("a datagram names another sender");
        if (c.harm == sabotage::slow_receiver)
            co_await reactor_->sleep_for(nanoseconds{100'000});
        else if (dice_.one_in(8))
            co_await pause();
    }
}

vb::task<> load::hold(mailbox& box, vb::message m, std::uint64_t number) {
    const auto length = m.bytes().length;
    const bool has_bytes = length >= 8 && has_number(m.bytes().bytes().first(8), number);
    co_await reactor_->sleep_for(some_time());
    if (has_bytes && !has_number(m.bytes().bytes(), number)) failed("the bytes of a message changed while it was held");
    --box.held;
    ++receives_posted_;
}

vb::task<> load::listener(mailbox& box) {
    while (box.inbox) {
        issued o(*this, box.shared ? kind::next_shared : kind::next, 0);
        auto message = co_await box.inbox->next();
        o.resumed(message.has_value());
        if (!message) {
            const vb::error& e = message.error();
            if (is_.refuses && box.of != nullptr && e.root_cause() == std::errc::not_enough_memory) box.of->doom();
            if (!box.closing && (box.of == nullptr || !box.of->doomed)) failed("a receiver ended: " + e.message());
            co_return;
        }
        flow& f = flow_to(message->qp_num());
        const auto bytes = message->bytes();
        const auto number = number_of(f, bytes.length, message->immediate(), bytes.bytes());
        arrived(f, number, bytes.length, message->immediate());
        ++f.to.receives;
        if (f.owner.datagram && message->source_qp() != f.from.qp_num) failed("a datagram names another sender");
        // At least one receive must stay with the device.
        if (box.held + 1 < box.depth && dice_.one_in(3)) {
            ++box.held;
            if (dice_.one_in(8)) {
                ++counts[fact::kept_messages];
                kept_.push_back(*std::move(message));
            } else {
                ++counts[fact::held_messages];
                holders_->spawn(hold(box, *std::move(message), number));
            }
        } else {
            ++receives_posted_;
        }
        if (dice_.one_in(16)) co_await pause();
    }
}

/// The life of one connection, after its receives were posted.
vb::task<> load::supervisor(connection& c) {
    co_await c.senders.join();
    // Failures may have left too little.
    if (&c == connections_.front().get())
        while (issued_ < operations_wanted + 16) {
            // Not as one conditional expression: g++ 12 destroys the task in it twice.
            if (c.doomed)
                co_await pause();
            else
                co_await one(c.flows[dice_.below(2)]);
        }
    if (!c.doomed && !c.datagram) {
        for (auto& e : *c.ends)
            if (e.qp) co_await flush(e);
        for (flow& f : c.flows)
            while (!c.doomed && !f.sent.empty()) {
                f.arrived_all.reset();
                co_await f.arrived_all.wait();
            }
    }
    if (c.datagram || (c.shares && c.doomed)) co_await reactor_->sleep_for(nanoseconds{4 * is_.max_delay});
    if (!c.doomed && !is_.refuses && !c.datagram)
        for (const flow& f : c.flows)
            if (f.counter.word() != f.counter_value || f.swapped.word() != f.swapped_value)
                failed("the atomics do not add up");
    if (c.doomed || waits_for_everyone()) {
        c.closing = true;
        events.add(now(), mark::closed, kind::send, 0);
        for (auto& e : *c.ends) {
            e.own.closing = true;
            const bool receiver_first = dice_.one_in(2);
            if (receiver_first) e.own.inbox.reset();
            if (dice_.one_in(4)) co_await pause();
            e.qp.reset();
            e.unsignaled.clear();
            e.own.inbox.reset();
        }
        co_await c.listeners.join();
    }
    if (--running_ == 0) all_done_.set();
}

/// Events nobody needs, and queues that change their size.
vb::task<> load::unrest() {
    // Not for ever, since its timers would hide that nothing else goes on.
    for (int round = 0; round < 100 && running_ > 0; ++round) {
        co_await reactor_->sleep_for(some_time());
        const auto& cq = queues_[dice_.below(is_.queues)];
        switch (dice_.below(3)) {
        case 0:
            ++counts[fact::spurious_events];
            world_.control.spurious_event(cq.native_handle());
            break;
        case 1:
            ++counts[fact::doubled_events];
            world_.control.double_events(cq.native_handle(), 1);
            break;
        default: {
            ++counts[kind::resize];
            const auto resized = cq.resize(dice_.between(1, 256));
            if (!resized && !(resized.error() == vb::errc::in_use || resized.error() == vb::errc::invalid_argument))
                failed("a queue could not be resized: " + resized.error().message());
        }
        }
    }
}

vb::task<> load::main() {
    vb::scope scope;
    running_ = connections_.size();
    for (auto& c : connections_) scope.spawn(supervisor(*c));
    if (is_.unrest) scope.spawn(unrest());
    co_await all_done_.wait();
    co_await scope.join();
    co_await holders_->join();
    // Longer than any reactor spins, so that each parks at least once.
    co_await reactor_->sleep_for(nanoseconds{20'000});
    while (functions_ran_ < counts[kind::posted_function]) co_await reactor_->yield();
    if (waits_for_everyone() && srq_) {
        shared_box_.closing = true;
        shared_box_.inbox.reset();
        co_await shared_listeners_->join();
    }
}

// ---- from nothing to nothing

void load::start_receiving(connection& c, std::uint32_t side) {
    end& e = c.side(side);
    flow& f = *e.in;
    if (e.box != nullptr) {
        if (e.box->shared) return;
        e.own.of = &c;
        e.own.depth = dice_.between(1, c.receive_depth);
        e.own.inbox = vb::receiver::create(*e.qp, {.depth = e.own.depth, .message_bytes = most_bytes}).value();
        e.receives = e.own.depth;
        receives_posted_ += e.own.depth;
        const bool two = dice_.one_in(4);
        f.ordered = !two;
        for (int i = 0; i < (two ? 2 : 1); ++i) c.listeners.spawn(listener(e.own));
        return;
    }
    for (std::uint32_t n = dice_.between(1, c.harm == sabotage::slow_receiver ? 1 : 4); n > 0; --n)
        c.listeners.spawn(plain_receiver(f));
}

void load::make_connection(std::uint32_t index) {
    auto& c = *connections_.emplace_back(std::make_unique<connection>(world_.memory));
    // The first one stays healthy, so that no seed is short of operations.
    c.datagram = index > 0 && dice_.one_in(6);
    if (index > 0 && !c.datagram && dice_.one_in(3)) c.harm = static_cast<sabotage>(dice_.between(1, 6));
    // RESET loses the receives that a queue pair has taken from a shared queue but not completed, and with them its
    // peers on that queue: it must come late.
    c.shares = srq_ && index < 2 && !c.datagram;
    if (c.shares && c.harm != sabotage::none) c.harm = static_cast<sabotage>(dice_.between(1, 3));
    c.doomed = c.harm == sabotage::slow_receiver;
    c.batched = dice_.one_in(2);
    if (c.batched) ++counts[fact::batched_pairs];
    c.depth = dice_.between(1, 16);
    c.receive_depth = dice_.between(1, 16);
    // Half a chain breaks its connection.
    c.may_chain = c.depth >= 2 && (index > 0 || !is_.refuses);
    for (std::uint32_t i = 0; i < 2; ++i) {
        end& e = c.side(i);
        vb::queue_pair_options options{.send_cq = queues_[dice_.below(is_.queues)],
                                       .recv_cq = queues_[dice_.below(is_.queues)],
                                       .max_send = c.depth,
                                       .max_recv = c.receive_depth};
        options.type = c.datagram ? vb::queue_pair_type::ud : vb::queue_pair_type::rc;
        options.post_mode = c.batched ? vb::post_mode::batched : vb::post_mode::immediate;
        if (c.shares && i == 1) {
            options.srq = srq_;
            e.box = &shared_box_;
            e.in->ordered = shared_box_.depth % 2 == 0;
            e.receives = shared_box_.depth;
        } else if (c.harm != sabotage::slow_receiver && dice_.one_in(2)) {
            e.box = &e.own;
        }
        e.qp = vb::queue_pair::create(world_.domain, options).value();
        e.qp_num = e.qp->qp_num();
    }
    if (c.datagram) {
        for (auto& e : *c.ends) e.qp->activate(qkey).value();
    } else {
        vb::connection_options options{.retry_cnt = 2, .rnr_retry = 7, .timeout = 4, .min_rnr_timer = 1};
        if (c.harm == sabotage::slow_receiver) options.rnr_retry = static_cast<std::uint8_t>(dice_.between(0, 2));
        // Receives may be posted before that; then nobody can be early.
        const bool receives_first = dice_.one_in(2);
        if (receives_first)
            for (std::uint32_t i = 0; i < 2; ++i) start_receiving(c, i);
        c.side(0).qp->connect(c.side(1).qp->endpoint(), options).value();
        c.side(1).qp->connect(c.side(0).qp->endpoint(), options).value();
        if (receives_first) return;
    }
    for (std::uint32_t i = 0; i < 2; ++i) start_receiving(c, i);
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
    world_.memory.restart();
    holders_.emplace();
    shared_listeners_.emplace();

    backend_options options{.event_delay = nanoseconds{is_.max_delay}, .collects = is_.collects};
    if (is_.wakes_early) options.returns_early = [this] { return dice_.one_in(16); };
    options.on_sleep = [this](bool begins) { events.add(now(), begins ? mark::sleeps : mark::woke, kind::send, 0); };
    auto backend = std::make_unique<stepping_backend>(control, std::move(options));
    backend_ = backend.get();
    reactor_.reset(
        new vb::reactor(vb::detail::access::make_reactor<vb::reactor>(std::make_unique<vb::detail::reactor_core>(
            vb::reactor_options{.wait = vb::wait_policy::spin_then_park(nanoseconds{is_.spin}),
                                .safety_repoll = std::chrono::milliseconds{0}},
            std::make_unique<device_clock>(control), std::move(backend)))));

    for (std::uint32_t i = 0; i < is_.channels; ++i)
        channels_.push_back(vb::completion_channel::create(world_.device).value());
    for (std::uint32_t i = 0; i < is_.queues; ++i) {
        // Of three queues or more on two channels, at least two share the first.
        const auto& channel = channels_[i + 1 == is_.queues ? is_.channels - 1 : 0];
        queues_.push_back(
            vb::completion_queue::create(world_.device, is_.small_queues ? 1 : 64, {.channel = channel}).value());
        reactor_->attach(queues_.back(), std::span(slots_).first(is_.slots)).value();
    }
    if (is_.shared) {
        shared_box_.shared = true;
        shared_box_.depth = dice_.between(2, 16);
        srq_ = vb::shared_receive_queue::create(world_.domain, {.max_wr = shared_box_.depth}).value();
    }
    for (std::uint32_t i = 0; i < is_.connections; ++i) make_connection(i);
    if (is_.shared) {
        shared_box_.inbox =
            vb::receiver::create(*reactor_, srq_, {.depth = shared_box_.depth, .message_bytes = most_bytes}).value();
        receives_posted_ += shared_box_.depth;
        for (std::uint32_t n = shared_box_.depth % 2 + 1; n > 0; --n) shared_listeners_->spawn(listener(shared_box_));
    }
    const std::uint32_t share = operations_wanted / (4 * is_.connections);
    for (auto& c : connections_) {
        for (flow& f : c->flows)
            for (std::uint32_t tasks = dice_.between(1, 4), left = tasks; left > 0; --left)
                c->senders.spawn(sender(f, share / tasks + dice_.below(8)));
        if (c->harm != sabotage::none) c->senders.spawn(saboteur(*c));
    }
    if (is_.refuses)
        for (std::uint32_t n = dice_.between(1, 3); n > 0; --n)
            control.fail("ibv_post_send", {.call = dice_.between(1, 60), .value = ENOMEM, .accepted = dice_.below(2)});
}

void load::tear_down() {
    for (auto& c : connections_) {
        c->closing = true;
        for (auto& e : *c->ends) e.own.closing = true;
    }
    shared_box_.closing = true;
    const auto drop_frames = [&] {
        for (auto& c : connections_) c->listeners.~scope(), new (&c->listeners) vb::scope;
        shared_listeners_.reset();
        holders_.reset();
    };
    const auto drop_queue_pairs = [&] {
        for (auto& c : connections_)
            for (auto& e : *c->ends) {
                e.qp.reset();
                e.own.inbox.reset();
                e.unsignaled.clear();
            }
        shared_box_.inbox.reset();
        srq_ = {};
    };
    switch (is_.ending) {
    case teardown::close: drop_queue_pairs(); break;
    case teardown::frames_first:
        drop_frames();
        drop_queue_pairs();
        break;
    case teardown::reactor_first: break;
    case teardown::detach:
        for (const auto& cq : queues_) reactor_->detach(cq).value();
        // Whoever waited is told.
        reactor_->run([](load& l) -> vb::task<> {
            for (auto& c : l.connections_)
                if (!c->datagram) co_await c->listeners.join();
        }(*this));
        drop_queue_pairs();
        break;
    }
    const auto stats = reactor_->stats();
    if (is_.ending != teardown::reactor_first && stats.outstanding != 0)
        failed("operations are outstanding although nothing is left to complete them");
    counts[fact::parks] = stats.parks;
    counts[fact::wakes] = stats.wakes;
    counts[fact::arms] = stats.arms;
    counts[fact::events] = stats.events;
    counts[fact::empty_polls] = stats.empty_polls;
    counts[fact::early_returns] = backend_->early_returns();
    counts.most_outstanding = backend_->most_outstanding();
    if (stats.parks == 0) failed("the reactor never parked");
    if (stats.stale != 0 || stats.foreign != 0 || stats.rescued != 0)
        failed("completions were stale, foreign or rescued: " + std::to_string(stats.stale) + ", " +
               std::to_string(stats.foreign) + ", " + std::to_string(stats.rescued));
    if (is_.ending != teardown::reactor_first && stats.completions != world_.control.ledger().polled)
        failed("the reactor counts other completions than the device");
    reactor_.reset();
    backend_ = nullptr;
    const auto ledger = world_.control.ledger();
    // What a shared receive queue holds stays with it.
    if (!srq_ && ledger.outstanding != 0) failed("the device has requests of a reactor that is gone");
    drop_frames();
    drop_queue_pairs();
    queues_.clear();
    channels_.clear();
}

void load::balance() {
    const auto l = world_.control.ledger();
    if (l.outstanding != 0 || l.unpolled != 0 || l.dropped != 0 || l.consumed != 0)
        failed("after the end: " + std::to_string(l.outstanding) + " outstanding, " + std::to_string(l.unpolled) +
               " unpolled, " + std::to_string(l.dropped) + " dropped, " + std::to_string(l.consumed) + " consumed");
    if (l.accepted != l.completed + l.flushed + l.silent + l.purged) failed("the device's ledger does not balance");
    if (world_.control.next()) failed("the device has something to do for nobody");
    if (l.accepted < requests_done_ || l.accepted > requests_issued_ + receives_posted_ + marks_)
        failed("the device accepted " + std::to_string(l.accepted) + " requests; the program posted " +
               std::to_string(requests_done_) + " to " + std::to_string(requests_issued_) + ", its receivers up to " +
               std::to_string(receives_posted_) + ", the runtime up to " + std::to_string(marks_));
    if (issued_ != resumed_ + abandoned_)
        failed(std::to_string(issued_) + " operations were issued, " + std::to_string(resumed_) + " resumed, " +
               std::to_string(abandoned_) + " abandoned");
    if (issued_ < operations_wanted) failed("the seed has too few operations: " + std::to_string(issued_));
    kept_.clear();
    connections_.clear();
    if (!world_.memory.all_free()) failed("memory is still in use");
    if (world_.pool.available() != world_.pool.count()) failed("a pool buffer did not come back");
    counts[fact::flush_errors] = l.flushed;
    counts[fact::purged_requests] = l.purged;
    counts[fact::silent_sends] = l.silent;
    counts[fact::abandoned_frames] = abandoned_;
    ++counts[is_.character() == sim::character::mlx5 ? fact::seeds_mlx5 : fact::seeds_rxe];
    if (is_.late) ++counts[fact::late_writes];
    ++counts.facts[static_cast<std::size_t>(fact::teardown_closed) + static_cast<std::size_t>(is_.ending)];
    counts.most_operations = counts.least_operations = issued_;
    sum_.add(counts);
}

void load::run() {
    build();
    reactor_->run(main());
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
        std::printf("  connection: %s, %s, depth %u and %u, harm: %s%s%s;", c->datagram ? "UD" : "RC",
                    c->batched ? "batched" : "immediate", c->depth, c->receive_depth,
                    sabotage_names[static_cast<std::size_t>(c->harm)], c->doomed ? ", doomed" : "",
                    c->closing ? ", closing" : "");
        for (const auto& e : *c->ends)
            std::printf(" %s %zu under way",
                        e.box == nullptr ? "recv:"
                        : e.box->shared  ? "SRQ:"
                                         : "receiver:",
                        e.in->sent.size());
        std::printf("\n");
    }
    events.print([](std::uint8_t what, std::uint8_t of, std::uint64_t number) {
        std::printf("%-8s", mark_names[what]);
        if (what <= static_cast<std::uint8_t>(mark::arrived))
            std::printf("%-20s %08" PRIx64, kind_names[of].data(), number);
        else if (number != 0)
            std::printf("%" PRIu64, number);
    });
    if (reactor_) {
        const auto s = reactor_->stats();
        std::printf("  reactor: %" PRIu64 " turns, %" PRIu64 " completions, %" PRIu64 " arms, %" PRIu64
                    " events, %" PRIu64 " parks, %" PRIu64 " outstanding\n",
                    s.turns, s.completions, s.arms, s.events, s.parks, s.outstanding);
    }
    const auto l = world_.control.ledger();
    std::printf("  device: accepted %" PRIu64 " = completed %" PRIu64 " + flushed %" PRIu64 " + silent %" PRIu64
                " + purged %" PRIu64 " + dropped %" PRIu64 " + outstanding %" PRIu64 "; unpolled %" PRIu64 "\n",
                l.accepted, l.completed, l.flushed, l.silent, l.purged, l.dropped, l.outstanding, l.unpolled);
}

} // namespace

worlds::worlds() : worlds_{std::make_unique<world>("sim0"), std::make_unique<world>("sim1")} {}
worlds::~worlds() = default;

std::uint64_t worlds::run(std::uint64_t seed, totals& sum) {
    // What is left of a seed that failed cannot be taken down: it stays.
    current = new load(*worlds_[seed % 2], seed, sum);
    current->run();
    delete std::exchange(current, nullptr);
    return events.hash();
}

void print_state() noexcept {
    if (current != nullptr) current->print();
}

} // namespace seeds
