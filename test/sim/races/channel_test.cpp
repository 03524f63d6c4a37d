// Every event of a channel is taken in its provider's way, acked to the queue it names, and stands for that queue only;
// so no queue is left unarmed, none is armed twice, and destruction finds nothing unpaid (B05, B31, B35).

#include "race_rig.hpp"

#include <map>

using namespace races;

TEST_CASE("the events of both queues are taken by one wake") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices())
        for (const bool send_next : {false, true}) {
            INFO(name);
            lab l(name);
            ending_log log;
            l.complete_at_arm();
            l.reactor.run(exchange(l, log));
            CHECK(l.control.ledger().events == 2); // both lie in the channel when it is looked at
            // Now one queue alone has something to say.
            l.complete_asleep();
            l.control.release(send_next ? l.receives() : l.sends());
            l.reactor.run(exchange(l, log));
            CHECK(log.successes == 4);
            CHECK(l.reactor.stats().events == l.control.ledger().events);
        }
}

TEST_CASE("every arm counts, since the events were taken by ibv_get_cq_event") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name);
        ending_log log;
        l.complete_asleep();
        unsigned taken = 0;
        l.control.at(point::event_taken, [&](const auto&) { ++taken; });
        l.reactor.run(exchanges(l, 10, log));
        CHECK(log.successes == 20);
        CHECK(taken == l.reactor.stats().events);
        CHECK(l.control.ledger().ignored_arms == 0);
    }
}

TEST_CASE("an event of a queue that is not attached is acked and satisfies nobody") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices())
        for (const bool send_next : {false, true}) {
            INFO(name);
            lab l(name);
            auto loose = vb::completion_queue::create(l.device, 16, {.channel = l.channel}).value();
            {
                beside by_hand(l, loose);
                l.complete_asleep();
                l.reactor.run([](lab& own) -> vb::task<> {
                    co_await own.reactor.sleep_for(std::chrono::milliseconds{1}); // both queues are armed now
                }(l));
                support::require_zero(ibv_req_notify_cq(loose.native_handle(), 0), "arm");
                by_hand.right.post(vb::recv_request{l.slice(2)}, 1).value();
                by_hand.left.post(vb::send_request{l.slice(3)}, 2).value();
                ending_log log;
                l.reactor.run(exchange(l, log));
                CHECK(l.reactor.stats().unattached_events == 1);
                CHECK(loose.native_handle()->comp_events_completed == 1);
                // Now one queue alone has something to say.
                l.control.release(send_next ? l.receives() : l.sends());
                l.reactor.run(exchanges(l, 2, log));
                CHECK(log.successes == 6);
            }
            loose = {}; // does not wait for an ack
        }
}

TEST_CASE("acks are paid to the queue that each event names, however many there were") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name);
        std::map<const ibv_cq*, std::uint32_t> taken;
        l.complete_asleep();
        l.control.at(point::event_taken, [&](const auto& at) { ++taken[at.cq]; });
        ending_log log;
        l.reactor.run(exchanges(l, 100, log));
        for (int i = 0; i < 70; ++i) l.control.spurious_event(l.receives());
        l.reactor.run(exchanges(l, 10, log));
        CHECK(log.successes == 220);
        CHECK(taken[l.sends()] >= 100);
        CHECK(taken[l.receives()] >= 170);
        for (const ibv_cq* cq : {l.sends(), l.receives()}) {
            CHECK(cq->comp_events_completed <= taken[cq]);
            CHECK(cq->comp_events_completed + 64 > taken[cq]);
        }
        l.reactor.detach(l.send_cq).value();
        CHECK(l.sends()->comp_events_completed == taken[l.sends()]);
        l.reactor.detach(l.recv_cq).value();
        CHECK(l.receives()->comp_events_completed == taken[l.receives()]);
    }
}

