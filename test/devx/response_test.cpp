// Every query gets its own bytes, in whatever order the device answers, at no allocation.

#include "device/counting_new.hpp"
#include "devx_rig.hpp"

#include <infiniband/mlx5dv.h>

#include <algorithm>
#include <random>
#include <string>

using namespace devx;

namespace {

vb::task<> ask_many(const mlx5::command_channel& channel, const thing& of, std::uint64_t first, std::uint64_t count,
                    ending_log& log) {
    output<> out;
    for (std::uint64_t number = first; number < first + count; ++number) {
        const auto in = of.query(number);
        const auto got = co_await channel.query(of.handle, in, out);
        log.add(got);
        if (!got) co_return;
        if (!of.answers(got->bytes(), number)) throw std::runtime_error("not its own bytes: " + std::to_string(number));
    }
}

} // namespace

TEST_CASE("responses in random order reach their own queries") {
    const support::deadline limit(60s);
    constexpr std::uint64_t in_flight = 256, each = 40;
    rig r;
    r.devx.hold();
    ending_log log;
    vb::scope scope;
    for (std::uint64_t i = 0; i < in_flight; ++i) scope.spawn(ask_many(r.channel, r.counter, i * each, each, log));
    std::minstd_rand random(7);
    while (log.resumes() < in_flight * each) {
        auto held = r.devx.held();
        std::ranges::shuffle(held, random);
        held.resize(std::min<std::size_t>(held.size(), 1 + random() % in_flight));
        for (const auto wr_id : held) REQUIRE(r.devx.release(wr_id));
        const auto answered = r.channel.stats().responses + held.size();
        r.turn_until([&] { return r.channel.stats().responses == answered; });
        r.reactor.poll().value();
    }
    r.finish(scope);
    CHECK(log.successes == in_flight * each);
    CHECK(r.channel.stats().issue_calls == in_flight * each);
    CHECK(r.channel.stats().outstanding == 0);
}

#if VERBENA_COUNTS_ALLOCATIONS
TEST_CASE("a query allocates nothing but what the simulated device does for it") {
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

TEST_CASE("a command channel and a busy completion queue do not starve each other") {
    const support::deadline limit(60s);
    rig r;
    std::array<vb::poll_slot, 8> slots;
    const auto domain = vb::protection_domain::create(r.device).value();
    const auto events = vb::completion_channel::create(r.device).value();
    const auto cq = vb::completion_queue::create(r.device, 64, {.channel = events}).value();
    r.reactor.attach(cq, slots).value();
    const auto memory =
        vb::memory_region::allocate(domain, 128, vb::access_flags::local_write | vb::access_flags::remote_write)
            .value();
    auto left = support::make_pair_end(domain, cq, support::pair_options(64));
    auto right = support::make_pair_end(domain, cq, support::pair_options(64));
    support::connect(left, right);
    bool over = false;
    std::uint64_t writes = 0;
    ending_log log;
    vb::scope writing, asking;
    for (int i = 0; i < 64; ++i)
        writing.spawn([&]() -> vb::task<> {
            while (!over) {
                const auto written = co_await left.write(memory.slice(0, 64), memory.remote(64, 64));
                if (!written) co_return;
                ++writes;
            }
        });
    for (std::uint64_t i = 0; i < 16; ++i) asking.spawn(ask_many(r.channel, r.counter, i * 100, 100, log));
    std::uint64_t turns = 0, least = ~std::uint64_t{0};
    while (log.resumes() < 1600) {
        const auto before = writes;
        r.reactor.poll(8).value();
        if (++turns > 64) least = std::min(least, writes - before);
    }
    CHECK(log.failures.empty());
    CHECK(least >= 1);
    // Sixteen ask, and a turn has a budget of 8. On poll(2) one turn of 64 looks at descriptors.
    const std::uint64_t rate = r.reactor.stats().backend == std::string_view("poll") ? 64 : 2;
    CHECK(turns <= 1600 / 8 * rate + 256);
    over = true;
    r.finish(writing);
    r.finish(asking);
}
