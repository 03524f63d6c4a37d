// An asynchronous event reaches every reactor of its context once, and ends those whom it leaves without a completion,
// each once and with the right root cause; nothing of it is left unread, unacked, or for ever readable (B08, B32, B37,
// B51).

#include "event_rig.hpp"

#include "device/overrun.hpp"
#include "queue_pair_core.hpp"

#include <cerrno>

#include <sys/socket.h>
#include <unistd.h>

using namespace races;

namespace {

vb::task<> take_one(vb::receiver& inbox, ending_log& log) {
    const auto got = co_await inbox.next();
    log.add(got);
}

void check_reset(const ending_log& log, std::size_t count, vb::errc root) {
    CHECK(log.successes == 0);
    REQUIRE(log.failures.size() == count);
    for (const auto& e : log.failures) {
        CHECK(e == vb::errc::connection_reset);
        CHECK(e.root_cause() == root);
    }
}

/// Puts a descriptor that hangs up for ever, and whose read says EIO, in the place of another.
void hang_up(int fd) {
    int pair[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
    close(pair[1]);
    REQUIRE(dup2(pair[0], fd) == fd);
    close(pair[0]);
}

/// A second reactor on the thread of the lab, with a connection of its own on the same device.
struct neighbour {
    explicit neighbour(lab& l)
        : engine(l.device), wire(l.domain, engine), stream(engine.reactor.events(l.device).value()) {}
    support::engine engine;
    support::wire wire;
    vb::event_stream stream;
};

} // namespace

TEST_CASE("five events before the first wake are all delivered by it, and by that one") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name);
        auto stream = l.reactor.events(l.device).value();
        l.turns(); // the descriptor is watched: what comes now is one edge
        const events wanted{on_port(kind::port_error), on_port(kind::port_active), on_port(kind::gid_change),
                            on_pair(kind::communication_established, *l.left),
                            on_queue(kind::completion_queue_error, l.send_cq)};
        for (int i = 0; i < 3; ++i) l.control.raise(static_cast<int>(wanted[static_cast<std::size_t>(i)].kind), 1);
        l.control.raise(IBV_EVENT_COMM_EST, l.left->native_handle());
        l.control.raise(IBV_EVENT_CQ_ERR, l.sends());
        const auto before = l.reactor.stats();
        CHECK(take_now(l.reactor, stream, 5) == wanted);
        CHECK(l.reactor.stats().wakes - before.wakes <= 1);
        ibv_async_event none{};
        CHECK(ibv_get_async_event(l.device.native_handle(), &none) == -1);
    }
}

TEST_CASE("an overrun of a completion queue ends everybody who waits for it, once") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name);
        auto cq = vb::completion_queue::create(l.device, 4, {.channel = l.channel}).value();
        l.reactor.attach(cq, l.slots).value();
        beside pairs(l, cq);
        support::overrunner overrun(l.domain, cq, cq.capacity() + 8);
        ending_log receives, later, spared;
        vb::scope scope;
        for (int i = 0; i < 4; ++i) scope.spawn(support::receive(pairs.right, l.slice(0), receives));
        l.turns();
        overrun();
        l.finish(scope);
        check_reset(receives, 4, vb::errc::queue_failed);
        CHECK(l.reactor.stats().outstanding == 0);
        l.reactor.run(support::transmit(pairs.left, l.slice(0), later));
        CHECK(later.failures.size() == 1);
        l.reactor.run(exchange(l, spared));
        CHECK(spared.successes == 2);
        CHECK(idle_turns(l.reactor) < 20);
    }
}

