// A stream of asynchronous events loses none but the oldest of many, and counts those; it ends once, after what it
// holds; whoever it resumes may destroy what the event was about (B32, B51).

#include "event_rig.hpp"

#include "device/counting_new.hpp"

#include <memory>

using namespace races;

namespace {

std::uint64_t number_of(const vb::async_event& event) { return event.number; }
using waits = support::event_waits<vb::event_stream, number_of>;
using support::numbers_of;

void raise_numbered(lab& l, int from, int to) {
    for (int i = from; i <= to; ++i) l.control.raise(IBV_EVENT_GID_CHANGE, static_cast<std::uint8_t>(i));
}

} // namespace

TEST_CASE("waits for events are served in their order, and one destroyed between wake and resume loses nothing") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name);
        auto stream = l.reactor.events(l.device).value();
        waits w(stream);
        for (int i = 0; i < 5; ++i) w.add();
        w.waiting.destroy(3); // it waits
        l.turns();
        w.on_first = [&] { w.waiting.destroy(1); }; // it was woken together with the first
        raise_numbered(l, 1, 2);
        l.turns();
        CHECK(w.logs == numbers_of{{1}, {}, {2}, {}, {}});
        raise_numbered(l, 3, 3);
        l.turns();
        CHECK(w.logs == numbers_of{{1}, {}, {2}, {}, {3}});

        // With nobody to give it to, it waits for the next; one that comes late does not overtake.
        w.add(), w.add();
        w.on_first = [&] {
            w.waiting.destroy(6);
            w.add();
        };
        raise_numbered(l, 4, 5);
        l.turns();
        CHECK(w.logs == numbers_of{{1}, {}, {2}, {}, {3}, {4}, {}, {5}});
        CHECK(stream.dropped() == 0);
    }
}

TEST_CASE("of more events than a stream keeps the oldest go, and are counted") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name);
        auto idle = l.reactor.events(l.device).value();
        {
            auto other = l.reactor.events(l.device).value();
            raise_numbered(l, 1, 200);
            CHECK(take_now(l.reactor, other, 200).back() == on_port(kind::gid_change, 200));
            CHECK(other.dropped() == 0);
        }
        raise_numbered(l, 101, 200);
        l.turns();
        CHECK(idle.dropped() == 44);
        const auto kept = take_now(l.reactor, idle, 256);
        CHECK(kept.front() == on_port(kind::gid_change, 45));
        CHECK(kept[155] == on_port(kind::gid_change, 200));
        CHECK(kept[156] == on_port(kind::gid_change, 101));
        CHECK(kept.back() == on_port(kind::gid_change, 200));
    }
}

TEST_CASE("a stream needs no attached queue, and outlives its reactor") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name, {.attach = false});
        std::optional<vb::reactor> short_lived;
        short_lived.emplace(vb::reactor_options{.wait = vb::wait_policy::park_at_once(), .safety_repoll = {}});
        raise_numbered(l, 1, 1); // nobody listens yet
        auto stream = short_lived->events(l.device).value();
        auto moved = short_lived->events(l.device).value();
        CHECK(short_lived->events(vb::context{}).error() == vb::errc::invalid_argument);
        CHECK(take_now(*short_lived, stream, 1) == events{on_port(kind::gid_change, 1)});
        moved = std::move(stream);
        raise_numbered(l, 2, 2);
        support::some_turns(*short_lived);
        waits w(moved);
        w.add();
        for (int i = 0; i < 2; ++i) w.add(); // never resumed
        CHECK(w.logs == numbers_of{{2}, {}, {}});
        short_lived.reset();
        w.add();
        REQUIRE(w.ends.size() == 1);
        CHECK(w.ends[0] == vb::errc::not_attached);
        w.waiting.destroy_oldest_first();
        CHECK(w.ends.size() == 1);
    }
}

TEST_CASE("a destroyed stream ends its waits, and leaves the others") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name);
        std::optional<vb::event_stream> stream(l.reactor.events(l.device).value());
        auto other = l.reactor.events(l.device).value();
        waits w(*stream), x(other);
        for (int i = 0; i < 2; ++i) w.add();
        x.add();
        l.turns();
        stream.reset();
        l.turns();
        REQUIRE(w.ends.size() == 2);
        for (const auto& e : w.ends) CHECK(e == vb::errc::closed);
        raise_numbered(l, 7, 7);
        l.turns();
        CHECK(x.logs == numbers_of{{7}});
    }
}

TEST_CASE("who is resumed by the event of a queue pair may destroy it") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices())
        for (const bool unread : {false, true}) {
            INFO(name << (unread ? ", with another one unread" : ""));
            lab l(name);
            auto stream = l.reactor.events(l.device).value();
            ending_log log;
            vb::scope scope;
            for (int i = 0; i < 2; ++i) scope.spawn(support::receive(*l.left, l.slice(0), log));
            scope.spawn([](lab& own, vb::event_stream& s, bool again) -> vb::task<> {
                const auto event = co_await s.next();
                REQUIRE(event.has_value());
                CHECK(event->kind == kind::queue_pair_fatal);
                CHECK(event->number == own.left->qp_num());
                if (again) own.control.raise(IBV_EVENT_QP_FATAL, own.left->native_handle());
                own.left.reset();
            }(l, stream, unread));
            l.turns();
            for (int i = 0; i < 3; ++i) l.control.raise(IBV_EVENT_QP_FATAL, l.left->native_handle());
            l.finish(scope);
            CHECK(log.failures.size() == 2);
            l.turns();
        }
}

TEST_CASE("events print as text, those that are not known too") {
    CHECK(fmt::format("{}", on_port(kind::port_error, 2)) == "event(port error, port 2)");
    CHECK(fmt::format("{}", vb::async_event{kind::device_fatal, element::device, 0}) == "event(device fatal, device)");
    CHECK(fmt::format("{}", static_cast<kind>(77)) == "unknown");
    std::set<std::string> names;
    for (int i = IBV_EVENT_CQ_ERR; i <= IBV_EVENT_WQ_FATAL; ++i) names.insert(fmt::format("{}", static_cast<kind>(i)));
    CHECK(names.size() == IBV_EVENT_WQ_FATAL + 1);
    CHECK(!names.contains("unknown"));
}

#if VERBENA_COUNTS_ALLOCATIONS
TEST_CASE("in a steady state an event of a stream allocates nothing") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name, {.attach = false});
        auto stream = l.reactor.events(l.device).value();
        std::uint64_t taken = 0, allocated = 0;
        vb::scope scope;
        scope.spawn([](vb::event_stream& from, std::uint64_t& count) -> vb::task<> {
            for (;; ++count) {
                const auto event = co_await from.next();
                if (!event) co_return;
            }
        }(stream, taken));
        for (int round = 0; round < 500; ++round) {
            raise_numbered(l, 1, 1);
            const auto before = support::allocations();
            l.turns();
            if (round >= 50) allocated += support::allocations() - before;
        }
        CHECK(taken == 500);
        CHECK(allocated == 0);
    }
}
#endif
