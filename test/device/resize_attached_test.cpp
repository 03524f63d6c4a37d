// A completion queue may be resized while its reactor works on it, and may be shared with queue pairs posted to by
// hand: every completion reaches whom it belongs to, once.

#include "rig.hpp"

#include "support/deadline.hpp"

#include <vector>

namespace vb = verbena;
using namespace std::chrono_literals;
using support::has_number;
using support::put_number;

TEST_CASE("attached queue: resized up and down under load") {
    VERBENA_REQUIRE_DEVICE(device);
    const support::deadline allow(300s);
    const auto domain = vb::protection_domain::create(device).value();
    support::engine engine(device);
    {
        const auto tried = engine.cq.resize(engine.cq.capacity());
        if (!tried && tried.error() == vb::errc::unsupported) VERBENA_SKIP(tried.error().message());
    }
    const auto here = vb::memory_region::allocate(domain, 4096).value();
    support::wire wire(domain, engine, support::pair_options(32));
    const support::state_printer state([&] { return support::describe(engine.reactor.stats()); });
    engine.reactor.run([&]() -> vb::task<> {
        auto inbox = vb::receiver::create(wire.right, {.message_bytes = 64}).value();
        bool sending = true;
        int active = 0;
        std::vector<int> seen(16 * 300);
        vb::scope scope;
        for (std::uint64_t i = 0; i < 16; ++i)
            scope.spawn([&, i]() -> vb::task<> {
                ++active;
                const auto mine = here.slice(i * 64, 64);
                for (std::uint64_t k = 0; k < 300; ++k) {
                    put_number(mine.bytes(), i * 300 + k);
                    auto sent = co_await wire.left.send(mine);
                    sent.value();
                }
                if (--active == 0) sending = false;
            });
        scope.spawn([&]() -> vb::task<> {
            for (std::size_t n = 0; n < seen.size(); ++n) {
                auto message = co_await inbox.next();
                std::uint64_t number;
                std::memcpy(&number, message.value().bytes().bytes().data(), sizeof number);
                ++seen.at(number);
                if (!has_number(message->bytes().bytes(), number)) throw std::runtime_error("a torn message");
            }
        });
        constexpr std::array capacities{512, 128, 1024, 200, 300, 4000};
        std::size_t next = 0;
        while (sending) {
            engine.cq.resize(static_cast<std::size_t>(capacities[next++ % capacities.size()])).value();
            CHECK(engine.cq.resize(127).error() == vb::errc::in_use); // two queue pairs of 32 + 32
            const auto until = engine.reactor.stats().turns + 1;
            while (engine.reactor.stats().turns < until) co_await engine.reactor.yield();
        }
        co_await scope.join();
        CHECK(std::ranges::all_of(seen, [](int n) { return n == 1; }));

        // Parked in between: the arm is made anew.
        for (std::uint64_t i = 0; i < 10; ++i) {
            co_await engine.reactor.sleep_for(1ms);
            engine.cq.resize(i % 2 == 0 ? 2000 : 128).value();
            co_await engine.reactor.sleep_for(1ms);
            put_number(here.bytes().first(64), i);
            auto sent = co_await wire.left.send(here.slice(0, 64));
            sent.value();
            auto message = co_await inbox.next();
            CHECK(has_number(message.value().bytes().bytes(), i));
        }
    }());
    CHECK(engine.reactor.stats().rescued == 0);
    CHECK(engine.reactor.stats().stale == 0);
}

