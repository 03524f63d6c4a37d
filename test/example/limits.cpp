// The third example of README.md, as it stands there: deadlines, stops and an orderly end.

#include "device/rig.hpp"

#include <verbena/verbena.hpp>

#include <stop_token>
#include <thread>

namespace vb = verbena;

namespace {

struct answers {
    bool idle = false, stopped = false, fetched = false, timed_out = false;
    std::uint32_t missing = 99;
};

vb::task<std::uint64_t> fetch(vb::queue_pair& qp, vb::memory_slice local, vb::remote_slice remote) {
    auto before = co_await qp.fetch_add(local, remote, 1);
    co_return before.value();
}

vb::task<> use(vb::queue_pair& qp, vb::receiver& inbox, vb::memory_slice local, vb::remote_slice remote,
               std::stop_token shutdown, answers& got) {
    vb::scope scope;
    // README: limits
    // A deadline on a wait that posted nothing ends only the wait.
    auto next = co_await vb::with_timeout(inbox.next(), std::chrono::milliseconds{5});
    if (!next && next.error() == vb::errc::timed_out) got.idle = true;

    // A stop may be requested from any thread.
    auto stopped = co_await vb::with_stop(inbox.next(), shutdown);
    if (!stopped && stopped.error() == vb::errc::stopped) got.stopped = true;

    // A child owns its operation and its buffers: to stop waiting for it does not end the connection.
    auto child = scope.spawn(fetch(qp, local, remote));
    auto soon = co_await vb::with_timeout(child.wait(), std::chrono::seconds{5});
    if (soon) got.fetched = true;

    // A deadline on a posted work request ends its connection; when this goes on the buffer is yours again.
    auto message = co_await vb::with_timeout(qp.recv(local), std::chrono::milliseconds{5});
    if (!message && message.error() == vb::errc::timed_out) got.timed_out = true;

    auto closed = co_await qp.close(); // no post succeeds from here on; waits 100 ms at most
    got.missing = closed.value().missing;
    // README: end
    co_await scope.join();
}

} // namespace

TEST_CASE("README's deadlines and stops end what they say, and no more") {
    auto device = support::open_device().value();
    auto domain = vb::protection_domain::create(device).value();
    constexpr auto rights =
        vb::access_flags::local_write | vb::access_flags::remote_read | vb::access_flags::remote_atomic;
    auto memory = vb::memory_region::allocate(domain, 64, rights).value();
    support::engine engine(device, vb::wait_policy::adaptive());
    const vb::queue_pair_options options{.send_cq = engine.cq, .recv_cq = engine.cq, .max_send = 4, .max_recv = 4};
    auto left = vb::queue_pair::create(domain, options).value();
    auto right = vb::queue_pair::create(domain, options).value();
    auto other = vb::queue_pair::create(domain, options).value();
    auto inbox = vb::receiver::create(other, {.depth = 4, .message_bytes = 16}).value();
    left.connect(right.endpoint()).value();
    right.connect(left.endpoint()).value();
    std::stop_source shutdown;
    std::thread stopper([&] { shutdown.request_stop(); });
    answers got;
    engine.reactor.run(use(left, inbox, memory.slice(0, 8), memory.remote(8, 8), shutdown.get_token(), got));
    stopper.join();
    CHECK(got.idle);
    CHECK(got.stopped);
    CHECK(got.fetched);
    CHECK(got.timed_out);
    CHECK(got.missing == 0);
}