TEST_CASE("the event of a queue pair ends its operations, unless a completion says why") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices())
        for (const auto& [event, cause] : {std::pair{IBV_EVENT_QP_FATAL, vb::errc::connection_reset},
                                           {IBV_EVENT_QP_REQ_ERR, vb::errc::message_too_long},
                                           {IBV_EVENT_QP_ACCESS_ERR, vb::errc::access_denied},
                                           {IBV_EVENT_PATH_MIG_ERR, vb::errc::peer_unreachable}}) {
            INFO(name << ", event " << event);
            lab l(name, {.depth = 4});
            auto inbox = vb::receiver::create(*l.left, {.depth = 4, .message_bytes = 64}).value();
            ending_log log, messages, spared;
            vb::scope scope;
            for (int i = 0; i < 6; ++i) scope.spawn(support::receive(*l.right, l.slice(0), log)); // two wait for room
            scope.spawn(take_one(inbox, messages));
            l.turns();
            l.control.raise(event, l.right->native_handle());
            l.control.raise(event, l.right->native_handle());
            l.turns();
            CHECK(log.resumes() == 6);
            for (const auto& e : log.failures) CHECK(e.root_cause() == cause);
            CHECK(messages.resumes() == 0);
            l.control.raise(event, l.left->native_handle());
            l.finish(scope);
            CHECK(messages.failures.size() == 1);
            CHECK(l.reactor.stats().outstanding == 0);
        }
    for (const auto& name : devices()) {
        INFO(name << ", behind a completion");
        lab l(name, {.depth = 4});
        ending_log refused, log;
        vb::scope scope;
        for (int i = 0; i < 2; ++i) scope.spawn(support::receive(*l.left, l.slice(0), log));
        l.hold();
        scope.spawn([](lab& own, ending_log& into) -> vb::task<> {
            const auto written = co_await own.left->write(own.slice(1), vb::remote_slice{64, message_bytes, 1});
            into.add(written);
        }(l, refused));
        // Behind the last poll of a turn, and before its look at what is readable.
        bool raised = false;
        l.control.at(point::poll_ends, [&](const auto& at) {
            if (raised || at.cq != l.receives() || l.control.held().empty()) return;
            raised = true;
            l.let_go(l.sends());
            l.control.raise(IBV_EVENT_QP_FATAL, l.left->native_handle());
        });
        l.turns();
        CHECK(raised);
        l.release();
        l.finish(scope);
        REQUIRE(refused.failures.size() == 1);
        CHECK(refused.failures[0] == vb::errc::access_denied);
        REQUIRE(log.failures.size() == 2);
        for (const auto& e : log.failures) CHECK(e.root_cause() == vb::errc::access_denied);
    }
}

TEST_CASE("the event of a shared receive queue ends its receiver, and the last receive taken is remembered") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name);
        auto srq = vb::shared_receive_queue::create(l.domain, {.max_wr = 8}).value();
        auto options = support::pair_options(4);
        options.srq = srq;
        auto server = support::make_pair_end(l.domain, l.recv_cq, options);
        auto client = support::make_pair_end(l.domain, l.recv_cq, support::pair_options(4));
        support::connect(server, client);
        auto inbox = vb::receiver::create(l.reactor, srq, {.depth = 8, .message_bytes = 64}).value();
        auto stream = l.reactor.events(l.device).value();
        ending_log messages, log;
        vb::scope scope;
        scope.spawn(take_one(inbox, messages));
        scope.spawn(support::receive(client, l.slice(1), log));
        l.reactor.run(support::transmit(server, l.slice(0), log)); // from now on the reactor knows it
        l.turns();
        const auto* core = vb::detail::access::core(server);
        CHECK(!core->last_wqe());
        l.control.raise(IBV_EVENT_QP_LAST_WQE_REACHED, client.native_handle());
        l.control.raise(IBV_EVENT_SRQ_LIMIT_REACHED, srq.native_handle());
        l.turns();
        CHECK(!core->last_wqe());
        CHECK(messages.resumes() == 0);
        l.control.raise(IBV_EVENT_QP_LAST_WQE_REACHED, server.native_handle());
        l.control.raise(IBV_EVENT_SRQ_ERR, srq.native_handle());
        l.finish(scope);
        CHECK(core->last_wqe());
        REQUIRE(messages.failures.size() == 1);
        CHECK(messages.failures[0] == vb::errc::queue_failed);
        const auto handle = srq.native_handle()->handle;
        CHECK(take_now(l.reactor, stream, 4) ==
              events{on_pair(kind::last_receive_taken, client),
                     {kind::shared_receive_queue_limit, element::shared_receive_queue, handle},
                     on_pair(kind::last_receive_taken, server),
                     {kind::shared_receive_queue_error, element::shared_receive_queue, handle}});
    }
}

