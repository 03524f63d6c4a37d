// Invariant: once `remove` has returned, the watch is not told anything (B26), nothing in the kernel holds its file
// (B30), and nobody else's readiness was lost; a completion that names an earlier registration reaches no later one
// (B28), nor does a descriptor number that is used again (B29).

#include "ring_support.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <dirent.h>
#include <liburing.h>

namespace {

/// The descriptors of this process that are rings.
std::vector<int> rings() {
    std::vector<int> found;
    const std::unique_ptr<DIR, int (*)(DIR*)> directory{opendir("/proc/self/fd"), closedir};
    while (const dirent* entry = readdir(directory.get())) {
        char target[64] = {};
        const auto path = "/proc/self/fd/" + std::string(entry->d_name);
        if (readlink(path.c_str(), target, sizeof target - 1) > 0 && std::string(target) == "anon_inode:[io_uring]")
            found.push_back(std::stoi(entry->d_name));
    }
    return found;
}

/// Puts completions of our own making into the ring under test.
class injector {
  public:
    explicit injector(int target) : target_(target) {
        if (io_uring_queue_init(4, &ring_, 0) != 0) throw std::runtime_error("io_uring_queue_init");
    }
    ~injector() { io_uring_queue_exit(&ring_); }

    int inject(std::uint64_t user_data, unsigned result) {
        io_uring_prep_msg_ring(io_uring_get_sqe(&ring_), target_, result, user_data, 0);
        io_uring_cqe* cqe = nullptr;
        if (io_uring_submit_and_wait(&ring_, 1) < 0 || io_uring_wait_cqe(&ring_, &cqe) != 0) return -1;
        const int answer = cqe->res;
        io_uring_cqe_seen(&ring_, cqe);
        return answer;
    }

  private:
    int target_;
    io_uring ring_{};
};

std::uint64_t poll_tag(std::uint64_t slot, std::uint64_t generation) { return generation << 32 | slot << 2; }

} // namespace

TEST_CASE("a watch removed while readable is not told, and the others are", "[backend]") {
    BACKEND_OR_SKIP(backend, EVERY_BACKEND);
    counter one, two;
    REQUIRE(backend->add(one, one.fd.get(), POLLIN));
    REQUIRE(backend->add(two, two.fd.get(), POLLIN));
    settle(*backend);
    one.fd.signal();
    two.fd.signal();
    REQUIRE(backend->remove(one));
    CHECK_FALSE(one.watching());
    CHECK(settle(*backend) == 1);
    CHECK(one.calls == 0);
    CHECK(two.taken == 1);
    REQUIRE(backend->remove(one)); // nothing to do
    REQUIRE(backend->remove(two));
}

TEST_CASE("a watch may remove and destroy itself and others while it is told", "[backend]") {
    BACKEND_OR_SKIP(backend, EVERY_BACKEND, tiny());
    std::vector<std::unique_ptr<counter>> counters;
    unsigned told = 0;
    for (std::size_t i = 0; i < 8; ++i) {
        auto& c = *counters.emplace_back(std::make_unique<counter>());
        c.then = [&, i] {
            ++told;
            for (const std::size_t victim : {i ^ 1, i}) {
                CHECK(backend->remove(*counters[victim]));
                counters[victim].reset();
            }
        };
        REQUIRE(backend->add(c, c.fd.get(), POLLIN));
    }
    settle(*backend);
    for (auto& c : counters) c->fd.signal();
    settle(*backend);
    CHECK(told == 4);
    for (auto& c : counters) CHECK(!c);
}

TEST_CASE("a watch may add others while it is told", "[backend]") {
    BACKEND_OR_SKIP(backend, EVERY_BACKEND, tiny());
    counter first;
    std::vector<counter> more(50);
    for (auto& c : more) c.fd.signal();
    first.then = [&] {
        first.fd.take();
        for (auto& c : more) CHECK(backend->add(c, c.fd.get(), POLLIN));
    };
    REQUIRE(backend->add(first, first.fd.get(), POLLIN));
    first.fd.signal();
    settle(*backend);
    for (auto& c : more) CHECK(c.taken == 1);
    for (auto& c : more) REQUIRE(backend->remove(c));
    REQUIRE(backend->remove(first));
}

