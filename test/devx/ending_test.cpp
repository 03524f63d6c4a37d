// A query ends once and alone: by a stop, with its coroutine, its object, its channel, its reactor or its device. No
// late response is written anywhere, and nothing waits for the device on the reactor's thread.

#include "devx_rig.hpp"

#include "support/forked.hpp"

#include <future>
#include <optional>
#include <stop_token>

using namespace devx;

static_assert(vb::detail::limitable<mlx5::query_operation> && !vb::detail::limitable<mlx5::close_operation>);

namespace {

vb::task<> ask_into(const mlx5::command_channel& channel, const thing& of, std::uint64_t number, output<>& out,
                    std::stop_token token, ending_log& log) {
    const auto in = of.query(number);
    const auto got = co_await vb::with_stop(channel.query(of.handle, in, out), token);
    log.add(got);
}

output<> marked() {
    output<> out;
    out.fill(std::byte{0x5a});
    return out;
}

} // namespace

TEST_CASE("a cancelled query ends at once, and its late response is dropped and counted") {
    const support::deadline limit(60s);
    rig r;
    r.devx.hold();
    r.devx.window(4 * 64);
    std::array<output<>, 6> outs;
    outs.fill(marked());
    std::array<std::stop_source, 6> stops;
    ending_log log;
    vb::scope scope;
    // A limit needs a reactor that runs. The last two wait for the window.
    for (std::size_t i = 0; i < 6; ++i)
        scope.spawn(
            [](rig& own, output<>& out, std::stop_token token, std::uint64_t number, ending_log& into) -> vb::task<> {
                co_await own.reactor.yield();
                co_await ask_into(own.channel, own.counter, number, out, token, into);
            }(r, outs[i], stops[i].get_token(), i, log));
    r.turn_until([&] { return r.devx.in_flight() == 4; });
    for (const std::size_t i : {1, 3, 5}) stops[i].request_stop();
    r.turn_until([&] { return log.resumes() == 3; });
    CHECK(all_are(log.failures, vb::errc::stopped));
    CHECK(r.channel.stats().outstanding == 4);
    r.devx.release();
    r.finish(scope);
    CHECK(log.successes == 3);
    CHECK(r.channel.stats().late == 2);
    CHECK(r.channel.stats().outstanding == 0);
    for (const std::size_t i : {1, 3, 5}) CHECK(outs[i] == marked());
    for (const std::size_t i : {0, 2, 4}) CHECK(r.counter.answers(outs[i], i));
}

TEST_CASE("a response that was read wins over a stop of the same turn") {
    const support::deadline limit(60s);
    rig r;
    auto out = marked();
    std::stop_source stop;
    ending_log log;
    r.reactor.run([](rig& own, output<>& to, std::stop_source& source, ending_log& into) -> vb::task<> {
        own.devx.hold();
        vb::scope scope;
        scope.spawn(ask_into(own.channel, own.counter, 1, to, source.get_token(), into));
        CHECK(own.devx.in_flight() == 1);
        own.devx.release();
        while (own.channel.stats().responses == 0) co_await own.reactor.yield();
        source.request_stop();
        co_await scope.join();
    }(r, out, stop, log));
    CHECK(log.successes == 1);
}

TEST_CASE("a coroutine destroyed with its query issued or queued leaves its buffer quiet") {
    const support::deadline limit(60s);
    rig r;
    r.devx.hold();
    r.devx.window(64);
    auto first = marked(), second = marked();
    ending_log log;
    support::children children;
    for (output<>* out : {&first, &second})
        children.spawn([](rig& own, output<>& to, ending_log& into) -> vb::task<> {
            const auto in = own.counter.query(1);
            const auto got = co_await own.channel.query(own.counter.handle, in, to);
            into.add(got);
        }(r, *out, log));
    children.destroy_oldest_first();
    r.devx.release();
    r.turn_until([&] { return r.channel.stats().late == 1; });
    CHECK(log.resumes() == 0);
    CHECK(first == marked());
    CHECK(second == marked());
    ending_log later;
    r.reactor.run(ask(r.channel, r.counter, 2, later));
    CHECK(later.successes == 1);
}

