// Every entry is found wherever it falls between polling, arming and sleeping, and with any number of slots: each queue
// is polled after its own arm has returned, and nobody sleeps after a full buffer (B03, B04, B34).

#include "race_rig.hpp"

#include <poll.h>

using namespace races;

namespace {

// One message, of which the completion in `late` lands when `where` is reached with `at`.
void land(const std::string& name, bool late_send, point where, bool at_send) {
    INFO(name << (late_send ? ": the send's" : ": the receive's") << " completion at point " << static_cast<int>(where)
              << " of the " << (at_send ? "send" : "receive") << " queue");
    lab l(name);
    const ibv_cq* const late = late_send ? l.sends() : l.receives();
    const ibv_cq* const at = at_send ? l.sends() : l.receives();
    l.control.hold(late_send ? l.sends() : l.receives());
    l.control.at(where, [&](const auto& reached) {
        if (reached.cq == at) l.let_go(late);
    });
    ending_log log;
    l.reactor.run(exchange(l, log));
    CHECK(log.successes == 2);
    CHECK(l.reactor.stats().parks == 0);
}

} // namespace

TEST_CASE("an entry between drain and arm is found") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices())
        for (const auto where : {point::poll_ends, point::arm_begins, point::arm_ends})
            for (const bool late_send : {true, false})
                for (const bool at_send : {true, false}) land(name, late_send, where, at_send);
}

TEST_CASE("an entry that lands behind the last drain wakes the reactor") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name);
        ending_log log;
        l.complete_asleep();
        l.reactor.run(exchanges(l, 20, log));
        CHECK(log.successes == 40);
        const auto stats = l.reactor.stats();
        INFO(support::describe(stats));
        CHECK(stats.wakes >= 20);
        CHECK(stats.events == l.control.ledger().events);
        CHECK(stats.rescued == 0);
    }
}

TEST_CASE("a backlog larger than the slots needs no further event") {
    const support::deadline limit(std::chrono::seconds{60});
    constexpr unsigned count = 300; // more than one turn takes
    for (const auto& name : devices())
        for (const std::size_t slots : {1, 16}) {
            INFO(name << ", " << slots << " slots");
            lab l(name, {.depth = count, .slots = slots});
            l.complete_asleep();
            ending_log log;
            vb::scope scope;
            for (unsigned i = 0; i < count; ++i) {
                scope.spawn(support::receive(*l.right, l.slice(0), log));
                scope.spawn(support::transmit(*l.left, l.slice(1), log));
            }
            l.finish(scope);
            CHECK(log.successes == 2 * count);
            CHECK(l.control.ledger().events <= 2);
            CHECK(l.control.ledger().dropped == 0);
        }
}

TEST_CASE("entries that were there before attach are found, and an event that was there harms nothing") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices())
        for (const bool armed_before : {false, true}) {
            INFO(name << (armed_before ? ", armed by hand" : ""));
            lab l(name, {.attach = false});
            if (armed_before)
                for (ibv_cq* cq : {l.sends(), l.receives()}) support::require_zero(ibv_req_notify_cq(cq, 0), "arm");
            const auto by_hand = [&](std::uint64_t number) {
                l.right->post(vb::recv_request{l.slice(0)}, 10 + number).value();
                l.left->post(vb::send_request{l.slice(1)}, number).value();
            };
            for (std::uint64_t i = 1; i <= 3; ++i) by_hand(i);
            CHECK(l.control.ledger().events == (armed_before ? 2 : 0));

            std::vector<std::uint64_t> sent, received;
            vb::event changed;
            l.attach({.foreign = [&](const vb::work_completion& done) {
                CHECK(done.ok());
                (done.wr_id() > 10 ? received : sent).push_back(done.wr_id());
                changed.set();
            }});
            const auto until = [](auto& s, auto& r, vb::event& e, std::size_t count) -> vb::task<> {
                while (s.size() < count || r.size() < count) {
                    e.reset();
                    co_await e.wait();
                }
            };
            l.reactor.run(until(sent, received, changed, 3));
            CHECK(l.reactor.stats().parks == 0);
            l.complete_asleep(); // and it goes on
            by_hand(4);
            l.reactor.run(until(sent, received, changed, 4));
            CHECK(sent == std::vector<std::uint64_t>{1, 2, 3, 4});
            CHECK(received == std::vector<std::uint64_t>{11, 12, 13, 14});
            CHECK(l.reactor.stats().foreign == 8);
        }
}

TEST_CASE("entries that were there when their queue was armed are all found, however many") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name, {.depth = 300}); // more than a drain takes
        l.hold();
        l.control.at(point::arm_begins, [&](const auto& at) { l.let_go(at.cq); });
        ending_log log;
        vb::scope scope;
        for (int i = 0; i < 300; ++i) scope.spawn(support::receive(*l.right, l.slice(0), log));
        for (int i = 0; i < 300; ++i) scope.spawn(support::transmit(*l.left, l.slice(1), log));
        l.finish(scope);
        CHECK(log.successes == 600);
    }
}

TEST_CASE("for a foreign loop an entry is found by the preparation of its wait, or makes the handle readable") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices())
        for (const auto where : {point::poll_ends, point::arm_begins, point::arm_ends})
            for (const bool late_send : {true, false})
                for (const bool asleep : {false, true}) {
                    INFO(name << (late_send ? ": the send's" : ": the receive's") << " completion "
                              << (asleep ? "while the loop waits" : "at a point ") << static_cast<int>(where));
                    lab l(name);
                    pollfd handle{l.reactor.native_handle().value(), POLLIN, 0};
                    ibv_cq* const late = late_send ? l.sends() : l.receives();
                    l.control.hold(late);
                    ending_log log;
                    vb::scope scope;
                    scope.spawn(exchange(l, log));
                    while (l.reactor.poll().value() > 0) {}
                    if (!asleep)
                        l.control.at(where, [&](const auto& reached) {
                            if (reached.cq == late) l.let_go(late);
                        });
                    while (log.successes < 2) {
                        while (l.reactor.poll().value() > 0) {}
                        if (log.successes == 2 || l.reactor.prepare_wait().value() == vb::wait_state::ready) continue;
                        if (asleep) l.let_go(late);
                        REQUIRE(::poll(&handle, 1, 20'000) == 1);
                    }
                    CHECK(l.reactor.stats().rescued == 0);
                }
}
