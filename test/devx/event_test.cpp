// An event reaches one wait, in the order of events and waits, whoever is destroyed or stopped meanwhile; a loss is
// told once; nobody waits for an event that cannot come, and one that nobody wants costs no turns.

#include "device/counting_new.hpp"
#include "event_rig.hpp"
#include "support/forked.hpp"

#include <optional>
#include <stop_token>
#include <thread>

using namespace devx;

static_assert(vb::detail::limitable<mlx5::next_device_event_operation>);

TEST_CASE("an event comes with the cookie of its subscription and its data") {
    const support::deadline limit(60s);
    event_rig r;
    r.subscribe(nullptr, {some_event, other_event}, 8);
    const thing second(r.device, false);
    r.subscribe(&second, {other_event}, UINT64_MAX);
    r.raise(1);
    CHECK(r.devx.raise(&second, other_event, 2));
    CHECK(r.devx.raise(nullptr, other_event, 3));
    CHECK_FALSE(r.devx.raise(&second, some_event, 4)); // not subscribed to
    const std::uint64_t cookies[] = {7, UINT64_MAX, 8};
    const std::uint16_t types[] = {some_event, other_event, other_event};
    for (std::uint64_t i = 0; i < 3; ++i) {
        const auto got = next(r.reactor, r.events).value();
        CHECK(got.cookie == cookies[i]);
        REQUIRE(got.data.has_value());
        CHECK(std::to_integer<std::uint16_t>((*got.data)[1]) == types[i]);
        CHECK(number_of(got) == i + 1);
    }
}

TEST_CASE("without data, events that nobody has read are one") {
    const support::deadline limit(60s);
    event_rig r({.with_data = false});
    r.subscribe(nullptr, {other_event}, 8);
    for (int i = 0; i < 3; ++i) {
        r.raise(1);
        CHECK(r.devx.raise(nullptr, other_event, 2));
    }
    const auto first = next(r.reactor, r.events).value(), second = next(r.reactor, r.events).value();
    CHECK_FALSE(first.data.has_value());
    CHECK(first.cookie + second.cookie == 7 + 8);
    waits w(r.events);
    w.add();
    r.turns();
    CHECK(w.ends.empty());
}

TEST_CASE("an event raised while nobody waits, or everybody, is taken, whoever sleeps") {
    const support::deadline limit(60s);
    event_rig r;
    std::uint64_t last = 0;
    const auto expect = [&](std::uint64_t number) { CHECK(number_of(next(r.reactor, r.events).value()) == number); };
    r.raise(++last); // before the reactor has started
    expect(last);
    for (int round = 0; round < 3; ++round) {
        r.raise(++last);
        r.turns(); // it was reported, and nobody wanted it
        r.raise(++last);
        expect(last - 1);
        r.turns();
        expect(last);
        ++last;
        std::thread other([&r, last] { r.devx.raise(&r.general, some_event, last); });
        expect(last); // asleep, or not
        other.join();
    }
}

TEST_CASE("waits for device events are served in order, and one destroyed between wake and resume loses nothing") {
    const support::deadline limit(60s);
    event_rig r;
    waits w(r.events);
    for (int i = 0; i < 5; ++i) w.add();
    w.waiting.destroy(3); // it waits
    r.turns();
    w.on_first = [&] { w.waiting.destroy(1); }; // it was woken together with the first
    r.raise(1), r.raise(2);
    r.turns();
    CHECK(w.logs == numbers_of{{1}, {}, {2}, {}, {}});
    r.raise(3);
    r.turns();
    CHECK(w.logs == numbers_of{{1}, {}, {2}, {}, {3}});

    // With nobody to give it to, it waits for the next; one that comes late does not overtake.
    w.add(), w.add();
    w.on_first = [&] {
        w.waiting.destroy(6);
        w.add();
    };
    r.raise(4), r.raise(5);
    r.turns();
    CHECK(w.logs == numbers_of{{1}, {}, {2}, {}, {3}, {4}, {}, {5}});

    w.add();
    r.raise(6);
    w.add(); // before the reactor has looked
    r.turns();
    CHECK(w.logs == numbers_of{{1}, {}, {2}, {}, {3}, {4}, {}, {5}, {6}, {}});
    CHECK(w.ends.empty());
}

TEST_CASE("a wait for an event that is stopped ends alone, and the event goes to the next") {
    const support::deadline limit(60s);
    event_rig r;
    waits w(r.events);
    std::array<std::stop_source, 3> stops;
    vb::scope scope;
    scope.spawn([](event_rig& own, waits& all, auto& sources) -> vb::task<> {
        co_await own.reactor.yield(); // a limit needs a reactor that runs
        for (auto& source : sources) all.add(source.get_token());
        sources[1].request_stop();
        while (all.ends.empty()) co_await own.reactor.yield();
        own.raise(1), own.raise(2);
    }(r, w, stops));
    r.turn_until([&] { return !w.logs.empty() && !w.logs.back().empty(); });
    CHECK(w.logs == numbers_of{{1}, {}, {2}});
    REQUIRE(w.ends.size() == 1);
    CHECK(w.ends[0] == vb::errc::stopped);
    r.finish(scope);
}