TEST_CASE("a destroyed object ends its queued queries with closed, and issued ones complete") {
    const support::deadline limit(60s);
    for (const bool explicitly : {true, false}) {
        INFO((explicitly ? "destroy" : "the destructor"));
        rig r;
        r.devx.hold();
        r.devx.window(2 * 64);
        std::optional<thing> one(std::in_place, r.device, false);
        ending_log of_one, of_other;
        vb::scope scope;
        for (std::uint64_t i = 0; i < 4; ++i) scope.spawn(ask(r.channel, *one, i, of_one));
        scope.spawn(ask(r.channel, r.counter, 9, of_other));
        auto moved = std::move(one->handle); // they go on
        r.turns();
        CHECK(of_one.resumes() == 0);
        if (explicitly)
            moved.destroy().value();
        else
            moved = {};
        r.turns();
        CHECK(of_one.failures.size() == 2);
        CHECK(all_are(of_one.failures, vb::errc::closed));
        r.devx.release();
        r.finish(scope);
        CHECK(of_one.successes == 2);
        CHECK(of_other.successes == 1);
    }
}

TEST_CASE("the removal of the device ends every query once, and costs no turns afterwards") {
    const support::deadline limit(60s);
    for (const bool with_events : {false, true}) {
        INFO((with_events ? "told by an event too" : "told by the channel alone"));
        rig r;
        std::optional<vb::event_stream> events;
        if (with_events) events = r.reactor.events(r.device).value();
        r.devx.hold();
        r.devx.window(30 * 64);
        ending_log log;
        vb::scope scope;
        for (std::uint64_t i = 0; i < 40; ++i) scope.spawn(ask(r.channel, r.counter, i, log));
        CHECK(r.devx.in_flight() == 30);
        scope.spawn([](rig& own) -> vb::task<> {
            co_await own.reactor.yield();
            own.devx.remove();
        }(r));
        r.finish(scope);
        CHECK(log.failures.size() == 40);
        CHECK(all_are(log.failures, vb::errc::device_removed));
        CHECK(r.idle_turns(1s) < 8); // it begins, sleeps, wakes and ends
        ending_log later;
        r.reactor.run(ask(r.channel, r.counter, 1, later));
        REQUIRE(later.failures.size() == 1);
        CHECK(later.failures[0] == vb::errc::device_removed);
        CHECK(log.resumes() == 40);
    }
}

TEST_CASE("a close waits for the responses that are out, and refuses what comes later") {
    const support::deadline limit(60s);
    rig r;
    r.devx.hold();
    r.devx.window(2 * 64);
    ending_log log;
    vb::scope scope;
    for (std::uint64_t i = 0; i < 3; ++i) scope.spawn(ask(r.channel, r.counter, i, log));
    std::optional<vb::result<vb::drain_report>> closed;
    scope.spawn([](mlx5::command_channel& channel, auto& into) -> vb::task<> {
        into = co_await channel.close();
    }(r.channel, closed));
    scope.spawn(ask(r.channel, r.counter, 4, log));
    r.devx.release();
    r.finish(scope);
    REQUIRE(closed.has_value());
    CHECK(closed->value().missing == 0);
    CHECK(log.successes == 2);
    CHECK(log.failures.size() == 2);
    CHECK(all_are(log.failures, vb::errc::closed));
    CHECK(r.reactor.attach(r.channel).error() == vb::errc::closed);
    const auto again = r.reactor.run([](mlx5::command_channel& channel) -> vb::task<vb::result<vb::drain_report>> {
        co_return co_await channel.close();
    }(r.channel));
    CHECK(again.value().missing == 0);
    CHECK(r.idle_turns() < 20);
}

TEST_CASE("a close ends although the device does not answer, and counts what is missing") {
    const support::deadline limit(60s);
    rig r;
    r.devx.hold();
    ending_log log;
    vb::scope scope;
    for (std::uint64_t i = 0; i < 3; ++i) scope.spawn(ask(r.channel, r.counter, i, log));
    const auto closed = r.reactor.run([](mlx5::command_channel& channel) -> vb::task<vb::result<vb::drain_report>> {
        co_return co_await channel.close();
    }(r.channel));
    CHECK(closed.value().missing == 3);
    r.finish(scope);
    CHECK(log.failures.size() == 3);
    CHECK(all_are(log.failures, vb::errc::closed));
    r.devx.release(); // for the thread that waits
}

