// A handshake that cannot succeed fails with the reason, on both sides; one that is refused leaves the listener as it
// was; and what is beyond a limit is refused before anything is sent.

#include "cm_rig.hpp"

#include <verbena/log.hpp>

#include <array>
#include <memory>
#include <vector>

using namespace cm;

namespace {

vb::task<vb::result<void>> accept_for(const vb::connection& c, vb::queue_pair& qp, std::chrono::nanoseconds limit) {
    co_return co_await vb::with_timeout(c.accept(qp), limit);
}
vb::task<vb::result<void>> connect_for(const vb::connection& c, vb::queue_pair& qp, std::chrono::nanoseconds limit) {
    co_return co_await vb::with_timeout(c.connect(qp), limit);
}

/// A request that the server has taken.
struct request {
    explicit request(rig& r)
        : door(r.listen()), pair(r.pair()),
          client(std::in_place, r.reactor().run(resolve(*r.manager, door.local_address())).value()),
          asks(std::in_place, connect(*client, pair, {})), server(r.reactor().run(next(door)).value()) {}

    vb::connection_listener door;
    vb::queue_pair pair;
    std::optional<vb::connection> client;
    std::optional<support::running_task<vb::result<void>>> asks;
    vb::connection server;
};

struct warnings {
    warnings() {
        vb::set_log_sink([this](vb::log_level, std::string_view text) { lines.emplace_back(text); });
    }
    ~warnings() { vb::set_log_sink({}); }
    std::vector<std::string> lines;
};

} // namespace

TEST_CASE("a rejected request ends with what the peer said, and can be followed by another") {
    NEEDS_CONNECTIONS();
    rig r;
    request first(r);
    first.server.reject(bytes_of("not today")).value();
    const auto refused = r.finish(*first.asks);
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error() == vb::errc::connection_refused);
    CHECK(refused.error().vendor_error() == 28);
    CHECK(text_of(first.client->private_data()) == "not today");
    CHECK(r.manager->stats().rejected == 1);
    CHECK(r.manager->stats().failed == 1);
    // It is over on both sides.
    CHECK_FALSE(first.server.reject().has_value());
    CHECK(r.reactor().run(connect(*first.client, first.pair, {})).error() == vb::errc::connection_refused);
    CHECK(r.reactor().run(disconnected(*first.client)).error() == vb::errc::connection_refused);
    joined again(r);
    CHECK(r.manager->stats().established == 2);
}

TEST_CASE("a request that is destroyed without an answer is a rejection") {
    NEEDS_CONNECTIONS();
    rig r;
    request one(r);
    one.server = vb::connection();
    CHECK(r.finish(*one.asks).error() == vb::errc::connection_refused);
    request untaken(r);
    auto pair = r.pair();
    auto client = r.reactor().run(resolve(*r.manager, untaken.door.local_address())).value();
    support::running_task<vb::result<void>> asks(connect(client, pair, {}));
    r.turn_until([&] { return r.manager->stats().requests == 3; });
    untaken.door = vb::connection_listener();
    CHECK(r.finish(asks).error() == vb::errc::connection_refused);
}

TEST_CASE("where nobody listens, a connection is refused") {
    NEEDS_CONNECTIONS();
    rig r;
    auto pair = r.pair();
    const auto at = r.listen().local_address(); // which is closed again
    const auto client = r.reactor().run(resolve(*r.manager, at)).value();
    const auto refused = r.reactor().run(connect(client, pair, {}));
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error() == vb::errc::connection_refused);
    CHECK(refused.error().vendor_error() == 8);
    CHECK(refused.error().message().find("nobody listens") != std::string::npos);
}

TEST_CASE("a port has one listener at a time") {
    NEEDS_CONNECTIONS();
    rig r;
    auto door = r.listen();
    const auto at = door.local_address();
    const auto taken = r.manager->listen(at);
    REQUIRE_FALSE(taken.has_value());
    CHECK(taken.error() == vb::errc::in_use);
    door = vb::connection_listener();
    CHECK(r.manager->listen(at).has_value());
}

