// An unsignaled send ends when it is posted, its buffer is free when `flushed` has ended and not before, and the room
// it took always comes back.

#include "rig.hpp"

#include "support/deadline.hpp"

namespace vb = verbena;
using namespace std::chrono_literals;
using support::has_number;
using support::put_number;

namespace {

constexpr vb::send_options unsignaled{.signaled = false};
constexpr std::uint32_t depth = 8;

struct fixture {
    explicit fixture(const vb::context& device, vb::post_mode mode = vb::post_mode::immediate)
        : domain(vb::protection_domain::create(device).value()), engine(device),
          here(vb::memory_region::allocate(domain, 1024).value()),
          there(
              vb::memory_region::allocate(domain, 1024, vb::access_flags::local_write | vb::access_flags::remote_write)
                  .value()),
          left(support::make_pair_end(domain, engine.cq, left_options(mode))),
          right(support::make_pair_end(domain, engine.cq, support::pair_options(64))) {
        support::connect(left, right);
    }
    static vb::queue_pair_options left_options(vb::post_mode mode) {
        auto options = support::pair_options(depth);
        options.post_mode = mode;
        return options;
    }
    auto outstanding() const { return engine.reactor.stats().outstanding; }

    // The turns that make sure that nothing more happens by itself.
    vb::task<> some_turns() {
        const auto until = engine.reactor.stats().turns + 5;
        while (engine.reactor.stats().turns < until) co_await engine.reactor.yield();
    }

    vb::protection_domain domain;
    support::engine engine;
    vb::memory_region here;
    vb::memory_region there;
    vb::queue_pair left;
    vb::queue_pair right;
    support::state_printer state{[this] { return support::describe(engine.reactor.stats()); }};
};

} // namespace

TEST_CASE("unsignaled: resumed when posted") {
    VERBENA_REQUIRE_DEVICE(device);
    fixture f(device);
    f.engine.reactor.run([&]() -> vb::task<> {
        put_number(f.here.bytes().first(64), 1);
        const auto before = f.engine.reactor.stats();
        auto sent = co_await f.left.send(f.here.slice(0, 64), unsignaled); // there is no receive for it yet
        sent.value();
        CHECK(f.engine.reactor.stats().turns == before.turns);
        CHECK(f.outstanding() == 1);
        auto received = co_await f.right.recv(f.there.slice(0, 64));
        received.value();
        CHECK(has_number(f.there.bytes().first(64), 1));
        auto flushed = co_await f.left.flushed();
        flushed.value();
        CHECK(f.outstanding() == 0);
    }());
}

TEST_CASE("unsignaled: 10,000 in a row through a short queue") {
    VERBENA_REQUIRE_DEVICE(device);
    const support::deadline allow(300s);
    for (const auto mode : {vb::post_mode::immediate, vb::post_mode::batched}) {
        fixture f(device, mode);
        constexpr std::uint64_t count = 10'000;
        f.engine.reactor.run([&]() -> vb::task<> {
            auto inbox = vb::receiver::create(f.right, {.depth = 64, .message_bytes = 64}).value();
            vb::scope scope;
            scope.spawn([&]() -> vb::task<> {
                for (std::uint64_t i = 0; i < count; ++i) {
                    std::array<std::byte, 16> bytes;
                    put_number(bytes, i);
                    auto sent = co_await f.left.send(vb::inline_data(bytes), unsignaled);
                    sent.value();
                }
            });
            for (std::uint64_t i = 0; i < count; ++i) {
                auto message = co_await inbox.next();
                if (!has_number(message.value().bytes().bytes(), i)) throw std::runtime_error("a wrong message");
            }
            co_await scope.join();
        }());
    }
}

TEST_CASE("unsignaled: mixed with signaled, from buffers that are used again after a flush") {
    VERBENA_REQUIRE_DEVICE(device);
    const support::deadline allow(300s);
    fixture f(device);
    constexpr std::uint64_t count = 2000;
    f.engine.reactor.run([&]() -> vb::task<> {
        auto inbox = vb::receiver::create(f.right, {.depth = 64, .message_bytes = 64}).value();
        vb::scope scope;
        scope.spawn([&]() -> vb::task<> {
            for (std::uint64_t i = 0; i < count; ++i) {
                const auto slice = f.here.slice(i % 16 * 64, 64);
                put_number(slice.bytes(), i);
                auto sent = co_await f.left.send(slice, {.signaled = i % 3 == 1});
                sent.value();
                if (i % 16 != 15) continue;
                auto flushed = co_await f.left.flushed();
                flushed.value();
            }
        });
        for (std::uint64_t i = 0; i < count; ++i) {
            auto message = co_await inbox.next();
            if (!has_number(message.value().bytes().bytes(), i)) throw std::runtime_error("a wrong message");
        }
        co_await scope.join();
    }());
}

