// A reactor beside an io_uring of the program's own, which waits for both.

#include "far_end.hpp"

#include <liburing.h>
#include <poll.h>

namespace vb = verbena;
using example::ask;
using example::near_end;

namespace {

vb::task<> talk(near_end& end, bool& done) {
    for (int i = 0; i < 100; ++i) {
        const std::string word = "word number " + std::to_string(i);
        const auto answer = co_await ask(end, word);
        if (answer != word) throw std::runtime_error("another answer");
    }
    (co_await ask(end, ".")).clear();
    done = true;
}

// README: own ring
constexpr std::uint64_t of_reactor = 1; // user_data; what else there is in the ring has others

/// `serve_own` gets the completions of what the program itself has submitted.
void loop(vb::reactor& reactor, io_uring& ring, const std::function<void(const io_uring_cqe&)>& serve_own,
          const bool& done) {
    const int handle = reactor.native_handle().value();
    bool watched = false;
    while (!done) {
        const bool ready = // then only look
            reactor.poll().value() > 0 || reactor.prepare_wait().value() == vb::wait_state::ready;
        if (!std::exchange(watched, true)) { // once, not multishot: it may be readable already
            io_uring_sqe* sqe = io_uring_get_sqe(&ring);
            io_uring_prep_poll_add(sqe, handle, POLLIN);
            io_uring_sqe_set_data64(sqe, of_reactor);
        }
        io_uring_submit_and_wait(&ring, ready || done ? 0 : 1);
        unsigned head = 0, count = 0;
        io_uring_cqe* cqe = nullptr;
        io_uring_for_each_cqe(&ring, head, cqe) {
            ++count;
            if (cqe->user_data == of_reactor)
                watched = false;
            else
                serve_own(*cqe);
        }
        io_uring_cq_advance(&ring, count);
    }
}
// README: end

} // namespace

TEST_CASE("a program's own io_uring waits for a reactor and for its own requests") {
    io_uring ring;
    if (io_uring_queue_init(8, &ring, 0) != 0) VERBENA_SKIP("no io_uring here");
    const auto device = support::open_device().value();
    vb::reactor reactor({.safety_repoll = std::chrono::milliseconds{0}});
    reactor.native_handle().value();
    near_end end(device, reactor);
    unsigned served = 0;
    __kernel_timespec pause{.tv_sec = 0, .tv_nsec = 1'000'000};
    const auto ask_for_timeout = [&] {
        io_uring_sqe* sqe = io_uring_get_sqe(&ring);
        io_uring_prep_timeout(sqe, &pause, 0, 0);
        io_uring_sqe_set_data64(sqe, 2);
    };
    ask_for_timeout();
    bool done = false;
    vb::scope scope;
    scope.spawn(talk(end, done));
    loop(
        reactor, ring,
        [&](const io_uring_cqe&) {
            if (++served < 3) ask_for_timeout();
        },
        done);
    io_uring_queue_exit(&ring);
    CHECK(reactor.stats().rescued == 0);
}