TEST_CASE("an address without an RDMA device is not found") {
    NEEDS_CONNECTIONS();
    rig r;
    for (const char* text : {"127.0.0.1", "192.0.2.1", "::1"}) {
        CAPTURE(text);
        const auto address = vb::socket_address::parse(text, 7471).value();
        const auto resolved = r.reactor().run(resolve(*r.manager, address));
        REQUIRE_FALSE(resolved.has_value());
        CAPTURE(resolved.error().message());
        CHECK((resolved.error() == vb::errc::not_found || resolved.error() == vb::errc::peer_unreachable));
        const auto listening = r.manager->listen(address);
        REQUIRE_FALSE(listening.has_value());
        CAPTURE(listening.error().message());
        CHECK(listening.error() == vb::errc::not_found);
    }
    CHECK(r.reactor().run(resolve(*r.manager, {})).error() == vb::errc::invalid_argument);
    CHECK(r.manager->listen({}).error() == vb::errc::invalid_argument);
    CHECK(r.manager->listen(r.address, {.backlog = 0}).error() == vb::errc::invalid_argument);
}

TEST_CASE("private data that is too long is refused before anything is sent, and the rest goes on") {
    NEEDS_CONNECTIONS();
    rig r;
    const std::string longest(256, 'x');
    const auto most = [&](std::size_t bytes) { return bytes_of(longest).first(bytes); };
    auto door = r.listen();
    auto client_pair = r.pair(), server_pair = r.pair();
    auto client = r.reactor().run(resolve(*r.manager, door.local_address())).value();
    CHECK(r.reactor().run(connect(client, client_pair, most(57))).error() == vb::errc::message_too_long);
    support::running_task<vb::result<void>> asks(connect(client, client_pair, most(56)));
    auto server = r.reactor().run(next(door)).value();
    CHECK(text_of(server.private_data()) == longest.substr(0, 56));
    CHECK(r.reactor().run(accept(server, server_pair, most(197))).error() == vb::errc::message_too_long);
    CHECK(server.reject(most(149)).error() == vb::errc::message_too_long);
    support::running_task<vb::result<void>> answers(accept(server, server_pair, most(196)));
    r.finish(asks).value();
    r.finish(answers).value();
    CHECK(text_of(client.private_data()) == longest.substr(0, 196));

    request another(r);
    another.server.reject(most(148)).value();
    CHECK(r.finish(*another.asks).error() == vb::errc::connection_refused);
    CHECK(text_of(another.client->private_data()) == longest.substr(0, 148));
}

TEST_CASE("a queue pair or a call that does not fit is refused, and the right one works afterwards") {
    NEEDS_CONNECTIONS();
    rig r;
    request one(r);
    one.server.reject().value();
    CHECK_FALSE(r.finish(*one.asks).has_value());
    auto client = r.reactor().run(resolve(*r.manager, one.door.local_address())).value();
    const auto refused = [&](vb::queue_pair& qp) { return r.reactor().run(connect(client, qp, {})).error(); };

    auto options = support::pair_options();
    options.type = vb::queue_pair_type::ud;
    auto datagrams = support::make_pair_end(r.domain, r.engine->cq, options);
    CHECK(refused(datagrams) == vb::errc::invalid_argument);
    support::engine elsewhere(r.device);
    auto foreign = support::make_pair_end(r.domain, elsewhere.cq, support::pair_options());
    CHECK(refused(foreign) == vb::errc::invalid_argument);
    support::wire wire(r.domain, *r.engine);
    CHECK(refused(wire.left) == vb::errc::in_use);
    auto right = r.pair();
    CHECK(r.reactor().run(accept(client, right, {})).error() == vb::errc::invalid_argument);
    CHECK(client.reject().error() == vb::errc::invalid_argument);
    CHECK(r.reactor().run(disconnect(client)).error() == vb::errc::not_connected);
    CHECK(r.reactor().run(disconnected(client)).error() == vb::errc::not_connected);

    support::running_task<vb::result<void>> asks(connect(client, right, {}));
    auto second = r.pair();
    CHECK(refused(second) == vb::errc::in_use);
    auto server = r.reactor().run(next(one.door)).value();
    CHECK(r.reactor().run(connect(server, second, {})).error() == vb::errc::invalid_argument);
    auto other = r.reactor().run(resolve(*r.manager, one.door.local_address())).value();
    CHECK(r.reactor().run(connect(other, right, {})).error() == vb::errc::in_use);
    support::running_task<vb::result<void>> answers(accept(server, second, {}));
    r.finish(asks).value();
    r.finish(answers).value();
}

