// Invariant: the control makes happen what it says, when it says, and nothing of it lasts beyond `reset`.

#include "fixture.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

using namespace simulated;

namespace {

struct wire {
    explicit wire(const char* name, pair_options options = {})
        : dev(name), sent(dev), received(dev), a(dev, sent, sent, options), b(dev, received, received, options) {
        connect(a, b);
    }
    void message(std::uint64_t number) {
        REQUIRE(b.receive(number) == 0);
        REQUIRE(a.send(number) == 0);
    }
    device dev;
    queue sent, received;
    end a, b;
};

} // namespace

TEST_CASE("held completions come one by one, in any order") {
    for (const char* name : both) {
        wire w(name);
        auto& control = w.dev.control;
        control.hold(w.received.cq);
        for (std::uint64_t i = 1; i <= 4; ++i) w.message(i);
        CHECK(w.sent.texts() == "1:0 2:0 3:0 4:0");
        CHECK(w.received.texts().empty());
        const auto held = control.held();
        REQUIRE(held.size() == 4);
        CHECK((held[2].cq == w.received.cq && held[2].wr_id == 3 && held[2].is_receive));
        CHECK(held[2].qp_num == w.b.qp->qp_num);
        CHECK(control.ledger().outstanding == 4);
        REQUIRE(w.received.arm() == 0);
        CHECK(control.release(held[2].id));
        CHECK(!control.release(held[2].id));
        CHECK(w.received.events() == 1);
        CHECK(w.received.texts() == "3:0");
        CHECK(control.release(w.received.cq) == 3);
        CHECK(w.received.texts() == "1:0 2:0 4:0");
        w.message(5);
        CHECK(w.received.texts() == "5:0");
        control.hold();
        w.message(6);
        CHECK((w.sent.texts() == "5:0" && w.received.texts().empty()));
        CHECK(control.release() == 2);
    }
}

TEST_CASE("what is held of a pair that is reset or destroyed never comes") {
    for (const char* name : both) {
        wire w(name);
        w.dev.control.hold();
        w.message(1);
        REQUIRE(w.b.move(IBV_QPS_RESET) == 0);
        REQUIRE(ibv_destroy_qp(std::exchange(w.a.qp, nullptr)) == 0);
        CHECK(w.dev.control.release() == 0);
        CHECK((w.sent.texts().empty() && w.received.texts().empty()));
        CHECK(w.dev.control.ledger().purged == 2);
    }
}

TEST_CASE("a function runs at each point, and may use the verbs") {
    for (const char* name : both) {
        wire w(name);
        auto& control = w.dev.control;
        std::vector<sim::point> reached;
        for (std::size_t i = 0; i < sim::point_count; ++i)
            control.at(static_cast<sim::point>(i), [&](const sim::point_reached& p) { reached.push_back(p.where); });
        w.message(1);
        REQUIRE(w.received.arm() == 0);
        w.message(2);
        w.received.events();
        w.received.poll();
        using sim::point;
        CHECK(reached == std::vector{point::post_recv_begins, point::post_recv_ends, point::post_send_begins,
                                     point::post_send_ends, point::arm_begins, point::arm_ends, point::post_recv_begins,
                                     point::post_recv_ends, point::post_send_begins, point::post_send_ends,
                                     point::event_taken, point::poll_begins, point::poll_ends});
        control.reset();
        // The race that a drain before the arm alone loses: the entry comes inside the arm.
        for (const bool before : {true, false}) {
            w.received.poll();
            control.at(before ? point::arm_begins : point::arm_ends, [&](const auto& p) {
                CHECK(p.cq == w.received.cq);
                w.message(3);
            });
            REQUIRE(w.received.arm() == 0);
            control.reset();
            CHECK(w.received.events() == (before ? 0 : 1));
            CHECK(w.received.texts() == "3:0");
        }
        // Between poll and arm.
        control.at(point::poll_ends, [&](const auto&) { w.message(4); });
        CHECK(w.received.texts().empty());
        control.reset();
        CHECK(w.received.texts() == "4:0");
    }
}

