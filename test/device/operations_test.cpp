// Every operation moves exactly the bytes it names, gives what its completion brought, and ends once, from whatever
// coroutine type it is awaited.

#include "rig.hpp"

#include "support/deadline.hpp"

#include <poll.h>

#include <vector>

namespace vb = verbena;
using support::has_number;
using support::put_number;
using vb::access_flags;

namespace {

constexpr auto all_access =
    access_flags::local_write | access_flags::remote_write | access_flags::remote_read | access_flags::remote_atomic;

struct fixture {
    explicit fixture(const vb::context& device, vb::queue_pair_options options = support::pair_options())
        : domain(vb::protection_domain::create(device).value()), engine(device),
          here(vb::memory_region::allocate(domain, 8192, all_access).value()),
          there(vb::memory_region::allocate(domain, 8192, all_access).value()), wire(domain, engine, options) {}

    void run(vb::task<> work) {
        engine.reactor.run(std::move(work));
        CHECK(engine.reactor.stats().outstanding == 0);
        CHECK(engine.reactor.stats().stale == 0);
        CHECK(engine.reactor.stats().foreign == 0);
    }

    vb::protection_domain domain;
    support::engine engine;
    vb::memory_region here;
    vb::memory_region there;
    support::wire wire;
    support::state_printer state{[this] { return support::describe(engine.reactor.stats()); }};
};

std::uint64_t number_at(std::span<const std::byte> bytes) {
    std::uint64_t number;
    std::memcpy(&number, bytes.data(), sizeof number);
    return number;
}

bool only_zeros(std::span<const std::byte> bytes) {
    return std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{}; });
}

// A coroutine type the library has not heard of: starts at once, frees itself, belongs to nobody.
struct launched {
    struct promise_type {
        launched get_return_object() noexcept { return {}; }
        std::suspend_never initial_suspend() noexcept { return {}; }
        std::suspend_never final_suspend() noexcept { return {}; }
        void return_void() noexcept {}
        void unhandled_exception() noexcept { std::terminate(); }
    };
};

} // namespace

TEST_CASE("operations: send fills the receive of the peer") {
    VERBENA_REQUIRE_DEVICE(device);
    fixture f(device);
    f.run([&]() -> vb::task<> {
        put_number(f.here.bytes().first(64), 41);
        auto [received, sent] =
            co_await vb::when_all(f.wire.right.recv(f.there.slice(8, 128)), f.wire.left.send(f.here.slice(0, 64)));
        sent.value();
        CHECK(received.value().byte_len == 64);
        CHECK(!received->immediate.has_value());
        CHECK(only_zeros(f.there.bytes().first(8)));
        CHECK(has_number(f.there.bytes().subspan(8, 64), 41));
        CHECK(only_zeros(f.there.bytes().subspan(72)));

        auto [empty, nothing] = co_await vb::when_all(f.wire.right.recv(f.there.slice(0, 8)), f.wire.left.send({}));
        nothing.value();
        CHECK(empty.value().byte_len == 0);
        CHECK(only_zeros(f.there.bytes().first(8)));
    }());
}

TEST_CASE("operations: send with immediate") {
    VERBENA_REQUIRE_DEVICE(device);
    fixture f(device);
    f.run([&]() -> vb::task<> {
        put_number(f.here.bytes().first(16), 42);
        for (const std::uint32_t number : {0u, 0x01020304u, 0xffffffffu}) {
            auto [received, sent] = co_await vb::when_all(f.wire.right.recv(f.there.slice(0, 64)),
                                                          f.wire.left.send_with_immediate(f.here.slice(0, 16), number));
            sent.value();
            CHECK(received.value().byte_len == 16);
            CHECK(received->immediate == number);
            CHECK(has_number(f.there.bytes().first(16), 42));
        }
    }());
}