TEST_CASE("a loss of events is told once, and the channel goes on") {
    const support::deadline limit(60s);
    event_rig r;
    waits w(r.events);
    w.add(), w.add(), w.add();
    r.devx.lose_events(r.events.native_handle(), 3);
    for (std::uint64_t i = 0; i < 3; ++i) r.raise(i);
    r.turns();
    CHECK(w.ends.empty()); // nothing tells of a loss but the next event
    r.raise(3), r.raise(4);
    r.turns();
    REQUIRE(w.ends.size() == 1);
    CHECK(w.ends[0] == vb::errc::resource);
    CHECK(w.logs == numbers_of{{}, {3}, {4}});

    r.devx.lose_events(r.events.native_handle(), 1);
    r.raise(5);
    CHECK(next(r.reactor, r.events).error() == vb::errc::resource); // who asks anew learns at once
    r.raise(6);
    CHECK(number_of(next(r.reactor, r.events).value()) == 6);
}

TEST_CASE("events that nobody takes cost no turns, and a flood of them holds up nobody") {
    const support::deadline limit(60s);
    event_rig r;
    for (std::uint64_t i = 0; i < 10; ++i) r.raise(i);
    r.turns();
    CHECK(r.idle_turns() < 10);
    for (std::uint64_t i = 10; i < 3000; ++i) r.raise(i);
    std::uint64_t events = 0;
    bool in_order = true, stop = false;
    ending_log log;
    vb::scope scope;
    scope.spawn([](event_rig& own, std::uint64_t& count, bool& ordered, const bool& enough) -> vb::task<> {
        while (!enough) {
            const auto got = co_await own.events.next();
            ordered = ordered && got && number_of(*got) == count;
            ++count;
            own.raise(count + 2999);
            co_await own.reactor.yield();
        }
    }(r, events, in_order, stop));
    for (std::uint64_t i = 0; i < 20; ++i) {
        const auto before = events;
        r.reactor.run(ask(r.channel, r.counter, i, log));
        r.turn_until([&] { return events > before; });
    }
    stop = true;
    r.finish(scope);
    CHECK(log.successes == 20);
    CHECK(in_order);
}

TEST_CASE("the removal of the device ends every wait for an event once, and costs no turns afterwards") {
    const support::deadline limit(60s);
    event_rig r;
    waits w(r.events);
    for (int i = 0; i < 5; ++i) w.add();
    r.turns();
    r.devx.remove();
    r.turn_until([&] { return w.ends.size() == 5; });
    CHECK(all_are(w.ends, vb::errc::device_removed));
    CHECK(next(r.reactor, r.events).error() == vb::errc::device_removed);
    CHECK(r.events.subscribe(r.general.handle, std::array{some_event}, 1).error() == vb::errc::device_removed);
    CHECK(r.idle_turns() < 10);
    CHECK(w.ends.size() == 5);
}

TEST_CASE("a removed device is noticed by a channel that nobody waits for, too") {
    const support::deadline limit(60s);
    event_rig r;
    r.raise(1);
    r.turns(); // not watched any more
    r.devx.remove();
    CHECK(r.idle_turns() < 10);
    CHECK(next(r.reactor, r.events).error() == vb::errc::device_removed);
    const auto late = mlx5::event_channel::create(r.device);
    CHECK(late.error() == vb::errc::device_removed);
}

TEST_CASE("a destroyed channel ends its waits with closed, in whatever state they are") {
    const support::deadline limit(60s);
    event_rig r;
    auto other = mlx5::event_channel::create(r.device).value();
    r.reactor.attach(other).value();
    other.subscribe(std::array{some_event}, 1).value();
    auto moved = std::move(r.events);
    waits w(moved), x(other);
    for (int i = 0; i < 3; ++i) w.add();
    x.add();
    r.turns();
    w.on_first = [&] { moved = {}; }; // the second has been woken for an event, the third not
    r.raise(1), r.raise(2);
    r.turns();
    CHECK(w.logs == numbers_of{{1}, {2}, {}});
    REQUIRE(w.ends.size() == 1);
    CHECK(w.ends[0] == vb::errc::closed);
    CHECK(r.devx.raise(nullptr, some_event, 9));
    r.turns();
    CHECK(x.logs == numbers_of{{9}});
    CHECK(next(r.reactor, moved).error() == vb::errc::invalid_argument);
    CHECK(r.reactor.attach(moved).error() == vb::errc::invalid_argument);
}

