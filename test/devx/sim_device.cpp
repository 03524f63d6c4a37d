#include "devx_rig.hpp"

#include <verbena/sim/control.hpp>
#include <verbena/sim/devx_control.hpp>

#include <algorithm>
#include <array>

namespace devx {

namespace sim = verbena::sim;

const char* const test_device::name = "sim0";
const char* const test_device::without_devx = "sim1";
const bool test_device::simulated = true;
const std::uint64_t test_device::allocations_of_issue = 1;

namespace {
sim::devx_control control() { return sim::devx_control(test_device::name); }
} // namespace

void test_device::reset() {
    control().reset();
    sim::control(name).reset();
}
void test_device::remove() { sim::control(name).remove(); }
void test_device::insert() { sim::control(name).insert(); }

std::uint64_t test_device::in_flight() const {
    const auto counts = control().ledger();
    return counts.accepted - counts.completed - counts.cancelled;
}
void test_device::hold() { control().hold(); }
void test_device::release() { control().release(); }
bool test_device::release_oldest() {
    const auto held = control().held();
    return !held.empty() && control().release(held.front());
}
void test_device::release_shuffled(std::minstd_rand& random) {
    auto device = control();
    auto held = device.held();
    if (held.empty()) return;
    std::ranges::shuffle(held, random);
    held.resize(1 + random() % held.size());
    for (const auto wr_id : held) device.release(wr_id);
}

void test_device::refuse(std::uint8_t status, std::uint32_t syndrome, std::uint32_t count) {
    control().refuse(status, syndrome, count);
}
void test_device::lose(std::uint32_t count) { control().lose(count); }
void test_device::throttle(std::uint32_t limit) { control().throttle(limit); }
void test_device::old_kernel(bool on) { control().old_kernel(on); }
void test_device::window(std::size_t bytes) { control().window(bytes); }

bool test_device::raise(const thing* of, std::uint16_t event, std::uint64_t number) {
    std::array<std::byte, 8> data;
    put(data.data(), number, 8);
    return control().raise(of != nullptr ? of->handle.native_handle() : nullptr, event, data) > 0;
}
void test_device::lose_events(mlx5dv_devx_event_channel* channel, std::uint32_t count) {
    control().lose_events(channel, count);
}

} // namespace devx
