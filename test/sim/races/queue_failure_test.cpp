// A completion queue that cannot be polled, armed or grown fails those who wait on it once and those who come later at
// once; one that can is never overrun, and survives being resized (B37, B42, B48, B53).

#include "race_rig.hpp"

#include <cerrno>

using namespace races;

namespace {

vb::task<> take_one(vb::receiver& inbox, ending_log& log) {
    const auto got = co_await inbox.next();
    log.add(got);
}

void check_lost(const ending_log& log, std::size_t count) {
    CHECK(log.successes == 0);
    REQUIRE(log.failures.size() == count);
    for (const auto& e : log.failures) {
        CHECK(e == vb::errc::connection_reset);
        CHECK(e.root_cause() == vb::errc::queue_failed);
    }
}

} // namespace

TEST_CASE("a negative poll fails everybody of the queue once, and later awaits at once") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices())
        for (const std::uint32_t consumed : {0, 2}) {
            INFO(name << ", " << consumed << " entries lost");
            lab l(name, {.depth = 4});
            auto fresh = l.make(), fresh_peer = l.make();
            support::connect(fresh, fresh_peer);
            auto own_cq = vb::completion_queue::create(l.device, 16, {.channel = l.channel}).value();
            l.reactor.attach(own_cq, l.slots).value();
            beside bystander(l, own_cq);
            auto inbox = vb::receiver::create(*l.left, {.depth = 4, .message_bytes = 64}).value();

            ending_log receives, sends, messages, spared, later;
            vb::scope scope;
            for (int i = 0; i < 6; ++i)
                scope.spawn(support::receive(*l.right, l.slice(0), receives)); // two wait for room
            scope.spawn(take_one(inbox, messages));
            for (int i = 0; i < 2; ++i) scope.spawn(support::transmit(*l.left, l.slice(1), sends));
            l.control.fail_poll(l.receives(), consumed);
            l.turns();
            check_lost(receives, 6);
            REQUIRE(messages.failures.size() == 1);
            CHECK(messages.failures[0].root_cause() == vb::errc::queue_failed);
            CHECK(sends.resumes() == 2); // polled in the same turn, or lost with their queue pair
            CHECK(l.reactor.stats().outstanding == 0);

            unsigned polls = 0;
            l.control.at(point::poll_begins, [&](const auto& at) { polls += at.cq == l.receives(); });
            l.reactor.run(support::receive(*l.right, l.slice(0), later));
            l.reactor.run(support::receive(fresh, l.slice(0), later)); // its first operation
            CHECK(later.failures.size() == 2);
            scope.spawn(support::receive(bystander.right, l.slice(2), spared));
            scope.spawn(support::transmit(bystander.left, l.slice(3), spared));
            l.finish(scope);
            CHECK(spared.successes == 2);
            CHECK(polls == 0);
        }
}

TEST_CASE("a queue that cannot be armed is not slept on") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices())
        for (const auto answered : {sim::convention::positive_errno, sim::convention::minus_one_and_errno}) {
            INFO(name);
            lab l(name);
            ending_log log, later;
            vb::scope scope;
            for (int i = 0; i < 3; ++i) scope.spawn(support::receive(*l.right, l.slice(0), log));
            l.control.fail("ibv_req_notify_cq", {.call = 2, .value = EIO, .convention = answered});
            l.finish(scope);
            check_lost(log, 3);
            l.reactor.run(support::receive(*l.right, l.slice(0), later));
            CHECK(later.failures.size() == 1);
        }
}

TEST_CASE("awaited work cannot overrun its queues") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name, {.depth = 4}); // the queues were asked for 4 entries, and have grown
        CHECK(l.send_cq.capacity() >= 8);
        ending_log log;
        vb::scope scope;
        for (int i = 0; i < 50; ++i) {
            for (auto* qp : {&*l.left, &*l.right}) {
                scope.spawn(support::receive(*qp, l.slice(0), log));
                scope.spawn(support::transmit(*qp, l.slice(1), log));
            }
        }
        CHECK(l.control.ledger().unpolled <= 16);
        l.finish(scope);
        CHECK(log.successes == 200);
        CHECK(l.control.ledger().dropped == 0);
        l.control.fail("ibv_resize_cq", {.value = EOPNOTSUPP, .times = 20});
        bool refused = false;
        std::vector<vb::queue_pair> more;
        for (int i = 0; i < 20 && !refused; ++i) {
            auto made = vb::queue_pair::create(l.domain, {.send_cq = l.send_cq, .recv_cq = l.recv_cq, .max_send = 4});
            refused = !made && made.error() == vb::errc::resource;
            if (made) more.push_back(std::move(made).value());
        }
        CHECK(refused);
    }
}

