// The asynchronous events that a device can be made to raise: an overrun ends everybody who waits for its completion
// queue, once, and every reactor that shares the context hears of it, once and in the same order (B32, B37).

#include "by_hand.hpp"
#include "overrun.hpp"

#include "support/deadline.hpp"

#include <latch>
#include <thread>
#include <vector>

using namespace std::chrono_literals;
namespace vb = verbena;

namespace {

using events = std::vector<vb::async_event>;

/// Up to and with the first event of the completion queue with this handle.
vb::task<> take_until(vb::event_stream& stream, std::uint32_t handle, events& into, std::latch* running = nullptr) {
    if (running != nullptr) running->arrive_and_wait();
    for (;;) {
        const auto event = co_await stream.next();
        if (!event) throw std::runtime_error(event.error().message());
        into.push_back(*event);
        if (event->element == vb::async_element::completion_queue && event->number == handle) co_return;
    }
}

} // namespace

TEST_CASE("two reactors on two threads each get every event of their context once") {
    VERBENA_REQUIRE_DEVICE(device);
    const support::deadline limit(60s);
    const auto domain = vb::protection_domain::create(device).value();
    for (int round = 0; round < 5; ++round) {
        const auto first = vb::completion_queue::create(device, 4).value();
        const auto last = vb::completion_queue::create(device, 4).value();
        support::overrunner overrun_first(domain, first, first.capacity() + 8);
        support::overrunner overrun_last(domain, last, last.capacity() + 8);
        std::array<events, 2> seen;
        std::array<std::uint64_t, 2> dropped{};
        {
            // Both watch before there is something to read. Their ends overlap: what one reads for the other may come
            // when that is on its way out.
            std::latch running(3);
            std::vector<std::thread> threads;
            std::array<std::unique_ptr<support::engine>, 2> engines;
            std::vector<vb::event_stream> streams;
            for (auto& engine : engines) {
                engine = std::make_unique<support::engine>(device);
                streams.push_back(engine->reactor.events(device).value());
            }
            for (std::size_t i = 0; i < 2; ++i)
                threads.emplace_back([&, i, stream = std::move(streams[i])]() mutable {
                    engines[i]->reactor.run(take_until(stream, last.native_handle()->handle, seen[i], &running));
                    dropped[i] = stream.dropped();
                    engines[i].reset();
                });
            running.arrive_and_wait();
            overrun_first();
            overrun_last();
            for (auto& thread : threads) thread.join();
        }
        CHECK(dropped == std::array<std::uint64_t, 2>{});
        CHECK(seen[0] == seen[1]);
        REQUIRE(!seen[0].empty());
        CHECK(seen[0].front() == vb::async_event{vb::async_event_kind::completion_queue_error,
                                                 vb::async_element::completion_queue, first.native_handle()->handle});
    }
}

TEST_CASE("an overrun by hand ends everybody who waits for the completion queue, once") {
    VERBENA_REQUIRE_DEVICE(device);
    const support::deadline limit(60s);
    const auto domain = vb::protection_domain::create(device).value();
    support::engine engine(device);
    const auto cq = vb::completion_queue::create(device, 4, {.channel = engine.channel}).value();
    engine.reactor.attach(cq, engine.slots).value();
    auto left = support::make_pair_end(domain, cq, support::pair_options(4));
    auto right = support::make_pair_end(domain, cq, support::pair_options(4));
    support::connect(left, right);
    support::wire spared(domain, engine);
    support::overrunner overrun(domain, cq, cq.capacity() + 8);
    const auto memory = vb::memory_region::allocate(domain, 4096).value();
    auto stream = engine.reactor.events(device).value();

    support::ending_log log, later, others;
    events seen;
    vb::scope scope;
    for (int i = 0; i < 4; ++i) scope.spawn(support::receive(right, memory.slice(0, 64), log));
    scope.spawn(take_until(stream, cq.native_handle()->handle, seen));
    support::some_turns(engine.reactor);
    overrun();
    engine.reactor.run([](vb::scope& s) -> vb::task<> { co_await s.join(); }(scope));
    CHECK(log.successes == 0);
    REQUIRE(log.failures.size() == 4);
    for (const auto& e : log.failures) {
        CHECK(e == vb::errc::connection_reset);
        CHECK(e.root_cause() == vb::errc::queue_failed);
    }
    engine.reactor.run(support::transmit(left, memory.slice(0, 64), later));
    CHECK(later.failures.size() == 1);
    scope.spawn(support::receive(spared.right, memory.slice(64, 64), others));
    scope.spawn(support::transmit(spared.left, memory.slice(0, 64), others));
    engine.reactor.run([](vb::scope& s) -> vb::task<> { co_await s.join(); }(scope));
    CHECK(others.successes == 2);
    CHECK(engine.reactor.stats().outstanding == 0);
}