TEST_CASE("a channel destroyed with commands outstanding fails its queries, and its context waits for them") {
    const support::deadline limit(60s);
    rig r;
    ending_log log;
    std::future<void> context_closed;
    {
        auto own_context = mlx5::open_context(test_device::name).value();
        std::optional<thing> own(std::in_place, own_context, false);
        auto channel = mlx5::command_channel::create(own_context, {.max_response = 64}).value();
        r.reactor.attach(channel).value();
        r.devx.hold();
        r.devx.window(2 * 64);
        vb::scope scope;
        for (std::uint64_t i = 0; i < 3; ++i) scope.spawn(ask(channel, *own, i, log));
        channel = {}; // returns, although nothing is answered
        r.finish(scope);
        CHECK(log.failures.size() == 3);
        CHECK(all_are(log.failures, vb::errc::closed));
        own.reset();
        context_closed = std::async(std::launch::async, [last = std::move(own_context)]() mutable { last = {}; });
    }
    CHECK(r.devx.in_flight() == 2);
    r.devx.release();
    context_closed.get();
    CHECK(r.devx.in_flight() == 0);
}

TEST_CASE("a reactor destroyed with queries pending resumes none, and another reactor can read the channel") {
    const support::deadline limit(60s);
    rig r;
    auto channel = mlx5::command_channel::create(r.device, {.max_response = 64}).value();
    ending_log log;
    support::children children;
    {
        vb::reactor first;
        first.attach(channel).value();
        r.devx.hold();
        r.devx.window(64);
        for (std::uint64_t i = 0; i < 2; ++i) children.spawn(ask(channel, r.counter, i, log));
        first.poll().value();
    }
    CHECK(log.resumes() == 0);
    r.reactor.run(ask(channel, r.counter, 5, log));
    REQUIRE(log.failures.size() == 1);
    CHECK(log.failures[0] == vb::errc::not_attached);
    r.reactor.attach(channel).value();
    r.devx.release();
    r.reactor.run(ask(channel, r.counter, 6, log));
    CHECK(log.successes == 1);
    CHECK(channel.stats().late == 1);
    children.destroy_newest_first();
}

TEST_CASE("whatever is destroyed first, nothing dangles") {
    const support::deadline limit(60s);
    for (int order = 0; order < 3; ++order) {
        INFO(order);
        fresh_device device;
        ending_log log;
        auto context = mlx5::open_context(test_device::name).value();
        std::optional<vb::reactor> reactor(std::in_place);
        std::optional<thing> object(std::in_place, context, false);
        auto channel = mlx5::command_channel::create(context, {.max_response = 64}).value();
        support::children children;
        reactor->attach(channel).value();
        device.devx.hold();
        device.devx.window(64);
        for (std::uint64_t i = 0; i < 2; ++i) children.spawn(ask(channel, *object, i, log));
        reactor->poll().value();
        device.devx.release();
        if (order == 0) reactor.reset();
        if (order == 1) channel = {};
        if (order == 2) object->handle = {};
        children.destroy_oldest_first();
        channel = {};
        reactor.reset();
        CHECK(log.resumes() == 0);
    }
}

TEST_CASE("a child of fork destroys its copies, and the parent's queries complete", "[fork]") {
    const support::deadline limit(60s);
    rig r;
    r.devx.hold();
    ending_log log;
    std::optional<vb::scope> scope(std::in_place);
    for (std::uint64_t i = 0; i < 2; ++i) scope->spawn(ask(r.channel, r.counter, i, log));
    r.turns();
    CHECK(support::forked([&] {
              scope.reset();
              r.counter.handle = {};
              r.channel = {};
              return 0;
          }) == 0);
    r.devx.release();
    r.finish(*scope);
    CHECK(log.successes == 2);
}
