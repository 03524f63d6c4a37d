// Invariant: two threads, each with its own queue, share a device: every message between them arrives once, in order.

#include "fixture.hpp"

#include <atomic>
#include <memory>
#include <thread>

using namespace simulated;

namespace {

constexpr std::uint64_t rounds = 2'000;

/// Answers, or asks: every message carries its number. Sleeps for events, so that the channel is used by both.
void play(device& d, end& e, queue& q, std::size_t base, bool asks, std::atomic<int>& wrong) {
    std::uint64_t sent = 0, received = 0;
    const auto send = [&] {
        std::memcpy(d.at(base), &sent, sizeof sent);
        if (e.send(sent++, IBV_SEND_SIGNALED, base, sizeof sent) != 0) ++wrong;
    };
    if (asks) send();
    std::uint64_t completed = 0;
    while (received < rounds || completed < sent) {
        ibv_wc wc;
        const int found = ibv_poll_cq(q.cq, 1, &wc);
        if (found == 0) {
            ibv_req_notify_cq(q.cq, 0);
            if (ibv_poll_cq(q.cq, 0, &wc) == 0 && !q.readable()) std::this_thread::yield();
            q.events();
            continue;
        }
        if (wc.status != IBV_WC_SUCCESS) {
            ++wrong;
            return;
        }
        if ((wc.opcode & IBV_WC_RECV) == 0) {
            ++completed;
            continue;
        }
        std::uint64_t number;
        std::memcpy(&number, d.at(base + 1024), sizeof number);
        if (number != received++) ++wrong;
        if (received < rounds && e.receive(received, base + 1024, sizeof number) != 0) ++wrong;
        if (sent < rounds) send();
    }
}

} // namespace

TEST_CASE("two threads on one device") {
    for (const char* name : both) {
        device d(name);
        queue left(d), right(d);
        end a(d, left), b(d, right);
        connect(a, b);
        REQUIRE((a.receive(0, 1024, 8) == 0 && b.receive(0, 4096 + 1024, 8) == 0));
        std::atomic<int> wrong{0};
        std::thread other([&] { play(d, b, right, 4096, false, wrong); });
        play(d, a, left, 0, true, wrong);
        other.join();
        CHECK(wrong == 0);
        CHECK(d.control.ledger().polled == 4 * rounds);
    }
}
