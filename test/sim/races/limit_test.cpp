// A deadline or a stop and a completion reach for one wait: it goes on once, the completion wins if it is there, and a
// request that was posted ends only when the device has let go (B01, B16, B18, B26).

#include "race_rig.hpp"

#include <memory>
#include <stop_token>
#include <thread>

#include <sys/eventfd.h>
#include <unistd.h>

using namespace races;
using namespace std::chrono_literals;

namespace {

static_assert(vb::detail::limitable<vb::send_operation> && vb::detail::limitable<vb::next_operation> &&
              vb::detail::limitable<vb::task<>> && vb::detail::limitable<vb::scope::join_operation>);
static_assert(vb::detail::ends_singly<vb::next_operation> && vb::detail::ends_singly<vb::flush_operation> &&
              vb::detail::ends_singly<vb::sleep_operation> && vb::detail::ends_singly<vb::child<>::wait_operation>);
// A close must reach its end, and a posted request has no end of its own.
static_assert(!vb::detail::limitable<vb::drain_operation> && !vb::detail::ends_singly<vb::recv_operation> &&
              !vb::detail::ends_singly<vb::task<>> && !vb::detail::ends_singly<vb::chain_operation<2>>);

template <class Operation>
vb::task<> log_with_stop(Operation operation, std::stop_token token, ending_log& log) {
    auto outcome = co_await vb::with_stop(std::move(operation), token);
    log.add(outcome);
}
template <class Operation>
vb::task<> log_with_timeout(Operation operation, std::chrono::nanoseconds timeout, ending_log& log) {
    auto outcome = co_await vb::with_timeout(std::move(operation), timeout);
    log.add(outcome);
}
// What is spawned before the first turn has no reactor yet: a limit begins in it.
vb::task<> begin(vb::reactor& reactor, vb::task<> body) {
    co_await reactor.yield();
    co_await std::move(body);
}

vb::task<> exchange_into(lab& l, ending_log& log) {
    auto sent = co_await l.left->send(l.slice(0));
    log.add(sent);
}

vb::receiver inbox_of(lab& l, vb::queue_pair& qp) {
    return vb::receiver::create(qp, {.depth = l.options.depth, .message_bytes = message_bytes}).value();
}

bool is(const vb::error& e, vb::errc code, vb::errc cause) { return e == code && e.root_cause() == cause; }

} // namespace

TEST_CASE("a stop and a completion in one turn give one ending, and the completion wins") {
    const support::deadline limit(60s);
    for (const auto& name : devices())
        for (const bool polled_first : {true, false}) {
            INFO(name << (polled_first ? ", the completion is polled first" : ", the stop is served first"));
            lab l(name);
            l.hold();
            ending_log log, sent;
            std::stop_source stop;
            vb::scope scope;
            scope.spawn(begin(l.reactor, log_with_stop(l.right->recv(l.slice(0)), stop.get_token(), log)));
            scope.spawn(begin(l.reactor, support::transmit(*l.left, l.slice(1), sent)));
            l.turns();
            CHECK(l.control.held().size() == 2);
            if (polled_first)
                l.let_go(l.receives());
            else // it lands when the turn has found the queue empty; the stop is served later in that turn
                l.control.at(point::poll_ends, [&](const auto& at) {
                    if (at.cq == l.receives()) l.let_go(l.receives());
                });
            stop.request_stop();
            l.reactor.poll().value();
            l.control.at(point::poll_ends, {});
            l.turns();
            CHECK(log.successes == 1);
            CHECK(log.resumes() == 1);
            l.release();
            l.finish(scope);
            CHECK(sent.successes == 1);
            l.reactor.run(exchange(l, log)); // the connection lives on
            CHECK(log.successes == 3);
        }
}

