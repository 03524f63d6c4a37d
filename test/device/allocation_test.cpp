// In steady state no operation allocates: not its post, its completion, its resume, nor the sleep in between.

#include "by_hand.hpp"
#include "counting_new.hpp"

#include "support/deadline.hpp"

#include <chrono>

namespace vb = verbena;
using namespace std::chrono_literals;

#if VERBENA_COUNTS_ALLOCATIONS

namespace {

constexpr std::uint32_t message_bytes = 64;

void require(const auto& outcome) {
    if (!outcome) throw std::runtime_error(outcome.error().message());
}

struct bench {
    vb::queue_pair& qp;
    const vb::memory_region& memory;
    std::uint64_t count;
};

vb::task<> echo(bench b, vb::receiver& inbox) {
    for (std::uint64_t i = 0; i < b.count; ++i) {
        const auto message = co_await inbox.next();
        require(message);
        const auto sent = co_await b.qp.send(message->bytes());
        require(sent);
    }
}

// Measures from the round `warm` on.
vb::task<std::uint64_t> ask(bench b, std::uint64_t warm, vb::reactor& reactor, vb::buffer_pool& pool) {
    std::uint64_t before = 0;
    const auto remote = b.memory.remote(1024, message_bytes);
    for (std::uint64_t i = 0; i < b.count; ++i) {
        if (i == warm) before = support::allocations();
        const auto written = co_await b.qp.write(b.memory.slice(0, message_bytes), remote);
        require(written);
        const auto quiet = co_await b.qp.write(b.memory.slice(0, message_bytes), remote, {.signaled = false});
        require(quiet);
        const auto read = co_await b.qp.read(b.memory.slice(128, message_bytes), remote);
        require(read);
        const auto before_value = co_await b.qp.fetch_add(b.memory.slice(256, 8), b.memory.remote(1088, 8), 1);
        require(before_value);
        const vb::write_request one{.local = b.memory.slice(0, message_bytes), .remote = remote};
        const auto chained = co_await b.qp.chain(one, one);
        require(chained);
        require(b.qp.send_detached(vb::inline_data(b.memory.bytes().first(8))));
        auto buffer = pool.try_acquire();
        if (!buffer) throw std::runtime_error("a pool buffer did not come back");
        require(b.qp.send_detached(*std::move(buffer)));
        const auto flushed = co_await b.qp.flushed();
        require(flushed);
        co_await reactor.sleep_for(1us);
        co_await reactor.yield();
        for (int k = 0; k < 2; ++k) {
            const auto answer = co_await b.qp.recv(b.memory.slice(512, message_bytes));
            require(answer);
        }
    }
    co_return support::allocations() - before;
}

} // namespace

TEST_CASE("a steady state allocates nothing") {
    VERBENA_REQUIRE_DEVICE(device);
    const support::deadline allow(600s);
    const auto domain = vb::protection_domain::create(device).value();
    const std::uint64_t warm = 100, count = warm + support::rounds(1'000);
    const auto memory = vb::memory_region::allocate(domain, 4096,
                                                    vb::access_flags::local_write | vb::access_flags::remote_write |
                                                        vb::access_flags::remote_read | vb::access_flags::remote_atomic)
                            .value();
    for (const auto mode : {vb::post_mode::immediate, vb::post_mode::batched})
        for (const auto policy : {vb::wait_policy::spin_forever(), vb::wait_policy::park_at_once()}) {
            support::engine engine(device, policy, 256, 100ms);
            auto options = support::pair_options(16);
            options.post_mode = mode;
            support::wire wire(domain, engine, options);
            auto inbox = vb::receiver::create(wire.right, {.depth = 16, .message_bytes = message_bytes}).value();
            auto pool = vb::buffer_pool::create(domain, 4, message_bytes).value();
            std::uint64_t allocated = UINT64_MAX;
            vb::scope scope;
            scope.spawn(echo({wire.right, memory, 2 * count}, inbox));
            scope.spawn(
                [](bench b, std::uint64_t w, support::engine& e, vb::buffer_pool& p, std::uint64_t& out) -> vb::task<> {
                    out = co_await ask(b, w, e.reactor, p);
                }({wire.left, memory, count}, warm, engine, pool, allocated));
            engine.reactor.run([](vb::scope& s) -> vb::task<> { co_await s.join(); }(scope));
            CHECK(allocated == 0);
            CHECK(engine.reactor.stats().foreign + engine.reactor.stats().stale == 0);
        }
}

#endif
