#include <verbena/verbs/context.hpp>

#include "states.hpp"
#include "verb.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>

namespace verbena {
namespace {

using detail::check_errno_value;
using detail::check_pointer;

struct device_list {
    struct deleter {
        void operator()(ibv_device** list) const noexcept { ibv_free_device_list(list); }
    };
    std::unique_ptr<ibv_device*[], deleter> owner;
    std::span<ibv_device*> devices;

    std::vector<std::string> names() const {
        std::vector<std::string> names;
        for (auto* device : devices) names.emplace_back(ibv_get_device_name(device));
        return names;
    }
};

/// Empty if the device's file may be opened.
std::string trouble_with(const std::string& file_name) {
    const auto path = "/dev/infiniband/" + file_name;
    if (::access(path.c_str(), R_OK | W_OK) == 0) return {};
    return fmt::format(
        "the kernel has a device at {}, which is missing or may not be read and written: a container needs "
        "it passed in (`--device=/dev/infiniband`), a user the right to it",
        path);
}

/// What this machine lacks, and what to do about it. The library hides a device whose file it cannot find.
std::string remedy() {
    constexpr auto soft = "without RDMA hardware, `modprobe rdma_rxe` and `rdma link add rxe0 type rxe netdev "
                          "INTERFACE` make a software device";
    constexpr auto known = "/sys/class/infiniband_verbs";
    if (::access(known, F_OK) != 0) return fmt::format("the kernel module ib_uverbs is not loaded; {}", soft);
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(known, ignored)) {
        const auto name = entry.path().filename().string();
        if (!name.starts_with("uverbs")) continue;
        if (auto trouble = trouble_with(name); !trouble.empty()) return trouble;
    }
    return fmt::format("load the device's kernel module; {}", soft);
}

result<device_list> list_devices() {
    int count = 0;
    auto list = check_pointer("ibv_get_device_list", [&] { return ibv_get_device_list(&count); });
    if (!list) return std::move(list).error().with_note(remedy());
    return device_list{decltype(device_list::owner)(*list), {*list, static_cast<std::size_t>(count)}};
}

error no_device() {
    return error(errc::not_found, "ibv_get_device_list").with_note("there is no RDMA device: " + remedy());
}

result<std::shared_ptr<detail::context_state>> open_device(ibv_device* device, const char* verb = "ibv_open_device",
                                                           detail::device_opener open = ibv_open_device) {
    auto state = std::make_shared<detail::context_state>();
    state->name = ibv_get_device_name(device);
    auto native = check_pointer(verb, [&] { return open(device); });
    if (!native) {
        auto e = std::move(native).error();
        if (auto trouble = trouble_with(device->dev_name); !trouble.empty()) e.with_note(std::move(trouble));
        return e;
    }
    state->native = *native;
    auto ready = check_errno_value("ibv_query_device", [&] { return ibv_query_device(*native, &state->attributes); });
    if (ready) ready = detail::set_non_blocking(state->native->async_fd);
    if (!ready) return ready.error();
    return state;
}

bool has_active_port(const context& context) {
    for (int port = 1; port <= context.attributes().phys_port_cnt; ++port)
        if (auto attributes = context.port(static_cast<std::uint8_t>(port)); attributes && attributes->active())
            return true;
    return false;
}

/// 256 to 4096 bytes, as ibv_mtu counts them: 1 to 5.
std::uint32_t mtu_bytes(ibv_mtu mtu) noexcept { return mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096 ? 128U << mtu : 0; }

link_layer link_layer_of(std::uint8_t native) noexcept {
    switch (native) {
    case IBV_LINK_LAYER_ETHERNET: return link_layer::ethernet;
    case IBV_LINK_LAYER_INFINIBAND: return link_layer::infiniband;
    // Drivers from before RoCE leave it unset (man ibv_query_port).
    default: return link_layer::unspecified;
    }
}

} // namespace

