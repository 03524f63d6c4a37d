// A receiver hands every message out once, in the order of arrival, to those who wait in theirs. A message outlives all
// that it came through.

#include "rig.hpp"
#include "too_long.hpp"

#include "support/deadline.hpp"

#include <vector>

namespace vb = verbena;
using namespace std::chrono_literals;
using support::has_number;
using support::put_number;

namespace {

constexpr std::uint32_t depth = 8;

struct fixture {
    explicit fixture(const vb::context& device, vb::post_mode mode = vb::post_mode::immediate)
        : domain(vb::protection_domain::create(device).value()), engine(device),
          here(vb::memory_region::allocate(domain, 1024).value()), wire(domain, engine, options(mode)) {}
    static vb::queue_pair_options options(vb::post_mode mode) {
        auto o = support::pair_options(depth);
        o.post_mode = mode;
        return o;
    }
    vb::task<> send(std::uint64_t number, std::uint32_t bytes = 64) {
        put_number(here.bytes().first(bytes), number);
        auto sent = co_await wire.left.send(here.slice(0, bytes));
        sent.value();
    }
    vb::receiver inbox() { return vb::receiver::create(wire.right, {.message_bytes = 64}).value(); }
    auto outstanding() const { return engine.reactor.stats().outstanding; }

    vb::protection_domain domain;
    support::engine engine;
    vb::memory_region here;
    support::wire wire;
    support::state_printer state{[this] { return support::describe(engine.reactor.stats()); }};
};

} // namespace

TEST_CASE("receiver: 10,000 messages through 8 buffers, in order") {
    VERBENA_REQUIRE_DEVICE(device);
    const support::deadline allow(300s);
    for (const auto mode : {vb::post_mode::immediate, vb::post_mode::batched}) {
        fixture f(device, mode);
        constexpr std::uint64_t count = 10'000;
        f.engine.reactor.run([&]() -> vb::task<> {
            auto inbox = f.inbox();
            vb::scope scope;
            for (std::uint64_t start = 0; start < 4; ++start)
                scope.spawn([&, start]() -> vb::task<> {
                    // Four senders, whose sends are posted in the order in which they are awaited.
                    for (std::uint64_t i = start; i < count; i += 4) {
                        std::array<std::byte, 16> bytes;
                        put_number(bytes, i);
                        auto sent = co_await f.wire.left.send(vb::inline_data(bytes));
                        sent.value();
                    }
                });
            std::vector<vb::message> held; // so that the buffers come back late and out of order
            for (std::uint64_t i = 0; i < count; ++i) {
                auto message = co_await inbox.next();
                if (!has_number(message.value().bytes().bytes(), i)) throw std::runtime_error("a wrong message");
                held.push_back(std::move(message).value());
                if (held.size() == 5) held.erase(held.begin() + static_cast<std::ptrdiff_t>(i % 5));
            }
            co_await scope.join();
            CHECK(inbox.stats().messages == count);
            CHECK(inbox.stats().dropped == 0);
        }());
        CHECK(f.engine.reactor.stats().stale == 0);
    }
}

TEST_CASE("receiver: waits are served in their order, and one that is destroyed loses nothing") {
    VERBENA_REQUIRE_DEVICE(device);
    fixture f(device);
    f.engine.reactor.run([&]() -> vb::task<> {
        auto inbox = f.inbox();
        std::vector<std::pair<int, std::uint64_t>> served;
        const auto wait = [&](int who) -> vb::task<> {
            auto message = co_await inbox.next();
            std::uint64_t number;
            std::memcpy(&number, message.value().bytes().bytes().data(), sizeof number);
            served.emplace_back(who, number);
        };
        vb::scope scope;
        scope.spawn(wait(0));
        {
            vb::scope dropped;
            scope.spawn(wait(1));
            dropped.spawn(wait(2));
            scope.spawn(wait(3));
        }
        for (std::uint64_t i = 0; i < 3; ++i) co_await f.send(100 + i);
        co_await scope.join();
        CHECK(served == std::vector<std::pair<int, std::uint64_t>>{{0, 100}, {1, 101}, {3, 102}});

        // A message that came before anybody waited is there at once.
        co_await f.send(103);
        const auto until = f.engine.reactor.stats().turns + 2;
        while (f.engine.reactor.stats().turns < until) co_await f.engine.reactor.yield();
        scope.spawn(wait(4));
        co_await scope.join();
        CHECK(served.back() == std::pair<int, std::uint64_t>{4, 103});
    }());
}

TEST_CASE("receiver: immediates and lengths") {
    VERBENA_REQUIRE_DEVICE(device);
    fixture f(device);
    f.engine.reactor.run([&]() -> vb::task<> {
        auto inbox = f.inbox();
        for (std::uint32_t bytes = 0; bytes <= 64; bytes += 8) {
            put_number(f.here.bytes().first(64), bytes);
            auto sent = co_await f.wire.left.send_with_immediate(f.here.slice(0, bytes), bytes + 1);
            sent.value();
            auto message = co_await inbox.next();
            REQUIRE(message.has_value());
            CHECK(message->bytes().length == bytes);
            CHECK(message->immediate() == bytes + 1);
            CHECK(message->qp_num() == f.wire.right.qp_num());
            if (bytes > 0) CHECK(has_number(message->bytes().bytes(), bytes));
        }
        co_await f.send(1);
        auto message = co_await inbox.next();
        CHECK(!message.value().immediate().has_value());
    }());
}

