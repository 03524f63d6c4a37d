// Invariant: a device is found by its name, and what is not there is named together with what is.

#include "support.hpp"

#include <verbena/verbs/protection_domain.hpp>

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

namespace vb = verbena;

TEST_CASE("the device is listed and opens by its name") {
    VERBENA_REQUIRE_DEVICE(device);
    const auto names = vb::context::list().value();
    CHECK(std::ranges::count(names, device.name()) == 1);
    const auto again = vb::context::open(device.name()).value();
    CHECK(again.name() == device.name());
    CHECK(!(again == device));
    CHECK((fcntl(again.native_handle()->async_fd, F_GETFL) & O_NONBLOCK) != 0);
    CHECK(fmt::format("{}", device) == fmt::format("context({})", device.name()));
}

TEST_CASE("an unknown device name lists the devices there are") {
    VERBENA_REQUIRE_DEVICE(device);
    const auto opened = vb::context::open("no-such-device");
    REQUIRE(!opened);
    CHECK(opened.error() == vb::errc::not_found);
    CHECK(opened.error().message().find("no-such-device") != std::string::npos);
    CHECK(opened.error().message().find(device.name()) != std::string::npos);
}

TEST_CASE("ports and GIDs of the device") {
    VERBENA_REQUIRE_DEVICE(device);
    const auto port = device.port(1).value();
    CHECK(port.active());
    CHECK(port.link != vb::link_layer::unspecified);
    CHECK(port.active_mtu >= 256);
    CHECK(port.active_mtu <= port.max_mtu);
    CHECK(port.max_message_bytes > 0);
    const auto gids = device.gids(1).value();
    REQUIRE(!gids.empty());
    CHECK(gids.size() <= port.gid_table_length);
    for (const auto& entry : gids) CHECK(!entry.gid.is_zero());
    CHECK(std::ranges::is_sorted(gids, {}, &vb::gid_entry::index));
    if (port.link == vb::link_layer::ethernet) CHECK(support::usable_gid(device).type != vb::gid_type::infiniband);

    for (const std::uint8_t absent : {0, device.attributes().phys_port_cnt + 1, 255}) {
        CHECK(device.port(absent).error() == vb::errc::not_found);
        CHECK(device.gids(absent).error() == vb::errc::not_found);
    }
}

TEST_CASE("a child keeps its context open") {
    VERBENA_REQUIRE_DEVICE(device);
    auto domain = vb::protection_domain::create(vb::context::open(device.name()).value()).value();
    CHECK(domain.context().name() == device.name());
    CHECK(domain.context().port(1).value().active());
    CHECK(fmt::format("{}", domain).find(device.name()) != std::string::npos);
}

TEST_CASE("without its file in /dev/infiniband a device does not open, and the error says what to do") {
    VERBENA_REQUIRE_DEVICE(device);
    if (device.name().starts_with("sim")) VERBENA_SKIP("the device is simulated, and has no file");
    if (geteuid() != 0) VERBENA_SKIP("hiding /dev takes root");
    // A mount namespace of this thread alone.
    const auto message_without = [&](const char* hidden) {
        std::string message;
        std::thread([&] {
            if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
                mount("none", hidden, "tmpfs", 0, nullptr) != 0)
                return;
            const auto opened = vb::context::open(device.name());
            if (!opened) message = opened.error().message();
        }).join();
        return message;
    };
    const auto file = fmt::format("/dev/infiniband/{}", device.native_handle()->device->dev_name);
    for (const auto* hidden : {"/dev/infiniband", "/dev"}) {
        const auto message = message_without(hidden);
        INFO(message);
        CHECK(message.find("ibv_") == 0);
        CHECK(message.find(file) != std::string::npos);
        CHECK(message.find("--device=/dev/infiniband") != std::string::npos);
    }
}

TEST_CASE("empty handles are refused by name") {
    CHECK(vb::protection_domain::create({}).error() == vb::errc::invalid_argument);
    CHECK(vb::protection_domain::create({}).error().message().find("ibv_alloc_pd") == 0);
    CHECK(vb::context{}.port(1).error() == vb::errc::invalid_argument);
    CHECK(fmt::format("{} {}", vb::context{}, vb::protection_domain{}) == "context(empty) protection_domain(empty)");
}
