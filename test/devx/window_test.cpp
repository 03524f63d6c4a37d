// What the kernel refuses for the moment waits its turn: for the channel's window until a response was read, for the
// device's throttle until a response or a timer (B44).

#include "devx_rig.hpp"

#include "reactor_core.hpp"
#include "support/manual_clock.hpp"
#include "verbs/states.hpp"

using namespace devx;

namespace {

template <std::size_t bytes>
vb::task<> ask_long(rig& r, std::uint64_t number, std::vector<std::uint64_t>& order) {
    auto out = std::make_unique<output<bytes>>();
    const auto in = r.counter.query(number);
    const auto got = co_await r.channel.query(r.counter.handle, in, *out);
    REQUIRE(got.has_value());
    CHECK(r.counter.answers(got->bytes(), number));
    order.push_back(number);
}

} // namespace

TEST_CASE("300 queries of 4 KiB pass the window of 1 MiB in their order") {
    const support::deadline limit(60s);
    for (const bool one_by_one : {false, true}) {
        INFO((one_by_one ? "answered one by one" : "answered at once"));
        rig r;
        r.devx.hold();
        std::vector<std::uint64_t> order;
        vb::scope scope;
        for (std::uint64_t i = 0; i < 300; ++i) scope.spawn(ask_long<4096>(r, i, order));
        CHECK(r.devx.in_flight() == 256);
        CHECK(r.channel.stats().issue_calls == 257);
        if (one_by_one)
            for (std::uint64_t answered = 1; answered <= 300; ++answered) {
                REQUIRE(r.devx.release_oldest());
                r.turn_until([&] { return order.size() == answered; });
            }
        else
            r.devx.release();
        r.finish(scope);
        REQUIRE(order.size() == 300);
        CHECK(std::ranges::is_sorted(order));
        CHECK(r.channel.stats().issue_calls <= 600);
    }
}

TEST_CASE("a throttled query with nothing else outstanding is sent when the throttle has cleared") {
    const support::deadline limit(60s);
    rig r;
    r.devx.throttle(0);
    ending_log log;
    vb::scope scope;
    for (std::uint64_t i = 0; i < 3; ++i) scope.spawn(ask(r.channel, r.general, i, log));
    scope.spawn([](rig& own) -> vb::task<> {
        while (own.channel.stats().issue_calls < 4) co_await own.reactor.sleep_for(1ms);
        own.devx.throttle(16);
    }(r));
    r.finish(scope);
    CHECK(log.successes == 3);
}

TEST_CASE("a query that the commands of others throttle is sent when they have completed") {
    const support::deadline limit(60s);
    rig r;
    const auto other = mlx5::open_context(test_device::name).value();
    const thing foreign(other, true);
    const auto channel = mlx5::command_channel::create(other, {.max_response = 64}).value();
    r.reactor.attach(channel).value();
    r.devx.hold();
    r.devx.throttle(1);
    ending_log first, second;
    vb::scope scope;
    scope.spawn(ask(channel, foreign, 1, first));
    scope.spawn(ask(r.channel, r.general, 2, second));
    scope.spawn([](rig& own, const ending_log& log) -> vb::task<> {
        while (own.channel.stats().issue_calls < 3) co_await own.reactor.sleep_for(1ms);
        CHECK(own.channel.stats().outstanding == 0);
        CHECK(log.resumes() == 0);
        own.devx.release();
    }(r, second));
    r.finish(scope);
    CHECK(first.successes == 1);
    CHECK(second.successes == 1);
}

TEST_CASE("a throttled query is tried again after 1 ms, then twice as long, up to 100 ms") {
    const support::deadline limit(60s);
    rig r;
    auto made = std::make_unique<manual_clock>();
    manual_clock& clock = *made;
    auto reactor = vb::detail::access::make_reactor<vb::reactor>(std::make_unique<vb::detail::reactor_core>(
        vb::reactor_options{.wait = vb::wait_policy::park_at_once(), .safety_repoll = 0ms}, std::move(made)));
    const auto channel = mlx5::command_channel::create(r.device, {.max_response = 64}).value();
    reactor.attach(channel).value();
    r.devx.throttle(0);
    ending_log log;
    vb::scope scope;
    scope.spawn(ask(channel, r.general, 1, log));
    std::uint64_t calls = 1;
    for (const auto delay : {1ms, 2ms, 4ms, 8ms, 16ms, 32ms, 64ms, 100ms, 100ms}) {
        clock.advance(delay - 1ns);
        support::some_turns(reactor);
        CHECK(channel.stats().issue_calls == calls);
        clock.advance(1ns);
        support::some_turns(reactor);
        CHECK(channel.stats().issue_calls == ++calls);
    }
    r.devx.throttle(16);
    clock.advance(100ms);
    support::turn_until(reactor, [&] { return log.successes == 1; });
}

TEST_CASE("a throttled query beside others is sent after one of their responses") {
    const support::deadline limit(60s);
    rig r;
    r.devx.hold();
    r.devx.throttle(1);
    ending_log log;
    vb::scope scope;
    for (std::uint64_t i = 0; i < 5; ++i) scope.spawn(ask(r.channel, r.general, i, log));
    for (unsigned answered = 1; answered <= 5; ++answered) {
        REQUIRE(r.devx.in_flight() == 1);
        CHECK(r.devx.release_oldest());
        r.turn_until([&] { return log.successes == answered; });
    }
    CHECK(r.channel.stats().issue_calls <= 10);
    r.finish(scope);
}
