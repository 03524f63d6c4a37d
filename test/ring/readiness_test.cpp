// Invariant: every occurrence on a watched descriptor is reported, on each rung of the ring's flags, although the
// kernel ends a multishot poll when the completion queue overflows, and keeps completions back until it is entered.

#include "ring_support.hpp"

#include <vector>

#include <fcntl.h>
#include <sys/socket.h>

TEST_CASE("what is there when a watch is added is reported, then each new occurrence", "[ring]") {
    const unsigned rung = GENERATE(0u, 1u, 2u);
    RING_OR_SKIP(ring, {.first_rung = rung});
    counter c;
    c.fd.signal();
    REQUIRE(ring->add(c, c.fd.get(), POLLIN));
    CHECK(settle(*ring) == 1);
    CHECK(c.taken == 1);
    CHECK(c.events == POLLIN);
    for (unsigned i = 2; i < 12; ++i) {
        c.fd.signal();
        CHECK(settle(*ring) == 1);
        CHECK(c.taken == i);
    }
    CHECK(ring->counters().rearmed == 0);
    REQUIRE(ring->remove(c));
}

TEST_CASE("readiness shows without a system call, and an idle look makes none", "[ring]") {
    const unsigned rung = GENERATE(0u, 1u, 2u);
    RING_OR_SKIP(ring, {.first_rung = rung});
    counter c;
    REQUIRE(ring->add(c, c.fd.get(), POLLIN));
    CHECK(ring->pending()); // the registration is to be submitted
    settle(*ring);
    const auto before = ring->counters().enters;
    CHECK_FALSE(ring->pending());
    CHECK(ring->collect(all) == 0);
    CHECK(ring->counters().enters == before);
    c.fd.signal();
    CHECK(ring->pending());
    CHECK(ring->counters().enters == before);
    CHECK(ring->collect(all) == 1);
    CHECK(ring->counters().enters <= before + 1);
    CHECK_FALSE(ring->pending());
    REQUIRE(ring->remove(c));
}

TEST_CASE("sleeping and waking take one entry into the kernel", "[ring]") {
    RING_OR_SKIP(ring);
    counter c;
    REQUIRE(ring->add(c, c.fd.get(), POLLIN));
    settle(*ring);
    const auto before = ring->counters().enters;
    c.fd.signal();
    static_cast<void>(ring->collect(0)); // takes the completion in, tells nobody
    CHECK(ring->counters().enters == before + 1);
    CHECK(ring->wait(std::nullopt).value() == 1);
    CHECK(ring->counters().enters == before + 1);
    ring->wake();
    CHECK(ring->wait(std::nullopt).value() == 0);
    CHECK(ring->counters().enters == before + 1);
    CHECK(ring->wait(now() + 1ms).value() == 0);
    CHECK(ring->counters().enters == before + 2);
    REQUIRE(ring->remove(c));
}

TEST_CASE("a poll that the kernel ended is armed again", "[ring]") {
    const unsigned rung = GENERATE(0u, 1u, 2u);
    RING_OR_SKIP(ring, tiny(rung));
    std::vector<counter> counters(16);
    for (auto& c : counters) REQUIRE(ring->add(c, c.fd.get(), POLLIN));
    settle(*ring);
    for (unsigned round = 1; round <= 20; ++round) {
        for (auto& c : counters) c.fd.signal();
        settle(*ring);
        for (auto& c : counters) REQUIRE(c.taken == round);
    }
    CHECK(ring->counters().rearmed > 0);
    CHECK(ring->counters().ignored == 0);
    for (auto& c : counters) REQUIRE(ring->remove(c));
}

TEST_CASE("a full house on a small ring is reported in one turn", "[ring]") {
    const unsigned rung = GENERATE(0u, 1u, 2u);
    const bool waits = GENERATE(false, true);
    RING_OR_SKIP(ring, {.entries = 8, .cq_entries = 8, .first_rung = rung});
    std::vector<counter> counters(64);
    for (auto& c : counters) REQUIRE(ring->add(c, c.fd.get(), POLLIN));
    settle(*ring);
    for (auto& c : counters) c.fd.signal();
    CHECK((waits ? ring->wait(std::nullopt).value() : ring->collect(all)) == 64);
    for (auto& c : counters) CHECK(c.taken == 1);
    for (auto& c : counters) REQUIRE(ring->remove(c));
}

