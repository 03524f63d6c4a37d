// Immediate or batched, every operation is posted once and in order; a batched one that is destroyed before the flush
// never reaches the device.

#include "rig.hpp"

#include "support/deadline.hpp"

#include <vector>

namespace vb = verbena;
using namespace std::chrono_literals;
using support::has_number;
using support::put_number;

namespace {

vb::queue_pair_options options(std::uint32_t depth, vb::post_mode mode) {
    auto o = support::pair_options(depth);
    o.post_mode = mode;
    return o;
}

struct fixture {
    fixture(const vb::context& device, std::uint32_t depth, vb::post_mode mode)
        : domain(vb::protection_domain::create(device).value()), engine(device),
          here(vb::memory_region::allocate(domain, 64 * 64).value()),
          there(vb::memory_region::allocate(domain, 64 * 64).value()), wire(domain, engine, options(depth, mode)) {}
    vb::task<> send(std::size_t number) {
        put_number(here.bytes().subspan(number * 64, 64), number);
        auto sent = co_await wire.left.send(here.slice(number * 64, 64));
        sent.value();
    }
    vb::task<> receive(std::uint64_t number) {
        auto received = co_await wire.right.recv(there.slice(0, 64));
        received.value();
        CHECK(has_number(there.bytes().first(64), number));
    }
    auto outstanding() const { return engine.reactor.stats().outstanding; }

    vb::protection_domain domain;
    support::engine engine;
    vb::memory_region here;
    vb::memory_region there;
    support::wire wire;
    support::state_printer state{[this] { return support::describe(engine.reactor.stats()); }};
};

// 64 coroutines send 100 numbers each and take whatever answer is next: every number comes back once.
void ping_pongs(fixture& f) {
    constexpr std::uint32_t coroutines = 64, rounds = 100;
    std::vector<int> seen(coroutines * rounds);
    f.engine.reactor.run([&]() -> vb::task<> {
        auto left = vb::receiver::create(f.wire.left, {.message_bytes = 64}).value();
        auto right = vb::receiver::create(f.wire.right, {.message_bytes = 64}).value();
        vb::scope scope;
        for (std::uint32_t i = 0; i < coroutines; ++i) {
            scope.spawn([&]() -> vb::task<> {
                for (std::uint32_t k = 0; k < rounds; ++k) {
                    auto message = co_await right.next();
                    auto sent = co_await f.wire.right.send(message.value().bytes());
                    sent.value();
                }
            });
            scope.spawn([&, i]() -> vb::task<> {
                const auto mine = f.here.slice(i * 64, 64);
                for (std::uint32_t k = 0; k < rounds; ++k) {
                    const std::uint64_t number = i * rounds + k;
                    put_number(mine.bytes(), number);
                    auto sent = co_await f.wire.left.send(mine);
                    sent.value();
                    auto message = co_await left.next();
                    REQUIRE(message.has_value());
                    std::uint64_t got;
                    REQUIRE(message->bytes().length == 64);
                    std::memcpy(&got, message->bytes().bytes().data(), sizeof got);
                    ++seen.at(got);
                    if (!has_number(message->bytes().bytes(), got)) throw std::runtime_error("a torn message");
                }
            });
        }
        co_await scope.join();
    }());
    CHECK(std::ranges::all_of(seen, [](int n) { return n == 1; }));
    CHECK(f.engine.reactor.stats().stale == 0);
    CHECK(f.engine.reactor.stats().rescued == 0);
}

} // namespace

TEST_CASE("post mode: 64 coroutines, 100 ping-pongs each, immediate") {
    VERBENA_REQUIRE_DEVICE(device);
    const support::deadline allow(300s);
    fixture f(device, 64, vb::post_mode::immediate);
    ping_pongs(f);
}

TEST_CASE("post mode: 64 coroutines, 100 ping-pongs each, batched") {
    VERBENA_REQUIRE_DEVICE(device);
    const support::deadline allow(300s);
    fixture f(device, 64, vb::post_mode::batched);
    ping_pongs(f);
}

