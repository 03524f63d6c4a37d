// An event that the kernel lost delays its completion by a tick of the safety re-poll, and the queue is armed anew and
// counted; without a loss nothing is counted. A queue whose event can be relied on is not polled.

#include "race_rig.hpp"

#include <vector>

using namespace races;

namespace {

constexpr std::chrono::milliseconds tick{5};

/// Attached, and nothing comes of them.
std::vector<vb::completion_queue> idle_queues(lab& l, std::size_t count) {
    std::vector<vb::completion_queue> queues;
    for (std::size_t i = 0; i < count; ++i) {
        queues.push_back(vb::completion_queue::create(l.device, 1, {.channel = l.channel}).value());
        l.reactor.attach(queues.back(), l.slots).value();
    }
    return queues;
}

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
        CHECK(l.reactor.stats().turns < 50);   // by a tick
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

TEST_CASE("a reactor that is never idle finds the completion of a lost event, behind whatever silent queues") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices())
        for (const std::size_t before : {0, 100}) {
            INFO(name << ", behind " << before);
            lab l(name, {.attach = false, .safety_repoll = std::chrono::hours{1}}); // no tick comes
            const auto silent = idle_queues(l, before);
            l.attach();
            ending_log log;
            vb::scope scope;
            scope.spawn(support::receive(*l.right, l.slice(0), log));
            l.reactor.run([](lab& own) -> vb::task<> { co_await own.reactor.sleep_for(tick); }(l)); // all are armed
            l.control.drop_events(l.receives(), 1);
            l.reactor.run([](lab& own, ending_log& all) -> vb::task<> {
                const auto sent = co_await own.left->send(own.slice(1));
                all.add(sent);
                while (all.successes < 2) co_await own.reactor.yield();
            }(l, log));
            CHECK(log.successes == 2);
        }
}

TEST_CASE("a queue that is armed and silent is not polled until its event comes") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name, {.attach = false});
        l.complete_asleep();
        const auto silent = idle_queues(l, 100);
        l.attach();
        const auto sleep = [](lab& own) -> vb::task<> { co_await own.reactor.sleep_for(std::chrono::milliseconds{1}); };
        l.reactor.run(sleep(l));
        const auto polls = l.reactor.stats().polls;
        for (int i = 0; i < 10; ++i) l.reactor.run(sleep(l));
        CHECK(l.reactor.stats().polls == polls);
        ending_log log;
        l.reactor.run(exchanges(l, 10, log));
        CHECK(log.successes == 20);
        CHECK(l.reactor.stats().polls - polls < 10 * 20); // two queues, not a hundred
    }
}
