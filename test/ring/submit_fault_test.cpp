// Invariant: a submit that takes a part (B54), that is refused for a backlog or interrupted, or that reports dropped
// completions delays registrations and loses none. The function of liburing is replaced to say so; this needs liburing
// as a shared library.

#include "ring_support.hpp"

#include <algorithm>
#include <vector>

#include <dlfcn.h>
#include <liburing.h>

namespace {

enum class fault { none, part, busy, interrupted, dropped };
fault next_fault = fault::none;

template <class Function>
Function* genuine(const char* name) {
    return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

int with_fault(io_uring* ring, int (*proceed)(io_uring*, unsigned), unsigned wait_for) {
    switch (std::exchange(next_fault, fault::none)) {
    case fault::none: break;
    case fault::part: {
        const unsigned tail = ring->sq.sqe_tail;
        ring->sq.sqe_tail = ring->sq.sqe_head + std::min(3u, tail - ring->sq.sqe_head);
        const int answer = io_uring_submit(ring);
        ring->sq.sqe_tail = tail;
        return answer;
    }
    case fault::busy: return -EBUSY;
    case fault::interrupted: return -EINTR;
    case fault::dropped:
        proceed(ring, 0);
        for (unsigned n = io_uring_cq_ready(ring); n != 0; n = 0) io_uring_cq_advance(ring, n);
        return -EBADR;
    }
    return proceed(ring, wait_for);
}

} // namespace

extern "C" int io_uring_submit_and_wait(io_uring* ring, unsigned wait_for) {
    static auto* const proceed = genuine<int(io_uring*, unsigned)>("io_uring_submit_and_wait");
    return with_fault(ring, proceed, wait_for);
}

extern "C" int io_uring_submit_and_get_events(io_uring* ring) {
    static auto* const proceed = genuine<int(io_uring*)>("io_uring_submit_and_get_events");
    return with_fault(ring, [](io_uring* r, unsigned) { return proceed(r); }, 0);
}

TEST_CASE("what a faulty submit leaves behind is submitted later", "[ring]") {
    const auto planted = GENERATE(fault::part, fault::busy, fault::interrupted, fault::dropped);
    const unsigned rung = GENERATE(0u, 1u, 2u);
    RING_OR_SKIP(ring, {.first_rung = rung});
    settle(*ring);
    std::vector<counter> counters(8);
    for (auto& c : counters) {
        c.fd.signal();
        REQUIRE(ring->add(c, c.fd.get(), POLLIN));
    }
    next_fault = planted;
    REQUIRE(ring->wait(now() + 1h));
    CHECK(next_fault == fault::none);
    settle(*ring);
    for (auto& c : counters) CHECK(c.taken == 1);

    for (auto& c : counters) c.fd.signal();
    next_fault = planted;
    settle(*ring);
    next_fault = fault::none;
    for (auto& c : counters) CHECK(c.taken == 2);

    next_fault = planted;
    for (auto& c : counters) REQUIRE(ring->remove(c));
    next_fault = fault::none;
    for (auto& c : counters) c.fd.signal();
    settle(*ring);
    for (auto& c : counters) CHECK(c.taken == 2);
}

TEST_CASE("watches work on after completions were dropped", "[ring]") {
    RING_OR_SKIP(ring, {.first_rung = GENERATE(0u, 1u, 2u)});
    std::vector<counter> counters(8);
    for (auto& c : counters) REQUIRE(ring->add(c, c.fd.get(), POLLIN));
    settle(*ring);
    counter extra; // something to submit, so that the turn goes through the faulty call
    for (auto& c : counters) c.fd.signal();
    REQUIRE(ring->add(extra, extra.fd.get(), POLLIN));
    next_fault = fault::dropped;
    settle(*ring);
    CHECK(next_fault == fault::none);
    CHECK(ring->counters().losses == 1);
    for (auto& c : counters) CHECK(c.taken == 1);
    for (auto& c : counters) c.fd.signal();
    settle(*ring);
    for (auto& c : counters) CHECK(c.taken == 2);
    ring->wake();
    CHECK(ring->wait(std::nullopt).value() == 0);
    const auto deadline = now() + 3ms;
    while (now() < deadline) CHECK(ring->wait(deadline).value() == 0);
    for (auto& c : counters) REQUIRE(ring->remove(c));
    REQUIRE(ring->remove(extra));
}
