// Whoever waits on a failed queue pair is told, also when the device flushes only a part, or nothing of what was posted
// after the failure; the time that takes is bounded (B39).

#include "race_rig.hpp"

using namespace races;

namespace {

// The left end has failed by itself; its completion lies unread.
void fail_left(lab& l, vb::scope& scope, ending_log& log) {
    auto nowhere = l.memory.remote(0, message_bytes);
    nowhere.rkey ^= 0x5500;
    scope.spawn([](lab& own, vb::remote_slice to, ending_log& ends) -> vb::task<> {
        const auto done = co_await own.left->write(own.slice(0), to);
        ends.add(done);
    }(l, nowhere, log));
    CHECK(l.left->state().value() == vb::queue_pair_state::error);
}

} // namespace

TEST_CASE("a flush that stops early ends the others within the drain limit") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices())
        for (const std::uint32_t flushed : {0, 3}) {
            INFO(name << ", " << flushed << " flushed");
            lab l(name);
            ending_log cause, log;
            vb::scope scope;
            for (int i = 0; i < 16; ++i) scope.spawn(support::receive(*l.left, l.slice(1), log));
            l.control.flush_only(l.left->native_handle(), flushed);
            fail_left(l, scope, cause);
            l.turns();
            CHECK(log.failures.size() == flushed);
            l.finish(scope);
            REQUIRE(cause.failures.size() == 1);
            CHECK(cause.failures[0] == vb::errc::access_denied);
            REQUIRE(log.failures.size() == 16);
            for (const auto& e : log.failures) {
                CHECK(e == vb::errc::connection_reset);
                CHECK(e.root_cause() == vb::errc::access_denied);
            }
            CHECK(l.reactor.stats().outstanding == 0);
            CHECK(l.reactor.stats().stale == 0);
            CHECK(l.control.ledger().outstanding == 0);
        }
}

TEST_CASE("a receive posted after its queue pair failed by itself is flushed") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name);
        ending_log cause, log;
        vb::scope scope;
        fail_left(l, scope, cause);
        for (int i = 0; i < 3; ++i) scope.spawn(support::receive(*l.left, l.slice(1), log));
        CHECK(l.reactor.stats().outstanding == 4);
        l.turns(); // without waiting for the limit
        REQUIRE(log.failures.size() == 3);
        for (const auto& e : log.failures) CHECK(e.root_cause() == vb::errc::access_denied);
        CHECK(l.reactor.stats().outstanding == 0);
        l.finish(scope);
    }
}

TEST_CASE("a queue pair destroyed in the middle of its flush ends everybody at once") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name);
        ending_log cause, log;
        vb::scope scope;
        for (int i = 0; i < 8; ++i) scope.spawn(support::receive(*l.left, l.slice(1), log));
        l.control.flush_only(l.left->native_handle(), 2);
        fail_left(l, scope, cause);
        l.turns();
        CHECK(log.failures.size() == 2);
        l.left.reset();
        l.turns();
        CHECK(log.failures.size() == 8);
        CHECK(l.reactor.stats().outstanding == 0);
        CHECK(l.reactor.stats().stale == 0);
    }
}
