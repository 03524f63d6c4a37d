// Closing a queue pair ends in bounded time, whatever the device still owes, and says how much never came; afterwards
// nothing is posted, and nothing of it is left (B10, B18, B39).

#include "race_rig.hpp"

#include <verbena/log.hpp>

#include <infiniband/verbs.h>

using namespace races;
using namespace std::chrono_literals;

namespace {

vb::task<> drain_into(vb::drain_operation operation, std::vector<std::uint32_t>& missing) {
    const auto report = co_await std::move(operation);
    missing.push_back(report.value().missing);
}

} // namespace

TEST_CASE("a close waits for the flushes, and posts fail from its beginning on") {
    const support::deadline limit(60s);
    for (const auto& name : devices())
        for (const auto mode : {vb::post_mode::immediate, vb::post_mode::batched}) {
            INFO(name << (mode == vb::post_mode::batched ? ", batched" : ""));
            lab l(name, {.depth = 4, .mode = mode});
            ending_log log, before, late;
            std::vector<std::uint32_t> missing;
            vb::scope scope;
            scope.spawn(support::receive(*l.left, l.slice(0), before));
            l.reactor.run(support::transmit(*l.right, l.slice(1), before));
            l.turns();
            REQUIRE(before.successes == 2);
            for (int i = 0; i < 6; ++i) scope.spawn(support::receive(*l.right, l.slice(0), log)); // two wait for room
            l.turns();
            // Who waits for room has shut the short way of a post, which this opens again.
            scope.spawn(support::receive(*l.left, l.slice(0), before));
            l.reactor.run(support::transmit(*l.right, l.slice(1), before));
            l.turns();
            REQUIRE(before.successes == 4);
            l.hold();
            scope.spawn(drain_into(l.right->close(), missing));
            scope.spawn(drain_into(l.right->drain(), missing)); // the one that closes does not leave it behind
            scope.spawn(support::receive(*l.right, l.slice(0), late));
            scope.spawn(support::transmit(*l.right, l.slice(1), late));
            l.turns();
            CHECK(missing.empty());
            CHECK(late.failures.size() == 2);
            CHECK(log.failures.size() == 2);
            l.release();
            l.finish(scope);
            CHECK(missing == std::vector<std::uint32_t>{0, 0});
            REQUIRE(log.failures.size() == 6);
            for (const auto& e : log.failures) {
                CHECK(e == vb::errc::connection_reset);
                CHECK(e.root_cause() == vb::errc::closed);
            }
            CHECK(l.right->native_handle() == nullptr);
            const auto state = l.right->state();
            REQUIRE(!state);
            CHECK(state.error() == vb::errc::closed);
            l.reactor.run(support::transmit(*l.right, l.slice(0), late));
            l.reactor.run(drain_into(l.right->close(), missing));
            CHECK(late.failures.size() == 3);
            CHECK(missing.size() == 3);
            const auto posted = l.right->post(vb::recv_request{l.slice(0)}, 1);
            REQUIRE(!posted);
            CHECK(posted.error() == vb::errc::closed);
            CHECK(l.reactor.stats().outstanding == 0);
            // Its room in the completion queues is free again.
            const auto ledger = l.control.ledger();
            CHECK(ledger.outstanding == 0);
            l.left.reset();
            for (int i = 0; i < 8; ++i) {
                auto again = l.make();
                l.reactor.run(drain_into(again.close(), missing));
            }
            CHECK(l.send_cq.capacity() <= 16);
        }
}

TEST_CASE("a close ends although the device stops flushing, and counts what never came") {
    const support::deadline limit(60s);
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name);
        l.control.flush_only(l.right->native_handle(), 3);
        ending_log log;
        std::vector<std::uint32_t> missing;
        vb::scope scope;
        for (int i = 0; i < 16; ++i) scope.spawn(support::receive(*l.right, l.slice(0), log));
        scope.spawn(drain_into(l.right->close(), missing));
        l.finish(scope);
        CHECK(missing == std::vector<std::uint32_t>{13});
        CHECK(log.failures.size() == 16);
        CHECK(l.reactor.stats().outstanding == 0);
        CHECK(l.reactor.stats().stale == 0);
    }
}

TEST_CASE("messages that had arrived are handed out before a close ends their receiver") {
    const support::deadline limit(60s);
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name);
        auto inbox = vb::receiver::create(*l.right, {.depth = 4, .message_bytes = message_bytes}).value();
        ending_log sent, got;
        std::vector<std::uint32_t> missing;
        const auto work = [&]() -> vb::task<> {
            for (int i = 0; i < 2; ++i) {
                auto one = co_await l.left->send(l.slice(0));
                sent.add(one);
            }
            const auto report = co_await l.right->close();
            missing.push_back(report.value().missing);
            for (int i = 0; i < 3; ++i) {
                auto message = co_await inbox.next();
                got.add(message);
            }
        };
        l.reactor.run(work());
        CHECK(got.successes == 2);
        REQUIRE(got.failures.size() == 1);
        CHECK(got.failures[0] == vb::errc::connection_reset);
        CHECK(missing == std::vector<std::uint32_t>{0});
    }
}

TEST_CASE("a queue pair that was never awaited on is closed at once") {
    const support::deadline limit(60s);
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name);
        std::vector<std::uint32_t> missing;
        l.reactor.run(drain_into(l.left->drain(), missing));
        CHECK(l.left->state().value() == vb::queue_pair_state::reset);
        l.reactor.run(drain_into(l.left->close(), missing));
        CHECK(missing == std::vector<std::uint32_t>{0, 0});
        CHECK(l.left->native_handle() == nullptr);
    }
}

