// When the device goes, everybody who waits for it is told once, those who come later at once, and a descriptor that
// stays readable for ever costs no turns (B08, B51).

#include "race_rig.hpp"

using namespace races;

namespace {

vb::task<> take_one(vb::receiver& inbox, ending_log& log) {
    const auto got = co_await inbox.next();
    log.add(got);
}

} // namespace

TEST_CASE("the removal of the device ends every wait once") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices())
        for (const bool asleep : {false, true}) {
            INFO(name << (asleep ? ", asleep" : ""));
            {
                lab l(name, {.depth = 4});
                auto fresh = l.make(), fresh_peer = l.make();
                support::connect(fresh, fresh_peer);
                auto inbox = vb::receiver::create(*l.left, {.depth = 4, .message_bytes = 64}).value();
                ending_log log, messages;
                vb::scope scope;
                for (int i = 0; i < 6; ++i) scope.spawn(support::receive(*l.right, l.slice(0), log)); // two wait
                scope.spawn(take_one(inbox, messages));
                const auto where = asleep ? point::poll_ends : point::arm_begins;
                bool armed = !asleep, removed = false;
                l.control.at(point::arm_ends, [&](const auto& at) { armed = armed || at.cq == l.receives(); });
                l.control.at(where, [&](const auto& at) {
                    if (!armed || removed || at.cq != l.receives()) return;
                    removed = true;
                    l.control.remove();
                });
                l.finish(scope);
                CHECK(removed);
                CHECK(log.successes == 0);
                REQUIRE(log.failures.size() == 6);
                for (const auto& e : log.failures) CHECK(e == vb::errc::connection_reset);
                CHECK(messages.failures.size() == 1);
                CHECK(l.reactor.stats().outstanding == 0);

                const auto before = l.reactor.stats();
                ending_log later;
                l.reactor.run(support::receive(*l.right, l.slice(0), later));
                l.reactor.run(support::receive(fresh, l.slice(0), later)); // its first operation
                l.reactor.run(support::transmit(fresh, l.slice(0), later));
                CHECK(later.failures.size() == 3);
                l.reactor.run(
                    [](lab& own) -> vb::task<> { co_await own.reactor.sleep_for(std::chrono::milliseconds{30}); }(l));
                CHECK(l.reactor.stats().turns - before.turns < 20);
                CHECK(log.failures.size() == 6);
            }
            sim::control(name).insert();
        }
}

TEST_CASE("a removed device asks for no acks of the events that nobody can read any more") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices()) {
        INFO(name);
        {
            lab l(name, {.attach = false});
            support::require_zero(ibv_req_notify_cq(l.receives(), 0), "arm");
            l.right->post(vb::recv_request{l.slice(0)}, 1).value();
            l.left->post(vb::send_request{l.slice(1)}, 2).value();
            CHECK(l.control.ledger().events == 1);
            l.control.remove();
        }
        sim::control(name).insert();
    }
}