TEST_CASE("operations: RDMA write, with and without immediate") {
    VERBENA_REQUIRE_DEVICE(device);
    fixture f(device);
    f.run([&]() -> vb::task<> {
        put_number(f.here.bytes().first(256), 43);
        auto written = co_await f.wire.left.write(f.here.slice(0, 256), f.there.remote(64, 256));
        written.value();
        CHECK(only_zeros(f.there.bytes().first(64)));
        CHECK(has_number(f.there.bytes().subspan(64, 256), 43));
        CHECK(only_zeros(f.there.bytes().subspan(320)));

        put_number(f.here.bytes().first(24), 44);
        auto [received, with] = co_await vb::when_all(
            f.wire.right.recv(vb::slice_list{}),
            f.wire.left.write_with_immediate(f.here.slice(0, 24), f.there.remote(1024, 24), 0xabcdef01));
        with.value();
        CHECK(received.value().byte_len == 24);
        CHECK(received->immediate == 0xabcdef01u);
        CHECK(has_number(f.there.bytes().subspan(1024, 24), 44));

        auto too_long = co_await f.wire.left.write(f.here.slice(0, 256), f.there.remote(0, 255));
        REQUIRE(!too_long.has_value());
        CHECK(too_long.error() == vb::errc::invalid_argument);
    }());
}

TEST_CASE("operations: RDMA read") {
    VERBENA_REQUIRE_DEVICE(device);
    fixture f(device);
    f.run([&]() -> vb::task<> {
        put_number(f.there.bytes().subspan(128, 512), 45);
        auto read = co_await f.wire.left.read(f.here.slice(8, 512), f.there.remote(128, 512));
        read.value();
        CHECK(only_zeros(f.here.bytes().first(8)));
        CHECK(has_number(f.here.bytes().subspan(8, 512), 45));
        CHECK(only_zeros(f.here.bytes().subspan(520)));
    }());
}

TEST_CASE("operations: the atomics give the value before") {
    VERBENA_REQUIRE_DEVICE(device);
    fixture f(device);
    f.run([&]() -> vb::task<> {
        const auto counter = f.there.bytes().subspan(64, 8);
        const auto remote = f.there.remote(64, 8);
        const auto local = f.here.slice(0, 8);
        put_number(counter, 100);
        auto before = co_await f.wire.left.fetch_add(local, remote, 5);
        CHECK(before.value() == 100);
        CHECK(number_at(counter) == 105);
        before = co_await f.wire.left.fetch_add(local, remote, ~std::uint64_t{0});
        CHECK(before.value() == 105);
        CHECK(number_at(counter) == 104);

        before = co_await f.wire.left.compare_swap(local, remote, 104, 0x1122334455667788);
        CHECK(before.value() == 104);
        CHECK(number_at(counter) == 0x1122334455667788);
        before = co_await f.wire.left.compare_swap(local, remote, 104, 7);
        CHECK(before.value() == 0x1122334455667788);
        CHECK(number_at(counter) == 0x1122334455667788);

        // Only the remote word must be aligned.
        before = co_await f.wire.left.fetch_add(f.here.slice(13, 8), remote, 1);
        CHECK(before.value() == 0x1122334455667788);

        auto wrong = co_await f.wire.left.fetch_add(local, f.there.remote(68, 8), 1);
        REQUIRE(!wrong.has_value());
        CHECK(wrong.error() == vb::errc::invalid_argument);
        wrong = co_await f.wire.left.compare_swap(f.here.slice(0, 4), remote, 1, 1);
        REQUIRE(!wrong.has_value());
        CHECK(wrong.error() == vb::errc::invalid_argument);
    }());
}

TEST_CASE("operations: fetch_add by 16 coroutines at once counts each") {
    VERBENA_REQUIRE_DEVICE(device);
    fixture f(device);
    f.run([&]() -> vb::task<> {
        std::vector<int> seen(16 * 8);
        vb::scope scope;
        for (std::size_t i = 0; i < 16; ++i)
            scope.spawn([&, i]() -> vb::task<> {
                for (int k = 0; k < 8; ++k) {
                    auto before = co_await f.wire.left.fetch_add(f.here.slice(i * 8, 8), f.there.remote(0, 8), 1);
                    ++seen.at(before.value());
                }
            });
        co_await scope.join();
        CHECK(std::ranges::all_of(seen, [](int n) { return n == 1; }));
        CHECK(number_at(f.there.bytes()) == seen.size());
    }());
}