TEST_CASE("closing after removal has its full effect", "[backend]") {
    BACKEND_OR_SKIP(backend, EVERY_BACKEND);
    pipe_ends ends;
    recorder w;
    REQUIRE(backend->add(w, ends.reader.get(), POLLIN));
    SECTION("submitted") { settle(*backend); }
    SECTION("not yet submitted") {}
    SECTION("readable") { REQUIRE(::write(ends.writer.get(), "x", 1) == 1); }
    SECTION("told") {
        REQUIRE(::write(ends.writer.get(), "x", 1) == 1);
        CHECK(backend->collect(all) == 1);
    }
    REQUIRE(backend->remove(w));
    ends.reader.close();
    CHECK(ends.reader_gone());
}

TEST_CASE("a backend that is destroyed has let go of its files", "[backend]") {
    BACKEND_OR_SKIP(backend, EVERY_BACKEND);
    pipe_ends ends;
    recorder w;
    REQUIRE(backend->add(w, ends.reader.get(), POLLIN));
    settle(*backend);
    backend.reset();
    CHECK_FALSE(w.watching());
    ends.reader.close();
    CHECK(ends.reader_gone());
}

TEST_CASE("a watch removed between the end of its poll and its being told is not armed again", "[backend]") {
    BACKEND_OR_SKIP(backend, EVERY_BACKEND, tiny());
    std::vector<counter> counters(8);
    for (auto& c : counters) REQUIRE(backend->add(c, c.fd.get(), POLLIN));
    settle(*backend);
    for (auto& c : counters) c.fd.signal(); // more than the queue holds: most polls end
    static_cast<void>(backend->collect(0));
    for (auto& c : counters) REQUIRE(backend->remove(c));
    CHECK(settle(*backend) == 0);
    CHECK(backend->counters().rearmed == 0);
    for (auto& c : counters) CHECK(c.calls == 0);
}

TEST_CASE("closing before removal has no effect until the removal", "[ring]") {
    RING_OR_SKIP(ring);
    pipe_ends ends;
    recorder w;
    REQUIRE(ring->add(w, ends.reader.get(), POLLIN));
    settle(*ring);
    ends.reader.close();
    CHECK_FALSE(ends.reader_gone()); // or the test above proves nothing
    REQUIRE(ring->remove(w));
    CHECK(ends.reader_gone());
}

TEST_CASE("a reused descriptor number belongs to its new watch alone", "[backend]") {
    BACKEND_OR_SKIP(backend, EVERY_BACKEND);
    recorder before, after;
    auto fd = std::make_unique<event_fd>();
    after.then = [&] { fd->take(); };
    const int number = fd->get();
    REQUIRE(backend->add(before, number, POLLIN));
    settle(*backend);
    fd->signal();
    REQUIRE(backend->remove(before));
    fd.reset();
    fd = std::make_unique<event_fd>();
    REQUIRE(fd->get() == number);
    REQUIRE(backend->add(after, number, POLLIN));
    CHECK(settle(*backend) == 0);
    fd->signal();
    CHECK(settle(*backend) == 1);
    CHECK(before.calls == 0);
    CHECK(after.calls == 1);
    REQUIRE(backend->remove(after));
}