namespace detail {
context_state::~context_state() {
    for (aside& one : aside_) {
        if (one.thread.joinable())
            process.forked() ? one.thread.detach() : one.thread.join(); // in a fork it runs in the parent
        else if (!process.forked())
            one.call();
    }
    if (native) destroy(*this, "ibv_close_device", [&] { return ibv_close_device(native); });
}

void context_state::run_aside(std::function<void()> call) {
    const std::lock_guard lock(aside_mutex_);
    std::erase_if(aside_, [](aside& one) {
        if (!one.ended.load()) return false;
        one.thread.join();
        return true;
    });
    aside& one = aside_.emplace_back();
    one.call = std::move(call);
    try {
        one.thread = std::thread([&one] {
            one.call();
            one.ended.store(true);
        });
    } catch (const std::system_error&) {
        log(log_level::warning, "no thread for what may block: it waits until its device is closed");
    }
}

result<context> open_context(std::string_view name, const char* verb, device_opener open) {
    auto devices = list_devices();
    if (!devices) return devices.error();
    if (devices->devices.empty()) return no_device();
    for (auto* device : devices->devices) {
        if (name != ibv_get_device_name(device)) continue;
        auto state = open_device(device, verb, open);
        if (!state) return state.error();
        return access::make<context>(*std::move(state));
    }
    return error(errc::not_found, verb)
        .with_note(fmt::format("there is no device \"{}\"; there are: {}", name, fmt::join(devices->names(), ", ")));
}
} // namespace detail

gid gid::from_native(const ibv_gid& native) noexcept {
    gid out;
    std::memcpy(out.bytes.data(), native.raw, out.bytes.size());
    return out;
}

ibv_gid gid::native() const noexcept {
    ibv_gid out;
    std::memcpy(out.raw, bytes.data(), bytes.size());
    return out;
}

bool gid::is_ipv4_mapped() const noexcept {
    constexpr std::array<std::byte, 12> prefix{
        {{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, std::byte{0xff}, std::byte{0xff}}};
    return std::equal(prefix.begin(), prefix.end(), bytes.begin());
}

result<std::vector<std::string>> context::list() {
    auto devices = list_devices();
    if (!devices) return devices.error();
    return devices->names();
}

result<context> context::open(std::string_view name) {
    return detail::open_context(name, "ibv_open_device", ibv_open_device);
}

result<context> context::open_default() {
    auto devices = list_devices();
    if (!devices) return devices.error();
    if (devices->devices.empty()) return no_device();
    result<context> chosen = no_device();
    for (auto* device : devices->devices) {
        auto state = open_device(device);
        if (!state) {
            if (device == devices->devices.front()) chosen = state.error();
            continue;
        }
        context opened(*std::move(state));
        if (has_active_port(opened)) return opened;
        if (!chosen) chosen = std::move(opened);
    }
    return chosen;
}

const std::string& context::name() const noexcept { return state_->name; }
const ibv_device_attr& context::attributes() const noexcept { return state_->attributes; }
ibv_context* context::native_handle() const noexcept { return state_ ? state_->native : nullptr; }

result<port_attributes> context::port(std::uint8_t number) const {
    if (auto checked = detail::check_parent(*this, "ibv_query_port", "context"); !checked) return checked.error();
    if (number == 0 || number > state_->attributes.phys_port_cnt)
        return error(errc::not_found, "ibv_query_port")
            .with_note(fmt::format("{} has ports 1 to {}, not {}", name(), state_->attributes.phys_port_cnt, number));
    ibv_port_attr native{};
    auto queried = check_errno_value("ibv_query_port", [&] { return ibv_query_port(state_->native, number, &native); });
    if (!queried) return queried.error();
    return port_attributes{.state = native.state,
                           .link = link_layer_of(native.link_layer),
                           .active_mtu = mtu_bytes(native.active_mtu),
                           .max_mtu = mtu_bytes(native.max_mtu),
                           .lid = native.lid,
                           .max_message_bytes = native.max_msg_sz,
                           .gid_table_length = static_cast<std::uint32_t>(std::max(native.gid_tbl_len, 0))};
}

result<std::vector<gid_entry>> context::gids(std::uint8_t port) const {
    auto attributes = this->port(port);
    if (!attributes) return attributes.error();
    // The call answers the entries of all ports.
    std::vector<ibv_gid_entry> table(std::size_t{attributes->gid_table_length} * state_->attributes.phys_port_cnt);
    auto count = detail::check_negative_errno("ibv_query_gid_table", [&] {
        return static_cast<int>(ibv_query_gid_table(state_->native, table.data(), table.size(), 0));
    });
    if (!count) return count.error();
    std::vector<gid_entry> entries;
    for (const auto& native : std::span(table).first(static_cast<std::size_t>(*count)))
        if (native.port_num == port)
            entries.push_back({.index = native.gid_index,
                               .gid = gid::from_native(native.gid),
                               .type = static_cast<gid_type>(native.gid_type),
                               .interface_index = native.ndev_ifindex});
    std::ranges::sort(entries, {}, &gid_entry::index);
    return entries;
}

} // namespace verbena