TEST_CASE("operations: gather and scatter of 2, 3 and 4 slices, and of a span") {
    VERBENA_REQUIRE_DEVICE(device);
    auto options = support::pair_options();
    options.max_send_slices = options.max_recv_slices = 6;
    fixture f(device, options);
    f.run([&]() -> vb::task<> {
        for (std::size_t i = 0; i < 6; ++i) put_number(f.here.bytes().subspan(i * 256, 64), 50 + i);
        const auto from = [&](std::size_t i) { return f.here.slice(i * 256, 8 * (i + 1)); };
        // Scattered the other way round, so that every boundary lies elsewhere.
        const auto into = [&](std::size_t i, std::size_t n) { return f.there.slice(i * 128, 8 * (n - i)); };
        const auto check = [&](std::size_t n, const vb::result<vb::received>& received, const vb::result<void>& sent) {
            sent.value();
            CHECK(received.value().byte_len == 8 * n * (n + 1) / 2);
            std::vector<std::uint64_t> wanted, got;
            for (std::size_t i = 0; i < n; ++i) wanted.insert(wanted.end(), i + 1, 50 + i);
            for (std::size_t i = 0; i < n; ++i)
                for (std::size_t k = 0; k < n - i; ++k)
                    got.push_back(number_at(f.there.bytes().subspan(i * 128 + k * 8, 8)));
            CHECK(got == wanted);
            std::ranges::fill(f.there.bytes(), std::byte{});
        };
        {
            auto [received, sent] =
                co_await vb::when_all(f.wire.right.recv(into(0, 2), into(1, 2)), f.wire.left.send(from(0), from(1)));
            check(2, received, sent);
        }
        {
            auto [received, sent] = co_await vb::when_all(f.wire.right.recv(into(0, 3), into(1, 3), into(2, 3)),
                                                          f.wire.left.send(from(0), from(1), from(2)));
            check(3, received, sent);
        }
        {
            auto [received, sent] =
                co_await vb::when_all(f.wire.right.recv(into(0, 4), into(1, 4), into(2, 4), into(3, 4)),
                                      f.wire.left.send(from(0), from(1), from(2), from(3)));
            check(4, received, sent);
        }
        {
            const std::array sources{from(0), from(1), from(2)};
            const std::array targets{into(0, 3), into(1, 3), into(2, 3)};
            auto [received, sent] = co_await vb::when_all(f.wire.right.recv(targets), f.wire.left.send(sources));
            check(3, received, sent);
        }
        std::vector<vb::memory_slice> sources, targets;
        for (std::size_t i = 0; i < 6; ++i) {
            sources.push_back(from(i));
            targets.push_back(into(i, 6));
        }
        {
            auto [received, sent] = co_await vb::when_all(f.wire.right.recv(std::span<const vb::memory_slice>(targets)),
                                                          f.wire.left.send(std::span<const vb::memory_slice>(sources)));
            check(6, received, sent);
        }
        // The same by RDMA: gathered into one piece, and read back into six.
        const std::size_t sum = 8 * 21;
        auto written = co_await f.wire.left.write(std::span<const vb::memory_slice>(sources), f.there.remote(0, sum));
        written.value();
        CHECK(number_at(f.there.bytes().first(8)) == 50);
        CHECK(has_number(f.there.bytes().subspan(sum - 48, 48), 55));
        std::ranges::fill(f.here.bytes(), std::byte{});
        auto read = co_await f.wire.left.read(std::span<const vb::memory_slice>(sources), f.there.remote(0, sum));
        read.value();
        for (std::size_t i = 0; i < 6; ++i) {
            CHECK(has_number(sources[i].bytes(), 50 + i));
            CHECK(only_zeros(f.here.bytes().subspan(i * 256 + 8 * (i + 1), 64)));
        }
        sources.push_back(from(0));
        auto too_many = co_await f.wire.left.send(std::span<const vb::memory_slice>(sources));
        REQUIRE(!too_many.has_value());
        CHECK(too_many.error() == vb::errc::invalid_argument);
    }());
}

