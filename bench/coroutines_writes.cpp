// Awaited RDMA writes of a queue pair that is connected to itself.

#include "coroutines.hpp"
#include "device/counting_new.hpp"

#include <verbena/verbena.hpp>

#include <array>
#include <stdexcept>
#include <vector>

namespace coroutines {
namespace {

namespace vb = verbena;

vb::task<> write(vb::queue_pair& qp, vb::memory_slice local, vb::remote_slice remote, std::uint64_t& left) {
    while (left > 0) {
        --left;
        const auto done = co_await qp.write(local, remote);
        if (!done) throw std::runtime_error("a write failed");
    }
}

vb::task<> all(vb::queue_pair& qp, const vb::memory_region& memory, const plain::options& options,
               std::uint64_t& left) {
    vb::scope scope;
    const std::size_t bytes = options.message_bytes;
    for (std::uint32_t i = 0; i < options.in_flight; ++i)
        scope.spawn(write(qp, memory.slice(2 * i * bytes, bytes), memory.remote((2 * i + 1) * bytes, bytes), left));
    co_await scope.join();
}

} // namespace

plain::figures busy_writes(const plain::options& options) {
    const auto device = vb::context::open(options.device).value();
    const auto domain = vb::protection_domain::create(device).value();
    std::array<vb::poll_slot, 32> slots;
    vb::reactor reactor({.wait = vb::wait_policy::spin_forever()});
    std::vector<vb::completion_queue> queues;
    for (std::uint32_t i = 0; i <= options.idle_queues; ++i) {
        queues.push_back(vb::completion_queue::create(device, 4096).value());
        reactor.attach(queues.back(), slots).value();
    }
    auto qp = vb::queue_pair::create(domain,
                                     {.send_cq = queues[0],
                                      .recv_cq = queues[0],
                                      .max_send = options.in_flight,
                                      .max_recv = 1,
                                      .post_mode = options.batched ? vb::post_mode::batched : vb::post_mode::immediate})
                  .value();
    qp.connect(qp.endpoint()).value();
    const auto memory = vb::memory_region::allocate(domain, std::size_t{2} * options.message_bytes * options.in_flight,
                                                    vb::access_flags::local_write | vb::access_flags::remote_write)
                            .value();
    plain::figures figures{.rounds = options.rounds};
    const std::uint64_t allocations = support::allocations();
    std::uint64_t left = options.rounds;
    const std::uint64_t started = plain::now_ns();
    reactor.run(all(qp, memory, options, left));
    figures.total_ns = plain::now_ns() - started;
    figures.allocations = support::allocations() - allocations;
    return figures;
}

} // namespace coroutines