TEST_CASE("events that nobody expects do not keep the reactor awake") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name);
        const auto rest = [](lab& own, std::chrono::milliseconds time) -> vb::task<> {
            co_await own.reactor.sleep_for(time);
        };
        l.complete_asleep();
        l.reactor.run(rest(l, std::chrono::milliseconds{1})); // both queues are armed now
        l.control.spurious_event(l.sends());
        for (int i = 0; i < 5; ++i) l.control.spurious_event(l.receives()); // all but one are left when it wakes
        const auto before = l.reactor.stats();
        l.reactor.run(rest(l, std::chrono::milliseconds{30}));
        CHECK(l.reactor.stats().events > before.events);
        CHECK(l.reactor.stats().turns - before.turns < 20);
        ending_log log;
        l.reactor.run(exchange(l, log));
        l.control.release(l.receives()); // now one queue alone has something to say
        l.reactor.run(exchange(l, log));
        CHECK(log.successes == 4);
    }
}

TEST_CASE("a coroutine destroys the queues whose events resumed it") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices())
        for (const bool detach : {false, true}) {
            INFO(name);
            lab l(name);
            l.complete_asleep();
            ending_log log;
            l.reactor.run([](lab& own, ending_log& ends, bool detached) -> vb::task<> {
                co_await exchange(own, ends);
                own.left.reset();
                own.right.reset();
                if (detached) {
                    own.reactor.detach(own.send_cq).value();
                    own.reactor.detach(own.recv_cq).value();
                    own.send_cq = own.recv_cq = {};
                }
                co_await own.reactor.sleep_for(std::chrono::milliseconds{1}); // the loop goes on without them
            }(l, log, detach));
            CHECK(log.successes == 2);
        }
}

TEST_CASE("no queue is armed twice, whatever events come") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name);
        std::map<const ibv_cq*, unsigned> arms, taken;
        l.control.at(point::arm_begins, [&](const auto& at) {
            CHECK(arms[at.cq] == taken[at.cq]); // on mana a second arm would take the first away
            ++arms[at.cq];
        });
        l.control.at(point::event_taken, [&](const auto& at) { ++taken[at.cq]; });
        ending_log log;
        for (int round = 0; round < 10; ++round) {
            l.reactor.run([](lab& own) -> vb::task<> {
                for (int i = 0; i < 2; ++i) // asleep, and nothing comes
                    co_await own.reactor.sleep_for(std::chrono::milliseconds{1});
            }(l));
            l.reactor.run(exchange(l, log));
        }
        CHECK(log.successes == 20);
        CHECK(arms[l.sends()] >= 2);
    }
}

TEST_CASE("a queue whose event is on the way is polled, and not armed again") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name);
        l.complete_at_arm();
        l.control.drop_events(l.receives(), 1); // it stays on the way
        ending_log log;
        l.reactor.run(exchange(l, log)); // found behind the arm
        CHECK(log.successes == 2);
        unsigned arms = 0;
        l.control.at(point::arm_begins, [&](const auto& at) { arms += at.cq == l.receives(); });
        l.release();
        for (int i = 0; i < 2; ++i) {
            l.reactor.run(
                [](lab& own) -> vb::task<> { co_await own.reactor.sleep_for(std::chrono::milliseconds{1}); }(l));
            l.reactor.run(exchange(l, log));
        }
        CHECK(log.successes == 6);
        CHECK(arms == 0);
    }
}

TEST_CASE("events that bring nothing, or come twice, do no harm") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name);
        l.complete_asleep();
        ending_log log;
        for (int round = 0; round < 10; ++round) {
            for (int i = 0; i < round; ++i) l.control.spurious_event(i % 2 == 0 ? l.sends() : l.receives());
            l.control.double_events(l.sends(), 2);
            l.reactor.run(exchange(l, log));
        }
        CHECK(log.successes == 20);
        l.reactor.detach(l.send_cq).value();
        l.reactor.detach(l.recv_cq).value();
        CHECK(l.reactor.stats().events == l.control.ledger().events);
    }
}
