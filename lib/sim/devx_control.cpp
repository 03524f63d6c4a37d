#include "devx.hpp"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>

namespace verbena::sim {
namespace {

constexpr std::array verbs{"mlx5dv_open_device",
                           "mlx5dv_query_device",
                           "mlx5dv_devx_general_cmd",
                           "mlx5dv_devx_obj_create",
                           "mlx5dv_devx_obj_query",
                           "mlx5dv_devx_obj_modify",
                           "mlx5dv_devx_obj_destroy",
                           "mlx5dv_devx_create_cmd_comp",
                           "mlx5dv_devx_obj_query_async",
                           "mlx5dv_devx_get_async_cmd_comp",
                           "mlx5dv_devx_create_event_channel",
                           "mlx5dv_devx_subscribe_devx_event",
                           "mlx5dv_devx_subscribe_devx_event_fd",
                           "mlx5dv_devx_get_event"};

devx_device* require(device* d, const std::string& what) {
    devx_device* devx = d != nullptr ? devx_of(*d) : nullptr;
    if (devx == nullptr) throw std::invalid_argument("not a simulated device with DEVX: " + what);
    return devx;
}

device* by_name(std::string_view name) {
    const auto at = std::ranges::find_if(all_devices(), [name](device* d) { return name == d->entry.name; });
    return at != all_devices().end() ? *at : nullptr;
}

device* by_context(ibv_context* context) {
    for (device* d : all_devices()) {
        const locked guard(*d);
        for (open_context* c : d->contexts)
            if (&c->context == context) return d;
    }
    return nullptr;
}

} // namespace

devx_control::devx_control(std::string_view name) : device_(require(by_name(name), std::string(name))) {}

devx_control::devx_control(ibv_context* context) : device_(require(by_context(context), "a context")) {}

void devx_control::delay(std::chrono::nanoseconds by) {
    const locked guard(device_->dev);
    device_->control.delay = by;
}

void devx_control::hold() {
    const locked guard(device_->dev);
    device_->control.hold = true;
}

std::vector<std::uint64_t> devx_control::held() const {
    const locked guard(device_->dev);
    std::vector<std::uint64_t> list;
    for (const query& q : device_->queries)
        if (q.held) list.push_back(q.wr_id);
    return list;
}

bool devx_control::release(std::uint64_t wr_id) {
    const locked guard(device_->dev);
    auto& queries = device_->queries;
    const auto at = std::ranges::find_if(queries, [wr_id](const query& q) { return q.held && q.wr_id == wr_id; });
    if (at == queries.end()) return false;
    device_->complete(at);
    return true;
}

std::size_t devx_control::release() {
    const locked guard(device_->dev);
    device_->control.hold = false;
    std::size_t released = 0;
    for (auto at = device_->queries.begin(); at != device_->queries.end();) {
        const auto one = at++;
        if (!one->held) continue;
        device_->complete(one);
        ++released;
    }
    return released;
}

void devx_control::refuse(std::uint8_t status, std::uint32_t syndrome, std::uint32_t count) {
    if (status == 0) throw std::invalid_argument("status 0 is success");
    const locked guard(device_->dev);
    auto& outcomes = device_->control.outcomes;
    outcomes.insert(outcomes.end(), count, {.lost = false, .status = status, .syndrome = syndrome});
}

void devx_control::lose(std::uint32_t count) {
    const locked guard(device_->dev);
    auto& outcomes = device_->control.outcomes;
    outcomes.insert(outcomes.end(), count, {.lost = true});
}

void devx_control::throttle(std::uint32_t limit) {
    const locked guard(device_->dev);
    device_->control.throttle = limit;
}

void devx_control::old_kernel(bool on) {
    const locked guard(device_->dev);
    device_->control.old_kernel = on;
}

void devx_control::window(std::size_t bytes) {
    const locked guard(device_->dev);
    device_->control.window = bytes;
}

void devx_control::fail(std::string_view verb, const fault& how) {
    if (std::ranges::find(verbs, verb) == verbs.end() || how.call == 0 || how.times == 0)
        throw std::invalid_argument("no such call of a verb: " + std::string(verb));
    const locked guard(device_->dev);
    device_->dev.control.faults.emplace(verb, how);
}

std::size_t devx_control::raise(mlx5dv_devx_obj* object, std::uint16_t event, std::span<const std::byte> data) {
    const locked guard(device_->dev);
    if (object != nullptr && std::ranges::find(device_->objects, object) == device_->objects.end())
        throw std::invalid_argument("not an object of this device");
    if (data.size() > 28) throw std::invalid_argument("more data than an event holds");
    return device_->raise(object, event, data);
}

void devx_control::lose_events(mlx5dv_devx_event_channel* channel, std::uint32_t count) {
    const locked guard(device_->dev);
    const auto at = std::ranges::find(device_->event_channels, channel);
    if (at == device_->event_channels.end() || (*at)->omit_data)
        throw std::invalid_argument("not an event channel with data of this device");
    (*at)->to_lose = count;
}

devx_ledger devx_control::ledger() const {
    const locked guard(device_->dev);
    return device_->counts;
}

void devx_control::reset() {
    const locked guard(device_->dev);
    device_->control = {};
    while (!device_->queries.empty()) device_->complete(device_->queries.begin());
    for (event_channel* channel : device_->event_channels) channel->to_lose = 0;
}

} // namespace verbena::sim
