// A failed connection is told to everybody on it, once, and each is told the first failure; whoever waits for something
// that cannot come any more is not forgotten.

#include "by_hand.hpp"

#include "support/deadline.hpp"

#include <chrono>
#include <optional>

namespace vb = verbena;
using namespace std::chrono_literals;
using support::ending_log;

namespace {

constexpr std::uint32_t message_bytes = 64;

constexpr auto rights = vb::access_flags::local_write | vb::access_flags::remote_write | vb::access_flags::remote_read;

struct lab {
    explicit lab(const vb::context& device, vb::queue_pair_options options = support::pair_options())
        : domain(vb::protection_domain::create(device).value()), engine(device), wire(domain, engine, options),
          memory(vb::memory_region::allocate(domain, 4096, rights).value()) {}

    vb::memory_slice slice(std::size_t index) const { return memory.slice(index * message_bytes, message_bytes); }
    void finish(vb::scope& scope) {
        engine.reactor.run([](vb::scope& s) -> vb::task<> { co_await s.join(); }(scope));
    }

    vb::protection_domain domain;
    support::engine engine;
    support::wire wire;
    vb::memory_region memory;
};

void check_fallen(const ending_log& log, std::size_t count, auto root) {
    CHECK(log.successes == 0);
    REQUIRE(log.failures.size() == count);
    for (const auto& e : log.failures) {
        support::check_failure(e, vb::errc::connection_reset);
        CHECK(e.root_cause() == root);
        CHECK(support::names(e, "root cause"));
        CHECK(e.qp_num() != 0);
    }
}

// Soft-RoCE does not say "length": its responder calls the receive broken and tells the sender no more than that.
void check_too_long(const vb::error& e) {
    INFO(e.message());
    CHECK((e == vb::errc::message_too_long ||
           e.code() == std::error_code(IBV_WC_REM_OP_ERR, vb::completion_category()) ||
           e.code() == std::error_code(IBV_WC_LOC_QP_OP_ERR, vb::completion_category())));
    CHECK(std::string_view(e.verb()) != "");
    CHECK(e.root_cause() == e.code());
}

vb::task<> put(const vb::queue_pair& qp, vb::memory_slice from, vb::remote_slice to, ending_log& log) {
    const auto done = co_await qp.write(from, to);
    log.add(done);
}
vb::task<> take(vb::receiver& inbox, std::optional<vb::result<vb::message>>& got) { got = co_await inbox.next(); }

// A connection whose left end has failed by itself, with the completion still unread.
void fail_left(lab& l, vb::scope& scope, ending_log& log) {
    auto nowhere = l.memory.remote(0, message_bytes);
    nowhere.rkey ^= 0x5500;
    scope.spawn(put(l.wire.left, l.slice(0), nowhere, log));
    while (l.wire.left.state().value() != vb::queue_pair_state::error) {}
}

} // namespace

TEST_CASE("a message longer than its buffer ends both queue pairs, and both know why") {
    VERBENA_REQUIRE_DEVICE(device);
    lab l(device);
    ending_log sender, receiver, left, right;
    vb::scope scope;
    scope.spawn(support::receive(l.wire.right, l.slice(0), receiver));
    for (std::size_t i = 1; i < 4; ++i) {
        scope.spawn(support::receive(l.wire.right, l.slice(i), right));
        scope.spawn(support::receive(l.wire.left, l.slice(i + 4), left));
    }
    scope.spawn(support::transmit(l.wire.left, l.memory.slice(1024, 2 * message_bytes), sender));
    l.finish(scope);
    REQUIRE(sender.failures.size() == 1);
    check_too_long(sender.failures[0]);
    CHECK(sender.failures[0].qp_num() == l.wire.left.qp_num());
    REQUIRE(receiver.failures.size() == 1);
    check_too_long(receiver.failures[0]);
    CHECK(receiver.failures[0].qp_num() == l.wire.right.qp_num());
    check_fallen(left, 3, sender.failures[0].code());
    check_fallen(right, 3, receiver.failures[0].code());
    ending_log later;
    l.engine.reactor.run(support::transmit(l.wire.left, l.slice(0), later));
    check_fallen(later, 1, sender.failures[0].code());
    l.engine.reactor.run(support::receive(l.wire.right, l.slice(0), later));
    CHECK(later.failures.back().root_cause() == receiver.failures[0].code());
    CHECK(l.engine.reactor.stats().outstanding == 0);
    CHECK(l.engine.reactor.stats().stale == 0);
}

