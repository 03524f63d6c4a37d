// Invariant: completion queues, channels and events behave as the facts that each test names, and where providers
// differ sim0 behaves like mlx5 and sim1 like rxe.

#include "fixture.hpp"

#include <unistd.h>

#include <atomic>
#include <thread>
#include <utility>

using namespace simulated;

namespace {

const std::string flushed = ":" + std::to_string(IBV_WC_WR_FLUSH_ERR);

/// A pair of ends that complete in one queue.
struct wire {
    explicit wire(const char* name, int entries = 64, pair_options options = {})
        : dev(name), q(dev, entries), a(dev, q, options), b(dev, q, options) {
        connect(a, b);
    }
    /// One message: two completions.
    void message(std::uint64_t number, unsigned flags = IBV_SEND_SIGNALED) {
        REQUIRE(b.receive(number) == 0);
        REQUIRE(a.send(number + 100, flags) == 0);
    }
    device dev;
    queue q;
    end a, b;
};

} // namespace

TEST_CASE("B.1: one event a read, a short read is refused, an empty channel says EAGAIN") {
    for (const char* name : both) {
        device d(name);
        queue q(d);
        queue other(d);
        REQUIRE(ibv_destroy_cq(other.cq) == 0);
        other.cq = ibv_create_cq(d.context, 8, nullptr, q.channel, 1); // two queues on one channel
        end a(d, q, q), b(d, other, other);
        connect(a, b);
        CHECK(q.revents() == 0);
        CHECK(q.events() == 0);
        CHECK(errno == EAGAIN);
        REQUIRE((ibv_req_notify_cq(q.cq, 0) == 0 && ibv_req_notify_cq(other.cq, 0) == 0));
        REQUIRE(b.receive(1) == 0);
        REQUIRE(a.send(2) == 0);
        CHECK(q.readable());
        ibv_cq* from[2];
        void* user;
        for (auto& f : from) REQUIRE(ibv_get_cq_event(q.channel, &f, &user) == 0);
        CHECK(from[0] == other.cq); // the receive completed first
        CHECK(from[1] == q.cq);
        CHECK(ibv_get_cq_event(q.channel, &from[0], &user) == -1);
        for (auto* f : from) ibv_ack_cq_events(f, 1);
    }
}

TEST_CASE("B.1: the unread events of a queue go with it; a channel with queues stays") {
    for (const char* name : both) {
        device d(name);
        queue q(d);
        ibv_cq* second = ibv_create_cq(d.context, 8, nullptr, q.channel, 0);
        {
            queue sink(d);
            ibv_qp_init_attr init{};
            end a(d, sink);
            init.send_cq = init.recv_cq = second;
            init.cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 0};
            init.qp_type = IBV_QPT_RC;
            ibv_qp* b = ibv_create_qp(d.pd, &init);
            d.control.spurious_event(q.cq);
            d.control.spurious_event(second);
            d.control.spurious_event(second);
            ibv_destroy_qp(b);
        }
        CHECK(ibv_destroy_comp_channel(q.channel) == EBUSY);
        CHECK(ibv_destroy_cq(second) == 0);
        CHECK(q.events() == 1);
        CHECK(q.revents() == 0);
    }
}

TEST_CASE("B.2: an event taken by read(2) leaves the next arm without effect on mlx5") {
    for (const char* name : both) {
        wire w(name);
        REQUIRE(w.q.arm() == 0);
        w.message(1);
        CHECK(w.q.texts() == "1:0 101:0");
        std::uint64_t handle = 0;
        CHECK(::read(w.q.channel->fd, &handle, sizeof handle) == sizeof handle);
        CHECK(handle == reinterpret_cast<std::uintptr_t>(w.q.cq));
        ibv_ack_cq_events(w.q.cq, 1);
        REQUIRE(w.q.arm() == 0);
        w.message(2);
        const bool mlx5 = w.dev.control.character() == sim::character::mlx5;
        CHECK(w.q.readable() == !mlx5);
        CHECK(w.dev.control.ledger().ignored_arms == (mlx5 ? 1 : 0));
        w.q.events();
    }
}

