// An address is what it was parsed from, and nothing else is one; without the kernel's part there is no manager, and an
// empty handle is refused.

#include <verbena/cm/connection_manager.hpp>
#include <verbena/format.hpp>

#include "support/catch.hpp"

#include <cstdint>

#include <unistd.h>

namespace vb = verbena;

TEST_CASE("addresses are parsed, printed and compared") {
    for (const char* text : {"10.9.9.1", "0.0.0.0", "255.255.255.255", "::", "::1", "fe80::1", "2001:db8::9"}) {
        CAPTURE(text);
        const auto address = vb::socket_address::parse(text, 7471).value();
        const bool v6 = address.native()->sa_family == AF_INET6;
        CHECK(fmt::format("{}", address) == fmt::format(fmt::runtime(v6 ? "[{}]:7471" : "{}:7471"), text));
        CHECK(address.port() == 7471);
        CHECK(address.size() == (v6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in)));
        CHECK(vb::socket_address(*address.native()) == address);
        CHECK_FALSE(address == vb::socket_address::parse(text, 7472).value());
        CHECK_FALSE(address == vb::socket_address::parse("10.9.9.2", 7471).value());
        CHECK_FALSE(address == vb::socket_address());
        CHECK(address.is_wildcard() == (std::string_view(text) == "0.0.0.0" || std::string_view(text) == "::"));
    }
    const auto scoped = vb::socket_address::parse("fe80::1%lo", 1).value();
    CHECK(scoped.to_string() == "[fe80::1%1]:1");
    CHECK_FALSE(scoped == vb::socket_address::parse("fe80::1", 1).value());
    for (const char* text :
         {"", "10.9.9", "10.9.9.1:7471", "host", "[::1]", "fe80::1%nothing0", "10.9.9.1%lo", "1::2::3"}) {
        CAPTURE(text);
        CHECK(vb::socket_address::parse(text, 1).error() == vb::errc::invalid_argument);
    }
    CHECK_FALSE(vb::socket_address());
    CHECK_FALSE(vb::socket_address(sockaddr{.sa_family = AF_UNIX, .sa_data = {}}));
    CHECK(vb::socket_address().to_string() == "no address");
}

TEST_CASE("without the kernel's part there is no manager") {
    const auto manager = vb::connection_manager::create();
    CHECK((manager.has_value() || manager.error() == vb::errc::unsupported));
    if (::access("/dev/infiniband/rdma_cm", F_OK) != 0) CHECK_FALSE(manager.has_value());
}

TEST_CASE("empty handles are refused") {
    vb::reactor reactor;
    const vb::connection_manager manager;
    const vb::connection connection;
    const vb::connection_listener listener;
    CHECK(manager.listen({}).error() == vb::errc::invalid_argument);
    CHECK(manager.stats().requests == 0);
    CHECK(reactor.attach(manager).error() == vb::errc::invalid_argument);
    CHECK(connection.reject().error() == vb::errc::invalid_argument);
    CHECK(connection.move_to(manager).error() == vb::errc::invalid_argument);
    CHECK(connection.device_name().empty());
    CHECK(connection.private_data().empty());
    CHECK_FALSE(connection.peer_address());
    CHECK_FALSE(listener.local_address());
    reactor.run(
        [](const vb::connection_manager& m, const vb::connection& c, const vb::connection_listener& l) -> vb::task<> {
            auto resolved = co_await m.resolve({});
            CHECK(resolved.error() == vb::errc::invalid_argument);
            auto next = co_await l.next();
            CHECK(next.error() == vb::errc::invalid_argument);
            auto ended = co_await c.disconnected();
            CHECK(ended.error() == vb::errc::invalid_argument);
            auto left = co_await c.disconnect();
            CHECK(left.error() == vb::errc::invalid_argument);
        }(manager, connection, listener));
}