TEST_CASE("a request whose time is over ends when the device has let go, and its siblings name the cause") {
    const support::deadline limit(60s);
    for (const auto& name : devices())
        for (const bool withheld : {false, true}) {
            INFO(name << (withheld ? ", its flush is withheld" : ""));
            lab l(name);
            l.control.write_late(true);
            auto other_left = l.make(), other_right = l.make();
            support::connect(other_left, other_right);
            if (withheld) l.hold();
            ending_log log, sibling, other;
            vb::scope scope, others;
            scope.spawn(begin(l.reactor, log_with_timeout(l.right->recv(l.slice(0)), 1ms, log)));
            scope.spawn(begin(l.reactor, support::receive(*l.right, l.slice(1), sibling)));
            l.finish(scope);
            REQUIRE(log.failures.size() == 1);
            CHECK(is(log.failures[0], vb::errc::timed_out, vb::errc::timed_out));
            REQUIRE(sibling.failures.size() == 1);
            CHECK(is(sibling.failures[0], vb::errc::connection_reset, vb::errc::timed_out));
            // What comes too late is nobody's.
            std::ranges::fill(l.bytes(0), pattern);
            const auto late = l.control.held();
            others.spawn(support::receive(other_right, l.slice(2), other));
            others.spawn(support::transmit(other_left, l.slice(3), other));
            for (const auto& one : late) l.control.release(one.id);
            l.release();
            l.finish(others);
            CHECK(other.successes == 2);
            CHECK(std::ranges::all_of(l.bytes(0), [](std::byte b) { return b == pattern; }));
            CHECK(l.reactor.stats().outstanding == 0);
            CHECK(l.reactor.stats().stale == 0);
            ending_log after;
            l.reactor.run(support::receive(*l.right, l.slice(0), after));
            REQUIRE(after.failures.size() == 1);
            CHECK(is(after.failures[0], vb::errc::connection_reset, vb::errc::timed_out));
        }
}

TEST_CASE("what waits for room is ended alone, and whoever is behind it goes on") {
    const support::deadline limit(60s);
    for (const auto& name : devices())
        for (const auto mode : {vb::post_mode::immediate, vb::post_mode::batched}) {
            INFO(name << (mode == vb::post_mode::batched ? ", batched" : ""));
            lab l(name, {.depth = 3, .mode = mode});
            l.hold();
            ending_log first, stopped, small;
            std::stop_source stop;
            vb::scope scope;
            support::children chains;
            for (int i = 0; i < 3; ++i) scope.spawn(begin(l.reactor, support::receive(*l.right, l.slice(0), small)));
            scope.spawn(begin(l.reactor, support::transmit(*l.left, l.slice(0), first)));
            l.turns();
            const auto chain_of_three = [&]() -> vb::task<> {
                auto done = co_await vb::with_stop(l.left->chain(vb::send_request{.local = l.slice(1)},
                                                                 vb::send_request{.local = l.slice(1)},
                                                                 vb::send_request{.local = l.slice(1)}),
                                                   stop.get_token());
                stopped.add(done);
            };
            scope.spawn(begin(l.reactor, chain_of_three()));
            // The second is destroyed instead of stopped.
            chains.spawn(begin(l.reactor, [](lab& lab) -> vb::task<> {
                auto done = co_await lab.left->chain(vb::send_request{.local = lab.slice(1)},
                                                     vb::send_request{.local = lab.slice(1)},
                                                     vb::send_request{.local = lab.slice(1)});
                static_cast<void>(done.has_value());
            }(l)));
            l.turns();
            for (int i = 0; i < 2; ++i) scope.spawn(begin(l.reactor, support::transmit(*l.left, l.slice(2), small)));
            l.turns();
            CHECK(l.control.held().size() == 2); // of the first send
            stop.request_stop();
            chains.destroy(0);
            l.turns();
            CHECK(l.control.held().size() == 6); // nothing has completed, and yet the small ones are posted
            l.release();
            l.finish(scope);
            CHECK(first.successes == 1);
            CHECK(small.successes == 5);
            REQUIRE(stopped.failures.size() == 1);
            CHECK(is(stopped.failures[0], vb::errc::stopped, vb::errc::stopped));
        }
}