TEST_CASE("attached queue: hand-posted queue pairs get exactly their completions") {
    VERBENA_REQUIRE_DEVICE(device);
    const support::deadline allow(300s);
    const auto domain = vb::protection_domain::create(device).value();
    const auto memory = vb::memory_region::allocate(domain, 4096).value();
    std::array<vb::poll_slot, 16> slots;
    vb::reactor reactor({.wait = vb::wait_policy::park_at_once(), .safety_repoll = 0ms});
    const auto channel = vb::completion_channel::create(device).value();
    const auto cq = vb::completion_queue::create(device, 256, {.channel = channel}).value();
    std::vector<vb::work_completion> foreign;
    reactor.attach(cq, slots, {.foreign = [&](const vb::work_completion& c) { foreign.push_back(c); }}).value();
    const auto make = [&] { return support::make_pair_end(domain, cq, support::pair_options()); };
    auto left = make(), right = make(), hand_left = make(), hand_right = make();
    support::connect(left, right);
    support::connect(hand_left, hand_right);

    int anything = 0;
    const std::array<std::uint64_t, 9> ids{0,
                                           1,
                                           2,
                                           1023,
                                           reinterpret_cast<std::uintptr_t>(&anything),
                                           reinterpret_cast<std::uintptr_t>(memory.bytes().data()),
                                           std::uint64_t{1} << 47,
                                           ~std::uint64_t{0} - 1,
                                           ~std::uint64_t{0}};
    reactor.run([&]() -> vb::task<> {
        auto inbox = vb::receiver::create(right, {.message_bytes = 64}).value();
        vb::scope scope;
        scope.spawn([&]() -> vb::task<> {
            for (std::uint64_t i = 0; i < 200; ++i) {
                put_number(memory.bytes().first(64), i);
                auto sent = co_await left.send(memory.slice(0, 64));
                sent.value();
                auto message = co_await inbox.next();
                CHECK(has_number(message.value().bytes().bytes(), i));
            }
        });
        for (std::uint64_t round = 0; round < 10; ++round) {
            for (std::size_t i = 0; i < ids.size(); ++i) {
                hand_right.post(vb::recv_request{memory.slice(1024 + i * 64, 64)}, ids[i]).value();
                put_number(memory.bytes().subspan(2048 + i * 64, 64), round * 100 + i);
                hand_left.post(vb::send_request{memory.slice(2048 + i * 64, 64)}, ids[i]).value();
            }
            while (foreign.size() < (round + 1) * 2 * ids.size()) co_await reactor.yield();
            for (std::size_t i = 0; i < ids.size(); ++i)
                CHECK(has_number(memory.bytes().subspan(1024 + i * 64, 64), round * 100 + i));
        }
        co_await scope.join();
        auto awaited = co_await hand_left.send(memory.slice(0, 64));
        REQUIRE(!awaited.has_value());
        CHECK(awaited.error() == vb::errc::in_use);
        CHECK(left.post(vb::send_request{memory.slice(0, 64)}, 0).error() == vb::errc::in_use);
    }());
    CHECK(foreign.size() == 20 * ids.size());
    for (const bool receives : {false, true}) {
        std::vector<std::uint64_t> got, wanted;
        for (const auto& c : foreign) {
            CHECK(c.ok());
            CHECK(c.qp_num() == (c.is_receive() ? hand_right : hand_left).qp_num());
            if (c.is_receive() == receives) got.push_back(c.wr_id());
        }
        for (int round = 0; round < 10; ++round) wanted.insert(wanted.end(), ids.begin(), ids.end());
        CHECK(got == wanted);
    }
    CHECK(reactor.stats().foreign == foreign.size());
    CHECK(reactor.stats().stale == 0);
}

TEST_CASE("attached queue: without a taker foreign completions are counted and dropped") {
    VERBENA_REQUIRE_DEVICE(device);
    const auto domain = vb::protection_domain::create(device).value();
    support::engine engine(device);
    const auto memory = vb::memory_region::allocate(domain, 128).value();
    support::wire wire(domain, engine);
    wire.right.post(vb::recv_request{memory.slice(64, 64)}, 7).value();
    put_number(memory.bytes().first(64), 5);
    wire.left.post(vb::send_request{memory.slice(0, 64)}, 8).value();
    while (engine.reactor.stats().foreign < 2) engine.reactor.poll().value();
    CHECK(has_number(memory.bytes().subspan(64), 5));
}

TEST_CASE("a queue polled by hand needs no reactor") {
    VERBENA_REQUIRE_DEVICE(device);
    const auto domain = vb::protection_domain::create(device).value();
    const auto cq = vb::completion_queue::create(device, 64).value();
    const auto memory =
        vb::memory_region::allocate(domain, 256, vb::access_flags::local_write | vb::access_flags::remote_write)
            .value();
    auto left = support::make_pair_end(domain, cq, support::pair_options());
    auto right = support::make_pair_end(domain, cq, support::pair_options());
    CHECK(left.post(vb::send_request{memory.slice(0, 64)}, 1).error() == vb::errc::not_connected);
    right.post(vb::recv_request{memory.slice(64, 64)}, 10).value();
    right.post(vb::recv_request{memory.slice(128, 64)}, 11).value();
    support::connect(left, right);
    put_number(memory.bytes().first(64), 33);
    left.post(vb::send_request{memory.slice(0, 64)}, 20).value();
    left.post(vb::write_request{.local = memory.slice(0, 64), .remote = memory.remote(192, 64), .immediate = 77}, 21)
        .value();
    std::array<vb::poll_slot, 2> slots;
    std::vector<std::uint64_t> sends, receives;
    while (sends.size() + receives.size() < 4)
        for (const auto completion : cq.poll(slots).value()) {
            REQUIRE(completion.ok());
            (completion.is_receive() ? receives : sends).push_back(completion.wr_id());
            if (completion.wr_id() == 10) CHECK(completion.byte_len() == 64u);
            if (completion.wr_id() == 11) CHECK(completion.immediate() == 77u);
        }
    CHECK(sends == std::vector<std::uint64_t>{20, 21});
    CHECK(receives == std::vector<std::uint64_t>{10, 11});
    CHECK(has_number(memory.bytes().subspan(64, 64), 33));
    CHECK(has_number(memory.bytes().subspan(192, 64), 33));

    // Nobody awaits on a queue that no reactor has.
    vb::reactor reactor;
    const auto fresh = vb::completion_queue::create(device, 64).value();
    auto loose = support::make_pair_end(domain, fresh, support::pair_options());
    reactor.run([&]() -> vb::task<> {
        auto received = co_await loose.recv(memory.slice(0, 64));
        REQUIRE(!received.has_value());
        CHECK(received.error() == vb::errc::not_attached);
    }());
}
