// The recipe of README.md in this folder for testing a server of one's own on the simulated device, as it stands there.

#include "device/rig.hpp"

#include <verbena/sim/control.hpp>

#include <optional>

namespace vb = verbena;
namespace sim = verbena::sim;

namespace {

// The server under test: says how its connection ended.
vb::task<vb::error> serve(vb::queue_pair& qp, vb::receiver& inbox) {
    while (auto message = co_await inbox.next()) {
        auto sent = co_await qp.send(message->bytes());
        if (!sent) co_return sent.error();
    }
    co_return inbox.error();
}

vb::task<bool> send(const vb::queue_pair& qp, vb::memory_slice text) {
    const auto sent = co_await qp.send(text);
    co_return sent.has_value();
}

template <class T>
vb::task<T> end_of(vb::child<T>& child) {
    co_return co_await child.wait();
}

struct two_ends {
    explicit two_ends(const char* name)
        : device(vb::context::open(name).value()), domain(vb::protection_domain::create(device).value()),
          engine(device), wire(domain, engine, engine, support::pair_options()),
          inbox(vb::receiver::create(wire.right, {.depth = 4, .message_bytes = 64}).value()),
          memory(vb::memory_region::allocate(domain, 64).value()) {
        wire.connect();
    }
    vb::context device;
    vb::protection_domain domain;
    support::engine engine;
    support::wire wire;
    vb::receiver inbox;
    vb::memory_region memory;
};

} // namespace

// COOKBOOK: on sim
TEST_CASE("the server survives a refused send, and reports a device that is removed") {
    sim::control control("sim0");
    control.reset();
    two_ends ends("sim0"); // domain, reactor, a connection of `left` to the server's `right`
    auto& reactor = ends.engine.reactor;
    vb::scope scope;
    auto serving = scope.spawn(serve(ends.wire.right, ends.inbox));

    SECTION("the second send from now on is refused for lack of memory") {
        control.fail("ibv_post_send", {.call = 2, .value = ENOMEM}); // the first is the client's
        CHECK(reactor.run(send(ends.wire.left, ends.memory.slice())));
        CHECK(reactor.run(end_of(serving)) == vb::errc::resource);
    }
    SECTION("the device is removed while the server waits") {
        reactor.poll().value();
        control.remove();
        CHECK(reactor.run(end_of(serving)) == vb::errc::device_removed);
        control.insert();
    }
    SECTION("a completion that comes late is still its own") {
        control.hold();
        auto sending = scope.spawn(send(ends.wire.left, ends.memory.slice()));
        for (int turn = 0; turn < 8; ++turn) reactor.poll().value();
        CHECK(control.held().size() == 2); // the send's, and the server's receive
        control.release();
        CHECK(reactor.run(end_of(sending)));
    }
    control.reset();
}
// COOKBOOK: end
