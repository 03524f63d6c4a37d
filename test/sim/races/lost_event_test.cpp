// An event that the kernel lost delays its completion by a tick of the safety re-poll, and the queue is armed anew and
// counted; without a loss nothing is counted.

#include "race_rig.hpp"

using namespace races;

namespace {

constexpr std::chrono::milliseconds tick{5};

} // namespace

TEST_CASE("the completion of a lost event is found by the safety re-poll, and the loss is counted") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name, {.safety_repoll = tick});
        ending_log log, pending;
        vb::scope scope;
        scope.spawn(support::receive(*l.left, l.slice(2), pending)); // so that the ticks go on
        l.complete_asleep();
        l.control.drop_events(l.receives(), 1);
        l.reactor.run(exchange(l, log));
        CHECK(log.successes == 2);
        CHECK(l.reactor.stats().rescued == 0); // the event may be late only
        l.reactor.run([](lab& own) -> vb::task<> {
            while (own.reactor.stats().rescued == 0) co_await own.reactor.sleep_for(tick);
        }(l));
        CHECK(l.reactor.stats().rescued == 1);
        l.reactor.run(exchanges(l, 3, log));
        CHECK(log.successes == 8);
        // mlx5 numbers the arms by the events that were taken: after a loss it ignores them, and the ticks go on alone.
        if (l.control.character() == sim::character::rxe) CHECK(l.reactor.stats().rescued == 1);
        CHECK(pending.resumes() == 0);
    }
}

TEST_CASE("ticks that find nothing lost count nothing") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name, {.safety_repoll = std::chrono::milliseconds{1}});
        ending_log log, pending;
        vb::scope scope;
        scope.spawn(support::receive(*l.left, l.slice(2), pending));
        l.complete_asleep();
        for (int i = 0; i < 5; ++i) {
            l.reactor.run(exchange(l, log));
            l.reactor.run(
                [](lab& own) -> vb::task<> { co_await own.reactor.sleep_for(std::chrono::milliseconds{5}); }(l));
        }
        CHECK(log.successes == 10);
        CHECK(l.reactor.stats().rescued == 0);
    }
}
