// Invariant: every occurrence on a watched descriptor is reported, by epoll(7) and on each rung of the ring's flags,
// although the kernel ends a multishot poll when the completion queue overflows (B09, B25), and keeps completions back
// until it is entered (B23). The end of a descriptor, which lasts, is reported once (B08).

#include "ring_support.hpp"

#include <vector>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>

namespace {

class descriptor_limit {
  public:
    explicit descriptor_limit(rlim_t limit) {
        getrlimit(RLIMIT_NOFILE, &before_);
        const rlimit wanted{limit, before_.rlim_max};
        if (setrlimit(RLIMIT_NOFILE, &wanted) != 0) throw std::system_error(errno, std::system_category());
    }
    ~descriptor_limit() { setrlimit(RLIMIT_NOFILE, &before_); }

  private:
    rlimit before_{};
};

} // namespace

TEST_CASE("what is there when a watch is added is reported, then each new occurrence", "[backend]") {
    BACKEND_OR_SKIP(backend, EVERY_BACKEND);
    counter c;
    c.fd.signal();
    REQUIRE(backend->add(c, c.fd.get(), POLLIN));
    CHECK(settle(*backend) == 1);
    CHECK(c.taken == 1);
    CHECK(c.events == POLLIN);
    for (unsigned i = 2; i < 12; ++i) {
        c.fd.signal();
        CHECK(settle(*backend) == 1);
        CHECK(c.taken == i);
    }
    CHECK(backend->counters().rearmed == 0);
    REQUIRE(backend->remove(c));
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

TEST_CASE("without a ring every so many busy turns look, and the next one does after an addition", "[backend]") {
    auto backend = make_backend(by_epoll).value();
    CHECK(backend->pending()); // the waker
    settle(*backend);
    counter c;
    REQUIRE(backend->add(c, c.fd.get(), POLLIN));
    CHECK(backend->pending());
    CHECK(backend->collect(all) == 0);
    for (const unsigned round : {1u, 2u, 3u}) {
        const auto before = backend->counters().enters;
        c.fd.signal();
        for (unsigned turn = 1; turn < epoll_look_every; ++turn) CHECK_FALSE(backend->pending());
        CHECK(backend->counters().enters == before);
        CHECK(backend->pending());
        CHECK(backend->pending()); // until somebody looks
        CHECK(backend->collect(all) == 1);
        CHECK(backend->counters().enters == before + 1);
        CHECK(c.taken == round);
    }
    REQUIRE(backend->remove(c));
}

TEST_CASE("what a receiver leaves is not lost when it is told of more, and starves nobody", "[backend]") {
    BACKEND_OR_SKIP(backend, EVERY_BACKEND);
    // As a channel with events for queues that nobody expects: one is taken at each call.
    event_fd slow{EFD_SEMAPHORE};
    counter quick;
    recorder taker;
    unsigned taken = 0;
    taker.then = [&] { taken += static_cast<unsigned>(slow.take()); };
    REQUIRE(backend->add(taker, slow.get(), POLLIN));
    REQUIRE(backend->add(quick, quick.fd.get(), POLLIN));
    settle(*backend);
    for (int i = 0; i < 3; ++i) slow.signal();
    settle(*backend);
    slow.signal();
    quick.fd.signal();
    unsigned told = 0;
    while (quick.taken == 0 && told < 10) told += backend->collect(1);
    CHECK(told <= 2);
    settle(*backend);
    CHECK(taken >= 2);
    REQUIRE(backend->remove(taker));
    REQUIRE(backend->remove(quick));
}

TEST_CASE("more watches of one descriptor than descriptors are allowed fail one by one", "[backend]") {
    event_fd fd;
    std::vector<recorder> watches(40);
    fd.signal();
    auto backend = make_backend(by_epoll).value();
    const descriptor_limit low(static_cast<rlim_t>(event_fd{}.get()) + 20);
    std::size_t room = 0;
    while (backend->add(watches[room], fd.get(), POLLIN)) ++room;
    CHECK(room > 0);
    REQUIRE(room < watches.size());
    for (std::size_t i = room; i < watches.size(); ++i) {
        CHECK(backend->add(watches[i], fd.get(), POLLIN).error() == errc::resource);
        CHECK_FALSE(watches[i].watching());
    }
    CHECK(backend->wait(std::nullopt).value() == room);
    REQUIRE(backend->remove(watches[1])); // the first has none of its own
    REQUIRE(backend->add(watches[room], fd.get(), POLLIN));
    CHECK_FALSE(backend->add(watches[1], fd.get(), POLLIN));
    CHECK(backend->wait(std::nullopt).value() == room);
}

TEST_CASE("a regular file is always ready", "[backend]") {
    BACKEND_OR_SKIP(backend, EVERY_BACKEND);
    descriptor file{::open("/proc/self/exe", O_RDONLY | O_CLOEXEC)};
    recorder w;
    REQUIRE(backend->add(w, file.get(), POLLIN));
    CHECK(backend->wait(std::nullopt).value() == 1);
    CHECK((w.events & POLLIN) != 0);
    REQUIRE(backend->remove(w));
}

TEST_CASE("sleeping and waking take one entry into the kernel, and a deadline on epoll another", "[backend]") {
    const auto kind = GENERATE(backend_kind{0u}, by_epoll);
    BACKEND_OR_SKIP(backend, kind);
    counter c;
    REQUIRE(backend->add(c, c.fd.get(), POLLIN));
    settle(*backend);
    const auto before = backend->counters().enters;
    c.fd.signal();
    static_cast<void>(backend->collect(0)); // takes the completion in, tells nobody
    CHECK(backend->counters().enters == before + 1);
    CHECK(backend->wait(std::nullopt).value() == 1);
    CHECK(backend->counters().enters == before + 1);
    backend->wake();
    CHECK(backend->wait(std::nullopt).value() == 0);
    CHECK(backend->counters().enters == before + 1);
    CHECK(backend->wait(now() + 1ms).value() == 0);
    CHECK(backend->counters().enters == before + (kind ? 2 : 3));
    REQUIRE(backend->remove(c));
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

TEST_CASE("a full house, also on a small ring, is reported in one turn", "[backend]") {
    const bool waits = GENERATE(false, true);
    const bool small = GENERATE(false, true); // B23: 100 at once; B25: 64 on a ring of 8
    const unsigned count = small ? 64 : 100;
    BACKEND_OR_SKIP(backend, EVERY_BACKEND, small ? ring_options{.entries = 8, .cq_entries = 8} : ring_options{});
    std::vector<counter> counters(count);
    for (auto& c : counters) REQUIRE(backend->add(c, c.fd.get(), POLLIN));
    settle(*backend);
    for (auto& c : counters) c.fd.signal();
    CHECK((waits ? backend->wait(std::nullopt).value() : backend->collect(all)) == count);
    for (auto& c : counters) CHECK(c.taken == 1);
    for (auto& c : counters) REQUIRE(backend->remove(c));
}

TEST_CASE("a budget delays and never repeats", "[backend]") {
    BACKEND_OR_SKIP(backend, EVERY_BACKEND);
    std::vector<counter> counters(10);
    for (auto& c : counters) REQUIRE(backend->add(c, c.fd.get(), POLLIN));
    settle(*backend);
    for (auto& c : counters) c.fd.signal();
    CHECK(backend->collect(0) == 0); // looks
    for (const unsigned expected : {3u, 3u, 3u, 1u}) {
        CHECK(backend->pending());
        CHECK(backend->collect(3) == expected);
    }
    CHECK_FALSE(backend->pending());
    for (auto& c : counters) CHECK(c.calls == 1);
    for (auto& c : counters) REQUIRE(backend->remove(c));
}

TEST_CASE("receivers that take nothing do not hold a turn", "[backend]") {
    BACKEND_OR_SKIP(backend, EVERY_BACKEND, tiny());
    std::vector<event_fd> fds(16);
    std::vector<recorder> watches(16);
    for (std::size_t i = 0; i < fds.size(); ++i) {
        fds[i].signal();
        REQUIRE(backend->add(watches[i], fds[i].get(), POLLIN));
    }
    for (int turn = 0; turn < 10; ++turn) CHECK(backend->collect(all) <= 17);
    for (auto& w : watches) CHECK(w.calls > 0);
    for (int turn = 0; turn < 10; ++turn) CHECK(backend->wait(now()).value() <= 17);
    for (auto& w : watches) REQUIRE(backend->remove(w));
}

TEST_CASE("watches that add themselves anew do not hold a turn", "[backend]") {
    BACKEND_OR_SKIP(backend, EVERY_BACKEND);
    event_fd fd;
    fd.signal();
    std::vector<recorder> watches(2);
    for (auto& w : watches) {
        w.then = [&] { // its removal submits what the other has added
            CHECK(backend->remove(w));
            CHECK(backend->add(w, fd.get(), POLLIN));
        };
        REQUIRE(backend->add(w, fd.get(), POLLIN));
    }
    for (int turn = 0; turn < 3; ++turn) CHECK(backend->wait(now() + 1h).value() <= 3);
    for (auto& w : watches) CHECK(w.calls > 0);
    for (auto& w : watches) REQUIRE(backend->remove(w));
}

TEST_CASE("the bits of an end and of an error pass through", "[backend]") {
    BACKEND_OR_SKIP(backend, EVERY_BACKEND);
    pipe_ends ends;
    int pair[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    descriptor near{pair[0]};
    descriptor far{pair[1]};
    recorder reader, writer, socket;
    REQUIRE(backend->add(reader, ends.reader.get(), POLLIN));
    REQUIRE(backend->add(socket, near.get(), POLLIN));
    CHECK(settle(*backend) == 0);
    far.close();
    ends.writer.close();
    CHECK(settle(*backend) == 2);
    CHECK((reader.events & POLLHUP) != 0);
    CHECK((socket.events & POLLRDHUP) != 0);
    CHECK(backend->wait(now() + 1ms).value() == 0); // they last
    REQUIRE(backend->remove(reader));
    REQUIRE(backend->remove(socket));
}

TEST_CASE("a descriptor that cannot be watched says so once", "[backend]") {
    BACKEND_OR_SKIP(backend, EVERY_BACKEND);
    recorder closed, unpollable;
    const int closed_fd = event_fd{}.get();
    descriptor file{::open("/proc/self/stat", O_PATH | O_CLOEXEC)};
    REQUIRE(backend->add(closed, closed_fd, POLLIN));
    REQUIRE(backend->add(unpollable, file.get(), POLLIN));
    CHECK(settle(*backend) == 2);
    CHECK(closed.events == (POLLERR | POLLNVAL));
    CHECK((unpollable.events & POLLERR) != 0);
    CHECK(settle(*backend) == 0);
    REQUIRE(backend->remove(closed));
    REQUIRE(backend->remove(unpollable));
    CHECK(settle(*backend) == 0);
}

TEST_CASE("a watch is added once, a descriptor as often as one likes", "[backend]") {
    BACKEND_OR_SKIP(backend, EVERY_BACKEND);
    event_fd fd;
    recorder one, two;
    one.then = two.then = [&] { fd.take(); };
    REQUIRE(backend->add(one, fd.get(), POLLIN));
    CHECK(backend->add(one, fd.get(), POLLIN).error() == errc::in_use);
    REQUIRE(backend->add(two, fd.get(), POLLIN));
    settle(*backend);
    fd.signal();
    CHECK(settle(*backend) == 2);
    REQUIRE(backend->remove(one));
    fd.signal();
    CHECK(settle(*backend) == 1);
    CHECK(one.calls == 1);
    CHECK(two.calls == 2);
    REQUIRE(backend->remove(two));
}