TEST_CASE("the n-th call of a verb fails, in each convention") {
    for (const char* name : both) {
        wire w(name);
        auto& control = w.dev.control;
        control.fail("ibv_create_cq", {.call = 2, .value = ENOMEM});
        ibv_cq* first = ibv_create_cq(w.dev.context, 1, nullptr, nullptr, 0);
        REQUIRE(first != nullptr);
        ibv_destroy_cq(first);
        CHECK(ibv_create_cq(w.dev.context, 1, nullptr, nullptr, 0) == nullptr);
        CHECK(errno == ENOMEM);
        control.fail("ibv_resize_cq", {.value = EINVAL});
        CHECK(ibv_resize_cq(w.sent.cq, 10) == EINVAL);
        control.fail("ibv_resize_cq", {.value = EINVAL, .convention = sim::convention::negative_errno});
        CHECK(ibv_resize_cq(w.sent.cq, 10) == -EINVAL);
        control.fail("ibv_req_notify_cq", {.value = EIO, .convention = sim::convention::minus_one_and_errno});
        errno = 0;
        CHECK((w.sent.arm() == -1 && errno == EIO));
        control.fail("ibv_get_cq_event", {.value = EINTR, .times = 2});
        for (int i = 0; i < 2; ++i) {
            ibv_cq* from;
            void* user;
            CHECK((ibv_get_cq_event(w.sent.channel, &from, &user) == -1 && errno == EINTR));
        }
        control.fail("ibv_poll_cq", {.value = -3});
        ibv_wc wc;
        CHECK(ibv_poll_cq(w.sent.cq, 1, &wc) == -3);
        CHECK(ibv_poll_cq(w.sent.cq, 1, &wc) == 0);
        CHECK_THROWS_AS(control.fail("ibv_pole_cq", {}), std::invalid_argument);
        control.fail("ibv_post_send", {.call = 100, .value = EINVAL});
        control.forgive();
    }
}

TEST_CASE("a chain fails in the middle") {
    for (const char* name : both) {
        wire w(name);
        w.dev.control.fail("ibv_post_send", {.value = ENOMEM, .accepted = 2});
        ibv_sge s = w.dev.slice(0, 8);
        std::array<ibv_send_wr, 3> chain;
        for (std::size_t i = 0; i < 3; ++i) {
            chain[i] = w.a.request(i, IBV_WR_RDMA_WRITE, &s);
            if (i > 0) chain[i - 1].next = &chain[i];
        }
        ibv_send_wr* bad = nullptr;
        CHECK(ibv_post_send(w.a.qp, chain.data(), &bad) == ENOMEM);
        CHECK(bad == &chain[2]);
        CHECK(w.sent.texts() == "0:0 1:0");
    }
}

TEST_CASE("events get lost, come twice, come without reason") {
    for (const char* name : both) {
        wire w(name);
        auto& control = w.dev.control;
        control.double_events(w.received.cq, 1);
        REQUIRE(w.received.arm() == 0);
        w.message(1);
        CHECK(w.received.events() == 2);
        control.spurious_event(w.received.cq);
        CHECK(w.received.events() == 1);
        control.drop_events(w.received.cq, 1);
        REQUIRE(w.received.arm() == 0);
        w.message(2);
        CHECK(w.received.events() == 0);
        // On mlx5 the device waits for that event to be taken.
        REQUIRE(w.received.arm() == 0);
        w.message(3);
        CHECK(w.received.events() == (control.character() == sim::character::rxe ? 1 : 0));
    }
}

TEST_CASE("flushing stops after so many, RESET takes the rest") {
    for (const char* name : both) {
        wire w(name);
        for (std::uint64_t i = 0; i < 5; ++i) REQUIRE(w.b.receive(i) == 0);
        w.dev.control.flush_only(w.b.qp, 2);
        w.b.move(IBV_QPS_ERR);
        CHECK(w.received.poll().size() == 2);
        CHECK(w.dev.control.ledger().outstanding == 3);
        w.b.move(IBV_QPS_RESET);
        CHECK(w.dev.control.ledger().purged == 3);
    }
}

TEST_CASE("a failing poll consumes entries that nobody sees") {
    for (const char* name : both) {
        wire w(name);
        for (std::uint64_t i = 0; i < 3; ++i) w.message(i);
        w.dev.control.fail_poll(w.received.cq, 2);
        ibv_wc entries[4];
        CHECK(ibv_poll_cq(w.received.cq, 4, entries) == -2);
        CHECK(w.received.texts() == "2:0");
        CHECK(w.dev.control.ledger().consumed == 2);
    }
}