TEST_CASE("an operation that is kept elsewhere ends with the coroutine that awaits it") {
    const support::deadline limit(60s);
    for (const auto& name : devices())
        for (const bool completed : {false, true}) {
            INFO(name << (completed ? ", completed" : ""));
            lab l(name);
            l.hold();
            ending_log received, after;
            vb::scope scope;
            auto kept = l.left->send(l.slice(0));
            bool went_on = false;
            support::children waiting;
            waiting.spawn(begin(l.reactor, [](vb::send_operation& send, bool& resumed) -> vb::task<> {
                const auto done = co_await send;
                resumed = true;
                static_cast<void>(done.has_value());
            }(kept, went_on)));
            for (int i = 0; i < 2; ++i) scope.spawn(begin(l.reactor, support::receive(*l.right, l.slice(1), received)));
            l.turns();
            if (completed) l.release();
            waiting.destroy(0);
            l.release();
            l.turns();
            CHECK(!went_on);
            l.reactor.run(support::transmit(*l.left, l.slice(0), after));
            CHECK(after.successes == (completed ? 1u : 0u)); // otherwise it took the connection with it
            l.right.reset();
            l.finish(scope);
        }
}

// Its first awaiter lives until the end of the expression.
TEST_CASE("an operation that was awaited in an expression is awaited by another before that is over") {
    const support::deadline limit(60s);
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name);
        vb::event over;
        ending_log log;
        vb::scope scope;
        auto operation = l.left->send(l.slice(0));
        bool first_sent = false;
        for (std::size_t i = 1; i < 3; ++i) scope.spawn(support::receive(*l.right, l.slice(i), log));
        scope.spawn([](vb::send_operation& kept, vb::event& e, bool& sent) -> vb::task<> {
            (sent = (co_await kept).has_value(), co_await e.wait());
        }(operation, over, first_sent));
        l.turns();
        CHECK(first_sent);
        l.hold();
        scope.spawn([](vb::send_operation& kept, ending_log& ends) -> vb::task<> {
            const auto sent = co_await kept;
            ends.add(sent);
        }(operation, log));
        over.set();
        l.turns();
        l.release();
        l.finish(scope);
        CHECK(log.successes == 3);
    }
}

TEST_CASE("a wait for a message is ended alone, and its message goes to the next") {
    const support::deadline limit(60s);
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name);
        auto inbox = inbox_of(l, *l.right);
        ending_log timed, stopped, got, sent;
        std::stop_source stop;
        vb::scope scope;
        scope.spawn(begin(l.reactor, log_with_timeout(inbox.next(), 1ms, timed)));
        l.finish(scope);
        scope.spawn(log_with_stop(inbox.next(), stop.get_token(), stopped));
        scope.spawn(begin(l.reactor, log_with_stop(inbox.next(), {}, got)));
        l.turns();
        std::thread([&] { stop.request_stop(); }).join();
        support::turn_until(l.reactor, [&] { return stopped.resumes() == 1; });
        scope.spawn(support::transmit(*l.left, l.slice(0), sent));
        l.finish(scope);
        REQUIRE(timed.failures.size() == 1);
        CHECK(timed.failures[0] == vb::errc::timed_out);
        REQUIRE(stopped.failures.size() == 1);
        CHECK(got.successes == 1);
        CHECK(sent.successes == 1);
    }
}

TEST_CASE("a limit that has struck already, or has no reactor, begins nothing") {
    const support::deadline limit(60s);
    for (const auto& name : devices()) {
        INFO(name);
        ending_log nowhere;
        lab l(name);
        vb::scope early;
        early.spawn(log_with_timeout(l.left->send(l.slice(0)), 1s, nowhere));
        REQUIRE(nowhere.failures.size() == 1);
        CHECK(nowhere.failures[0] == vb::errc::not_attached);
        std::stop_source stop;
        stop.request_stop();
        ending_log late;
        l.reactor.run(log_with_timeout(l.left->send(l.slice(0)), 0s, late));
        l.reactor.run(log_with_stop(l.left->send(l.slice(0)), stop.get_token(), late));
        REQUIRE(late.failures.size() == 2);
        CHECK(late.failures[0] == vb::errc::timed_out);
        CHECK(late.failures[1] == vb::errc::stopped);
        CHECK(l.control.ledger().accepted == 0);
        ending_log fine;
        l.reactor.run(exchange(l, fine));
        CHECK(fine.successes == 2);
    }
}