TEST_CASE("operations: inline bytes need no registration and are copied by the post") {
    VERBENA_REQUIRE_DEVICE(device);
    fixture f(device);
    f.run([&]() -> vb::task<> {
        REQUIRE(f.wire.left.max_inline() == 64);
        std::array<std::byte, 65> bytes;
        put_number(std::span(bytes).first(64), 60);
        {
            vb::scope scope;
            const std::span<const std::byte> most(bytes.data(), 64);
            // Not received yet, so that it is on its way when the bytes change.
            scope.spawn([&]() -> vb::task<> {
                auto sent = co_await f.wire.left.send(vb::inline_data(most));
                sent.value();
            });
            put_number(std::span(bytes).first(64), 61);
            auto received = co_await f.wire.right.recv(f.there.slice(0, 128));
            CHECK(received.value().byte_len == 64);
            CHECK(has_number(f.there.bytes().first(64), 60));
            co_await scope.join();
        }
        auto written = co_await f.wire.left.write(vb::inline_data(std::span(bytes).first(16)), f.there.remote(512, 16));
        written.value();
        CHECK(has_number(f.there.bytes().subspan(512, 16), 61));

        auto refused = co_await f.wire.left.send(vb::inline_data(bytes));
        REQUIRE(!refused.has_value());
        CHECK(refused.error() == vb::errc::invalid_argument);
        CHECK(refused.error().message().find("max_inline") != std::string::npos);
        auto received = co_await f.wire.right.recv(vb::inline_data(std::span(bytes).first(8)));
        REQUIRE(!received.has_value());
        CHECK(received.error() == vb::errc::invalid_argument);
        auto read = co_await f.wire.left.read(vb::inline_data(std::span(bytes).first(8)), f.there.remote(0, 8));
        REQUIRE(!read.has_value());
        CHECK(read.error() == vb::errc::invalid_argument);

        // None of that harmed the connection.
        auto [last, sent] = co_await vb::when_all(f.wire.right.recv(f.there.slice(0, 128)),
                                                  f.wire.left.send(vb::inline_data(std::span(bytes).first(8))));
        sent.value();
        CHECK(last.value().byte_len == 8);
    }());
}

TEST_CASE("operations: a solicited send wakes a peer that waits for those only") {
    VERBENA_REQUIRE_DEVICE(device);
    const auto domain = vb::protection_domain::create(device).value();
    support::engine engine(device);
    const auto here = vb::memory_region::allocate(domain, 64).value();
    const auto there = vb::memory_region::allocate(domain, 64).value();
    const auto channel = vb::completion_channel::create(device).value();
    const auto by_hand = vb::completion_queue::create(device, 64, {.channel = channel}).value();
    auto left = support::make_pair_end(domain, engine.cq, support::pair_options());
    auto right = support::make_pair_end(domain, by_hand, support::pair_options());
    support::connect(left, right);
    std::array<vb::poll_slot, 4> slots;
    const auto event_is_there = [&] {
        pollfd p{channel.native_handle()->fd, POLLIN, 0};
        return ::poll(&p, 1, 0) == 1;
    };
    for (const bool solicited : {false, true}) {
        right.post(vb::recv_request{there.slice()}, 1).value();
        REQUIRE(ibv_req_notify_cq(by_hand.native_handle(), 1) == 0);
        put_number(here.bytes(), solicited ? 71 : 70);
        engine.reactor.run([&]() -> vb::task<> {
            auto sent = co_await left.send(here.slice(), {.solicited = solicited});
            sent.value();
        }());
        while (solicited && !event_is_there()) {}
        CHECK(event_is_there() == solicited);
        const auto polled = by_hand.poll(slots).value();
        REQUIRE(polled.size() == 1);
        CHECK(polled[0].byte_len() == 64u);
        CHECK(has_number(there.bytes(), solicited ? 71 : 70));
    }
    ibv_cq* which;
    void* context;
    REQUIRE(ibv_get_cq_event(channel.native_handle(), &which, &context) == 0);
    ibv_ack_cq_events(which, 1);
}