TEST_CASE("B.3: destruction waits until every event that was got is acknowledged") {
    for (const char* name : both) {
        device d(name);
        auto* channel = ibv_create_comp_channel(d.context);
        auto* cq = ibv_create_cq(d.context, 8, nullptr, channel, 0);
        d.control.spurious_event(cq);
        d.control.spurious_event(cq);
        ibv_cq* from;
        void* user;
        REQUIRE(ibv_get_cq_event(channel, &from, &user) == 0); // the other one stays unread
        std::atomic<bool> destroyed{false};
        std::thread destroyer([&] {
            CHECK(ibv_destroy_cq(cq) == 0);
            destroyed = true;
        });
        pollfd fd{.fd = channel->fd, .events = POLLIN, .revents = 0};
        while (::poll(&fd, 1, 0) == 1) std::this_thread::yield(); // until the unread one is gone
        CHECK(!destroyed);
        ibv_ack_cq_events(cq, 1);
        destroyer.join();
        CHECK(ibv_destroy_comp_channel(channel) == 0);
    }
}

TEST_CASE("B.4: an arm gives one event, and none for what is there already") {
    for (const char* name : both) {
        wire w(name);
        w.message(1);
        REQUIRE(w.q.arm() == 0);
        CHECK(!w.q.readable());
        w.message(2);
        w.message(3);
        CHECK(w.q.events() == 1);
        w.message(4);
        CHECK(w.q.events() == 0);
        REQUIRE((w.q.arm() == 0 && w.q.arm() == 0));
        w.message(5);
        CHECK(w.q.events() == 1);
    }
}

TEST_CASE("B.4: solicited arms, their upgrade, and errors") {
    for (const char* name : both) {
        wire w(name);
        REQUIRE(w.q.arm(1) == 0);
        w.message(1);
        CHECK(w.q.events() == 0);
        w.message(2, IBV_SEND_SIGNALED | IBV_SEND_SOLICITED);
        CHECK(w.q.events() == 1);
        REQUIRE((w.q.arm(1) == 0 && w.q.arm(0) == 0 && w.q.arm(1) == 0)); // no way back
        w.message(3);
        CHECK(w.q.events() == 1);
        REQUIRE(w.q.arm(1) == 0);
        REQUIRE(w.b.receive(9) == 0);
        w.b.move(IBV_QPS_ERR);
        CHECK(w.q.events() == 1);
    }
}

TEST_CASE("B.4: a redundant arm loses the notification when the control wants it") {
    wire w("sim0");
    w.dev.control.redundant_arm_loses(true);
    REQUIRE((w.q.arm() == 0 && w.q.arm() == 0));
    w.message(1);
    CHECK(w.q.events() == 0);
}

TEST_CASE("B.5: an error entry has wr_id, status, qp_num and vendor_err; the rest misleads") {
    for (const char* name : both) {
        wire w(name);
        REQUIRE(w.b.receive(7) == 0);
        w.b.move(IBV_QPS_ERR);
        const auto entries = w.q.poll();
        REQUIRE(entries.size() == 1);
        CHECK((entries[0].wr_id == 7 && entries[0].status == IBV_WC_WR_FLUSH_ERR));
        CHECK((entries[0].qp_num == w.b.qp->qp_num && entries[0].vendor_err != 0));
        CHECK(entries[0].opcode == IBV_WC_SEND); // of a receive
        CHECK(entries[0].byte_len == 0xdbdbdbdb);
    }
}

TEST_CASE("B.5: unsignaled requests are silent unless they fail") {
    for (const char* name : both) {
        wire w(name);
        ibv_sge s = w.dev.slice(0, 8);
        auto wr = w.a.request(1, IBV_WR_RDMA_WRITE, &s);
        wr.send_flags = 0;
        REQUIRE(w.a.post(wr) == 0);
        CHECK(w.q.texts().empty());
        wr.wr_id = 2;
        wr.wr.rdma.rkey = 0;
        REQUIRE(w.a.post(wr) == 0);
        CHECK(w.q.texts() == "2:" + std::to_string(IBV_WC_REM_ACCESS_ERR));
        REQUIRE(w.a.post(wr) == 0);
        CHECK(w.q.texts() == "2" + flushed);
    }
}

