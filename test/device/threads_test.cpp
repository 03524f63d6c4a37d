// What other threads post is called on the reactor's thread, in the order of each poster, all of it, however the
// reactor is just about to fall asleep. A reactor belongs to the thread that runs it, not to its maker (B24).

#include "by_hand.hpp"

#include "support/deadline.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace vb = verbena;
using namespace std::chrono_literals;

TEST_CASE("functions posted from other threads while the reactor parks without any deadline") {
    const support::deadline allow(600s);
    for (const auto policy : {vb::wait_policy::park_at_once(), vb::wait_policy::spin_then_park(5us)}) {
        constexpr std::size_t posters = 2;
        const auto count = support::rounds(10'000);
        vb::reactor reactor({.wait = policy, .safety_repoll = 0ms});
        std::array<std::uint64_t, posters> called{};
        std::array<std::atomic<std::uint64_t>, posters> seen{};
        unsigned wrong = 0;
        std::size_t ended = 0;
        vb::event done;
        const auto runner = std::this_thread::get_id();
        std::vector<std::thread> threads;
        for (std::size_t who = 0; who < posters; ++who)
            threads.emplace_back([&, who] {
                for (std::uint64_t i = 0; i < count; ++i) {
                    reactor.post([&, who, i] {
                        if (called[who] != i || std::this_thread::get_id() != runner) ++wrong;
                        if (++called[who] == count && ++ended == posters) done.set();
                        seen[who].store(i + 1);
                        seen[who].notify_one();
                    });
                    // One waits for each call and the other for some, so that the reactor is about to sleep when the
                    // next comes.
                    if (who == 0 || i % 64 == 0)
                        for (auto at = seen[who].load(); at != i + 1; at = seen[who].load()) seen[who].wait(at);
                }
            });
        reactor.run([](vb::event& e) -> vb::task<> { co_await e.wait(); }(done));
        for (auto& thread : threads) thread.join();
        CHECK(wrong == 0);
        for (const auto number : called) CHECK(number == count);
        CHECK(reactor.stats().parks > 0);
    }
}

TEST_CASE("a reactor made on one thread, run on another, and destroyed there") {
    VERBENA_REQUIRE_DEVICE(device);
    const auto domain = vb::protection_domain::create(device).value();
    auto engine = std::make_unique<support::engine>(device);
    auto wire = std::make_unique<support::wire>(domain, *engine);
    const auto memory = vb::memory_region::allocate(domain, 4096).value();
    support::ending_log log;
    auto scope = std::make_unique<vb::scope>();
    scope->spawn(support::receive(wire->right, memory.slice(0, 64), log)); // posted before the thread is there
    scope->spawn(support::transmit(wire->left, memory.slice(64, 64), log));
    std::thread([&] {
        engine->reactor.run([](vb::scope& s) -> vb::task<> { co_await s.join(); }(*scope));
        scope.reset();
        wire.reset();
        engine.reset();
    }).join();
    CHECK(log.successes == 2);
}
