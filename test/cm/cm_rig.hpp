#pragma once

// A reactor with a connection manager on the device under test, queue pairs to connect, and coroutines that do.

#include "device/rig.hpp"
#include "support/deadline.hpp"
#include "support/running_task.hpp"

#include <verbena/cm/connection_manager.hpp>

#include <chrono>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include <unistd.h>

namespace cm {

namespace vb = verbena;
using namespace std::chrono_literals;

/// Why no connection can be made here; empty: it can.
inline std::string missing() {
    auto manager = vb::connection_manager::create();
    if (!manager) return manager.error().message();
    const auto device = support::open_device();
    if (!device) return device.error().message();
    return support::usable_gid(*device).gid.is_ipv4_mapped() ? "" : "the device has no IPv4 address";
}
#define NEEDS_CONNECTIONS()                                                                                            \
    if (const std::string why = cm::missing(); !why.empty()) VERBENA_SKIP(why)

inline std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }
/// Without the zeros that fill it up.
inline std::string text_of(std::span<const std::byte> bytes) {
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()).c_str();
}

/// The address of the device, with a port that the kernel chooses if it is listened at.
inline vb::socket_address address_of(const vb::context& device) {
    const auto gid = support::usable_gid(device).gid.bytes;
    const auto text = fmt::format("{}.{}.{}.{}", int(gid[12]), int(gid[13]), int(gid[14]), int(gid[15]));
    return vb::socket_address::parse(text, 0).value();
}

struct rig {
    explicit rig(vb::wait_policy wait = vb::wait_policy::adaptive())
        : device(support::open_device().value()), domain(vb::protection_domain::create(device).value()),
          engine(std::in_place, device, wait), manager(vb::connection_manager::create().value()),
          address(address_of(device)) {
        engine->reactor.attach(*manager).value();
    }
    vb::reactor& reactor() { return engine->reactor; }
    vb::queue_pair pair() { return support::make_pair_end(domain, engine->cq, support::pair_options()); }
    vb::connection_listener listen(std::uint32_t backlog = 128) {
        return manager->listen(address, {.backlog = backlog}).value();
    }
    /// Runs turns until it has ended.
    template <class T>
    T finish(support::running_task<T>& task) {
        while (!task.ended()) reactor().poll().value();
        return task.get();
    }
    template <class Condition>
    void turn_until(Condition&& condition) {
        while (!condition()) reactor().poll().value();
    }

    vb::context device;
    vb::protection_domain domain;
    std::optional<support::engine> engine;
    std::optional<vb::connection_manager> manager;
    vb::socket_address address;
};

inline vb::task<vb::result<vb::connection>> resolve(const vb::connection_manager& manager, vb::socket_address to) {
    co_return co_await manager.resolve(to);
}
inline vb::task<vb::result<vb::connection>> next(const vb::connection_listener& door) {
    co_return co_await door.next();
}
inline vb::task<vb::result<void>> connect(const vb::connection& c, vb::queue_pair& qp,
                                          std::span<const std::byte> data) {
    co_return co_await c.connect(qp, {.private_data = data});
}
inline vb::task<vb::result<void>> accept(const vb::connection& c, vb::queue_pair& qp, std::span<const std::byte> data) {
    co_return co_await c.accept(qp, {.private_data = data});
}
inline vb::task<vb::result<void>> disconnect(const vb::connection& c) { co_return co_await c.disconnect(); }
inline vb::task<vb::result<void>> disconnected(const vb::connection& c) { co_return co_await c.disconnected(); }

/// Two connected ends on one reactor.
struct joined {
    explicit joined(rig& of, std::string_view hello = "hello", std::string_view welcome = "welcome")
        : r(of), door(of.listen()), client_pair(of.pair()), server_pair(of.pair()),
          client(of.reactor().run(resolve(*of.manager, door.local_address())).value()) {
        support::running_task<vb::result<void>> asks(connect(client, client_pair, bytes_of(hello)));
        server = of.reactor().run(next(door)).value();
        support::running_task<vb::result<void>> answers(accept(server, server_pair, bytes_of(welcome)));
        of.finish(asks).value();
        of.finish(answers).value();
    }

    rig& r;
    vb::connection_listener door;
    vb::queue_pair client_pair;
    vb::queue_pair server_pair;
    vb::connection client;
    vb::connection server;
};

} // namespace cm