TEST_CASE("operations: a fenced send carries what the read before it brought") {
    VERBENA_REQUIRE_DEVICE(device);
    fixture f(device);
    f.run([&]() -> vb::task<> {
        for (std::uint64_t round = 1; round <= 50; ++round) {
            put_number(f.there.bytes().first(4096), round);
            auto [received, read, sent] =
                co_await vb::when_all(f.wire.right.recv(f.there.slice(4096, 4096)),
                                      f.wire.left.read(f.here.slice(0, 4096), f.there.remote(0, 4096)),
                                      f.wire.left.send(f.here.slice(0, 4096), {.fence = true}));
            read.value();
            sent.value();
            CHECK(received.value().byte_len == 4096);
            CHECK(has_number(f.there.bytes().subspan(4096), round));
        }
    }());
}

TEST_CASE("operations: one is awaited again when it has ended, and a copy is as new") {
    VERBENA_REQUIRE_DEVICE(device);
    const auto mode = GENERATE(vb::post_mode::immediate, vb::post_mode::batched);
    CAPTURE(mode == vb::post_mode::batched);
    auto options = support::pair_options(4); // so that every second unsignaled send is signaled by the runtime
    options.post_mode = mode;
    fixture f(device, options);
    f.run([&]() -> vb::task<> {
        auto write = f.wire.left.write(f.here.slice(0, 8), f.there.remote(0, 8));
        auto quiet = f.wire.left.write(f.here.slice(0, 8), f.there.remote(8, 8), {.signaled = false});
        auto chain = f.wire.left.chain(
            vb::write_request{.local = f.here.slice(0, 8), .remote = f.there.remote(16, 8)},
            vb::write_request{.local = f.here.slice(0, 8), .remote = f.there.remote(24, 8), .signaled = false});
        for (std::uint64_t round = 1; round <= 9; ++round) {
            put_number(f.here.bytes().first(8), round);
            (co_await write).value();
            (co_await quiet).value();
            (co_await chain).value();
            CHECK(has_number(f.there.bytes().first(32), round));

            put_number(f.here.bytes().first(8), round + 100);
            auto again = write;
            auto chained = chain;
            auto [first, second, third] = co_await vb::when_all(write, std::move(again), std::move(chained));
            first.value();
            second.value();
            third.value();
            CHECK(number_at(f.there.bytes()) == round + 100);
            CHECK(has_number(f.there.bytes().subspan(16, 16), round + 100));
        }
        // Failures, too, are of one time alone.
        auto refused = f.wire.left.write(f.here.slice(0, 16), f.there.remote(0, 8));
        for (int i = 0; i < 2; ++i) {
            const auto error = (co_await refused).error();
            CHECK(error == vb::errc::invalid_argument);
        }
        auto ended = co_await vb::with_timeout(write, std::chrono::nanoseconds{-1});
        CHECK(ended.error() == vb::errc::timed_out);
        (co_await write).value();
    }());
}