TEST_CASE("with few sends signaled the queue still finds its room") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices())
        for (const auto mode : {vb::post_mode::immediate, vb::post_mode::batched}) {
            INFO(name);
            constexpr int count = 100;
            lab l(name, {.depth = 8, .mode = mode});
            ending_log received, posted;
            vb::scope scope;
            for (int i = 0; i < count; ++i) {
                scope.spawn(support::receive(*l.right, l.slice(0), received));
                scope.spawn([](lab& own, int number, ending_log& log) -> vb::task<> {
                    const auto sent = co_await own.left->send(own.slice(1), {.signaled = number % 16 == 15});
                    log.add(sent);
                }(l, i, posted));
            }
            l.finish(scope);
            CHECK(posted.successes == count);
            CHECK(received.successes == count);
            l.reactor.run([](lab& own, ending_log& log) -> vb::task<> {
                const auto flushed = co_await own.left->flushed();
                log.add(flushed);
            }(l, posted));
            CHECK(posted.successes == count + 1);
            CHECK(l.reactor.stats().outstanding == 0);
        }
}

TEST_CASE("a live queue is resized with what is in it, and is armed anew") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices())
        for (const bool asleep : {false, true}) {
            INFO(name << (asleep ? ", armed" : ""));
            lab l(name, {.depth = 10});
            ending_log log;
            if (asleep) { // both queues are armed when the entries come
                l.hold();
                l.reactor.run(
                    [](lab& own) -> vb::task<> { co_await own.reactor.sleep_for(std::chrono::milliseconds{1}); }(l));
                l.release();
            }
            std::vector<int> right, sends;
            vb::scope scope;
            for (int i = 1; i <= 10; ++i) {
                scope.spawn(receive_numbered(*l.right, l.slice(0), i, right));
                scope.spawn(send_numbered(*l.left, l.slice(1), i, sends));
            }
            CHECK(l.control.ledger().unpolled == 20);
            const auto before = l.recv_cq.capacity();
            l.recv_cq.resize(64).value();
            CHECK(l.recv_cq.capacity() >= 64);
            CHECK(l.recv_cq.resize(8).error() == vb::errc::in_use);
            l.recv_cq.resize(20).value();
            CHECK(l.recv_cq.capacity() >= 20);
            CHECK(before >= 20);
            l.complete_asleep();
            l.finish(scope);
            CHECK(right == numbers(1, 10));
            CHECK(sends == numbers(1, 10));
            l.reactor.run(exchanges(l, 3, log)); // each needs an event
            CHECK(log.successes == 6);
            CHECK(l.control.ledger().ignored_arms == 0);
        }
}

TEST_CASE("a queue that was armed and empty when it was resized is armed anew") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name);
        ending_log log;
        l.complete_asleep();
        for (const std::size_t size : {200, 100, 400}) {
            l.reactor.run(
                [](lab& own) -> vb::task<> { co_await own.reactor.sleep_for(std::chrono::milliseconds{1}); }(l));
            l.recv_cq.resize(size).value(); // mlx5 forgets the arm, rxe does not
            l.reactor.run(exchanges(l, 2, log));
        }
        CHECK(log.successes == 12);
        CHECK(l.control.ledger().ignored_arms == 0);
    }
}

TEST_CASE("a refused resize says why, and the queue goes on") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices())
        for (const int code : {EOPNOTSUPP, EINVAL, ENOMEM})
            for (const auto answered : {sim::convention::positive_errno, sim::convention::negative_errno}) {
                INFO(name << ", errno " << code);
                lab l(name);
                ending_log log;
                l.complete_asleep();
                l.reactor.run(exchange(l, log));
                const auto before = l.recv_cq.capacity();
                l.control.fail("ibv_resize_cq", {.value = code, .convention = answered});
                errno = 77;
                const auto refused = l.recv_cq.resize(200);
                REQUIRE(!refused);
                CHECK(refused.error().code() == std::error_code(code, std::system_category()));
                CHECK(l.recv_cq.capacity() == before);
                l.reactor.run(exchanges(l, 3, log));
                CHECK(log.successes == 8);
            }
}