TEST_CASE("removals race with readiness ten thousand times", "[backend]") {
    BACKEND_OR_SKIP(backend, EVERY_BACKEND, {.entries = 4, .cq_entries = 4});
    counter other;
    REQUIRE(backend->add(other, other.fd.get(), POLLIN));
    std::uint64_t wrong = 0;
    for (unsigned round = 0; round < 10'000; ++round) {
        counter c;
        REQUIRE(backend->add(c, c.fd.get(), POLLIN));
        if (round % 2 == 0) settle(*backend);
        c.fd.signal();
        if (round % 3 == 0) other.fd.signal();
        if (round % 5 == 0) static_cast<void>(backend->collect(0));
        if (round % 7 == 0) settle(*backend);
        const unsigned calls = c.calls;
        REQUIRE(backend->remove(c));
        settle(*backend);
        wrong += c.calls != calls || (round % 7 == 0 && calls != 1);
    }
    CHECK(wrong == 0);
    CHECK(other.taken == 3'334);
    REQUIRE(backend->remove(other));
}

TEST_CASE("removals race with a writer on another thread", "[backend]") {
    BACKEND_OR_SKIP(backend, EVERY_BACKEND);
    event_fd fd;
    std::jthread writer([&](std::stop_token stop) {
        while (!stop.stop_requested()) fd.signal();
    });
    for (unsigned round = 0; round < 2'000; ++round) {
        recorder w;
        REQUIRE(backend->add(w, fd.get(), POLLIN));
        static_cast<void>(backend->collect(all));
        REQUIRE(backend->remove(w));
        static_cast<void>(backend->collect(all));
    }
    CHECK(backend->counters().ignored == 0);
}

TEST_CASE("completions of an earlier or an unknown registration are ignored and counted", "[ring]") {
    const auto before = rings();
    RING_OR_SKIP(ring);
    auto with = rings();
    std::erase_if(with, [&](int fd) { return std::find(before.begin(), before.end(), fd) != before.end(); });
    REQUIRE(with.size() == 1);
    injector stale{with[0]};

    recorder first, second;
    event_fd fd;
    REQUIRE(ring->add(first, fd.get(), POLLIN)); // slot 1, generation 1: slot 0 is the waker's
    settle(*ring);
    if (stale.inject(poll_tag(1, 1), POLLIN) == -EINVAL) VERBENA_SKIP("this kernel has no IORING_OP_MSG_RING");
    settle(*ring);
    CHECK(first.calls == 1);                      // so the tags below are what they seem
    REQUIRE(ring->add(second, fd.get(), POLLIN)); // the injected one had no MORE flag: `first` is armed as generation 2
    settle(*ring);
    CHECK(ring->counters().rearmed == 1);

    std::uint64_t injected = 0;
    for (const std::uint64_t generation : {0u, 1u, 3u, 77u}) {
        REQUIRE(stale.inject(poll_tag(1, generation), POLLIN) == 0);
        ++injected;
    }
    for (const std::uint64_t slot : {3u, 64u, 1u << 29}) {
        REQUIRE(stale.inject(poll_tag(slot, 0), POLLIN) == 0);
        ++injected;
    }
    settle(*ring);
    CHECK(first.calls == 1);
    CHECK(second.calls == 0);
    CHECK(ring->counters().ignored == injected);

    REQUIRE(ring->remove(first));
    REQUIRE(ring->add(first, fd.get(), POLLIN));
    REQUIRE(stale.inject(poll_tag(1, 2), POLLIN) == 0); // the former activation of the same watch
    settle(*ring);
    CHECK(first.calls == 1);
    fd.signal();
    settle(*ring);
    CHECK(first.calls == 2);
    CHECK(second.calls == 1);
    REQUIRE(ring->remove(first));
    REQUIRE(ring->remove(second));
}

TEST_CASE("a backend that dies lets go of its watches", "[backend]") {
    const auto kind = EVERY_BACKEND;
    recorder w;
    pipe_ends ends;
    {
        BACKEND_OR_SKIP(backend, kind);
        REQUIRE(backend->add(w, ends.reader.get(), POLLIN));
        settle(*backend);
    }
    CHECK_FALSE(w.watching());
    BACKEND_OR_SKIP(backend, kind);
    REQUIRE(backend->add(w, ends.reader.get(), POLLIN));
    REQUIRE(backend->remove(w));
    ends.reader.close();
    CHECK(ends.reader_gone(10'000)); // the kernel clears the dead ring away in its own time
}

TEST_CASE("a ring used on another thread says so, and may die there", "[ring]") {
    RING_OR_SKIP(ring);
    recorder w;
    pipe_ends ends;
    REQUIRE(ring->add(w, ends.reader.get(), POLLIN));
    settle(*ring);
    std::thread([&] {
        const auto answer = ring->wait(now());
        CHECK((!answer && answer.error() == errc::wrong_thread));
        const auto removed = ring->remove(w);
        CHECK((!removed && removed.error() == errc::wrong_thread));
        CHECK_FALSE(w.watching());
        ring.reset();
    }).join();
    ends.reader.close();
    CHECK(ends.reader_gone(10'000));
}
