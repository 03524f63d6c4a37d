// Completions reach coroutines whose reactor sits in somebody else's loop: every one wakes the handle, or is found by
// `prepare_wait`. The peer is on another thread, so that both ends wait for each other.

#include "by_hand.hpp"

#include "support/deadline.hpp"

#include <chrono>
#include <stdexcept>
#include <thread>

#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

namespace vb = verbena;
using namespace std::chrono_literals;

namespace {

constexpr std::uint32_t message_bytes = 64;

/// A loop of somebody else's: with epoll(7), the reactor's handle among others, or with poll(2).
class foreign_loop {
  public:
    foreign_loop(vb::reactor& reactor, bool by_epoll) : reactor_(reactor), fd_(reactor.native_handle().value()) {
        if (!by_epoll) return;
        epoll_ = epoll_create1(EPOLL_CLOEXEC);
        epoll_event wanted{.events = EPOLLIN, .data = {}};
        support::require_zero(epoll_ctl(epoll_, EPOLL_CTL_ADD, fd_, &wanted), "epoll_ctl");
    }
    ~foreign_loop() {
        if (epoll_ >= 0) ::close(epoll_);
    }
    foreign_loop(const foreign_loop&) = delete;
    foreign_loop& operator=(const foreign_loop&) = delete;

    void run_until(const bool& done) {
        while (!done) {
            while (reactor_.poll().value() > 0) {}
            if (done || reactor_.prepare_wait().value() == vb::wait_state::ready) continue;
            ++waits;
            if (wait() == 0) throw std::runtime_error("the handle was not readable in time");
        }
    }

    unsigned waits = 0;

  private:
    static constexpr int most_milliseconds = 60'000;
    int wait() const {
        epoll_event found;
        pollfd p{fd_, POLLIN, 0};
        int got = -1;
        while (got < 0)
            got = epoll_ >= 0 ? epoll_wait(epoll_, &found, 1, most_milliseconds) : ::poll(&p, 1, most_milliseconds);
        return got;
    }

    vb::reactor& reactor_;
    int fd_;
    int epoll_ = -1;
};

vb::task<> ping(const vb::queue_pair& qp, vb::receiver& inbox, vb::memory_slice text, unsigned count, bool& done) {
    for (unsigned i = 0; i < count; ++i) {
        support::put_number(text.bytes(), i);
        (co_await qp.send(text)).value();
        const auto answer = (co_await inbox.next()).value();
        if (!support::has_number(answer.bytes().bytes(), i)) throw std::runtime_error("another answer");
    }
    done = true;
}
/// Answers by hand.
void echo(support::hand_end& end, unsigned count) {
    for (unsigned messages = 0, sends = 0; messages < count || sends < count;) {
        const auto done = end.finish();
        if (!done.ok()) throw std::runtime_error("the peer's queue pair failed");
        if (done.wr_id() == 2) {
            ++sends;
            continue;
        }
        end.qp.post(vb::send_request{end.buffer.slice(0, message_bytes)}, 2).value();
        if (++messages < count) end.post_receives(1);
    }
}

} // namespace

TEST_CASE("a ping-pong from within a foreign loop") {
    const support::deadline allow(300s);
    VERBENA_REQUIRE_DEVICE(device);
    const auto domain = vb::protection_domain::create(device).value();
    const auto count = static_cast<unsigned>(support::rounds(500));
    for (const bool by_epoll : {true, false}) {
        support::engine embedded(device);
        foreign_loop loop(embedded.reactor, by_epoll);
        auto qp = support::make_pair_end(domain, embedded.cq, support::pair_options());
        support::hand_end peer(domain);
        auto inbox = vb::receiver::create(qp, {.depth = 4, .message_bytes = message_bytes}).value();
        peer.post_receives(1);
        support::connect(qp, peer.qp);
        auto text = vb::memory_region::allocate(domain, message_bytes).value();
        std::jthread answers([&] { echo(peer, count); });
        bool done = false;
        vb::scope scope;
        scope.spawn(ping(qp, inbox, text.slice(), count, done));
        loop.run_until(done);
        answers.join();
        const auto stats = embedded.reactor.stats();
        INFO(support::describe(stats));
        CHECK(loop.waits > 0);
        CHECK(stats.parks == loop.waits);
        CHECK(stats.rescued == 0);
    }
}

TEST_CASE("a deadline on a receive ends it from within a foreign loop") {
    const support::deadline allow(120s);
    VERBENA_REQUIRE_DEVICE(device);
    const auto domain = vb::protection_domain::create(device).value();
    support::engine embedded(device);
    foreign_loop loop(embedded.reactor, true);
    support::wire wire(domain, embedded);
    auto inbox = vb::receiver::create(wire.right, {.depth = 4, .message_bytes = message_bytes}).value();
    bool done = false;
    vb::scope scope;
    scope.spawn([](vb::receiver& in, bool& over) -> vb::task<> {
        const auto got = co_await vb::with_timeout(in.next(), 2ms);
        CHECK((!got && got.error() == vb::errc::timed_out));
        over = true;
    }(inbox, done));
    loop.run_until(done);
    CHECK(loop.waits > 0);
}

TEST_CASE("a queue without a channel keeps a foreign loop polling") {
    const support::deadline allow(120s);
    VERBENA_REQUIRE_DEVICE(device);
    const auto domain = vb::protection_domain::create(device).value();
    vb::reactor reactor({.wait = vb::wait_policy::spin_forever(), .safety_repoll = 0ms});
    std::array<vb::poll_slot, 8> slots;
    const auto cq = vb::completion_queue::create(device, 16).value();
    reactor.attach(cq, slots).value();
    reactor.native_handle().value();
    auto qp = support::make_pair_end(domain, cq, support::pair_options(4));
    qp.connect(qp.endpoint()).value();
    auto inbox = vb::receiver::create(qp, {.depth = 2, .message_bytes = message_bytes}).value();
    auto text = vb::memory_region::allocate(domain, message_bytes).value();
    bool done = false;
    vb::scope scope;
    scope.spawn(ping(qp, inbox, text.slice(), 10, done));
    while (!done) {
        reactor.poll().value();
        CHECK(reactor.prepare_wait().value() == vb::wait_state::ready);
    }
}
