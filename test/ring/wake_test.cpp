// Invariant: a `wake` makes the present or the next `wait` return, from any thread, in whatever order it meets parking;
// while nobody is parked it costs no system call.

#include "ring_support.hpp"

#include <atomic>
#include <thread>
#include <vector>

namespace {

#if defined(__SANITIZE_THREAD__)
constexpr unsigned rounds = 5'000;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
constexpr unsigned rounds = 5'000;
#else
constexpr unsigned rounds = 100'000;
#endif
#else
constexpr unsigned rounds = 100'000;
#endif

} // namespace

TEST_CASE("a wake before the wait is kept, and kept once", "[ring]") {
    RING_OR_SKIP(ring);
    settle(*ring);
    const auto before = ring->counters().enters;
    ring->wake();
    ring->wake();
    CHECK_FALSE(ring->pending()); // its eventfd was not written
    CHECK(ring->wait(std::nullopt).value() == 0);
    CHECK(ring->counters().enters == before);
    const auto deadline = now() + 2ms;
    CHECK(ring->wait(deadline).value() == 0);
    CHECK(now() >= deadline);
}

TEST_CASE("no wake from another thread is lost around parking", "[ring]") {
    RING_OR_SKIP(ring, {.first_rung = GENERATE(0u, 2u)});
    const unsigned total = rounds / 2;
    std::atomic<unsigned> posted = 0;
    std::atomic<unsigned> seen = 0;
    std::jthread poster([&] {
        for (unsigned i = 1; i <= total; ++i) {
            posted.store(i, std::memory_order_relaxed);
            ring->wake();
            // Every third round runs ahead, so that wakes meet each other as well as the sleeper.
            while (i % 3 != 0 && seen.load() != i) std::this_thread::yield();
        }
    });
    unsigned got = 0;
    while (got < total) {
        REQUIRE(ring->wait(std::nullopt));
        got = posted.load(std::memory_order_relaxed);
        seen.store(got);
    }
    poster.join();
    CHECK(got == total);
    CHECK(ring->counters().ignored == 0);
}

TEST_CASE("wakes and readiness from several threads all arrive", "[ring]") {
    RING_OR_SKIP(ring);
    counter c;
    REQUIRE(ring->add(c, c.fd.get(), POLLIN));
    constexpr unsigned each = rounds / 20;
    std::atomic<unsigned> posted = 0;
    std::vector<std::jthread> posters;
    for (int i = 0; i < 2; ++i)
        posters.emplace_back([&] {
            for (unsigned n = 0; n < each; ++n) {
                posted.fetch_add(1, std::memory_order_relaxed);
                ring->wake();
            }
        });
    posters.emplace_back([&] {
        for (unsigned n = 0; n < each; ++n) c.fd.signal();
    });
    while (posted.load(std::memory_order_relaxed) < 2 * each || c.taken < each) REQUIRE(ring->wait(std::nullopt));
    CHECK(c.taken == each);
    posters.clear();
    REQUIRE(ring->remove(c));
}

TEST_CASE("an overflow does not make the waker deaf", "[ring]") {
    RING_OR_SKIP(ring, tiny());
    std::vector<counter> counters(16);
    for (auto& c : counters) REQUIRE(ring->add(c, c.fd.get(), POLLIN));
    settle(*ring);
    std::atomic<unsigned> posted = 0;
    std::atomic<unsigned> seen = 0;
    constexpr unsigned total = rounds / 200;
    std::jthread poster([&] {
        for (unsigned i = 1; i <= total; ++i) {
            for (auto& c : counters) c.fd.signal(); // together with the wake: more than the queue holds
            posted.store(i);
            ring->wake();
            while (seen.load() != i) std::this_thread::yield();
        }
    });
    while (seen.load() < total) {
        REQUIRE(ring->wait(std::nullopt));
        seen.store(posted.load());
    }
    poster.join();
    settle(*ring);
    for (auto& c : counters) {
        CHECK(c.taken == total);
        REQUIRE(ring->remove(c));
    }
}