TEST_CASE("a coroutine that waits for a close may be destroyed, and the queue pair after it") {
    const support::deadline limit(60s);
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name);
        l.hold();
        ending_log log;
        std::vector<std::uint32_t> missing;
        support::children children;
        children.spawn(support::receive(*l.right, l.slice(0), log));
        children.spawn(drain_into(l.right->close(), missing));
        l.turns();
        children.destroy(1);
        l.right.reset();
        l.turns();
        CHECK(log.failures.size() == 1);
        CHECK(missing.empty());
        CHECK(l.reactor.stats().outstanding == 0);
    }
}

TEST_CASE("closing a queue pair of a shared receive queue ends, although its last receive may never be reported") {
    const support::deadline limit(60s);
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name);
        auto srq = vb::shared_receive_queue::create(l.domain, {.max_wr = 8}).value();
        auto sharing =
            vb::queue_pair::create(l.domain, {.send_cq = l.send_cq, .recv_cq = l.recv_cq, .max_send = 4, .srq = srq})
                .value();
        auto peer = l.make();
        support::connect(sharing, peer);
        auto inbox = vb::receiver::create(l.reactor, srq, {.depth = 8, .message_bytes = message_bytes}).value();
        std::vector<std::uint32_t> missing;
        ending_log log;
        const auto work = [&]() -> vb::task<> {
            auto sent = co_await peer.send(l.slice(0));
            log.add(sent);
            const auto report = co_await sharing.close();
            missing.push_back(report.value().missing);
            auto message = co_await inbox.next(); // the queue lives on
            log.add(message);
        };
        l.reactor.run(work());
        CHECK(log.successes == 2);
        CHECK(missing == std::vector<std::uint32_t>{0});
    }
}

TEST_CASE("a peer that is gone is noticed by a side that only receives, if it keeps alive") {
    const support::deadline limit(60s);
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name);
        auto alive = [&] {
            return vb::queue_pair::create(
                       l.domain,
                       {.send_cq = l.send_cq, .recv_cq = l.recv_cq, .max_send = 4, .max_recv = 4, .keepalive = 2ms})
                .value();
        };
        auto here = alive();
        auto there = std::make_unique<vb::queue_pair>(alive());
        support::connect(here, *there);
        auto inbox = vb::receiver::create(here, {.depth = 4, .message_bytes = message_bytes}).value();
        ending_log log;
        const auto work = [&]() -> vb::task<> {
            // Alive: probes are answered, and nothing comes of them.
            const auto before = l.control.ledger().accepted;
            while (l.control.ledger().accepted < before + 3) co_await l.reactor.sleep_for(1ms);
            auto sent = co_await there->send(l.slice(0));
            log.add(sent);
            auto message = co_await inbox.next();
            log.add(message);
            there.reset();
            message = co_await inbox.next();
            log.add(message);
        };
        l.reactor.run(work());
        CHECK(log.successes == 2);
        REQUIRE(log.failures.size() == 1);
        CHECK(log.failures[0].root_cause() == vb::errc::peer_lost);
        auto sent = l.reactor.run([](vb::queue_pair& qp, vb::memory_slice slice) -> vb::task<vb::result<void>> {
            auto outcome = co_await qp.send(slice);
            co_return outcome;
        }(here, l.slice(0)));
        REQUIRE(!sent);
        CHECK(sent.error().root_cause() == vb::errc::peer_lost);
    }
    const auto device = vb::context::open(devices().front()).value();
    const auto domain = vb::protection_domain::create(device).value();
    const auto cq = vb::completion_queue::create(device, 8).value();
    const auto refused = vb::queue_pair::create(
        domain, {.send_cq = cq, .recv_cq = cq, .type = vb::queue_pair_type::ud, .keepalive = 1ms});
    REQUIRE(!refused);
    CHECK(refused.error() == vb::errc::invalid_argument);
}

TEST_CASE("a queue pair whose destruction is refused is quiet all the same") {
    const support::deadline limit(60s);
    for (const auto& name : devices())
        for (const bool by_hand : {false, true}) {
            INFO(name << (by_hand ? ", posted to by hand" : ", awaited"));
            lab l(name, {.depth = 4, .attach = !by_hand});
            unsigned logged = 0;
            vb::set_log_sink([&](vb::log_level, std::string_view) { ++logged; });
            ending_log log;
            vb::scope scope;
            std::ranges::fill(l.bytes(0), pattern);
            if (by_hand)
                l.right->post(vb::recv_request{l.slice(0)}, 1).value();
            else
                scope.spawn(support::receive(*l.right, l.slice(0), log));
            ibv_qp* const native = l.right->native_handle();
            l.control.fail("ibv_destroy_qp", {.value = EBUSY});
            l.right.reset();
            CHECK(logged == 1);
            if (!by_hand) l.finish(scope);
            CHECK(log.failures.size() == (by_hand ? 0 : 1));
            ibv_qp_attr attr{};
            ibv_qp_init_attr init{};
            support::require_zero(ibv_query_qp(native, &attr, IBV_QP_STATE, &init), "the queue pair is there");
            CHECK(attr.qp_state == IBV_QPS_RESET);
            CHECK(l.control.ledger().outstanding == 0);
            support::require_zero(ibv_destroy_qp(native), "destruction");
            vb::set_log_sink({});
        }
}