TEST_CASE("a port that goes down and comes back is told, and disturbs nobody") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name);
        auto stream = l.reactor.events(l.device).value();
        ending_log log, received;
        vb::scope scope;
        scope.spawn(support::receive(*l.right, l.slice(0), received));
        l.turns();
        l.control.raise(IBV_EVENT_PORT_ERR, 1);
        l.control.raise(IBV_EVENT_PORT_ACTIVE, 1);
        CHECK(take_now(l.reactor, stream, 2) == events{on_port(kind::port_error), on_port(kind::port_active)});
        l.reactor.run(support::transmit(*l.left, l.slice(1), log));
        l.finish(scope);
        CHECK(log.successes + received.successes == 2);
    }
}

TEST_CASE("what one reactor reads of another's elements is handed on to it") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name);
        auto stream = l.reactor.events(l.device).value();
        auto there = std::make_unique<neighbour>(l);
        ending_log log;
        vb::scope scope;
        scope.spawn(support::receive(there->wire.right, l.slice(0), log));
        l.turns(); // the other has not run, and does not watch the descriptor
        const events wanted{on_port(kind::lid_change), on_pair(kind::queue_pair_fatal, there->wire.right)};
        l.control.raise(IBV_EVENT_LID_CHANGE, 1);
        l.control.raise(IBV_EVENT_QP_FATAL, there->wire.right.native_handle());
        CHECK(take_now(l.reactor, stream, 2) == wanted); // nothing is left to be read
        CHECK(log.resumes() == 0);
        CHECK(take_now(there->engine.reactor, there->stream, 2) == wanted);
        support::some_turns(there->engine.reactor);
        REQUIRE(log.failures.size() == 1);
        CHECK(log.failures[0].root_cause() == vb::errc::connection_reset);
        // One that does not run any more, and one that is gone.
        for (int i = 0; i < 2000; ++i) l.control.raise(IBV_EVENT_SM_CHANGE, 1);
        l.turns();
        there.reset();
        l.control.raise(IBV_EVENT_PKEY_CHANGE, 1);
        l.turns();
        CHECK(stream.dropped() == 2001 - vb::event_stream::capacity);
    }
}

TEST_CASE("an event of a dead completion queue does not strike the one that has its address") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name);
        neighbour there(l);
        vb::reactor& reactor = there.engine.reactor;
        auto stream = l.reactor.events(l.device).value();
        l.turns();
        support::some_turns(reactor);
        const auto fresh = [&] {
            return vb::completion_queue::create(l.device, 4, {.channel = there.engine.channel}).value();
        };
        std::optional<vb::completion_queue> cq(fresh());
        reactor.attach(*cq, there.engine.slots).value();
        const auto error = on_queue(kind::completion_queue_error, *cq);
        l.control.raise(IBV_EVENT_CQ_ERR, cq->native_handle());
        CHECK(take_now(l.reactor, stream, 1) == events{error});
        reactor.detach(*cq).value(); // it has not looked at its mail
        const void* address = vb::detail::access::state(*cq).get();
        cq.reset();
        std::vector<vb::completion_queue> others;
        for (cq = fresh(); vb::detail::access::state(*cq).get() != address && others.size() < 64; cq = fresh())
            others.push_back(*cq);
        reactor.attach(*cq, there.engine.slots).value();
        support::some_turns(reactor);
        beside pairs(l, *cq);
        ending_log log;
        vb::scope scope;
        scope.spawn(support::receive(pairs.right, l.slice(0), log));
        scope.spawn(support::transmit(pairs.left, l.slice(1), log));
        reactor.run([](vb::scope& s) -> vb::task<> { co_await s.join(); }(scope));
        CHECK(log.successes == 2);
        CHECK(take_now(reactor, there.stream, 1) == events{error});
    }
}