TEST_CASE("unsignaled: flushed waits for the buffer, by a marker if nothing else will tell") {
    VERBENA_REQUIRE_DEVICE(device);
    fixture f(device);
    f.engine.reactor.run([&]() -> vb::task<> {
        auto nothing_sent = co_await f.left.flushed();
        nothing_sent.value();

        put_number(f.here.bytes().first(64), 2);
        auto sent = co_await f.left.send(f.here.slice(0, 64), unsignaled);
        sent.value();
        int ended = 0;
        vb::scope scope;
        const auto flush = [&]() -> vb::task<> {
            auto flushed = co_await f.left.flushed();
            flushed.value();
            ++ended;
        };
        scope.spawn(flush());
        scope.spawn(flush());
        co_await f.some_turns();
        CHECK(ended == 0); // the peer has not taken it
        CHECK(f.outstanding() == 2);
        auto received = co_await f.right.recv(f.there.slice(0, 64));
        received.value();
        CHECK(has_number(f.there.bytes().first(64), 2));
        co_await scope.join();
        CHECK(ended == 2);
        CHECK(f.outstanding() == 0);

        // A signaled one behind it: no marker.
        sent = co_await f.left.send(f.here.slice(0, 64), unsignaled);
        sent.value();
        scope.spawn([&]() -> vb::task<> {
            auto signaled = co_await f.left.send(f.here.slice(0, 64));
            signaled.value();
        });
        scope.spawn(flush());
        co_await f.some_turns();
        CHECK(ended == 2);
        CHECK(f.outstanding() == 2);
        for (int i = 0; i < 2; ++i) {
            received = co_await f.right.recv(f.there.slice(0, 64));
            received.value();
        }
        co_await scope.join();
        CHECK(ended == 3);

        // A flush that is destroyed takes nothing with it.
        sent = co_await f.left.send(f.here.slice(0, 64), unsignaled);
        sent.value();
        {
            vb::scope dropped;
            dropped.spawn(flush());
        }
        received = co_await f.right.recv(f.there.slice(0, 64));
        received.value();
        auto flushed = co_await f.left.flushed();
        flushed.value();
        CHECK(ended == 3);
        CHECK(f.outstanding() == 0);
    }());
}

TEST_CASE("unsignaled: a chain as long as the queue gets its places") {
    VERBENA_REQUIRE_DEVICE(device);
    for (const auto mode : {vb::post_mode::immediate, vb::post_mode::batched}) {
        fixture f(device, mode);
        f.engine.reactor.run([&]() -> vb::task<> {
            auto inbox = vb::receiver::create(f.right, {.depth = 64, .message_bytes = 64}).value();
            for (std::uint64_t i = 0; i < 12; ++i) put_number(f.here.bytes().subspan(i * 64, 64), i);
            const auto part = [&](std::size_t i) { return vb::send_request{f.here.slice(i * 64, 64)}; };
            // Fewer than the runtime lets go without a signal.
            for (std::size_t i = 0; i < 3; ++i) {
                auto sent = co_await f.left.send(f.here.slice(i * 64, 64), unsignaled);
                sent.value();
            }
            auto chained =
                co_await f.left.chain(part(3), part(4), part(5), part(6), part(7), part(8), part(9), part(10));
            chained.value();
            for (std::uint64_t i = 0; i < 11; ++i) {
                auto message = co_await inbox.next();
                CHECK(has_number(message.value().bytes().bytes(), i));
            }
        }());
        CHECK(f.outstanding() == 64);
    }
}

TEST_CASE("unsignaled: a failure shows in what is awaited next, and in flushed") {
    VERBENA_REQUIRE_DEVICE(device);
    fixture f(device);
    f.engine.reactor.run([&]() -> vb::task<> {
        auto remote = f.there.remote(0, 64);
        remote.rkey ^= 0x55;
        auto sent = co_await f.left.write(f.here.slice(0, 64), remote, unsignaled);
        sent.value();
        auto flushed = co_await f.left.flushed();
        REQUIRE(!flushed.has_value());
        CHECK(flushed.error() == vb::errc::connection_reset);
        CHECK(flushed.error().root_cause() == vb::errc::access_denied);
        auto next = co_await f.left.send(f.here.slice(0, 64));
        REQUIRE(!next.has_value());
        CHECK(next.error() == vb::errc::connection_reset);
        CHECK(next.error().root_cause() == vb::errc::access_denied);
        flushed = co_await f.left.flushed();
        REQUIRE(!flushed.has_value());
        CHECK(flushed.error().root_cause() == vb::errc::access_denied);
    }());
    CHECK(f.outstanding() == 0);
}
