// Invariant: `wait` is over once its deadline has passed, whatever timeout an earlier wait has left in the ring; there
// is one such timeout at most; a signal ends a wait without harm (B54).

#include "ring_support.hpp"

#include <atomic>
#include <csignal>
#include <ctime>
#include <thread>

#include <sys/syscall.h>

namespace {

/// Waits until the deadline is over; answers how often it had to: not at all if this thread was held up.
unsigned waits(wait_backend& backend, time_point deadline) {
    unsigned count = 0;
    for (; now() < deadline; ++count) CHECK(backend.wait(deadline).value() == 0);
    return count;
}

/// Leaves a timeout in the ring.
void leave(wait_backend& backend, time_point deadline) {
    backend.wake();
    CHECK(backend.wait(deadline).value() == 0);
    settle(backend);
}

std::atomic<unsigned> signals = 0;

/// Interrupts this thread a thousand times a second.
class interruptions {
  public:
    interruptions() {
        struct sigaction action{};
        action.sa_handler = [](int) { signals.fetch_add(1, std::memory_order_relaxed); };
        sigaction(SIGPROF, &action, &before_);
        sigevent event{};
        event.sigev_notify = SIGEV_THREAD_ID;
        event.sigev_signo = SIGPROF;
        event._sigev_un._tid = static_cast<pid_t>(syscall(SYS_gettid));
        if (timer_create(CLOCK_MONOTONIC, &event, &timer_) != 0) throw std::system_error(errno, std::system_category());
        const itimerspec every{{0, 1'000'000}, {0, 1'000'000}};
        timer_settime(timer_, 0, &every, nullptr);
    }
    ~interruptions() {
        timer_delete(timer_);
        sigaction(SIGPROF, &before_, nullptr);
    }

  private:
    timer_t timer_{};
    struct sigaction before_{};
};

} // namespace

TEST_CASE("a wait ends with its deadline", "[backend]") {
    BACKEND_OR_SKIP(backend, EVERY_BACKEND);
    for (int i = 0; i < 3; ++i) CHECK(waits(*backend, now() + 3ms) <= 1);
    CHECK(backend->wait(now()).value() == 0);
    CHECK(backend->wait(now() - 1h).value() == 0);
    CHECK(backend->wait(time_point::min()).value() == 0);
}

TEST_CASE("an earlier deadline than the one in the ring is kept", "[backend]") {
    BACKEND_OR_SKIP(backend, EVERY_BACKEND);
    leave(*backend, time_point::max());
    leave(*backend, now() + 1h);
    CHECK(waits(*backend, now() + 3ms) <= 1);
    CHECK(waits(*backend, now() + 3ms) <= 1);
}

TEST_CASE("an earlier timeout left in the ring costs one early return", "[backend]") {
    BACKEND_OR_SKIP(backend, EVERY_BACKEND);
    leave(*backend, now() + 3ms);
    CHECK(waits(*backend, now() + 30ms) <= 2);
    CHECK(waits(*backend, now() + 3ms) <= 2);
}

TEST_CASE("a thousand deadlines leave one timeout", "[backend]") {
    BACKEND_OR_SKIP(backend, EVERY_BACKEND);
    const auto base = now() + 20ms;
    for (int i = 0; i < 1000; ++i) leave(*backend, base + std::chrono::microseconds{i % 2 == 0 ? 1000 - i : 1000 + i});
    CHECK(waits(*backend, now() + 60ms) <= 2);
}

TEST_CASE("a timeout that expires unobserved is no harm", "[backend]") {
    BACKEND_OR_SKIP(backend, EVERY_BACKEND);
    const auto deadline = now() + 1ms;
    leave(*backend, deadline);
    while (!backend->pending() && now() < deadline + 10ms) std::this_thread::yield(); // or `leave` was slow and took it
    CHECK(settle(*backend) == 0);
    CHECK(waits(*backend, now() + 3ms) <= 2);
}

TEST_CASE("signals end waits and lose nothing", "[backend]") {
    BACKEND_OR_SKIP(backend, EVERY_BACKEND);
    signals = 0;
    interruptions running;
    for (int i = 0; i < 10; ++i) waits(*backend, now() + 5ms);
    CHECK(signals.load() > 0);

    counter c;
    REQUIRE(backend->add(c, c.fd.get(), POLLIN));
    std::atomic<unsigned> seen = 0;
    constexpr unsigned total = 1'000;
    std::jthread writer([&] {
        for (unsigned i = 1; i <= total; ++i) {
            c.fd.signal();
            while (seen.load() != i) std::this_thread::yield();
        }
    });
    while (c.taken < total) {
        REQUIRE(backend->wait(now() + 1h));
        seen.store(static_cast<unsigned>(c.taken));
    }
    writer.join();
    for (int i = 0; i < 1'000; ++i) {
        REQUIRE(backend->remove(c));
        c.fd.signal();
        REQUIRE(backend->add(c, c.fd.get(), POLLIN));
        REQUIRE(settle(*backend) == 1);
    }
    CHECK(c.taken == 2 * total);
    REQUIRE(backend->remove(c));
}
