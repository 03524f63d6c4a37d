// Invariant: a `wake` makes the present or the next `wait` return, from any thread, in whatever order it meets parking;
// while nobody is parked it costs no system call. An overflow of the ring does not make it deaf (B09, B25).

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

TEST_CASE("a wake before the wait is kept, and kept once", "[backend]") {
    BACKEND_OR_SKIP(backend, EVERY_BACKEND);
    settle(*backend);
    const auto before = backend->counters().enters;
    backend->wake();
    backend->wake();
    CHECK_FALSE(backend->pending()); // its eventfd was not written
    CHECK(backend->wait(std::nullopt).value() == 0);
    CHECK(backend->counters().enters == before);
    const auto deadline = now() + 2ms;
    CHECK(backend->wait(deadline).value() == 0);
    CHECK(now() >= deadline);
}

TEST_CASE("no wake from another thread is lost around parking", "[backend]") {
    BACKEND_OR_SKIP(backend, EVERY_BACKEND);
    const unsigned total = rounds / 2;
    std::atomic<unsigned> posted = 0;
    std::atomic<unsigned> seen = 0;
    std::jthread poster([&] {
        for (unsigned i = 1; i <= total; ++i) {
            posted.store(i, std::memory_order_relaxed);
            backend->wake();
            // Every third round runs ahead, so that wakes meet each other as well as the sleeper.
            while (i % 3 != 0 && seen.load() != i) std::this_thread::yield();
        }
    });
    unsigned got = 0;
    while (got < total) {
        REQUIRE(backend->wait(std::nullopt));
        got = posted.load(std::memory_order_relaxed);
        seen.store(got);
    }
    poster.join();
    CHECK(got == total);
    CHECK(backend->counters().ignored == 0);
}

TEST_CASE("wakes and readiness from several threads all arrive", "[backend]") {
    BACKEND_OR_SKIP(backend, EVERY_BACKEND);
    counter c;
    REQUIRE(backend->add(c, c.fd.get(), POLLIN));
    constexpr unsigned each = rounds / 20;
    std::atomic<unsigned> posted = 0;
    std::vector<std::jthread> posters;
    for (int i = 0; i < 2; ++i)
        posters.emplace_back([&] {
            for (unsigned n = 0; n < each; ++n) {
                posted.fetch_add(1, std::memory_order_relaxed);
                backend->wake();
            }
        });
    posters.emplace_back([&] {
        for (unsigned n = 0; n < each; ++n) c.fd.signal();
    });
    while (posted.load(std::memory_order_relaxed) < 2 * each || c.taken < each) REQUIRE(backend->wait(std::nullopt));
    CHECK(c.taken == each);
    posters.clear();
    REQUIRE(backend->remove(c));
}

TEST_CASE("an overflow does not make the waker deaf", "[backend]") {
    BACKEND_OR_SKIP(backend, EVERY_BACKEND, tiny());
    std::vector<counter> counters(16);
    for (auto& c : counters) REQUIRE(backend->add(c, c.fd.get(), POLLIN));
    settle(*backend);
    std::atomic<unsigned> posted = 0;
    std::atomic<unsigned> seen = 0;
    constexpr unsigned total = rounds / 200;
    std::jthread poster([&] {
        for (unsigned i = 1; i <= total; ++i) {
            for (auto& c : counters) c.fd.signal(); // together with the wake: more than the queue holds
            posted.store(i);
            backend->wake();
            while (seen.load() != i) std::this_thread::yield();
        }
    });
    while (seen.load() < total) {
        REQUIRE(backend->wait(std::nullopt));
        seen.store(posted.load());
    }
    poster.join();
    settle(*backend);
    for (auto& c : counters) {
        CHECK(c.taken == total);
        REQUIRE(backend->remove(c));
    }
}