TEST_CASE("B.5: a send slot is free when its completion is polled on mlx5, when it is done on rxe") {
    for (const char* name : both) {
        wire w(name, 64, {.depth = 2});
        ibv_sge s = w.dev.slice(0, 8);
        auto unsignaled = w.a.request(1, IBV_WR_RDMA_WRITE, &s);
        unsignaled.send_flags = 0;
        const bool mlx5 = w.dev.control.character() == sim::character::mlx5;
        REQUIRE(w.a.post(unsignaled) == 0);
        REQUIRE(w.a.post(w.a.request(2, IBV_WR_RDMA_WRITE, &s)) == 0);
        CHECK(w.a.post(unsignaled) == (mlx5 ? ENOMEM : 0));
        CHECK(w.q.texts() == "2:0");
        CHECK(w.a.post(unsignaled) == 0);
    }
}

TEST_CASE("B.5, B.10: a receive posted to a queue pair in error is flushed at once on mlx5, at the next ERR on rxe") {
    for (const char* name : both) {
        const bool mlx5 = sim::control(name).character() == sim::character::mlx5;
        wire w(name);
        w.b.move(IBV_QPS_ERR);
        REQUIRE(w.b.receive(3) == 0);
        REQUIRE(w.b.send(4) == 0);
        CHECK(w.q.texts() == (mlx5 ? "3" + flushed + " 4" + flushed : "4" + flushed));
        CHECK(w.b.move(IBV_QPS_ERR) == 0);
        CHECK(w.q.texts() == (mlx5 ? "" : "3" + flushed));
    }
}

TEST_CASE("B.5: destruction and RESET purge unpolled entries on mlx5, leave them on rxe") {
    for (const char* name : both) {
        const bool mlx5 = sim::control(name).character() == sim::character::mlx5;
        wire w(name);
        w.message(1);
        REQUIRE(w.a.move(IBV_QPS_RESET) == 0);
        CHECK(w.q.texts() == (mlx5 ? "1:0" : "1:0 101:0"));
        w.a.to_init();
        w.a.connect(w.b.qp->qp_num);
        w.b.move(IBV_QPS_RESET);
        w.b.to_init();
        w.b.connect(w.a.qp->qp_num);
        w.message(2);
        REQUIRE(ibv_destroy_qp(std::exchange(w.b.qp, nullptr)) == 0);
        CHECK(w.q.texts() == (mlx5 ? "102:0" : "2:0 102:0"));
    }
}

TEST_CASE("B.5: overrun kills the queue and its pairs on mlx5") {
    wire w("sim0", 3);
    ibv_sge s = w.dev.slice(0, 8);
    for (std::uint64_t i = 0; i < 5; ++i) w.a.post(w.a.request(i, IBV_WR_RDMA_WRITE, &s));
    CHECK(w.dev.async_event() == IBV_EVENT_CQ_ERR);
    CHECK(w.dev.async_event() == IBV_EVENT_QP_FATAL);
    CHECK(w.dev.async_event() == IBV_EVENT_QP_FATAL);
    CHECK(w.dev.async_event() == -1);
    CHECK((w.a.state() == IBV_QPS_ERR && w.b.state() == IBV_QPS_ERR));
    CHECK(w.q.texts() == "0:0 1:0 2:0");
    w.a.post(w.a.request(9, IBV_WR_RDMA_WRITE, &s));
    CHECK(w.q.texts().empty());
    CHECK(w.dev.control.ledger().dropped == 3);
}

TEST_CASE("B.5: overrun drops an entry and tells each time on rxe, and a lost receive breaks its pair") {
    wire w("sim1", 3);
    ibv_sge s = w.dev.slice(0, 8);
    for (std::uint64_t i = 0; i < 12; ++i) w.a.post(w.a.request(i, IBV_WR_RDMA_WRITE, &s));
    for (int i = 0; i < 9; ++i) CHECK(w.dev.async_event() == IBV_EVENT_CQ_ERR);
    CHECK(w.dev.async_event() == -1);
    CHECK(w.a.state() == IBV_QPS_RTS);
    CHECK(w.q.texts() == "0:0 1:0 2:0");
    for (std::uint64_t i = 0; i < 4; ++i) w.message(i);
    CHECK(w.b.state() == IBV_QPS_ERR);
    while (w.dev.async_event() == IBV_EVENT_CQ_ERR) {}
}