TEST_CASE("a limit that is set when no reactor runs is that of the one which ran last") {
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name);
        const auto nothing = []() -> vb::task<> { co_return; };
        {
            vb::reactor other;
            other.run(nothing());
            l.reactor.run(nothing());
        }
        ending_log log;
        vb::scope scope;
        scope.spawn([](lab& own, ending_log& ends) -> vb::task<> {
            const auto got = co_await vb::with_timeout(own.right->recv(own.slice(0)), 5ms);
            ends.add(got);
        }(l, log));
        l.finish(scope);
        REQUIRE(log.failures.size() == 1);
        CHECK(log.failures[0] == vb::errc::timed_out);
    }
}

TEST_CASE("a stop from another thread is never lost around parking", "[threads]") {
    const support::deadline limit(60s);
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name);
        auto inbox = inbox_of(l, *l.right);
        for (unsigned i = 0; i < 500; ++i) {
            std::stop_source stop;
            ending_log log;
            std::thread other([&] { stop.request_stop(); });
            l.reactor.run(log_with_stop(inbox.next(), stop.get_token(), log));
            other.join();
            REQUIRE(log.failures.size() == 1);
        }
    }
}

TEST_CASE("a stop that is requested when the reactor is gone reaches nobody") {
    const support::deadline limit(60s);
    for (const auto& name : devices()) {
        INFO(name);
        std::stop_source stop;
        ending_log log;
        auto scope = std::make_unique<vb::scope>();
        const int never = ::eventfd(0, EFD_CLOEXEC);
        {
            lab l(name);
            auto inbox = inbox_of(l, *l.right);
            scope->spawn(begin(l.reactor, log_with_stop(inbox.next(), stop.get_token(), log)));
            scope->spawn(begin(l.reactor, log_with_stop(l.reactor.wait_readable(never), stop.get_token(), log)));
            scope->spawn(begin(l.reactor, log_with_stop(l.reactor.sleep_for(1h), stop.get_token(), log)));
            l.turns();
        }
        stop.request_stop();
        scope->request_stop();
        CHECK(log.resumes() == 0);
        scope.reset();
        ::close(never);
    }
}

TEST_CASE("a task that is told to stop ends what it waits for, and posts nothing afterwards") {
    const support::deadline limit(60s);
    for (const auto& name : devices())
        for (const bool nested : {false, true}) {
            INFO(name << (nested ? ", in a task of its own" : ""));
            lab l(name);
            auto inbox = inbox_of(l, *l.right);
            ending_log inner, outer;
            int steps = 0;
            const auto leaf = [&]() -> vb::task<int> {
                auto message = co_await inbox.next();
                inner.add(message);
                auto sent = co_await l.left->send(l.slice(0));
                inner.add(sent);
                auto both = co_await vb::when_all(l.left->send(l.slice(1)), inbox.next());
                inner.add(std::get<0>(both));
                inner.add(std::get<1>(both));
                ++steps;
                co_await l.reactor.sleep_for(1h); // no result: it throws
                ++steps;
                co_return 1;
            };
            const auto around = [&]() -> vb::task<int> { co_return co_await leaf(); };
            const auto run = [&]() -> vb::task<> {
                auto body = nested ? around() : leaf();
                auto outcome = co_await vb::with_timeout(std::move(body), 1ms);
                outer.add(outcome);
            };
            l.reactor.run(run());
            REQUIRE(inner.failures.size() == 4);
            for (const auto& e : inner.failures) CHECK(e == vb::errc::timed_out);
            CHECK(steps == 1);
            REQUIRE(outer.failures.size() == 1);
            CHECK(outer.failures[0] == vb::errc::timed_out);
            CHECK(l.control.ledger().accepted == l.options.depth); // the inbox alone has posted
        }
}