TEST_CASE("operations: awaited from a coroutine type of one's own") {
    VERBENA_REQUIRE_DEVICE(device);
    fixture f(device);
    int ended = 0;
    const auto receive = [&]() -> launched {
        auto received = co_await f.wire.right.recv(f.there.slice(0, 64));
        CHECK(received.value().byte_len == 8);
        CHECK(has_number(f.there.bytes().first(8), 80));
        ++ended;
    };
    const auto transmit = [&]() -> launched {
        put_number(f.here.bytes().first(8), 80);
        auto sent = co_await f.wire.left.send(f.here.slice(0, 8));
        sent.value();
        auto written = co_await f.wire.left.write(f.here.slice(0, 8), f.there.remote(128, 8));
        written.value();
        auto before = co_await f.wire.left.fetch_add(f.here.slice(0, 8), f.there.remote(128, 8), 1);
        CHECK(before.value() == 80);
        auto chained = co_await f.wire.left.chain(vb::read_request{f.here.slice(64, 8), f.there.remote(128, 8)},
                                                  vb::write_request{f.here.slice(0, 8), f.there.remote(136, 8)});
        chained.value();
        CHECK(has_number(f.here.bytes().subspan(64, 8), 81));
        auto flushed = co_await f.wire.left.flushed();
        flushed.value();
        ++ended;
    };
    receive();
    transmit();
    while (ended < 2) f.engine.reactor.poll().value();
    CHECK(f.engine.reactor.stats().outstanding == 0);
}

namespace {

// Every message arrives once, in the order in which the sends were awaited, and the sends end in it.
void many_at_once(fixture& f, std::size_t count) {
    f.run([&]() -> vb::task<> {
        std::vector<std::size_t> sent_order, received_order;
        vb::scope scope;
        for (std::size_t i = 0; i < count; ++i)
            scope.spawn([&, i]() -> vb::task<> {
                auto received = co_await f.wire.right.recv(f.there.slice(i * 64, 64));
                CHECK(received.value().byte_len == 64);
                CHECK(has_number(f.there.bytes().subspan(i * 64, 64), i));
                received_order.push_back(i);
            });
        for (std::size_t i = 0; i < count; ++i)
            scope.spawn([&, i]() -> vb::task<> {
                put_number(f.here.bytes().subspan(i * 64, 64), i);
                auto sent = co_await f.wire.left.send(f.here.slice(i * 64, 64));
                sent.value();
                sent_order.push_back(i);
            });
        co_await scope.join();
        CHECK(sent_order.size() == count);
        CHECK(received_order.size() == count);
        CHECK(std::ranges::is_sorted(sent_order));
        CHECK(std::ranges::is_sorted(received_order));
    }());
}

} // namespace

TEST_CASE("operations: 16 and 64 coroutines on one queue pair") {
    VERBENA_REQUIRE_DEVICE(device);
    for (const std::uint32_t count : {16u, 64u}) {
        fixture f(device, support::pair_options(count));
        many_at_once(f, count);
    }
}

TEST_CASE("operations: more awaiters than room wait in their order") {
    VERBENA_REQUIRE_DEVICE(device);
    for (const auto mode : {vb::post_mode::immediate, vb::post_mode::batched}) {
        auto options = support::pair_options(4);
        options.post_mode = mode;
        fixture f(device, options);
        many_at_once(f, 64);
    }
}

TEST_CASE("operations: a wait for room that is destroyed sends nothing and keeps nobody waiting") {
    VERBENA_REQUIRE_DEVICE(device);
    fixture f(device, support::pair_options(2));
    f.run([&]() -> vb::task<> {
        for (std::uint64_t i = 0; i < 6; ++i) put_number(f.here.bytes().subspan(i * 64, 64), i);
        const auto send = [&](std::size_t i) -> vb::task<> {
            auto sent = co_await f.wire.left.send(f.here.slice(i * 64, 64));
            sent.value();
        };
        vb::scope kept;
        kept.spawn(send(0));
        kept.spawn(send(1));
        {
            vb::scope dropped;
            dropped.spawn(send(2));
            kept.spawn(send(3));
            dropped.spawn(send(4));
        }
        kept.spawn(send(5));
        for (const std::uint64_t number : {0, 1, 3, 5}) {
            auto received = co_await f.wire.right.recv(f.there.slice(0, 64));
            received.value();
            CHECK(has_number(f.there.bytes().first(64), number));
        }
        co_await kept.join();
    }());
}
