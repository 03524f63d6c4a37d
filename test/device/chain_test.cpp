// A chain is posted by one call in its order, takes the places of all its requests at once, and is resumed once, with
// the first failure among them.

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
          here(vb::memory_region::allocate(domain, 1024).value()),
          there(
              vb::memory_region::allocate(domain, 1024, vb::access_flags::local_write | vb::access_flags::remote_write)
                  .value()),
          wire(domain, engine, options(depth, mode)) {}
    static vb::queue_pair_options options(std::uint32_t depth, vb::post_mode mode) {
        auto o = support::pair_options(depth);
        o.post_mode = mode;
        return o;
    }
    auto outstanding() const { return engine.reactor.stats().outstanding; }
    // The turns that make sure that nothing more happens by itself.
    vb::task<> some_turns() {
        const auto until = engine.reactor.stats().turns + 5;
        while (engine.reactor.stats().turns < until) co_await engine.reactor.yield();
    }
    vb::task<> receive(std::uint64_t number) {
        auto received = co_await wire.right.recv(there.slice(0, 64));
        received.value();
        CHECK(has_number(there.bytes().first(64), number));
    }

    vb::protection_domain domain;
    support::engine engine;
    vb::memory_region here;
    vb::memory_region there;
    support::wire wire;
    support::state_printer state{[this] { return support::describe(engine.reactor.stats()); }};
};

} // namespace

TEST_CASE("chain: the data written is there when the message behind it comes") {
    VERBENA_REQUIRE_DEVICE(device);
    for (const auto mode : {vb::post_mode::immediate, vb::post_mode::batched}) {
        fixture f(device, 16, mode);
        f.engine.reactor.run([&]() -> vb::task<> {
            for (std::uint64_t i = 1; i <= 100; ++i) {
                put_number(f.here.bytes().first(64), i);
                put_number(f.here.bytes().subspan(64, 512), i + 1000);
                auto [received, chained] =
                    co_await vb::when_all(f.wire.right.recv(f.there.slice(0, 64)),
                                          f.wire.left.chain(vb::write_request{.local = f.here.slice(64, 512),
                                                                              .remote = f.there.remote(64, 512)},
                                                            vb::send_request{.local = f.here.slice(0, 64),
                                                                             .immediate = static_cast<std::uint32_t>(i),
                                                                             .signaled = false}));
                chained.value();
                CHECK(received.value().immediate == static_cast<std::uint32_t>(i));
                CHECK(has_number(f.there.bytes().first(64), i));
                CHECK(has_number(f.there.bytes().subspan(64, 512), i + 1000));
            }
        }());
        CHECK(f.outstanding() == 0);
    }
}

TEST_CASE("chain: takes a place for each request, and waits until there are as many") {
    VERBENA_REQUIRE_DEVICE(device);
    fixture f(device, 4);
    f.engine.reactor.run([&]() -> vb::task<> {
        for (std::uint64_t i = 0; i < 6; ++i) put_number(f.here.bytes().subspan(i * 64, 64), i);
        const auto part = [&](std::size_t i) { return vb::send_request{f.here.slice(i * 64, 64)}; };
        std::vector<int> order;
        const auto send = [&](std::size_t i) -> vb::task<> {
            auto sent = co_await f.wire.left.send(f.here.slice(i * 64, 64));
            sent.value();
            order.push_back(static_cast<int>(i));
        };
        vb::scope scope;
        scope.spawn([&]() -> vb::task<> {
            auto chained = co_await f.wire.left.chain(part(0), part(1), part(2));
            chained.value();
            order.push_back(2);
        });
        CHECK(f.outstanding() == 3);
        scope.spawn([&]() -> vb::task<> {
            auto chained = co_await f.wire.left.chain(part(3), part(4));
            chained.value();
            order.push_back(4);
        });
        scope.spawn(send(5)); // there is one place, but not for one who came later
        co_await f.some_turns();
        CHECK(f.outstanding() == 3);
        CHECK(order.empty());
        for (std::uint64_t i = 0; i < 6; ++i) co_await f.receive(i);
        co_await scope.join();
        CHECK(order == std::vector<int>{2, 4, 5});
    }());
    CHECK(f.outstanding() == 0);
}