TEST_CASE("B.6: capacities are rounded up, and those beyond the limits refused") {
    for (const char* name : both) {
        device d(name);
        ibv_device_attr limits{};
        REQUIRE(ibv_query_device(d.context, &limits) == 0);
        for (const auto& [asked, granted] : {std::pair{1, 1}, {3, 3}, {10, 15}, {64, 127}}) {
            ibv_cq* cq = ibv_create_cq(d.context, asked, nullptr, nullptr, 0);
            CHECK(cq->cqe == granted);
            ibv_destroy_cq(cq);
        }
        for (const int asked : {0, -1, limits.max_cqe + 1}) {
            CHECK(ibv_create_cq(d.context, asked, nullptr, nullptr, 0) == nullptr);
            CHECK(errno == EINVAL);
        }
        for (const int vector : {-1, d.context->num_comp_vectors})
            CHECK(ibv_create_cq(d.context, 1, nullptr, nullptr, vector) == nullptr);
    }
}

TEST_CASE("B.8: an extended queue is polled in the classic way alone") {
    for (const char* name : both) {
        device d(name);
        const auto create = [&](auto change) {
            ibv_cq_init_attr_ex wanted{};
            wanted.cqe = 10;
            wanted.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
            wanted.flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
            change(wanted);
            errno = 0;
            return ibv_create_cq_ex(d.context, &wanted);
        };
        ibv_cq_ex* made = create([](auto&) {});
        REQUIRE(made != nullptr);
        CHECK(made->cqe == 15);
        ibv_poll_cq_attr begin{};
        CHECK(ibv_start_poll(made, &begin) == EOPNOTSUPP);
        ibv_wc entry;
        CHECK(ibv_poll_cq(ibv_cq_ex_to_cq(made), 1, &entry) == 0);
        CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(made)) == 0);
        CHECK((create([](auto& w) { w.cqe = 0; }) == nullptr && errno == EINVAL));
        CHECK(
            (create([](auto& w) { w.flags |= IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN; }) == nullptr && errno == EOPNOTSUPP));
        CHECK((create([](auto& w) { w.comp_mask |= IBV_CQ_INIT_ATTR_MASK_PD; }) == nullptr && errno == EOPNOTSUPP));
        CHECK((create([](auto& w) { w.wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP; }) == nullptr &&
               errno == EOPNOTSUPP));
    }
}

TEST_CASE("events are moderated on sim0 alone, and within its limits") {
    for (const char* name : both) {
        device d(name);
        queue q(d);
        ibv_device_attr_ex limits{};
        REQUIRE(ibv_query_device_ex(d.context, nullptr, &limits) == 0);
        const bool can = d.control.character() == sim::character::mlx5;
        CHECK(limits.cq_mod_caps.max_cq_period == (can ? 4095 : 0));
        ibv_modify_cq_attr wanted{};
        wanted.attr_mask = IBV_CQ_ATTR_MODERATE;
        wanted.moderate = {.cq_count = 16, .cq_period = 4095};
        CHECK(ibv_modify_cq(q.cq, &wanted) == (can ? 0 : EOPNOTSUPP));
        wanted.moderate.cq_period = 4096;
        CHECK(ibv_modify_cq(q.cq, &wanted) == (can ? EINVAL : EOPNOTSUPP));
    }
}

TEST_CASE("B.7: a resize keeps the entries and refuses to lose one") {
    for (const char* name : both) {
        wire w(name);
        for (std::uint64_t i = 0; i < 10; ++i) w.message(i);
        CHECK(ibv_resize_cq(w.q.cq, 10) == EINVAL);
        CHECK(ibv_resize_cq(w.q.cq, 0) == EINVAL);
        CHECK(w.q.cq->cqe == 127);
        CHECK(ibv_resize_cq(w.q.cq, 300) == 0);
        CHECK(w.q.cq->cqe == 511);
        CHECK(ibv_resize_cq(w.q.cq, 20) == 0);
        CHECK(w.q.poll().size() == 20);
        // An arm outlives it on rxe only.
        REQUIRE(w.q.arm() == 0);
        CHECK(ibv_resize_cq(w.q.cq, 200) == 0);
        w.message(1);
        CHECK(w.q.events() == (w.dev.control.character() == sim::character::rxe ? 1 : 0));
    }
}