TEST_CASE("requests beyond the backlog are refused, counted and logged once, and the listener goes on") {
    NEEDS_CONNECTIONS();
    constexpr std::uint32_t backlog = 4, all = 12;
    warnings log;
    rig r;
    auto door = r.listen(backlog);
    std::vector<vb::queue_pair> pairs;
    std::vector<vb::connection> clients;
    for (std::uint32_t i = 0; i < all; ++i) {
        pairs.push_back(r.pair());
        clients.push_back(r.reactor().run(resolve(*r.manager, door.local_address())).value());
    }
    std::vector<std::unique_ptr<support::running_task<vb::result<void>>>> asks;
    for (std::uint32_t i = 0; i < all; ++i)
        asks.push_back(std::make_unique<support::running_task<vb::result<void>>>(connect(clients[i], pairs[i], {})));
    const auto ended = [&] {
        return static_cast<std::uint32_t>(std::ranges::count_if(asks, [](const auto& a) { return a->ended(); }));
    };
    r.turn_until([&] { return ended() == all - backlog; });
    for (const auto& each : asks)
        if (each->ended()) CHECK(each->get().error() == vb::errc::connection_refused);
    // The kernel itself may have refused some, which it does not tell.
    CHECK(r.manager->stats().requests - r.manager->stats().refused == backlog);
    if (r.manager->stats().refused > 0) CHECK(log.lines.size() == 1);

    for (std::uint32_t i = 0; i < backlog; ++i) {
        auto server = r.reactor().run(next(door)).value();
        auto pair = r.pair();
        r.reactor().run(accept(server, pair, {})).value();
    }
    r.turn_until([&] { return ended() == all; });
}

TEST_CASE("a peer that vanishes in the middle of a handshake is no connection, and does no harm") {
    NEEDS_CONNECTIONS();
    const support::deadline limit(120s);
    rig r;
    { // Before the answer.
        request one(r);
        one.asks.reset();
        one.client.reset();
        auto pair = r.pair();
        const auto accepted = r.reactor().run(accept_for(one.server, pair, 10s));
        REQUIRE_FALSE(accepted.has_value());
        CHECK(accepted.error() == vb::errc::connection_refused);
        CHECK(r.reactor().run(accept(one.server, pair, {})).error() == vb::errc::connection_refused);
        CHECK(one.server.reject().error() == vb::errc::connection_refused);
    }
    { // The server never answers, and the client's time is over.
        request one(r);
        one.asks.reset();
        auto pair = r.pair();
        auto client = r.reactor().run(resolve(*r.manager, one.door.local_address())).value();
        const auto connected = r.reactor().run(connect_for(client, pair, 50ms));
        REQUIRE_FALSE(connected.has_value());
        CHECK(connected.error() == vb::errc::timed_out);
        CHECK(r.reactor().run(connect(client, pair, {})).error() == vb::errc::timed_out);
        CHECK(r.reactor().run(disconnect(client)).error() == vb::errc::timed_out);
        // The request is there, and comes to nothing.
        auto server = r.reactor().run(next(one.door)).value();
        auto other = r.pair();
        const auto accepted = r.reactor().run(accept_for(server, other, 10s));
        REQUIRE_FALSE(accepted.has_value());
        CHECK(accepted.error() == vb::errc::connection_refused);
    }
    joined again(r);
    CHECK(r.manager->stats().established == 2);
}