TEST_CASE("a wrong key is denied") {
    VERBENA_REQUIRE_DEVICE(device);
    lab l(device);
    ending_log write, left;
    vb::scope scope;
    for (std::size_t i = 0; i < 2; ++i) scope.spawn(support::receive(l.wire.left, l.slice(i), left));
    auto nowhere = l.memory.remote(0, message_bytes);
    nowhere.rkey ^= 0x5500;
    scope.spawn(put(l.wire.left, l.slice(0), nowhere, write));
    l.finish(scope);
    REQUIRE(write.failures.size() == 1);
    support::check_failure(write.failures[0], vb::errc::access_denied);
    CHECK(write.failures[0].root_cause() == vb::errc::access_denied);
    check_fallen(left, 2, vb::errc::access_denied);
}

TEST_CASE("a peer that is gone is unreachable") {
    VERBENA_REQUIRE_DEVICE(device);
    const auto domain = vb::protection_domain::create(device).value();
    support::engine engine(device);
    auto qp = support::make_pair_end(domain, engine.cq, support::pair_options());
    std::optional<support::hand_end> peer(std::in_place, domain);
    const vb::connection_options options{.retry_cnt = 1, .timeout = 8};
    qp.connect(peer->qp.endpoint(), options).value();
    peer->qp.connect(qp.endpoint(), options).value();
    peer.reset();
    const auto memory = vb::memory_region::allocate(domain, message_bytes).value();
    ending_log send, receive;
    vb::scope scope;
    scope.spawn(support::receive(qp, memory.slice(), receive));
    scope.spawn(support::transmit(qp, memory.slice(), send));
    engine.reactor.run([](vb::scope& s) -> vb::task<> { co_await s.join(); }(scope));
    REQUIRE(send.failures.size() == 1);
    support::check_failure(send.failures[0], vb::errc::peer_unreachable);
    check_fallen(receive, 1, vb::errc::peer_unreachable);
}

TEST_CASE("a peer without a receive is not ready") {
    VERBENA_REQUIRE_DEVICE(device);
    const auto domain = vb::protection_domain::create(device).value();
    support::engine engine(device);
    auto qp = support::make_pair_end(domain, engine.cq, support::pair_options(2));
    support::hand_end peer(domain);
    const vb::connection_options options{.retry_cnt = 2, .rnr_retry = 0, .timeout = 8, .min_rnr_timer = 1};
    qp.connect(peer.qp.endpoint(), options).value();
    peer.qp.connect(qp.endpoint(), options).value();
    const auto memory = vb::memory_region::allocate(domain, message_bytes).value();
    ending_log log;
    vb::scope scope;
    for (int i = 0; i < 5; ++i) scope.spawn(support::transmit(qp, memory.slice(), log)); // three wait for room
    engine.reactor.run([](vb::scope& s) -> vb::task<> { co_await s.join(); }(scope));
    REQUIRE(log.failures.size() == 5);
    support::check_failure(log.failures[0], vb::errc::receiver_not_ready);
    log.failures.erase(log.failures.begin());
    check_fallen(log, 4, vb::errc::receiver_not_ready);
}

TEST_CASE("what is awaited after a queue pair failed by itself ends too") {
    VERBENA_REQUIRE_DEVICE(device);
    for (const auto mode : {vb::post_mode::immediate, vb::post_mode::batched}) {
        auto options = support::pair_options(3);
        options.post_mode = mode;
        lab l(device, options);
        ending_log write, log;
        vb::scope scope;
        if (mode == vb::post_mode::immediate) {
            fail_left(l, scope, write);
        } else {
            auto nowhere = l.memory.remote(0, message_bytes);
            nowhere.rkey ^= 0x5500;
            scope.spawn(put(l.wire.left, l.slice(0), nowhere, write));
        }
        // The device takes these and forgets them; two more wait for room in each queue.
        for (std::size_t i = 0; i < 5; ++i) scope.spawn(support::receive(l.wire.left, l.slice(i), log));
        for (std::size_t i = 0; i < 4; ++i) scope.spawn(support::transmit(l.wire.left, l.slice(8), log));
        l.finish(scope);
        REQUIRE(write.failures.size() == 1);
        support::check_failure(write.failures[0], vb::errc::access_denied);
        check_fallen(log, 9, vb::errc::access_denied);
        CHECK(l.engine.reactor.stats().outstanding == 0);
    }
}