TEST_CASE("post mode: batched, nothing is posted before the end of the turn") {
    VERBENA_REQUIRE_DEVICE(device);
    fixture f(device, 4, vb::post_mode::batched);
    f.engine.reactor.run([&]() -> vb::task<> {
        vb::scope scope;
        scope.spawn(f.send(0));
        scope.spawn(f.send(1));
        CHECK(f.outstanding() == 0);
        co_await f.engine.reactor.yield();
        while (f.outstanding() == 0) co_await f.engine.reactor.yield();
        CHECK(f.outstanding() == 2);
        co_await f.receive(0);
        co_await f.receive(1);
        co_await scope.join();
    }());
    CHECK(f.outstanding() == 0);
}

TEST_CASE("post mode: batched, an operation destroyed before its flush is not posted") {
    VERBENA_REQUIRE_DEVICE(device);
    fixture f(device, 2, vb::post_mode::batched);
    f.engine.reactor.run([&]() -> vb::task<> {
        vb::scope scope;
        {
            vb::scope dropped;
            dropped.spawn(f.send(0));
            scope.spawn(f.send(1));
            dropped.spawn(f.send(2)); // waits for room
            scope.spawn(f.send(3));   // waits behind it
        }
        {
            vb::scope dropped;
            dropped.spawn([&]() -> vb::task<> {
                auto received = co_await f.wire.right.recv(f.there.slice(64, 64));
                received.value();
            });
        }
        co_await f.receive(1);
        co_await f.receive(3);
        co_await scope.join();
        scope.spawn(f.send(4));
        co_await f.receive(4);
        co_await scope.join();
        CHECK(has_number(f.there.bytes().subspan(64, 64), 0));
    }());
    CHECK(f.outstanding() == 0);
    CHECK(f.engine.reactor.stats().completions == 6);
}

TEST_CASE("post mode: batched, a destroyed queue pair or reactor posts nothing and resumes whom it may") {
    VERBENA_REQUIRE_DEVICE(device);
    fixture f(device, 4, vb::post_mode::batched);
    std::optional<vb::queue_pair> left(std::move(f.wire.left));
    f.engine.reactor.run([&]() -> vb::task<> {
        int resumed = 0;
        vb::scope scope;
        for (int i = 0; i < 6; ++i) // two of them wait for room
            scope.spawn([&]() -> vb::task<> {
                auto sent = co_await left->send(f.here.slice(0, 64));
                ++resumed;
                REQUIRE(!sent.has_value());
                CHECK(sent.error() == vb::errc::connection_reset);
                CHECK(sent.error().root_cause() == vb::errc::closed);
            });
        left.reset();
        co_await scope.join();
        CHECK(resumed == 6);
    }());
    CHECK(f.outstanding() == 0);
    CHECK(f.engine.reactor.stats().completions == 0);
}

TEST_CASE("post mode: batched, unsignaled sends end at the flush") {
    VERBENA_REQUIRE_DEVICE(device);
    fixture f(device, 8, vb::post_mode::batched);
    f.engine.reactor.run([&]() -> vb::task<> {
        int posted = 0;
        vb::scope scope;
        for (std::size_t i = 0; i < 20; ++i) {
            put_number(f.here.bytes().subspan(i * 64, 64), i);
            scope.spawn([&, i]() -> vb::task<> {
                auto sent = co_await f.wire.left.send(f.here.slice(i * 64, 64), {.signaled = i % 5 == 0});
                sent.value();
                ++posted;
            });
        }
        CHECK(posted == 0);
        for (std::size_t i = 0; i < 20; ++i) co_await f.receive(i);
        co_await scope.join();
        auto flushed = co_await f.wire.left.flushed();
        flushed.value();
    }());
    CHECK(f.outstanding() == 0);
}
