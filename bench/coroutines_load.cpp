// Offered load, taken by a coroutine under a wait policy.

#include "coroutines.hpp"
#include "plain_load.hpp"

#include <verbena/verbena.hpp>

#include <array>
#include <future>

namespace coroutines {
namespace {

namespace vb = verbena;

vb::task<> take(vb::receiver& inbox, plain::generator& from, const plain::options& options, std::uint64_t& errors) {
    for (std::uint64_t i = 0; i < options.rounds; ++i) {
        {
            const auto message = (co_await inbox.next()).value();
            const auto payload = message.bytes().bytes();
            std::uint64_t due = 0;
            std::memcpy(&due, payload.data(), sizeof due);
            if (!plain::carries(payload, due)) ++errors;
            options.samples[i] = plain::now_ns() - due;
        }
        from.taken.store(i + 1, std::memory_order_release);
    }
}

} // namespace

plain::figures load(const plain::options& options, vb::wait_policy wait) {
    const auto device = vb::context::open(options.device).value();
    const auto domain = vb::protection_domain::create(device).value();
    std::array<vb::poll_slot, 32> slots;
    vb::reactor reactor({.wait = wait});
    const auto channel = vb::completion_channel::create(device).value();
    const auto queue =
        vb::completion_queue::create(device, std::size_t{2} * options.depth, {.channel = channel}).value();
    reactor.attach(queue, slots).value();
    auto qp = vb::queue_pair::create(
                  domain, {.send_cq = queue, .recv_cq = queue, .max_send = options.depth, .max_recv = options.depth})
                  .value();
    auto inbox = vb::receiver::create(qp, {.depth = options.depth, .message_bytes = options.message_bytes}).value();
    plain::generator from(options);
    vb::endpoint peer = qp.endpoint(); // both are on one port
    from.connect(peer.qp_num, peer.psn);
    peer.qp_num = from.number();
    peer.psn = 0;
    qp.connect(peer).value();

    plain::figures figures{.rounds = options.rounds};
    auto sending = std::async(std::launch::async, [&] { from.run(); });
    const std::uint64_t started = plain::now_ns(), cpu_started = plain::thread_cpu_ns();
    reactor.run(take(inbox, from, options, figures.errors));
    figures.total_ns = plain::now_ns() - started;
    figures.cpu_ns = plain::thread_cpu_ns() - cpu_started;
    figures.parks = reactor.stats().parks;
    sending.get();
    return figures;
}

} // namespace coroutines
