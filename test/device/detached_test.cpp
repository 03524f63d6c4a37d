// What is sent and forgotten arrives like everything else; inline bytes are copied at the call, and a pool buffer goes
// back to its pool once: after its completion, or at once if it was not sent.

#include "rig.hpp"

#include "support/deadline.hpp"

#include <vector>

namespace vb = verbena;
using support::has_number;
using support::put_number;

namespace {

struct fixture {
    explicit fixture(const vb::context& device, std::uint32_t depth, vb::post_mode mode = vb::post_mode::immediate)
        : domain(vb::protection_domain::create(device).value()), engine(device),
          pool(vb::buffer_pool::create(domain, 8, 256).value()),
          there(vb::memory_region::allocate(domain, 1024).value()), wire(domain, engine, options(depth, mode)) {}
    static vb::queue_pair_options options(std::uint32_t depth, vb::post_mode mode) {
        auto o = support::pair_options(depth);
        o.post_mode = mode;
        return o;
    }
    vb::pool_buffer buffer(std::uint64_t number) {
        auto taken = pool.try_acquire().value();
        taken.resize(64);
        put_number(taken.bytes(), number);
        return taken;
    }
    vb::task<> receive(std::uint64_t number) {
        auto received = co_await wire.right.recv(there.slice(0, 256));
        CHECK(received.value().byte_len == 64);
        CHECK(has_number(there.bytes().first(64), number));
    }
    vb::task<> until_quiet() {
        while (engine.reactor.stats().outstanding > 0) co_await engine.reactor.yield();
    }

    vb::protection_domain domain;
    support::engine engine;
    vb::buffer_pool pool;
    vb::memory_region there;
    support::wire wire;
    support::state_printer state{[this] { return support::describe(engine.reactor.stats()); }};
};

} // namespace

TEST_CASE("detached: inline bytes and pool buffers arrive in order, and the buffers come back") {
    VERBENA_REQUIRE_DEVICE(device);
    for (const auto mode : {vb::post_mode::immediate, vb::post_mode::batched}) {
        fixture f(device, 8, mode);
        f.engine.reactor.run([&]() -> vb::task<> {
            for (std::uint64_t round = 0; round < 200; round += 2) {
                std::array<std::byte, 64> bytes;
                put_number(bytes, round);
                f.wire.left.send_detached(vb::inline_data(bytes)).value();
                put_number(bytes, ~round); // it was copied
                f.wire.left.send_detached(f.buffer(round + 1)).value();
                CHECK(f.pool.available() == 7);
                co_await f.receive(round);
                co_await f.receive(round + 1);
                while (f.pool.available() < 8) co_await f.engine.reactor.yield();
            }
        }());
    }
}

TEST_CASE("detached: a full queue refuses and keeps nothing") {
    VERBENA_REQUIRE_DEVICE(device);
    fixture f(device, 4);
    f.engine.reactor.run([&]() -> vb::task<> {
        // Nobody receives yet.
        for (std::uint64_t i = 0; i < 4; ++i) f.wire.left.send_detached(f.buffer(i)).value();
        CHECK(f.pool.available() == 4);
        const auto refused = f.wire.left.send_detached(f.buffer(99));
        REQUIRE(!refused.has_value());
        CHECK(refused.error() == vb::errc::resource);
        CHECK(f.pool.available() == 4);
        std::array<std::byte, 64> bytes{};
        CHECK(f.wire.left.send_detached(vb::inline_data(bytes)).error() == vb::errc::resource);

        // Neither does it overtake one who waits for room.
        auto mine = f.buffer(4);
        vb::scope scope;
        scope.spawn([&]() -> vb::task<> {
            auto sent = co_await f.wire.left.send(mine.slice());
            sent.value();
        });
        CHECK(f.wire.left.send_detached(f.buffer(99)).error() == vb::errc::resource);
        CHECK(f.pool.available() == 3);
        for (std::uint64_t i = 0; i < 5; ++i) co_await f.receive(i);
        co_await scope.join();
        co_await f.until_quiet();
        CHECK(f.pool.available() == 7);
        f.wire.left.send_detached(f.buffer(5)).value();
        co_await f.receive(5);
        co_await f.until_quiet();
        CHECK(f.pool.available() == 7);
    }());
}

TEST_CASE("detached: it goes behind what was awaited in the same turn") {
    VERBENA_REQUIRE_DEVICE(device);
    fixture f(device, 8, vb::post_mode::batched);
    f.engine.reactor.run([&]() -> vb::task<> {
        auto first = f.buffer(1);
        vb::scope scope;
        scope.spawn([&]() -> vb::task<> {
            auto sent = co_await f.wire.left.send(first.slice());
            sent.value();
        });
        f.wire.left.send_detached(f.buffer(2)).value();
        co_await f.receive(1);
        co_await f.receive(2);
        co_await scope.join();
    }());
}

TEST_CASE("detached: more inline data than fits, an empty buffer, no connection") {
    VERBENA_REQUIRE_DEVICE(device);
    fixture f(device, 4);
    std::array<std::byte, 65> bytes{};
    CHECK(f.wire.left.send_detached(vb::inline_data(bytes)).error() == vb::errc::invalid_argument);
    CHECK(f.wire.left.send_detached(vb::pool_buffer{}).error() == vb::errc::invalid_argument);
    auto loose = support::make_pair_end(f.domain, f.engine.cq, support::pair_options());
    CHECK(loose.send_detached(f.buffer(1)).error() == vb::errc::not_connected);
    CHECK(f.pool.available() == 8);
    CHECK(f.engine.reactor.stats().outstanding == 0);
}

TEST_CASE("detached: a failure gives the buffers back, and shows in the next operation") {
    VERBENA_REQUIRE_DEVICE(device);
    fixture f(device, 8);
    f.engine.reactor.run([&]() -> vb::task<> {
        for (std::uint64_t i = 0; i < 3; ++i) f.wire.left.send_detached(f.buffer(i)).value();
        CHECK(f.pool.available() == 5);
        { const auto gone = std::move(f.wire.right); }
        while (f.pool.available() < 8) co_await f.engine.reactor.sleep_for(std::chrono::milliseconds{1});
        auto next = co_await f.wire.left.send(f.there.slice(0, 64));
        REQUIRE(!next.has_value());
        CHECK(next.error() == vb::errc::connection_reset);
        CHECK(next.error().root_cause() == vb::errc::peer_unreachable);
        const auto refused = f.wire.left.send_detached(f.buffer(9));
        REQUIRE(!refused.has_value());
        CHECK(refused.error() == vb::errc::connection_reset);
        CHECK(f.pool.available() == 8);
    }());
    CHECK(f.engine.reactor.stats().outstanding == 0);
}

TEST_CASE("detached: destroying the queue pair gives the buffers back") {
    VERBENA_REQUIRE_DEVICE(device);
    fixture f(device, 8);
    std::optional<vb::queue_pair> left(std::move(f.wire.left));
    f.engine.reactor.run([&]() -> vb::task<> {
        for (std::uint64_t i = 0; i < 3; ++i) left->send_detached(f.buffer(i)).value();
        CHECK(f.pool.available() == 5);
        left.reset();
        CHECK(f.pool.available() == 8);
        co_return;
    }());
    CHECK(f.engine.reactor.stats().outstanding == 0);
}