TEST_CASE("receiver: a message outlives receiver, queue pair and reactor") {
    VERBENA_REQUIRE_DEVICE(device);
    for (const bool receiver_first : {true, false}) {
        auto f = std::make_unique<fixture>(device);
        std::optional<vb::receiver> inbox;
        std::optional<vb::message> early, late;
        f->engine.reactor.run([&]() -> vb::task<> {
            inbox.emplace(f->inbox());
            co_await f->send(1);
            auto first = co_await inbox->next();
            early.emplace(std::move(first).value());
            co_await f->send(2);
            auto second = co_await inbox->next();
            late.emplace(std::move(second).value());
        }());
        if (receiver_first) inbox.reset();
        { auto gone = std::move(f->wire.right); }
        CHECK(has_number(early->bytes().bytes(), 1));
        early.reset();
        CHECK(f->outstanding() == 0); // nothing was posted
        f.reset();
        inbox.reset();
        CHECK(has_number(late->bytes().bytes(), 2));
        put_number(late->bytes().bytes(), 3);
        CHECK(has_number(late->bytes().bytes(), 3));
        late.reset();
    }
}

TEST_CASE("receiver: destroyed, it ends its waits and leaves the queue pair open") {
    VERBENA_REQUIRE_DEVICE(device);
    fixture f(device);
    f.engine.reactor.run([&]() -> vb::task<> {
        std::optional inbox(f.inbox());
        CHECK(f.outstanding() == depth);
        co_await f.send(1);
        auto held = co_await inbox->next();
        REQUIRE(held.has_value());
        CHECK(f.outstanding() == depth - 1);
        int closed = 0;
        vb::scope scope;
        for (int i = 0; i < 3; ++i)
            scope.spawn([&]() -> vb::task<> {
                auto message = co_await inbox->next();
                REQUIRE(!message.has_value());
                CHECK(message.error() == vb::errc::closed);
                ++closed;
            });
        inbox.reset();
        co_await scope.join();
        CHECK(closed == 3);

        // Later messages are taken and dropped, each with its buffer.
        for (std::uint64_t i = 1; i < depth; ++i) co_await f.send(i);
        while (f.outstanding() > 0) co_await f.engine.reactor.yield();
        CHECK(has_number(held->bytes().bytes(), 1));
        held = vb::error(vb::errc::closed, "the test");
        CHECK(f.outstanding() == 0);

        // Both directions of the connection live.
        CHECK(f.wire.right.state().value() == vb::queue_pair_state::ready_to_send);
        put_number(f.here.bytes().first(64), 9);
        auto [received, sent] =
            co_await vb::when_all(f.wire.left.recv(f.here.slice(512, 64)), f.wire.right.send(f.here.slice(0, 64)));
        sent.value();
        received.value();
        CHECK(has_number(f.here.bytes().subspan(512, 64), 9));
    }());
}

TEST_CASE("receiver: one for a queue pair, and none beside awaited receives") {
    VERBENA_REQUIRE_DEVICE(device);
    fixture f(device);
    f.engine.reactor.run([&]() -> vb::task<> {
        auto inbox = f.inbox();
        CHECK(vb::receiver::create(f.wire.right, {.message_bytes = 64}).error() == vb::errc::in_use);
        auto received = co_await f.wire.right.recv(f.here.slice(0, 64));
        REQUIRE(!received.has_value());
        CHECK(received.error() == vb::errc::in_use);
        CHECK(f.wire.right.post(vb::recv_request{f.here.slice(0, 64)}, 1).error() == vb::errc::in_use);

        vb::scope scope;
        scope.spawn([&]() -> vb::task<> {
            auto pending = co_await f.wire.left.recv(f.here.slice(0, 64));
            pending.value();
        });
        CHECK(vb::receiver::create(f.wire.left, {.message_bytes = 64}).error() == vb::errc::in_use);
        auto sent = co_await f.wire.right.send(f.here.slice(64, 64));
        sent.value();
        co_await scope.join();

        auto fresh = support::make_pair_end(f.domain, f.engine.cq, support::pair_options(depth));
        CHECK(vb::receiver::create(fresh, {.depth = depth + 1, .message_bytes = 64}).error() ==
              vb::errc::invalid_argument);
        CHECK(vb::receiver::create(fresh, {}).error() == vb::errc::invalid_argument);
        fresh.post(vb::recv_request{f.here.slice(0, 64)}, 1).value();
        CHECK(vb::receiver::create(fresh, {.message_bytes = 64}).error() == vb::errc::in_use);
    }());
    const auto loose = vb::completion_queue::create(device, 64).value();
    auto unattached = support::make_pair_end(f.domain, loose, support::pair_options());
    CHECK(vb::receiver::create(unattached, {.message_bytes = 64}).error() == vb::errc::not_attached);
}

TEST_CASE("receiver: what had arrived before the end is handed out first") {
    VERBENA_REQUIRE_DEVICE(device);
    fixture f(device);
    f.engine.reactor.run([&]() -> vb::task<> {
        auto inbox = f.inbox();
        co_await f.send(1);
        co_await f.send(2);
        // Too long: both ends fail.
        auto sent = co_await f.wire.left.send(f.here.slice(0, 128));
        REQUIRE(!sent.has_value());
        INFO(sent.error().message());
        CHECK(support::says_too_long(sent.error().code()));
        while (!inbox.error().code()) co_await f.engine.reactor.yield();
        for (const std::uint64_t number : {1, 2}) {
            auto message = co_await inbox.next();
            REQUIRE(message.has_value());
            CHECK(has_number(message->bytes().bytes(), number));
        }
        for (int i = 0; i < 2; ++i) {
            auto ended = co_await inbox.next();
            REQUIRE(!ended.has_value());
            INFO(ended.error().message());
            CHECK(support::says_too_long(ended.error().code()));
        }
        CHECK(support::says_too_long(inbox.error().code()));
        CHECK(inbox.stats().failed == depth - 2);
    }());
}
