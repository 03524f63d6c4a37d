// A connection that is made carries private data both ways and then its queue pairs' traffic; its end reaches both
// sides, every wait and every operation.

#include "cm_rig.hpp"

#include <array>

using namespace cm;

static_assert(vb::detail::limitable<vb::resolve_operation> && vb::detail::limitable<vb::next_connection_operation> &&
              vb::detail::limitable<vb::connect_operation> && vb::detail::limitable<vb::disconnect_operation>);

namespace {

vb::task<> echo(vb::queue_pair& qp, vb::receiver& inbox) {
    while (auto message = co_await inbox.next()) {
        auto sent = co_await qp.send(message->bytes());
        if (!sent) co_return;
    }
}

vb::task<vb::error> converse(vb::queue_pair& qp, vb::receiver& inbox, vb::memory_region& memory, int count) {
    for (int i = 0; i < count; ++i) {
        support::put_number(memory.bytes(), static_cast<std::uint64_t>(i));
        auto sent = co_await qp.send(memory.slice());
        if (!sent) co_return sent.error();
        auto answer = co_await inbox.next();
        if (!answer) co_return answer.error();
        if (!support::has_number(answer->bytes().bytes(), static_cast<std::uint64_t>(i)))
            co_return vb::error(vb::errc::not_found, "the number");
    }
    co_return vb::error();
}

vb::receiver inbox_of(vb::queue_pair& qp) { return vb::receiver::create(qp, {.message_bytes = 64}).value(); }

} // namespace

TEST_CASE("a connection is made with private data both ways, and its queue pairs talk") {
    NEEDS_CONNECTIONS();
    rig r;
    joined j(r);
    CHECK(text_of(j.server.private_data()) == "hello");
    CHECK(text_of(j.client.private_data()) == "welcome");
    for (const vb::connection* c : {&j.client, &j.server}) {
        CHECK(c->device_name() == r.device.name());
        CHECK(c->port() == 1);
    }
    CHECK(j.client.peer_address() == j.door.local_address());
    CHECK(j.server.local_address() == j.door.local_address());
    CHECK(j.server.peer_address() == j.client.local_address());
    CHECK(r.manager->stats().established == 2);
    CHECK(r.manager->stats().requests == 1);

    auto shared =
        vb::memory_region::allocate(r.domain, 64, vb::access_flags::local_write | vb::access_flags::remote_write)
            .value();
    r.reactor().run([](vb::queue_pair& qp, vb::memory_slice from, vb::remote_slice to) -> vb::task<> {
        auto written = co_await qp.write(from, to); // the rights that the queue pair was made with
        written.value();
    }(j.client_pair, shared.slice(0, 32), shared.remote(32, 32)));

    auto there = inbox_of(j.server_pair), here = inbox_of(j.client_pair);
    auto memory = vb::memory_region::allocate(r.domain, 64).value();
    support::running_task<void> echoes(echo(j.server_pair, there));
    CHECK(r.reactor().run(converse(j.client_pair, here, memory, 100)).code() == std::error_code());
}

TEST_CASE("a queue pair whose peer disconnects ends with `disconnected` as root cause, after all that had arrived") {
    NEEDS_CONNECTIONS();
    for (const bool server_leaves : {false, true}) {
        rig r;
        joined j(r);
        auto &left = server_leaves ? j.client : j.server, &leaves = server_leaves ? j.server : j.client;
        auto& left_pair = server_leaves ? j.client_pair : j.server_pair;
        auto& leaves_pair = server_leaves ? j.server_pair : j.client_pair;
        auto inbox = inbox_of(left_pair), other_inbox = inbox_of(leaves_pair);
        auto memory = vb::memory_region::allocate(r.domain, 64).value();
        support::running_task<vb::result<void>> told(disconnected(left)), told_too(disconnected(leaves));
        r.reactor().run([](vb::queue_pair& qp, vb::memory_slice slice, const vb::connection& c) -> vb::task<> {
            auto sent = co_await qp.send(slice);
            sent.value();
            auto ended = co_await c.disconnect();
            ended.value();
        }(leaves_pair, memory.slice(), leaves));
        r.finish(told).value();
        r.finish(told_too).value();

        const auto read = [&](vb::receiver& from) {
            return r.reactor().run(
                [](vb::receiver& i) -> vb::task<vb::result<vb::message>> { co_return co_await i.next(); }(from));
        };
        CHECK(read(inbox).has_value());
        for (vb::receiver* each : {&inbox, &other_inbox}) {
            const auto end = read(*each);
            REQUIRE_FALSE(end.has_value());
            CHECK(end.error() == vb::errc::connection_reset);
            CHECK(end.error().root_cause() == vb::errc::disconnected);
        }
        CHECK(left_pair.state().value() == vb::queue_pair_state::error);
        // It has ended: everybody is told at once, and nothing can begin.
        r.reactor().run(disconnected(left)).value();
        r.reactor().run(disconnect(left)).value();
        auto another = r.pair();
        CHECK(r.reactor().run(connect(left, another, {})).error() == vb::errc::disconnected);
        CHECK(r.manager->stats().disconnected == 2);
    }
}

TEST_CASE("a connection that is destroyed disconnects its peer") {
    NEEDS_CONNECTIONS();
    rig r;
    joined j(r);
    support::running_task<vb::result<void>> told(disconnected(j.client));
    j.server = vb::connection();
    r.finish(told).value();
}