TEST_CASE("a budget delays and never repeats", "[ring]") {
    RING_OR_SKIP(ring);
    std::vector<counter> counters(10);
    for (auto& c : counters) REQUIRE(ring->add(c, c.fd.get(), POLLIN));
    settle(*ring);
    for (auto& c : counters) c.fd.signal();
    for (const unsigned expected : {3u, 3u, 3u, 1u}) {
        CHECK(ring->pending());
        CHECK(ring->collect(3) == expected);
    }
    CHECK_FALSE(ring->pending());
    for (auto& c : counters) CHECK(c.calls == 1);
    for (auto& c : counters) REQUIRE(ring->remove(c));
}

TEST_CASE("receivers that take nothing do not hold a turn", "[ring]") {
    RING_OR_SKIP(ring, tiny());
    std::vector<event_fd> fds(16);
    std::vector<recorder> watches(16);
    for (std::size_t i = 0; i < fds.size(); ++i) {
        fds[i].signal();
        REQUIRE(ring->add(watches[i], fds[i].get(), POLLIN));
    }
    for (int turn = 0; turn < 10; ++turn) CHECK(ring->collect(all) <= 17);
    for (auto& w : watches) CHECK(w.calls > 0);
    for (int turn = 0; turn < 10; ++turn) CHECK(ring->wait(now()).value() <= 17);
    for (auto& w : watches) REQUIRE(ring->remove(w));
}

TEST_CASE("watches that add themselves anew do not hold a turn", "[ring]") {
    RING_OR_SKIP(ring);
    event_fd fd;
    fd.signal();
    std::vector<recorder> watches(2);
    for (auto& w : watches) {
        w.then = [&] { // its removal submits what the other has added
            CHECK(ring->remove(w));
            CHECK(ring->add(w, fd.get(), POLLIN));
        };
        REQUIRE(ring->add(w, fd.get(), POLLIN));
    }
    for (int turn = 0; turn < 3; ++turn) CHECK(ring->wait(now() + 1h).value() <= 3);
    for (auto& w : watches) CHECK(w.calls > 0);
    for (auto& w : watches) REQUIRE(ring->remove(w));
}

TEST_CASE("the bits of an end and of an error pass through", "[ring]") {
    RING_OR_SKIP(ring);
    pipe_ends ends;
    int pair[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    descriptor near{pair[0]};
    descriptor far{pair[1]};
    recorder reader, writer, socket;
    REQUIRE(ring->add(reader, ends.reader.get(), POLLIN));
    REQUIRE(ring->add(socket, near.get(), POLLIN));
    CHECK(settle(*ring) == 0);
    far.close();
    ends.writer.close();
    CHECK(settle(*ring) == 2);
    CHECK((reader.events & POLLHUP) != 0);
    CHECK((socket.events & POLLRDHUP) != 0);
    REQUIRE(ring->remove(reader));
    REQUIRE(ring->remove(socket));
}

TEST_CASE("a descriptor that cannot be watched says so once", "[ring]") {
    RING_OR_SKIP(ring);
    recorder closed, unpollable;
    const int closed_fd = event_fd{}.get();
    descriptor file{::open("/proc/self/stat", O_PATH | O_CLOEXEC)};
    REQUIRE(ring->add(closed, closed_fd, POLLIN));
    REQUIRE(ring->add(unpollable, file.get(), POLLIN));
    CHECK(settle(*ring) == 2);
    CHECK(closed.events == (POLLERR | POLLNVAL));
    CHECK((unpollable.events & POLLERR) != 0);
    CHECK(settle(*ring) == 0);
    REQUIRE(ring->remove(closed));
    REQUIRE(ring->remove(unpollable));
    CHECK(settle(*ring) == 0);
}

TEST_CASE("a watch is added once, a descriptor as often as one likes", "[ring]") {
    RING_OR_SKIP(ring);
    event_fd fd;
    recorder one, two;
    REQUIRE(ring->add(one, fd.get(), POLLIN));
    CHECK(ring->add(one, fd.get(), POLLIN).error() == errc::in_use);
    REQUIRE(ring->add(two, fd.get(), POLLIN));
    settle(*ring);
    fd.signal();
    CHECK(settle(*ring) == 2);
    REQUIRE(ring->remove(one));
    fd.signal();
    CHECK(settle(*ring) == 1);
    CHECK(one.calls == 1);
    CHECK(two.calls == 2);
    REQUIRE(ring->remove(two));
}
