// What only the simulated device can do: verbs that fail as the test says, an event alone, and queues beside DEVX.

#include "event_rig.hpp"

#include <verbena/sim/control.hpp>
#include <verbena/sim/devx_control.hpp>

#include <algorithm>
#include <cerrno>
#include <string_view>

using namespace devx;
namespace sim = verbena::sim;

TEST_CASE("a device that is lost by an event alone ends the queries of its context") {
    const support::deadline limit(60s);
    rig r;
    const auto events = r.reactor.events(r.device).value();
    r.devx.hold();
    ending_log log;
    vb::scope scope;
    for (std::uint64_t i = 0; i < 2; ++i) scope.spawn(ask(r.channel, r.counter, i, log));
    r.turns();
    sim::control(test_device::name).raise(IBV_EVENT_DEVICE_FATAL);
    r.finish(scope);
    CHECK(log.failures.size() == 2);
    CHECK(all_are(log.failures, vb::errc::device_removed));
    const auto other = mlx5::command_channel::create(r.device, {.max_response = 64}).value();
    CHECK(r.reactor.attach(other).error() == vb::errc::device_removed);
}

TEST_CASE("a failing issue is that query's alone, and one that fails in the queue delays nobody") {
    const support::deadline limit(60s);
    rig r;
    r.devx.hold();
    r.devx.window(64);
    ending_log log;
    vb::scope scope;
    for (std::uint64_t i = 0; i < 3; ++i) scope.spawn(ask(r.channel, r.counter, i, log));
    sim::devx_control(test_device::name).fail("mlx5dv_devx_obj_query_async", {.value = ENOMEM});
    CHECK(r.devx.release_oldest());
    r.turn_until([&] { return log.resumes() == 2; });
    CHECK(log.successes == 1);
    REQUIRE(log.failures.size() == 1);
    CHECK(log.failures[0] == vb::errc::resource);
    r.devx.release();
    r.finish(scope);
    CHECK(log.successes == 2);
}

TEST_CASE("a channel that cannot be made and an object that cannot be destroyed are errors") {
    const support::deadline limit(60s);
    rig r;
    sim::devx_control faults(test_device::name);
    faults.fail("mlx5dv_devx_create_cmd_comp", {.value = EMFILE});
    CHECK(mlx5::command_channel::create(r.device, {.max_response = 64}).error() == vb::errc::resource);
    faults.fail("mlx5dv_devx_obj_destroy", {.value = EBUSY});
    CHECK(r.counter.handle.destroy().error() == vb::errc::in_use);
    CHECK(r.counter.handle);
    CHECK(r.counter.handle.destroy().has_value());
}

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
    // Sixteen ask, and a turn has a budget of 8. On epoll(7) one turn of 64 looks at descriptors.
    const std::uint64_t rate = r.reactor.stats().backend == std::string_view("epoll") ? 64 : 2;
    CHECK(turns <= 1600 / 8 * rate + 256);
    over = true;
    r.finish(writing);
    r.finish(asking);
}

TEST_CASE("a failed read of an event ends the channel, an interrupted one is repeated") {
    const support::deadline limit(60s);
    event_rig r;
    sim::devx_control device(test_device::name);
    device.fail("mlx5dv_devx_get_event", {.value = EINTR, .times = 2});
    r.raise(1);
    CHECK(number_of(next(r.reactor, r.events).value()) == 1);
    waits w(r.events);
    w.add(), w.add();
    device.fail("mlx5dv_devx_get_event", {.value = EFAULT});
    r.raise(2);
    r.turn_until([&] { return w.ends.size() == 2; });
    for (const auto& e : w.ends) CHECK(e.code() == std::error_code(EFAULT, std::system_category()));
    CHECK(next(r.reactor, r.events).error().code() == std::error_code(EFAULT, std::system_category()));
    CHECK(r.idle_turns() < 10);
}

TEST_CASE("an event channel or a subscription that memory or descriptors forbid is an error") {
    const support::deadline limit(60s);
    event_rig r;
    sim::devx_control device(test_device::name);
    device.fail("mlx5dv_devx_create_event_channel", {.value = EMFILE});
    CHECK(mlx5::event_channel::create(r.device).error() == vb::errc::resource);
    device.fail("mlx5dv_devx_subscribe_devx_event", {.value = ENOMEM});
    CHECK(r.events.subscribe(std::array{some_event}, 1).error() == vb::errc::resource);
}
