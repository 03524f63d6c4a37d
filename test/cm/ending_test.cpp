// Whatever is destroyed, stopped or timed out while others wait: each wait ends once or never runs again, nothing is
// lost that others could get, and what lives on works.

#include "cm_rig.hpp"

#include "support/forked.hpp"

#include <memory>
#include <stop_token>

using namespace cm;

namespace {

template <class T>
using running = support::running_task<vb::result<T>>;

vb::task<vb::result<vb::connection>> resolve_until(const vb::connection_manager& manager, vb::socket_address to,
                                                   std::stop_token stop) {
    co_return co_await vb::with_stop(manager.resolve(to), std::move(stop));
}
vb::task<vb::result<vb::connection>> next_for(const vb::connection_listener& door, std::chrono::nanoseconds limit) {
    co_return co_await vb::with_timeout(door.next(), limit);
}
vb::task<vb::result<void>> disconnected_for(const vb::connection& c, std::chrono::nanoseconds limit) {
    co_return co_await vb::with_timeout(c.disconnected(), limit);
}
vb::task<vb::result<void>> disconnect_until(const vb::connection& c, std::stop_token stop) {
    co_return co_await vb::with_stop(c.disconnect(), std::move(stop));
}
vb::task<vb::result<void>> accept_until(const vb::connection& c, vb::queue_pair& qp, std::stop_token stop) {
    co_return co_await vb::with_stop(c.accept(qp), std::move(stop));
}
vb::task<vb::result<void>> connect_until(const vb::connection& c, vb::queue_pair& qp, std::stop_token stop) {
    co_return co_await vb::with_stop(c.connect(qp), std::move(stop));
}

vb::task<vb::result<vb::connection>> next_then_destroy(const vb::connection_listener& door,
                                                       std::optional<running<vb::connection>>& other) {
    auto got = co_await door.next();
    other.reset();
    co_return got;
}

/// A client that has asked, and whose request nobody has taken.
struct asking {
    explicit asking(rig& of)
        : r(of), door(of.listen()), pair(of.pair()),
          client(of.reactor().run(resolve(*of.manager, door.local_address())).value()),
          connects(std::in_place, connect(client, pair, {})) {
        of.turn_until([&] { return of.manager->stats().requests > 0; });
    }

    rig& r;
    vb::connection_listener door;
    vb::queue_pair pair;
    vb::connection client;
    std::optional<running<void>> connects;
};

} // namespace

TEST_CASE("each wait that is stopped or timed out ends alone") {
    NEEDS_CONNECTIONS();
    rig r;
    std::stop_source stop;
    auto door = r.listen();
    r.reactor().poll().value(); // a limit needs one that has run

    running<vb::connection> resolves(resolve_until(*r.manager, door.local_address(), stop.get_token()));
    stop.request_stop();
    CHECK(r.finish(resolves).error() == vb::errc::stopped);
    CHECK(r.reactor().run(next_for(door, 1ms)).error() == vb::errc::timed_out);

    joined j(r);
    running<void> stays(disconnected(j.client));
    CHECK(r.reactor().run(disconnected_for(j.client, 1ms)).error() == vb::errc::timed_out);
    // The end that was asked for comes all the same.
    std::stop_source again;
    running<void> leaves(disconnect_until(j.server, again.get_token()));
    again.request_stop();
    CHECK(r.finish(leaves).error() == vb::errc::stopped);
    r.finish(stays).value();
    r.reactor().run(disconnect(j.server)).value();
}

TEST_CASE("a handshake whose wait is stopped is over on both sides, as is one whose coroutine is destroyed") {
    NEEDS_CONNECTIONS();
    for (const bool destroyed : {false, true}) {
        rig r;
        std::stop_source stop;
        { // of the client
            auto door = r.listen();
            auto pair = r.pair(), other = r.pair();
            auto client = r.reactor().run(resolve(*r.manager, door.local_address())).value();
            std::optional<running<void>> connects( // after the reactor has run
                std::in_place, connect_until(client, pair, stop.get_token()));
            auto server = r.reactor().run(next(door)).value();
            if (destroyed) {
                connects.reset();
            } else {
                stop.request_stop();
                CHECK(r.finish(*connects).error() == vb::errc::stopped);
            }
            CHECK(r.reactor().run(connect(client, pair, {})).error() == vb::errc::stopped);
            CHECK_FALSE(r.reactor().run(accept(server, other, {})).has_value());
        }
        { // of the server, whose client does not look
            rig there;
            auto door = r.listen();
            auto pair = r.pair(), there_pair = there.pair();
            auto client = there.reactor().run(resolve(*there.manager, door.local_address())).value();
            running<void> connects(connect(client, there_pair, {}));
            auto server = r.reactor().run(next(door)).value();
            std::stop_source second;
            std::optional<running<void>> accepts(std::in_place, accept_until(server, pair, second.get_token()));
            if (destroyed) {
                accepts.reset();
            } else {
                second.request_stop();
                CHECK(r.finish(*accepts).error() == vb::errc::stopped);
            }
            CHECK(r.reactor().run(accept(server, pair, {})).error() == vb::errc::stopped);
            // It may have been told yes before it was told no.
            if (there.finish(connects).has_value()) there.reactor().run(disconnected(client)).value();
        }
        joined again(r);
    }
}