TEST_CASE("waits for events outlive their reactor, and the channel goes to another one") {
    const support::deadline limit(60s);
    event_rig r;
    auto events = mlx5::event_channel::create(r.device).value();
    events.subscribe(std::array{some_event}, 1).value();
    std::optional<vb::reactor> short_lived;
    short_lived.emplace(vb::reactor_options{.wait = vb::wait_policy::park_at_once(), .safety_repoll = {}});
    short_lived->attach(events).value();
    CHECK(short_lived->attach(events).error() == vb::errc::attached);
    CHECK(r.reactor.attach(events).error() == vb::errc::attached);
    waits w(events);
    for (int i = 0; i < 3; ++i) w.add();
    support::some_turns(*short_lived);
    CHECK(r.devx.raise(nullptr, some_event, 1));
    while (w.logs[0].empty()) short_lived->poll(1).value();
    short_lived.reset();
    w.add();
    REQUIRE(w.ends.size() == 1);
    CHECK(w.ends[0] == vb::errc::not_attached);
    w.waiting.destroy_newest_first();
    r.reactor.attach(events).value();
    CHECK(r.devx.raise(nullptr, some_event, 2));
    CHECK(number_of(next(r.reactor, events).value()) == 2);
}

TEST_CASE("channels and subscriptions that cannot be are refused") {
    const support::deadline limit(60s);
    event_rig r;
    CHECK(mlx5::event_channel::create({}).error() == vb::errc::invalid_argument);
    const auto plain = vb::context::open(test_device::without_devx).value();
    CHECK(mlx5::event_channel::create(plain).error() == vb::errc::unsupported);
    const auto refused = [&](const mlx5::object& of, std::vector<std::uint16_t> types) {
        const auto answer = r.events.subscribe(of, types, 1);
        return !answer && answer.error() == vb::errc::invalid_argument;
    };
    CHECK(refused(r.general.handle, {}));
    CHECK(refused(r.general.handle, std::vector<std::uint16_t>(17, some_event)));
    CHECK(refused(r.general.handle, {256}));
    CHECK(refused({}, {some_event}));
    const auto other = mlx5::open_context(test_device::name).value();
    const thing foreign(other, false);
    CHECK(refused(foreign.handle, {some_event}));
    CHECK(mlx5::event_channel().subscribe(std::array{some_event}, 1).error() == vb::errc::invalid_argument);
    CHECK(next(r.reactor, mlx5::event_channel()).error() == vb::errc::invalid_argument);
    const auto loose = mlx5::event_channel::create(r.device).value();
    CHECK(next(r.reactor, loose).error() == vb::errc::not_attached);
    r.subscribe(&r.general, std::vector<std::uint16_t>(16, other_event), 2);
    r.raise(1, other_event); // sixteen times
    for (int i = 0; i < 16; ++i) CHECK(next(r.reactor, r.events).value().cookie == 2);
}

TEST_CASE("an event of a destroyed object does not come, and those that came are read") {
    const support::deadline limit(60s);
    event_rig r;
    r.raise(1);
    r.general.handle.destroy().value();
    r.subscribe(nullptr, {some_event}, 8);
    CHECK(r.devx.raise(nullptr, some_event, 2));
    for (std::uint64_t i = 1; i < 3; ++i) CHECK(number_of(next(r.reactor, r.events).value()) == i);
}

TEST_CASE("an event channel on a wrong thread is refused") {
    const support::deadline limit(60s);
    event_rig r;
    r.turns();
    std::thread([&] {
        waits w(r.events);
        w.add();
        REQUIRE(w.ends.size() == 1);
        CHECK(w.ends[0] == vb::errc::wrong_thread);
        CHECK(r.events.subscribe(std::array{some_event}, 1).error() == vb::errc::wrong_thread);
        CHECK(r.reactor.attach(r.events).error() == vb::errc::wrong_thread);
    }).join();
    r.raise(1);
    CHECK(number_of(next(r.reactor, r.events).value()) == 1);
}

TEST_CASE("a child of fork destroys its copies, and the parent's events come", "[fork]") {
    const support::deadline limit(60s);
    event_rig r;
    std::optional<waits> w(std::in_place, r.events);
    w->add(), w->add();
    r.turns();
    CHECK(support::forked([&] {
              w.reset();
              const auto refused = r.events.subscribe(std::array{some_event}, 1);
              r.events = {};
              return refused.error() == vb::errc::wrong_thread ? 0 : 1;
          }) == 0);
    r.raise(1), r.raise(2);
    r.turns();
    CHECK(w->logs == numbers_of{{1}, {2}});
}

#if VERBENA_COUNTS_ALLOCATIONS
TEST_CASE("in a steady state an event of a channel allocates nothing") {
    const support::deadline limit(60s);
    event_rig r;
    std::uint64_t taken = 0, allocated = 0;
    vb::scope scope;
    scope.spawn([](const mlx5::event_channel& from, std::uint64_t& count) -> vb::task<> {
        for (;; ++count) {
            const auto event = co_await from.next();
            if (!event) co_return;
        }
    }(r.events, taken));
    constexpr std::uint64_t rounds = 200, warm = 20;
    for (std::uint64_t round = 1; round <= rounds; ++round) {
        r.raise(round);
        while (taken < round) {
            const auto before = support::allocations();
            r.reactor.poll().value();
            if (round > warm) allocated += support::allocations() - before;
        }
    }
    CHECK(allocated == 0);
}
#endif