TEST_CASE("B.9: after removal commands fail, destructions succeed, descriptors tell") {
    for (const char* name : both) {
        device d(name);
        {
            queue q(d);
            end a(d, q), b(d, q);
            connect(a, b);
            REQUIRE(b.receive(1) == 0);
            REQUIRE(q.arm() == 0);
            d.control.remove();
            CHECK(q.revents() == POLLERR);
            CHECK(q.events() == 0);
            CHECK(errno == EIO);
            ibv_async_event event;
            REQUIRE(ibv_get_async_event(d.context, &event) == 0);
            CHECK(event.event_type == IBV_EVENT_DEVICE_FATAL);
            ibv_ack_async_event(&event);
            CHECK(ibv_get_async_event(d.context, &event) == -1);
            CHECK(errno == EAGAIN);
            CHECK(a.move(IBV_QPS_ERR) == EIO);
            ibv_device_attr limits;
            CHECK(ibv_query_device(d.context, &limits) == EIO);
            CHECK(ibv_create_cq(d.context, 1, nullptr, nullptr, 0) == nullptr);
            const bool mlx5 = d.control.character() == sim::character::mlx5;
            CHECK(a.send(1) == (mlx5 ? 0 : EIO)); // mlx5 posts without the kernel
            CHECK(q.poll().empty());
            int count = -1;
            ibv_free_device_list(ibv_get_device_list(&count));
            CHECK(count == 1);
        }
        d.control.insert();
    }
}

TEST_CASE("B.10: RESET ends outstanding requests without a completion") {
    for (const char* name : both) {
        wire w(name);
        for (std::uint64_t i = 0; i < 4; ++i) REQUIRE(w.a.receive(i) == 0);
        REQUIRE((w.a.send(5) == 0 && w.a.send(6) == 0)); // no receive there
        REQUIRE(w.a.move(IBV_QPS_RESET) == 0);
        REQUIRE(w.b.receive(9) == 0);
        CHECK(w.q.texts().empty());
        CHECK(w.dev.control.ledger().purged == 6);
    }
}

TEST_CASE("B.10: a failure flushes all that is outstanding in order, unsignaled too") {
    for (const char* name : both) {
        wire w(name);
        for (std::uint64_t i = 0; i < 3; ++i) REQUIRE(w.a.receive(i) == 0);
        for (std::uint64_t i = 10; i < 14; ++i) REQUIRE(w.a.send(i, i == 13 ? unsigned{IBV_SEND_SIGNALED} : 0U) == 0);
        w.a.move(IBV_QPS_ERR);
        std::string expected;
        for (const int i : {10, 11, 12, 13, 0, 1, 2}) expected += (i == 10 ? "" : " ") + std::to_string(i) + flushed;
        CHECK(w.q.texts() == expected);
    }
}

TEST_CASE("B.10: shared receives are never flushed; only mlx5 tells of the last one; the limit tells once") {
    for (const char* name : both) {
        device d(name);
        ibv_srq_init_attr init{};
        init.attr = {.max_wr = 8, .max_sge = 1, .srq_limit = 0};
        ibv_srq* srq = ibv_create_srq(d.pd, &init);
        REQUIRE(srq != nullptr);
        {
            queue q(d);
            end a(d, q), b(d, q, {.srq = srq});
            connect(a, b);
            for (std::uint64_t i = 0; i < 4; ++i) REQUIRE(b.receive(i) == 0);
            ibv_srq_attr limit{.max_wr = 0, .max_sge = 0, .srq_limit = 4};
            CHECK(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT) == 0);
            REQUIRE((a.send(10) == 0 && a.send(11) == 0));
            CHECK(q.texts() == "0:0 10:0 1:0 11:0");
            CHECK(d.async_event() == IBV_EVENT_SRQ_LIMIT_REACHED);
            CHECK(d.async_event() == -1);
            ibv_recv_wr wr{}, *bad;
            CHECK(ibv_post_recv(b.qp, &wr, &bad) == EINVAL);
            b.move(IBV_QPS_ERR);
            CHECK(q.texts().empty());
            const bool mlx5 = d.control.character() == sim::character::mlx5;
            CHECK(d.async_event() == (mlx5 ? static_cast<int>(IBV_EVENT_QP_LAST_WQE_REACHED) : -1));
            CHECK(ibv_destroy_srq(srq) == EBUSY);
        }
        CHECK(ibv_destroy_srq(srq) == 0);
    }
}