TEST_CASE("the loss of the device is told by an event alone, once, and destroys go on") {
    const support::deadline limit(std::chrono::seconds{60});
    vb::set_log_sink([](vb::log_level, std::string_view) {});
    for (const auto& name : devices()) {
        INFO(name);
        {
            lab l(name, {.depth = 4});
            neighbour there(l);
            auto inbox = vb::receiver::create(*l.left, {.depth = 4, .message_bytes = 64}).value();
            auto stream = l.reactor.events(l.device).value();
            ending_log log, messages, other;
            events seen;
            std::vector<vb::error> ends;
            vb::scope scope, beyond;
            for (int i = 0; i < 4; ++i) scope.spawn(support::receive(*l.right, l.slice(0), log));
            scope.spawn(take_one(inbox, messages));
            scope.spawn(take(stream, 9, seen, ends));
            beyond.spawn(support::receive(there.wire.right, l.slice(0), other));
            support::some_turns(there.engine.reactor);
            l.turns();
            l.control.raise(IBV_EVENT_DEVICE_FATAL);
            l.control.raise(IBV_EVENT_QP_FATAL, l.right->native_handle());
            for (const char* verb : {"ibv_destroy_qp", "ibv_destroy_cq", "ibv_destroy_comp_channel", "ibv_dereg_mr",
                                     "ibv_dealloc_pd", "ibv_close_device"})
                l.control.fail(verb, {.value = EIO, .times = 1000});
            l.finish(scope);
            check_reset(log, 4, vb::errc::device_removed);
            REQUIRE(messages.failures.size() == 1);
            CHECK(seen == events{{kind::device_fatal, element::device, 0}});
            REQUIRE(ends.size() == 1);
            CHECK(ends[0] == vb::errc::device_removed);
            there.engine.reactor.run([](vb::scope& s) -> vb::task<> { co_await s.join(); }(beyond));
            check_reset(other, 1, vb::errc::device_removed);
            CHECK(idle_turns(l.reactor) < 20);
            CHECK(idle_turns(there.engine.reactor) < 20);
            CHECK(l.reactor.events(l.device).error() == vb::errc::device_removed);
            ending_log later;
            l.reactor.run(support::receive(*l.right, l.slice(0), later));
            CHECK(later.failures.size() == 1);
            l.left.reset();
            l.right.reset();
            l.control.fail("ibv_destroy_qp", {.value = EIO, .times = 1000});
        }
        sim::control(name).insert();
    }
    vb::set_log_sink({});
}

TEST_CASE("a descriptor that has hung up for ever costs no turns, whatever a read of it says") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices())
        for (const bool channel : {false, true})
            for (const bool eagain : {false, true}) {
                INFO(name << (channel ? ", channel" : ", events") << (eagain ? ", EAGAIN" : ", EIO"));
                lab l(name);
                ending_log log;
                vb::scope scope;
                for (int i = 0; i < 2; ++i) scope.spawn(support::receive(*l.right, l.slice(0), log));
                if (eagain)
                    l.control.fail(channel ? "ibv_get_cq_event" : "ibv_get_async_event",
                                   {.value = EAGAIN, .times = 1'000'000});
                hang_up(channel ? l.channel.fd() : l.device.native_handle()->async_fd);
                l.finish(scope);
                check_reset(log, 2, vb::errc::device_removed);
                CHECK(idle_turns(l.reactor) < 20);
                // Nobody watches it any more, under another reactor either.
                vb::reactor second({.wait = vb::wait_policy::park_at_once(), .safety_repoll = {}});
                if (channel) {
                    const auto cq = vb::completion_queue::create(l.device, 4, {.channel = l.channel}).value();
                    CHECK(l.reactor.attach(cq, l.slots).error() == vb::errc::device_removed);
                } else {
                    CHECK(second.events(l.device).error() == vb::errc::device_removed);
                }
            }
}