TEST_CASE("unsignaled sends that fail are accounted for, and end a wait for their buffers") {
    VERBENA_REQUIRE_DEVICE(device);
    lab l(device, support::pair_options(8));
    ending_log log, flushed;
    vb::scope scope;
    auto nowhere = l.memory.remote(0, message_bytes);
    nowhere.rkey ^= 0x5500;
    scope.spawn([](lab& test, vb::remote_slice to, ending_log& writes, ending_log& flushes) -> vb::task<> {
        for (int i = 0; i < 3; ++i) {
            const auto posted = co_await test.wire.left.write(test.slice(0), to, {.signaled = false});
            writes.add(posted);
        }
        const auto done = co_await test.wire.left.flushed();
        flushes.add(done);
    }(l, nowhere, log, flushed));
    l.finish(scope);
    CHECK(log.resumes() == 3);
    check_fallen(flushed, 1, vb::errc::access_denied);
    l.engine.reactor.run([](vb::reactor& r) -> vb::task<> { co_await r.sleep_for(150ms); }(l.engine.reactor));
    CHECK(l.engine.reactor.stats().outstanding == 0);
    CHECK(l.engine.reactor.stats().foreign == 0);
}

TEST_CASE("a receiver whose only buffer is out learns of a failure") {
    VERBENA_REQUIRE_DEVICE(device);
    for (const auto mode : {vb::post_mode::immediate, vb::post_mode::batched})
        for (const bool waits_first : {true, false}) {
            auto options = support::pair_options(4);
            options.post_mode = mode;
            lab l(device, options);
            auto inbox = vb::receiver::create(l.wire.left, {.depth = 1, .message_bytes = message_bytes}).value();
            ending_log log;
            vb::scope scope;
            std::optional<vb::result<vb::message>> held, next;
            scope.spawn(support::transmit(l.wire.right, l.slice(0), log));
            scope.spawn(take(inbox, held));
            l.finish(scope);
            REQUIRE((held && *held));
            if (waits_first) scope.spawn(take(inbox, next));
            auto nowhere = l.memory.remote(0, message_bytes);
            nowhere.rkey ^= 0x5500;
            scope.spawn(put(l.wire.left, l.slice(0), nowhere, log));
            support::turn_until(l.engine.reactor, [&] { return log.resumes() == 2; });
            if (!waits_first) scope.spawn(take(inbox, next));
            held.reset(); // its buffer must not go to a queue that answers no more
            l.finish(scope);
            REQUIRE((next && !*next));
            support::check_failure(next->error(), vb::errc::connection_reset);
            CHECK(next->error().root_cause() == vb::errc::access_denied);
            CHECK(inbox.error() == vb::errc::connection_reset);
            l.engine.reactor.run([](vb::reactor& r) -> vb::task<> { co_await r.sleep_for(150ms); }(l.engine.reactor));
            CHECK(l.engine.reactor.stats().outstanding == 0);
        }
}

TEST_CASE("messages that came before a failure are handed out first") {
    VERBENA_REQUIRE_DEVICE(device);
    lab l(device, support::pair_options(4));
    auto inbox = vb::receiver::create(l.wire.left, {.depth = 4, .message_bytes = message_bytes}).value();
    ending_log log;
    vb::scope scope;
    for (int i = 0; i < 2; ++i) scope.spawn(support::transmit(l.wire.right, l.slice(0), log));
    scope.spawn(support::transmit(l.wire.right, l.memory.slice(0, 2 * message_bytes), log));
    l.finish(scope);
    CHECK(log.successes == 2);
    REQUIRE(log.failures.size() == 1);
    check_too_long(log.failures[0]);
    for (int i = 0; i < 3; ++i) {
        std::optional<vb::result<vb::message>> got;
        l.engine.reactor.run(take(inbox, got));
        REQUIRE(got);
        CHECK(got->has_value() == (i < 2));
        if (i == 2) check_too_long(got->error());
    }
}

TEST_CASE("a chain as long as its queue gets its room behind unsignaled sends") {
    VERBENA_REQUIRE_DEVICE(device);
    lab l(device, support::pair_options(4));
    ending_log log;
    l.engine.reactor.run([](lab& test, ending_log& done) -> vb::task<> {
        const auto target = test.memory.remote(1024, message_bytes);
        for (int round = 0; round < 3; ++round) {
            const auto quiet = co_await test.wire.left.write(test.slice(0), target, {.signaled = false});
            done.add(quiet);
            const vb::write_request one{.local = test.slice(0), .remote = target};
            const auto chained = co_await test.wire.left.chain(one, one, one, one);
            done.add(chained);
        }
    }(l, log));
    CHECK(log.successes == 6);
    CHECK(l.engine.reactor.stats().outstanding == 0);
}