TEST_CASE("a task that was told to stop and ends by itself gives its value") {
    lab l(devices().front());
    const auto stubborn = [&]() -> vb::task<int> {
        try {
            co_await l.reactor.sleep_for(std::chrono::nanoseconds::max());
        } catch (const std::system_error& e) {
            co_return e.code() == vb::errc::timed_out ? 7 : 0;
        }
        co_return 1;
    };
    const auto run = [&]() -> vb::task<int> {
        auto outcome = co_await vb::with_timeout(stubborn(), 1ms);
        co_return outcome.value();
    };
    CHECK(l.reactor.run(run()) == 7);
    const auto faulty = [&]() -> vb::task<int> {
        co_await l.reactor.yield();
        throw std::runtime_error("of its own");
    };
    const auto rethrow = [&]() -> vb::task<> {
        auto outcome = co_await vb::with_timeout(faulty(), 1h);
        static_cast<void>(outcome.has_value());
    };
    CHECK_THROWS_AS(l.reactor.run(rethrow()), std::runtime_error);
}

TEST_CASE("a stop passes through a scope that is joined, and a limit on the join alone does not") {
    const support::deadline limit(60s);
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name);
        auto inbox = inbox_of(l, *l.right);
        ending_log children, join, whole;
        const auto joined = [&]() -> vb::task<> {
            vb::scope scope;
            scope.spawn([&]() -> vb::task<> {
                auto message = co_await inbox.next();
                children.add(message);
            });
            auto alone = co_await vb::with_timeout(scope.join(), 1ms);
            join.add(alone);
            CHECK(children.resumes() == 0);
            co_await scope.join();
        };
        const auto run = [&]() -> vb::task<> {
            auto outcome = co_await vb::with_timeout(joined(), 5ms);
            whole.add(outcome);
        };
        l.reactor.run(run());
        REQUIRE(join.failures.size() == 1);
        CHECK(join.failures[0] == vb::errc::timed_out);
        REQUIRE(children.failures.size() == 1);
        CHECK(children.failures[0] == vb::errc::timed_out);
        CHECK(whole.successes == 1); // the join itself ended as it should
    }
}

TEST_CASE("a scope that is told to stop stops its children, those spawned later too") {
    lab l(devices().front());
    auto inbox = inbox_of(l, *l.right);
    ending_log log;
    vb::scope scope;
    const auto wait = [&]() -> vb::task<> {
        auto message = co_await inbox.next();
        log.add(message);
    };
    scope.spawn(wait());
    l.turns();
    scope.request_stop();
    scope.spawn(wait());
    l.finish(scope);
    REQUIRE(log.failures.size() == 2);
    for (const auto& e : log.failures) CHECK(e == vb::errc::stopped);
}

TEST_CASE("the first of several waits wins, and nothing that another was given is lost") {
    const support::deadline limit(60s);
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name);
        auto inbox = inbox_of(l, *l.right);
        vb::event event;
        vb::semaphore permits(0);
        const auto race = [&]() -> vb::task<std::size_t> {
            auto first = co_await vb::when_any(event.wait(), inbox.next(), permits.acquire());
            co_return first.index();
        };
        // All three become ready before the race is resumed.
        const auto all = [&]() -> vb::task<> {
            ending_log log;
            vb::scope scope;
            auto racing = scope.spawn(race());
            co_await exchange_into(l, log);
            permits.release();
            event.set();
            const auto winner = co_await racing.wait();
            CHECK(winner == 1);
            CHECK(permits.try_acquire());
            event.reset();
            // Ready at once: the rest does not begin.
            auto again = scope.spawn(race());
            event.set();
            permits.release();
            const auto second = co_await again.wait();
            CHECK(second == 0);
            CHECK(permits.try_acquire());
            event.reset();
            // The event is first, and the message is given to the race all the same before it goes on.
            l.control.hold(l.receives());
            co_await exchange_into(l, log);
            auto third = scope.spawn(race());
            l.reactor.post([&] {
                event.set();
                l.control.release(l.receives());
            });
            const auto last = co_await third.wait();
            CHECK(last == 0);
            auto message = co_await inbox.next();
            CHECK(message.has_value());
            event.reset();
            auto timed = co_await vb::with_timeout(vb::when_any(event.wait(), inbox.next()), 1ms);
            CHECK((!timed && timed.error() == vb::errc::timed_out));
        };
        l.reactor.run(all());
    }
}
