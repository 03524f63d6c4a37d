// Awaited RDMA writes of a queue pair that is connected to itself.

#include "coroutines.hpp"
#include "device/counting_new.hpp"

#include <verbena/verbena.hpp>

#include <array>
#include <chrono>
#include <deque>
#include <optional>
#include <span>
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

// Receives that are awaited and never complete. They have a completion queue of their own, since a long one costs
// cache misses by itself.
class waiting {
  public:
    waiting(vb::reactor& reactor, const vb::protection_domain& domain, std::span<vb::poll_slot> slots,
            std::uint32_t count, const vb::completion_channel& channel)
        : memory_(vb::memory_region::allocate(domain, 64).value()),
          queue_(vb::completion_queue::create(domain.context(), 2 * std::size_t{count} + 1, {.channel = channel})
                     .value()) {
        reactor.attach(queue_, slots).value();
        constexpr std::uint32_t of_one = 1000;
        for (std::uint32_t i = 0; i < count; ++i) {
            if (i % of_one == 0)
                queue_pairs_.push_back(
                    vb::queue_pair::create(domain,
                                           {.send_cq = queue_, .recv_cq = queue_, .max_send = 1, .max_recv = of_one})
                        .value());
            scope_.spawn(receive(queue_pairs_.back(), memory_.slice()));
        }
    }

  private:
    static vb::task<> receive(vb::queue_pair& qp, vb::memory_slice buffer) { (void)co_await qp.recv(buffer); }

    vb::memory_region memory_;
    vb::completion_queue queue_;
    std::deque<vb::queue_pair> queue_pairs_;
    vb::scope scope_;
};

std::vector<vb::completion_queue> attached(vb::reactor& reactor, const vb::context& device,
                                           const vb::completion_channel& channel, std::span<vb::poll_slot> slots,
                                           std::uint32_t count) {
    std::vector<vb::completion_queue> queues;
    for (std::uint32_t i = 0; i < count; ++i) {
        queues.push_back(vb::completion_queue::create(device, 1, {.channel = channel}).value());
        reactor.attach(queues.back(), slots).value();
    }
    return queues;
}

} // namespace

plain::figures busy_writes(const plain::options& options) {
    const auto device = vb::context::open(options.device).value();
    const auto domain = vb::protection_domain::create(device).value();
    std::array<vb::poll_slot, 32> slots;
    vb::reactor reactor({.wait = vb::wait_policy::spin_forever()});
    const auto queues = attached(reactor, device, {}, slots, options.idle_queues);
    const auto queue = vb::completion_queue::create(device, 4096).value();
    reactor.attach(queue, slots).value();
    auto qp = vb::queue_pair::create(domain,
                                     {.send_cq = queue,
                                      .recv_cq = queue,
                                      .max_send = options.in_flight,
                                      .max_recv = 1,
                                      .post_mode = options.batched ? vb::post_mode::batched : vb::post_mode::immediate})
                  .value();
    qp.connect(qp.endpoint()).value();
    const auto memory = vb::memory_region::allocate(domain, std::size_t{2} * options.message_bytes * options.in_flight,
                                                    vb::access_flags::local_write | vb::access_flags::remote_write)
                            .value();
    std::optional<waiting> waiting;
    if (options.pending != 0) waiting.emplace(reactor, domain, slots, options.pending, vb::completion_channel());
    plain::figures figures{.rounds = options.rounds};
    const std::uint64_t allocations = support::allocations();
    std::uint64_t left = options.rounds;
    const std::uint64_t started = plain::thread_cpu_ns();
    reactor.run(all(qp, memory, options, left));
    figures.total_ns = plain::thread_cpu_ns() - started;
    figures.allocations = support::allocations() - allocations;
    return figures;
}

plain::figures parked_idle(const plain::options& options) {
    const auto device = vb::context::open(options.device).value();
    const auto domain = vb::protection_domain::create(device).value();
    std::array<vb::poll_slot, 32> slots;
    vb::reactor reactor({.wait = vb::wait_policy::park_at_once()});
    const auto channel = vb::completion_channel::create(device).value();
    const auto queues = attached(reactor, device, channel, slots, options.idle_queues);
    const waiting waiting(reactor, domain, slots, 1, channel);
    plain::figures figures{.rounds = options.rounds};
    const auto sleeps = [&](std::uint64_t rounds) -> vb::task<> {
        for (std::uint64_t i = 0; i < rounds; ++i)
            co_await reactor.sleep_for(std::chrono::microseconds{options.sleep_us});
    };
    // Long enough to come to rest, also where each instruction takes a hundred times as long.
    reactor.run([](vb::reactor& r) -> vb::task<> { co_await r.sleep_for(std::chrono::milliseconds{300}); }(reactor));
    const std::uint64_t started = plain::thread_cpu_ns();
    reactor.run(sleeps(options.rounds));
    figures.total_ns = plain::thread_cpu_ns() - started;
    figures.parks = reactor.stats().parks;
    return figures;
}

} // namespace coroutines