TEST_CASE("the root cause is found although the two directions complete in two queues") {
    VERBENA_REQUIRE_DEVICE(device);
    const auto domain = vb::protection_domain::create(device).value();
    vb::reactor reactor({.wait = vb::wait_policy::park_at_once(), .safety_repoll = 0ms});
    std::array<vb::poll_slot, 8> slots;
    const auto channel = vb::completion_channel::create(device).value();
    const auto receives = vb::completion_queue::create(device, 32, {.channel = channel}).value();
    const auto sends = vb::completion_queue::create(device, 32, {.channel = channel}).value();
    reactor.attach(receives, slots).value(); // polled first
    reactor.attach(sends, slots).value();
    auto options = support::pair_options();
    options.send_cq = sends;
    options.recv_cq = receives;
    auto qp = vb::queue_pair::create(domain, options).value();
    support::hand_end peer(domain);
    support::connect(qp, peer.qp);
    const auto memory = vb::memory_region::allocate(domain, 256, rights).value();
    auto nowhere = memory.remote(0, message_bytes);
    nowhere.rkey ^= 0x5500;
    ending_log write, receive, later;
    vb::scope scope;
    scope.spawn(support::receive(qp, memory.slice(0, message_bytes), receive));
    scope.spawn(put(qp, memory.slice(64, message_bytes), nowhere, write));
    while (qp.state().value() != vb::queue_pair_state::error) {}
    reactor.run([](vb::scope& s) -> vb::task<> { co_await s.join(); }(scope));
    REQUIRE(write.failures.size() == 1);
    support::check_failure(write.failures[0], vb::errc::access_denied);
    check_fallen(receive, 1, vb::errc::access_denied);
    reactor.run(support::transmit(qp, memory.slice(0, message_bytes), later));
    check_fallen(later, 1, vb::errc::access_denied);
}

TEST_CASE("a UD send that fails is told, and the state of its queue pair decides about the rest") {
    VERBENA_REQUIRE_DEVICE(device);
    const auto domain = vb::protection_domain::create(device).value();
    support::engine engine(device);
    auto options = support::pair_options();
    options.type = vb::queue_pair_type::ud;
    auto left = support::make_pair_end(domain, engine.cq, options);
    auto right = support::make_pair_end(domain, engine.cq, options);
    constexpr std::uint32_t key = 0x1234;
    left.activate(key).value();
    right.activate(key).value();
    const auto memory = vb::memory_region::allocate(domain, 4096, rights).value();
    const auto local = support::usable_gid(device);
    const auto path = vb::address_handle::create(
                          domain, {.destination = local.gid, .gid_index = static_cast<std::uint8_t>(local.index)})
                          .value();
    ending_log receives, sends;
    vb::scope scope;
    for (std::size_t i = 0; i < 2; ++i) scope.spawn(support::receive(left, memory.slice(i * 256, 256), receives));
    auto foreign = memory.slice(1024, message_bytes);
    foreign.lkey ^= 0x5500;
    const auto transmit = [](vb::queue_pair& qp, vb::ud_destination to, vb::memory_slice from,
                             ending_log& log) -> vb::task<> {
        const auto sent = co_await qp.send_to(to, from);
        log.add(sent);
    };
    engine.reactor.run(transmit(left, {path.native_handle(), right.qp_num(), key}, foreign, sends));
    REQUIRE(sends.failures.size() == 1);
    const auto cause = sends.failures[0].code(); // devices differ in what they call it
    INFO(sends.failures[0].message());
    CHECK(cause.category() == vb::completion_category());
    CHECK(sends.failures[0].root_cause() == cause);
    support::some_turns(engine.reactor);
    if (left.state().value() == vb::queue_pair_state::ready_to_send) {
        CHECK(receives.resumes() == 0);
        scope.spawn(transmit(right, {path.native_handle(), left.qp_num(), key}, memory.slice(1024, 64), sends));
        support::turn_until(engine.reactor, [&] { return receives.resumes() == 1; });
        CHECK(receives.successes == 1);
    } else {
        engine.reactor.run([](vb::scope& s) -> vb::task<> { co_await s.join(); }(scope));
        check_fallen(receives, 2, cause);
    }
}
