// Every query gets its own bytes, in whatever order the device answers, at no allocation.

#include "device/counting_new.hpp"
#include "devx_rig.hpp"

#include <infiniband/mlx5dv.h>

#include <random>

using namespace devx;

TEST_CASE("responses in random order reach their own queries, in memory that does not grow") {
    const support::deadline limit(120s);
    constexpr std::uint64_t in_flight = 256;
    const auto count = support::rounds(test_device::simulated && VERBENA_COUNTS_ALLOCATIONS ? 1'000'000 : 100'000);
    const std::uint64_t each = (count + in_flight - 1) / in_flight;
    rig r;
    r.devx.hold();
    ending_log log;
    vb::scope scope;
    for (std::uint64_t i = 0; i < in_flight; ++i) scope.spawn(ask_many(r.channel, r.counter, i * each, each, log));
    CHECK(r.channel.stats().outstanding == in_flight);
    r.turns(); // a read that finds nothing has the channel watched, once
    std::minstd_rand random(7);
    // Answers what the queries allocated, without the device.
    const auto run_until = [&](std::uint64_t answered) {
        const auto issued = r.channel.stats().issue_calls;
        std::uint64_t allocated = 0;
        while (log.resumes() < answered && log.failures.empty()) {
            r.devx.release_shuffled(random);
            const auto before = support::allocations();
            r.reactor.poll().value();
            allocated += support::allocations() - before;
        }
        return allocated - (r.channel.stats().issue_calls - issued) * test_device::allocations_of_issue;
    };
    run_until(in_flight * each / 10);
    const auto bytes = support::allocated_bytes();
    [[maybe_unused]] const auto allocated = run_until(in_flight * each);
    [[maybe_unused]] const auto more = support::allocated_bytes() - bytes;
    r.devx.release();
    r.finish(scope);
    CHECK(log.failures.empty());
    CHECK(log.successes == in_flight * each);
    CHECK(r.channel.stats().issue_calls == in_flight * each);
    CHECK(r.channel.stats().outstanding == 0);
#if VERBENA_COUNTS_ALLOCATIONS
    CHECK(allocated == 0);
    CHECK(more < 64 * 1024);
#endif
}

#if VERBENA_COUNTS_ALLOCATIONS
TEST_CASE("a query allocates nothing but what the device does for it") {
    const support::deadline limit(60s);
    constexpr std::uint64_t count = 1000;
    rig r;
    output<> out;
    const auto in = r.counter.query(1);
    const auto awaited = r.reactor.run([](rig& own) -> vb::task<std::uint64_t> {
        ending_log log;
        co_await ask_many(own.channel, own.counter, 0, 10, log);
        const auto before = support::allocations();
        co_await ask_many(own.channel, own.counter, 0, count, log);
        co_return support::allocations() - before;
    }(r));
    auto* const by_hand = mlx5dv_devx_create_cmd_comp(r.device.native_handle());
    REQUIRE(by_hand != nullptr);
    struct {
        alignas(8) std::array<std::byte, 8 + 64> bytes;
    } response;
    const auto before = support::allocations();
    for (std::uint64_t i = 0; i < count; ++i) {
        support::require_zero(
            mlx5dv_devx_obj_query_async(r.counter.handle.native_handle(), in.data(), in.size(), out.size(), i, by_hand),
            "query");
        support::require_zero(mlx5dv_devx_get_async_cmd_comp(
                                  by_hand, reinterpret_cast<mlx5dv_devx_async_cmd_hdr*>(&response), sizeof response),
                              "read");
    }
    const auto plain = support::allocations() - before;
    mlx5dv_devx_destroy_cmd_comp(by_hand);
    CHECK(awaited <= plain + 16); // the task's frame; the device's growing containers
}
#endif