TEST_CASE("buffers are written at the last moment") {
    for (const char* name : both) {
        wire w(name);
        auto& control = w.dev.control;
        const auto is = [&](std::size_t at, char value) {
            return std::all_of(w.dev.at(at), w.dev.at(at) + 64, [value](char c) { return c == value; });
        };
        constexpr char junk = static_cast<char>(0xdb);
        std::memset(w.dev.at(0), 'x', 64);
        control.write_late(true);
        control.hold();
        w.message(1); // to 4096
        CHECK(is(4096, junk));
        std::memset(w.dev.at(0), 'y', 64); // the data left when the message did
        control.release();
        CHECK(is(4096, 'x'));

        std::memset(w.dev.at(8192), 'r', 64);
        ibv_sge s = w.dev.slice(1024, 64);
        control.hold();
        REQUIRE(w.a.post(w.a.request(2, IBV_WR_RDMA_READ, &s)) == 0);
        CHECK(is(1024, junk));
        control.release();
        CHECK(is(1024, 'r'));

        // Flushed, and purged.
        for (const auto state : {IBV_QPS_ERR, IBV_QPS_RESET}) {
            std::memset(w.dev.at(4096), 'z', 64);
            control.hold();
            REQUIRE(w.b.receive(3) == 0);
            w.b.move(state);
            CHECK(is(4096, state == IBV_QPS_ERR ? 'z' : junk));
            control.release();
            CHECK(is(4096, junk));
            w.b.move(IBV_QPS_RESET);
            w.b.to_init();
        }
        // A region that is gone is not written to.
        ibv_mr* own = ibv_reg_mr(w.dev.pd, w.dev.at(2048), 64, all_access);
        s = {reinterpret_cast<std::uintptr_t>(w.dev.at(2048)), 64, own->lkey};
        w.b.move(IBV_QPS_RESET);
        w.a.move(IBV_QPS_RESET);
        for (end* e : {&w.a, &w.b}) e->to_init();
        connect(w.a, w.b);
        control.hold();
        REQUIRE(w.b.receive(4, &s, 1) == 0);
        REQUIRE(w.a.send(5) == 0);
        ibv_dereg_mr(own);
        std::memset(w.dev.at(2048), 'q', 64);
        control.release();
        CHECK(is(2048, 'q'));
    }
}

TEST_CASE("a scattered message arrives whole, late or not") {
    for (const char* name : both)
        for (const bool late : {false, true}) {
            wire w(name);
            w.dev.control.write_late(late);
            if (late) w.dev.control.hold();
            for (int i = 0; i < 100; ++i) *w.dev.at(static_cast<std::size_t>(i)) = static_cast<char>(i);
            std::array from{w.dev.slice(0, 10), w.dev.slice(10, 0), w.dev.slice(10, 80), w.dev.slice(90, 10)};
            std::array into{w.dev.slice(5000, 50), w.dev.slice(6000, 49), w.dev.slice(7000, 50)};
            REQUIRE(w.b.receive(1, into.data(), 3) == 0);
            REQUIRE(w.a.post(w.a.request(2, IBV_WR_SEND, from.data(), 4)) == 0);
            w.dev.control.release();
            CHECK(w.received.poll()[0].byte_len == 100);
            CHECK(std::memcmp(w.dev.at(5000), w.dev.at(0), 50) == 0);
            CHECK(std::memcmp(w.dev.at(6000), w.dev.at(50), 49) == 0);
            CHECK(*w.dev.at(7000) == 99);
        }
}

TEST_CASE("an unknown device or queue is an invalid argument") {
    CHECK_THROWS_AS(sim::control("mlx5_0"), std::invalid_argument);
    device d("sim0");
    device other("sim1");
    queue q(other);
    CHECK_THROWS_AS(d.control.hold(q.cq), std::invalid_argument);
    CHECK_THROWS_AS(d.control.drop_events(nullptr, 1), std::invalid_argument);
    CHECK(sim::control(other.context).character() == sim::character::rxe);
}
