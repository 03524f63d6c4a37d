// The fourth example of README.md, as it stands there: flow counters of an mlx5 device, read beside RDMA traffic. The
// device with the counters need not be the one with the traffic.

#include "support/catch.hpp"

#include <verbena/mlx5/command_channel.hpp>
#include <verbena/mlx5/open_context.hpp>
#include <verbena/verbena.hpp>

#include <array>
#include <cstdlib>
#include <deque>
#include <optional>
#include <string>

namespace vb = verbena;

namespace {

// README: telemetry
// Numbers of a firmware command, in network order.
template <std::size_t N>
void put(std::array<std::byte, N>& bytes, std::size_t at, std::size_t size, std::uint64_t value) {
    for (std::size_t i = 0; i < size; ++i) bytes[at + i] = std::byte(value >> 8 * (size - 1 - i));
}
template <std::size_t N>
std::uint64_t get(const std::array<std::byte, N>& bytes, std::size_t at, std::size_t size) {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < size; ++i) value = value << 8 | std::to_integer<std::uint64_t>(bytes[at + i]);
    return value;
}

// A flow counter of the device: ALLOC_FLOW_COUNTER, later QUERY_FLOW_COUNTER.
struct flow_counter {
    explicit flow_counter(const vb::context& device) {
        std::array<std::byte, 16> command{}, output{};
        put(command, 0, 2, 0x939);
        object = vb::mlx5::object::create(device, command, output).value();
        put(query, 0, 2, 0x93b);
        put(query, 28, 4, get(output, 8, 4));
    }
    vb::mlx5::object object;
    std::array<std::byte, 32> query{};
    std::uint64_t packets = 0, octets = 0, readings = 0;
};

// Reads it again and again. With one such coroutine for each counter as many commands are in flight, on one reactor,
// which serves completion queues meanwhile.
vb::task<> watch(const vb::mlx5::command_channel& channel, flow_counter& counter, const bool& enough) {
    std::array<std::byte, 32> output;
    while (!enough) {
        auto answer = co_await channel.query(counter.object, counter.query, output);
        if (!answer) co_return;           // answer.error(): the firmware's status, and its syndrome as vendor_error()
        if (!answer->certain()) continue; // all zero: nothing was counted yet, or the command got lost
        counter.packets = get(output, 16, 8);
        counter.octets = get(output, 24, 8);
        ++counter.readings;
    }
}
// README: end

/// The first device that has DEVX, the wanted one if it has.
std::optional<vb::context> find_devx(const char* wanted) {
    auto names = vb::context::list().value();
    if (wanted != nullptr) names.insert(names.begin(), wanted);
    for (const auto& name : names)
        if (auto opened = vb::mlx5::open_context(name)) return *opened;
    return std::nullopt;
}

vb::task<> echo(vb::queue_pair& qp, vb::receiver& inbox, int rounds) {
    for (int i = 0; i < rounds; ++i) {
        const auto message = (co_await inbox.next()).value();
        (co_await qp.send(message.bytes())).value();
    }
}

vb::task<> talk(vb::queue_pair& qp, vb::receiver& inbox, vb::memory_slice text, int rounds, bool& done) {
    for (int i = 0; i < rounds; ++i) {
        (co_await qp.send(text)).value();
        (co_await inbox.next()).value();
    }
    done = true;
}

} // namespace

TEST_CASE("README's flow counters are read beside the traffic") {
    const char* wanted = std::getenv("VERBENA_DEVICE");
    const auto opened = wanted != nullptr ? vb::context::open(wanted) : vb::context::open_default();
    if (!opened) VERBENA_SKIP(opened.error().message());
    const auto devx = find_devx(wanted);
    if (!devx) VERBENA_SKIP("no device here has DEVX");

    auto domain = vb::protection_domain::create(*opened).value();
    std::array<vb::poll_slot, 16> slots;
    vb::reactor reactor;
    auto events = vb::completion_channel::create(*opened).value();
    auto cq = vb::completion_queue::create(*opened, 64, {.channel = events}).value();
    reactor.attach(cq, slots).value();
    auto left = vb::queue_pair::create(domain, {.send_cq = cq, .recv_cq = cq}).value();
    auto right = vb::queue_pair::create(domain, {.send_cq = cq, .recv_cq = cq}).value();
    auto to_left = vb::receiver::create(left, {.depth = 4, .message_bytes = 64}).value();
    auto to_right = vb::receiver::create(right, {.depth = 4, .message_bytes = 64}).value();
    left.connect(right.endpoint()).value();
    right.connect(left.endpoint()).value();
    auto text = vb::memory_region::allocate(domain, 64).value();

    auto channel = vb::mlx5::command_channel::create(*devx, {.max_response = 32}).value();
    reactor.attach(channel).value();
    std::deque<flow_counter> counters;
    for (int i = 0; i < 64; ++i) counters.emplace_back(*devx);
    bool enough = false;
    reactor.run([](auto& to, auto& all, auto& stop, auto&&... traffic) -> vb::task<> {
        vb::scope scope;
        for (flow_counter& counter : all) scope.spawn(watch(to, counter, stop));
        (scope.spawn(std::move(traffic)), ...);
        co_await scope.join();
    }(channel, counters, enough, talk(left, to_left, text.slice(), 200, enough), echo(right, to_right, 200)));

    CHECK(enough);
    CHECK(channel.stats().outstanding == 0);
    for (const flow_counter& counter : counters) CHECK(counter.readings > 0);
}