TEST_CASE("chain: longer than the queue, or with a receive in it, is refused") {
    VERBENA_REQUIRE_DEVICE(device);
    fixture f(device, 2);
    f.engine.reactor.run([&]() -> vb::task<> {
        put_number(f.here.bytes().first(64), 7);
        const vb::send_request part{f.here.slice(0, 64)};
        auto refused = co_await f.wire.left.chain(part, part, part);
        REQUIRE(!refused.has_value());
        CHECK(refused.error() == vb::errc::invalid_argument);
        const vb::recv_request receive{f.here.slice(0, 64)};
        auto mixed = co_await f.wire.left.chain(part, receive);
        REQUIRE(!mixed.has_value());
        CHECK(mixed.error() == vb::errc::invalid_argument);
        auto receives = co_await f.wire.left.chain(receive, receive);
        REQUIRE(!receives.has_value());
        CHECK(receives.error() == vb::errc::invalid_argument);
        CHECK(f.outstanding() == 0);

        vb::scope scope;
        scope.spawn([&]() -> vb::task<> {
            auto chained = co_await f.wire.left.chain(part, part);
            chained.value();
        });
        co_await f.receive(7);
        co_await f.receive(7);
        co_await scope.join();
    }());
}

TEST_CASE("chain: one that waits and is destroyed posts nothing") {
    VERBENA_REQUIRE_DEVICE(device);
    fixture f(device, 2);
    f.engine.reactor.run([&]() -> vb::task<> {
        for (std::uint64_t i = 0; i < 4; ++i) put_number(f.here.bytes().subspan(i * 64, 64), i);
        const auto send = [&](std::size_t i) -> vb::task<> {
            auto sent = co_await f.wire.left.send(f.here.slice(i * 64, 64));
            sent.value();
        };
        vb::scope scope;
        scope.spawn(send(0));
        {
            vb::scope dropped;
            dropped.spawn([&]() -> vb::task<> {
                auto chained = co_await f.wire.left.chain(vb::send_request{f.here.slice(64, 64)},
                                                          vb::send_request{f.here.slice(128, 64)});
                chained.value();
            });
            scope.spawn(send(3));
            co_await f.some_turns();
        }
        co_await f.receive(0);
        co_await f.receive(3);
        co_await scope.join();
    }());
    CHECK(f.outstanding() == 0);
}

TEST_CASE("chain: the first failure is the chain's, and the root cause of all others") {
    VERBENA_REQUIRE_DEVICE(device);
    for (const auto mode : {vb::post_mode::immediate, vb::post_mode::batched}) {
        fixture f(device, 16, mode);
        f.engine.reactor.run([&]() -> vb::task<> {
            auto denied = f.there.remote(0, 64);
            denied.rkey ^= 0x55;
            const vb::write_request bad{.local = f.here.slice(0, 64), .remote = denied};
            const vb::write_request good{.local = f.here.slice(0, 64), .remote = f.there.remote(64, 64)};
            put_number(f.here.bytes().first(64), 9);
            int resumed = 0, siblings = 0;
            vb::scope scope;
            const auto check_sibling = [&](const vb::error& error) {
                ++siblings;
                CHECK(error == vb::errc::connection_reset);
                CHECK(error.root_cause() == vb::errc::access_denied);
            };
            scope.spawn([&]() -> vb::task<> {
                auto received = co_await f.wire.left.recv(f.here.slice(512, 64));
                REQUIRE(!received.has_value());
                check_sibling(received.error());
            });
            scope.spawn([&]() -> vb::task<> {
                auto chained = co_await f.wire.left.chain(bad, good, good);
                ++resumed;
                REQUIRE(!chained.has_value());
                CHECK(chained.error() == vb::errc::access_denied);
                CHECK(chained.error().root_cause() == vb::errc::access_denied);
                CHECK(chained.error().qp_num() == f.wire.left.qp_num());
            });
            scope.spawn([&]() -> vb::task<> {
                auto written = co_await f.wire.left.write(f.here.slice(0, 64), f.there.remote(64, 64));
                REQUIRE(!written.has_value());
                check_sibling(written.error());
            });
            co_await scope.join();
            CHECK(resumed == 1);
            CHECK(siblings == 2);
            CHECK(!has_number(f.there.bytes().subspan(64, 64), 9));
            CHECK(f.wire.left.state().value() == vb::queue_pair_state::error);
            auto later = co_await f.wire.left.send(f.here.slice(0, 64));
            REQUIRE(!later.has_value());
            check_sibling(later.error());
        }());
        CHECK(f.outstanding() == 0);
        CHECK(f.engine.reactor.stats().stale == 0);
    }
}
