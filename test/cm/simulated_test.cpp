// What a kernel does not do on request: a device that is removed under its connections, calls that fail in the middle
// of a handshake. Each is told to who waits, and leaves nothing behind; no destruction waits for an acknowledgement.

#include "cm_rig.hpp"
#include "simulated_cm.hpp"

#include <cerrno>

using namespace cm;

namespace {

template <class T>
using running = support::running_task<vb::result<T>>;

struct nothing_left {
    ~nothing_left() { CHECK((open_objects() == 0 && blocked_destructions() == 0)); }
};

} // namespace

TEST_CASE("a removed device ends whatever waits for it") {
    const nothing_left after;
    rig r;
    joined j(r);
    auto client = r.reactor().run(resolve(*r.manager, j.door.local_address())).value();
    auto pair = r.pair();
    running<void> ends(disconnected(j.client)), connects(connect(client, pair, {}));
    auto server = r.reactor().run(next(j.door)).value();
    running<vb::connection> waits(next(j.door));
    remove_device();
    CHECK(r.finish(ends).error() == vb::errc::device_removed);
    CHECK(r.finish(connects).error() == vb::errc::device_removed);
    CHECK(r.finish(waits).error() == vb::errc::device_removed);
    CHECK(r.reactor().run(next(j.door)).error() == vb::errc::device_removed);
    CHECK(r.reactor().run(disconnect(j.client)).error() == vb::errc::device_removed);
}

TEST_CASE("a call that fails in the middle of a handshake ends it, and the next one works") {
    const nothing_left after;
    rig r;
    for (const char* call : {"rdma_create_id", "rdma_resolve_addr", "rdma_resolve_route"}) {
        CAPTURE(call);
        auto door = r.listen();
        refuse_next(call, ENOMEM);
        CHECK(r.reactor().run(resolve(*r.manager, door.local_address())).error() == vb::errc::resource);
    }
    for (const char* call : {"rdma_create_id", "rdma_bind_addr", "rdma_listen"}) {
        CAPTURE(call);
        refuse_next(call, ENOMEM);
        CHECK(r.manager->listen(r.address).error() == vb::errc::resource);
    }
    auto door = r.listen();
    auto client = r.reactor().run(resolve(*r.manager, door.local_address())).value();
    auto pair = r.pair(), other = r.pair();
    refuse_next("rdma_connect", ENOMEM);
    CHECK(r.reactor().run(connect(client, pair, {})).error() == vb::errc::resource);
    {
        running<void> connects(connect(client, pair, {})); // nothing was sent before
        auto server = r.reactor().run(next(door)).value();
        running<void> accepts(accept(server, other, {}));
        refuse_next("rdma_establish", ENOMEM);
        CHECK(r.finish(connects).error() == vb::errc::resource);
        CHECK(r.finish(accepts).error() == vb::errc::connection_refused);
    }
    joined again(r);
    refuse_next("rdma_disconnect", ENOMEM);
    CHECK(r.reactor().run(disconnect(again.client)).error() == vb::errc::resource);
    r.reactor().run(disconnect(again.client)).value();
}

TEST_CASE("a manager that cannot be made says why") {
    refuse_next("rdma_create_event_channel", ENODEV);
    CHECK(vb::connection_manager::create().error() == vb::errc::unsupported);
    refuse_next("rdma_create_event_channel", EMFILE);
    CHECK(vb::connection_manager::create().error() == vb::errc::resource);
}

TEST_CASE("a channel that fails ends everything with what it said") {
    const nothing_left after;
    rig r;
    joined j(r);
    running<void> ends(disconnected(j.client));
    running<vb::connection> waits(next(j.door));
    running<vb::connection> resolves(resolve(*r.manager, j.door.local_address()));
    refuse_next("rdma_get_cm_event", EIO);
    for (auto* each : {&waits, &resolves}) CHECK(r.finish(*each).error() == vb::errc::device_removed);
    CHECK(r.finish(ends).error() == vb::errc::device_removed);
    CHECK(r.reactor().run(disconnected(j.client)).error() == vb::errc::device_removed);
}

TEST_CASE("a channel that is short of memory for a moment goes on") {
    const nothing_left after;
    rig r;
    joined j(r);
    refuse_next("rdma_get_cm_event", ENOMEM);
    running<vb::connection> resolves(resolve(*r.manager, j.door.local_address()));
    CHECK(r.finish(resolves).has_value());
}