TEST_CASE("a request that woke a wait which is then destroyed goes to the next one") {
    NEEDS_CONNECTIONS();
    rig r;
    auto door = r.listen();
    std::optional<running<vb::connection>> second;
    // Both are woken by one batch, and the first destroys the second before that has run.
    running<vb::connection> first(next_then_destroy(door, second));
    second.emplace(next(door));
    running<vb::connection> third(next(door));
    auto pair = r.pair(), other_pair = r.pair();
    auto client = r.reactor().run(resolve(*r.manager, door.local_address())).value();
    auto other_client = r.reactor().run(resolve(*r.manager, door.local_address())).value();
    running<void> connects(connect(client, pair, {})), other_connects(connect(other_client, other_pair, {}));
    r.finish(first).value().reject().value();
    r.finish(third).value().reject().value();
    CHECK(r.finish(connects).error() == vb::errc::connection_refused);
    CHECK(r.finish(other_connects).error() == vb::errc::connection_refused);
}

TEST_CASE("a queue pair that is closed in the middle of its handshake ends it") {
    NEEDS_CONNECTIONS();
    rig r;
    std::optional<asking> a(std::in_place, r);
    { const vb::queue_pair closed = std::move(a->pair); }
    CHECK(r.finish(*a->connects).error() == vb::errc::closed);
    CHECK(r.manager->stats().established == 0);
    a.reset();
    joined again(r);
}

TEST_CASE("what is destroyed ends its waits with `closed`") {
    NEEDS_CONNECTIONS();
    rig r;
    std::optional<asking> a(std::in_place, r);
    a->client = vb::connection();
    CHECK(r.finish(*a->connects).error() == vb::errc::closed);
    auto server = r.reactor().run(next(a->door)).value();
    running<vb::connection> waits(next(a->door));
    a->door = vb::connection_listener();
    CHECK(r.finish(waits).error() == vb::errc::closed);

    std::optional<joined> j(std::in_place, r);
    running<void> ends(disconnected(j->client)), ends_too(disconnected(j->server));
    running<vb::connection> next_waits(next(j->door));
    auto pair = r.pair();
    auto client = r.reactor().run(resolve(*r.manager, j->door.local_address())).value();
    running<void> connects(connect(client, pair, {}));
    running<vb::connection> resolves(resolve(*r.manager, j->door.local_address()));
    r.manager.reset();
    for (auto* each : {&ends, &ends_too, &connects}) CHECK(r.finish(*each).error() == vb::errc::closed);
    CHECK(r.finish(next_waits).error() == vb::errc::closed);
    CHECK(r.finish(resolves).error() == vb::errc::closed);
    CHECK(r.reactor().run(disconnected(j->client)).error() == vb::errc::closed);
    CHECK(r.reactor().run(next(j->door)).error() == vb::errc::closed);
    CHECK(server.reject().error() == vb::errc::closed);

    // What was connected is so until it goes.
    CHECK(j->client_pair.state().value() == vb::queue_pair_state::ready_to_send);
    r.manager.emplace(vb::connection_manager::create().value());
    r.reactor().attach(*r.manager).value();
    joined again(r);
}

TEST_CASE("when the reactor is gone nobody is resumed, all fails, and everything can be destroyed") {
    NEEDS_CONNECTIONS();
    rig r;
    std::optional<joined> j(std::in_place, r);
    asking a(r);
    auto client = r.reactor().run(resolve(*r.manager, j->door.local_address())).value();
    running<void> ends(disconnected(j->client)), leaves(disconnect(j->server));
    running<vb::connection> waits(next(j->door)), resolves(resolve(*r.manager, j->door.local_address()));
    r.engine.reset();
    CHECK_FALSE((ends.ended() || leaves.ended() || waits.ended() || resolves.ended() || a.connects->ended()));

    const auto now = [](auto task) {
        support::running_task running(std::move(task));
        REQUIRE(running.ended_at_once());
        return running.get().error();
    };
    CHECK(now(disconnected(j->client)) == vb::errc::not_attached);
    CHECK(now(next(j->door)) == vb::errc::not_attached);
    CHECK(now(resolve(*r.manager, j->door.local_address())) == vb::errc::not_attached);
    CHECK(r.manager->listen(r.address).error() == vb::errc::not_attached);
    vb::reactor another;
    CHECK(another.attach(*r.manager).error() == vb::errc::not_attached);
    r.manager.reset();
    j.reset();
}

TEST_CASE("without a reactor nothing is awaited, and one manager has one reactor") {
    NEEDS_CONNECTIONS();
    rig r;
    CHECK(r.reactor().attach(*r.manager).error() == vb::errc::attached);
    auto alone = vb::connection_manager::create().value();
    CHECK(r.reactor().run(resolve(alone, r.address)).error() == vb::errc::not_attached);
    // What is asked before the attachment is kept.
    auto door = alone.listen(r.address).value();
    CHECK(r.reactor().run(next(door)).error() == vb::errc::not_attached);
    auto pair = r.pair();
    auto client = r.reactor().run(resolve(*r.manager, door.local_address())).value();
    running<void> connects(connect(client, pair, {}));
    r.reactor().attach(alone).value();
    auto server = r.reactor().run(next(door)).value();
    server.reject().value();
    CHECK(r.finish(connects).error() == vb::errc::connection_refused);

    CHECK(r.reactor().attach(vb::connection_manager()).error() == vb::errc::invalid_argument);
    CHECK(r.reactor().run(next({})).error() == vb::errc::invalid_argument);
    CHECK(r.reactor().run(disconnect({})).error() == vb::errc::invalid_argument);
    CHECK(r.reactor().run(resolve({}, r.address)).error() == vb::errc::invalid_argument);
}
