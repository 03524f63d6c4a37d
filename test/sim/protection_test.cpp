// Invariant: a request that may not do what it asks ends with the status that real devices give, at both ends, and
// changes no memory. Nothing that a program gets wrong crashes the device.

#include "fixture.hpp"

#include <algorithm>
#include <utility>

using namespace simulated;

namespace {

struct wire {
    explicit wire(const char* name, pair_options options = {})
        : dev(name), sent(dev), received(dev), a(dev, sent, sent, options), b(dev, received, received, options) {
        connect(a, b);
    }
    device dev;
    queue sent, received;
    end a, b;
};

/// The only send completion of one RDMA request.
ibv_wc_status status_of(wire& w, ibv_send_wr wr) {
    REQUIRE(w.a.post(wr) == 0);
    const auto entries = w.sent.poll();
    REQUIRE(entries.size() == 1);
    return entries[0].status;
}

ibv_send_wr change(ibv_send_wr wr, auto&& f) {
    f(wr);
    return wr;
}

} // namespace

TEST_CASE("remote keys, bounds, rights and domains") {
    for (const char* name : both) {
        const auto attempt = [&](ibv_wr_opcode opcode, auto&& spoil, pair_options options = {}) {
            wire w(name, options);
            ibv_sge s = w.dev.slice(0, 8);
            const auto status = status_of(w, change(w.a.request(1, opcode, &s), [&](auto& wr) { spoil(wr, w); }));
            CHECK(w.a.state() == (status == IBV_WC_SUCCESS ? IBV_QPS_RTS : IBV_QPS_ERR));
            return status;
        };
        const auto nothing = [](auto&, auto&) {};
        for (const auto opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ}) {
            CHECK(attempt(opcode, nothing) == IBV_WC_SUCCESS);
            CHECK(attempt(opcode, [](auto& wr, auto&) { wr.wr.rdma.rkey ^= 0x100; }) == IBV_WC_REM_ACCESS_ERR);
            CHECK(attempt(opcode, [](auto& wr, auto&) { wr.wr.rdma.rkey ^= 1; }) == IBV_WC_REM_ACCESS_ERR);
            CHECK(attempt(opcode, [](auto& wr, auto& w) {
                      wr.wr.rdma.remote_addr = reinterpret_cast<std::uintptr_t>(w.dev.at(65536 - 7));
                  }) == IBV_WC_REM_ACCESS_ERR);
            CHECK(attempt(opcode, [](auto& wr, auto& w) {
                      wr.wr.rdma.remote_addr = reinterpret_cast<std::uintptr_t>(w.dev.at(0)) - 1;
                  }) == IBV_WC_REM_ACCESS_ERR);
            CHECK(attempt(opcode, [](auto& wr, auto&) { wr.wr.rdma.remote_addr = ~std::uint64_t{0} - 3; }) ==
                  IBV_WC_REM_ACCESS_ERR);
            CHECK(attempt(opcode, nothing, {.access = IBV_ACCESS_LOCAL_WRITE}) == IBV_WC_REM_INV_REQ_ERR);
        }
        const auto at_word = [](auto& wr, auto& w, std::size_t offset) {
            wr.wr.atomic.remote_addr = reinterpret_cast<std::uintptr_t>(w.dev.at(8192 + offset));
            wr.wr.atomic.rkey = w.dev.mr->rkey;
        };
        CHECK(attempt(IBV_WR_ATOMIC_FETCH_AND_ADD, [&](auto& wr, auto& w) { at_word(wr, w, 8); }) == IBV_WC_SUCCESS);
        CHECK(attempt(IBV_WR_ATOMIC_FETCH_AND_ADD, [&](auto& wr, auto& w) { at_word(wr, w, 4); }) ==
              IBV_WC_REM_INV_REQ_ERR);
        CHECK(attempt(IBV_WR_RDMA_READ, nothing, {.rd_atomic = 0}) == IBV_WC_LOC_QP_OP_ERR);
    }
}

TEST_CASE("a region of another domain, without a right, or deregistered is none") {
    for (const char* name : both) {
        wire w(name);
        ibv_sge s = w.dev.slice(0, 8);
        ibv_pd* other = ibv_alloc_pd(w.dev.context);
        ibv_mr* foreign = ibv_reg_mr(other, w.dev.at(8192), 64, all_access);
        CHECK(status_of(w, change(w.a.request(1, IBV_WR_RDMA_WRITE, &s),
                                  [&](auto& wr) { wr.wr.rdma.rkey = foreign->rkey; })) == IBV_WC_REM_ACCESS_ERR);
        CHECK(ibv_dealloc_pd(other) == EBUSY);
        CHECK(ibv_dereg_mr(foreign) == 0);
        CHECK(ibv_dealloc_pd(other) == 0);
    }
    for (const char* name : both) {
        wire w(name);
        ibv_mr* once = ibv_reg_mr(w.dev.pd, w.dev.at(0), 64, local_write);
        ibv_sge s{reinterpret_cast<std::uintptr_t>(w.dev.at(0)), 8, once->lkey};
        REQUIRE(w.b.receive(9) == 0);
        CHECK(status_of(w, w.a.request(1, IBV_WR_SEND, &s)) == IBV_WC_SUCCESS);
        ibv_dereg_mr(once);
        CHECK(status_of(w, w.a.request(1, IBV_WR_SEND, &s)) == IBV_WC_LOC_PROT_ERR);
    }
    for (const char* name : both) {
        wire w(name);
        ibv_mr* read_only = ibv_reg_mr(w.dev.pd, w.dev.at(0), 64, 0);
        ibv_sge s{reinterpret_cast<std::uintptr_t>(w.dev.at(0)), 8, read_only->lkey};
        CHECK(status_of(w, w.a.request(1, IBV_WR_RDMA_WRITE, &s)) == IBV_WC_SUCCESS);
        CHECK(status_of(w, w.a.request(1, IBV_WR_RDMA_READ, &s)) == IBV_WC_LOC_PROT_ERR);
        ibv_dereg_mr(read_only);
    }
}

TEST_CASE("a receive that does not fit breaks both ends") {
    for (const char* name : both) {
        const bool mlx5 = sim::control(name).character() == sim::character::mlx5;
        {
            wire w(name);
            REQUIRE(w.b.receive(5, 4096, 32) == 0);
            REQUIRE(w.a.send(1) == 0);
            CHECK(w.sent.texts() == "1:" + std::to_string(IBV_WC_REM_INV_REQ_ERR));
            // rxe names both sides of the fault alike.
            CHECK(w.received.texts() == "5:" + std::to_string(mlx5 ? IBV_WC_LOC_LEN_ERR : IBV_WC_REM_INV_REQ_ERR));
            CHECK(w.b.state() == IBV_QPS_ERR);
            CHECK(w.dev.async_event() == (mlx5 ? static_cast<int>(IBV_EVENT_QP_REQ_ERR) : -1));
        }
        {
            wire w(name);
            ibv_sge bad = w.dev.slice(4096, 64);
            bad.lkey ^= 0x1000;
            REQUIRE(w.b.receive(5, &bad, 1) == 0);
            REQUIRE(w.a.send(1) == 0);
            CHECK(w.sent.texts() == "1:" + std::to_string(IBV_WC_REM_OP_ERR));
            CHECK(w.received.texts() == "5:" + std::to_string(mlx5 ? IBV_WC_LOC_PROT_ERR : IBV_WC_LOC_QP_OP_ERR));
        }
    }
}

TEST_CASE("a peer that does not answer ends in RETRY_EXC_ERR") {
    for (const char* name : both) {
        device d(name);
        d.control.use_manual_clock();
        queue q(d);
        const auto outcome = [&](auto&& prepare) {
            end a(d, q), b(d, q);
            prepare(a, b);
            REQUIRE(a.send(1) == 0);
            CHECK(q.poll().empty());
            d.control.advance(std::chrono::microseconds{4096});
            return q.texts();
        };
        const auto expected = "1:" + std::to_string(IBV_WC_RETRY_EXC_ERR);
        CHECK(outcome([](end& a, end&) { a.connect(0x123456); }) == expected);
        CHECK(outcome([](end& a, end& b) { a.connect(b.qp->qp_num); }) == expected); // b is in INIT
        CHECK(outcome([](end& a, end& b) {
                  connect(a, b);
                  b.move(IBV_QPS_ERR);
              }) == expected);
        CHECK(outcome([](end& a, end& b) {
                  connect(a, b);
                  ibv_destroy_qp(std::exchange(b.qp, nullptr));
              }) == expected);
        CHECK(outcome([](end& a, end& b) { // the packet numbers differ
                  a.options.psn = 5;
                  connect(a, b);
              }) == expected);
        CHECK(outcome([&](end& a, end& b) { // another network
                  d.gid.raw[15] = 77;
                  connect(a, b);
                  d.gid.raw[15] = name == both[0] ? 1 : 2;
              }) == expected);
    }
}

TEST_CASE("a peer that comes in time is reached") {
    for (const char* name : both) {
        device d(name);
        d.control.use_manual_clock();
        queue q(d);
        end a(d, q), b(d, q);
        a.connect(b.qp->qp_num);
        REQUIRE(b.receive(2) == 0);
        REQUIRE(a.send(1) == 0);
        CHECK(q.poll().empty());
        b.to_rtr(a.qp->qp_num);
        CHECK(q.texts() == "2:0 1:0");
        d.control.advance(std::chrono::seconds{1});
        CHECK(q.texts().empty());
    }
}

TEST_CASE("a missing receive is waited for, as often as rnr_retry says") {
    for (const char* name : both) {
        device d(name);
        d.control.use_manual_clock();
        queue q(d);
        {
            end a(d, q), b(d, q);
            connect(a, b);
            REQUIRE((a.send(1) == 0 && a.send(2) == 0));
            d.control.advance(std::chrono::hours{1});
            CHECK(q.poll().empty());
            REQUIRE(b.receive(10) == 0);
            CHECK(q.texts() == "10:0 1:0");
            REQUIRE(b.receive(11) == 0);
            CHECK(q.texts() == "11:0 2:0");
        }
        for (const std::uint8_t retries : {0, 3}) {
            end a(d, q, {.rnr_retry = retries}), b(d, q);
            connect(a, b);
            REQUIRE(a.send(1) == 0);
            d.control.advance(std::chrono::microseconds{30});
            CHECK(q.texts() == "1:" + std::to_string(IBV_WC_RNR_RETRY_EXC_ERR));
            CHECK(b.state() == IBV_QPS_RTS);
        }
    }
}

TEST_CASE("on the real clock a retry ends by itself, and wakes who sleeps") {
    for (const char* name : both) {
        device d(name);
        queue q(d);
        end a(d, q);
        a.connect(0x777777);
        fcntl(q.channel->fd, F_SETFL, 0);
        REQUIRE(q.arm() == 0);
        REQUIRE(a.send(1) == 0);
        ibv_cq* from;
        void* user;
        REQUIRE(ibv_get_cq_event(q.channel, &from, &user) == 0);
        ibv_ack_cq_events(from, 1);
        CHECK(q.texts() == "1:" + std::to_string(IBV_WC_RETRY_EXC_ERR));
    }
}

TEST_CASE("datagrams that do not arrive are no error") {
    for (const char* name : both) {
        const bool mlx5 = sim::control(name).character() == sim::character::mlx5;
        device d(name);
        queue sent(d), received(d);
        end a(d, sent, received, {.type = IBV_QPT_UD});
        a.connect(0);
        ibv_ah_attr to{};
        to.is_global = to.port_num = 1;
        to.grh.dgid = d.gid;
        to.grh.sgid_index = 1;
        ibv_ah* ah = ibv_create_ah(d.pd, &to);
        ibv_sge s = d.slice(0, 64);
        auto wr = a.request(1, IBV_WR_SEND, &s);
        const auto send = [&](std::uint32_t number, std::uint32_t key) {
            wr.wr.ud = {ah, number, key};
            REQUIRE(a.post(wr) == 0);
            return sent.texts();
        };
        CHECK(send(a.qp->qp_num, 7) == "1:0"); // no receive is posted
        REQUIRE(a.receive(5, 4096, 104) == 0);
        CHECK(send(a.qp->qp_num, 8) == "1:0"); // the key is wrong
        CHECK(send(0x999999, 7) == "1:0");
        CHECK(received.texts().empty());
        CHECK(send(a.qp->qp_num, 7) == "1:0");
        CHECK(received.texts() == "5:0");
        REQUIRE(a.receive(6, 4096, 64) == 0); // no room for the 40 bytes of the header
        CHECK(send(a.qp->qp_num, 7) == "1:0");
        CHECK(received.texts() == (mlx5 ? "6:" + std::to_string(IBV_WC_LOC_LEN_ERR) : ""));
        CHECK(a.state() == IBV_QPS_RTS);
        // A send that fails stops the send queue only.
        s.lkey = 0x12345678;
        CHECK(send(a.qp->qp_num, 7) == "1:" + std::to_string(IBV_WC_LOC_PROT_ERR));
        CHECK(a.state() == IBV_QPS_SQE);
        s = d.slice(0, 64);
        CHECK(send(a.qp->qp_num, 7) == "1:" + std::to_string(IBV_WC_WR_FLUSH_ERR));
        ibv_destroy_ah(ah);
    }
}

TEST_CASE("requests that the verbs refuse") {
    for (const char* name : both) {
        wire w(name, {.depth = 2});
        ibv_sge s = w.dev.slice(0, 8);
        std::array<ibv_sge, 5> many;
        many.fill(s);
        CHECK(w.a.post(w.a.request(1, IBV_WR_SEND, many.data(), 5)) != 0);
        CHECK(w.a.post(w.a.request(1, IBV_WR_SEND, &s, -1)) != 0);
        CHECK(w.a.post(w.a.request(1, IBV_WR_SEND, nullptr, 1)) == EINVAL);
        CHECK(w.a.post(w.a.request(1, IBV_WR_BIND_MW, &s)) == EINVAL);
        CHECK(w.b.receive(1, many.data(), 5) == EINVAL);
        ibv_sge big = w.dev.slice(0, 65);
        auto wr = w.a.request(1, IBV_WR_SEND, &big);
        wr.send_flags = IBV_SEND_INLINE;
        CHECK(w.a.post(wr) != 0);
        // One too many: the chain stops there.
        REQUIRE((w.b.receive(1) == 0 && w.b.receive(2) == 0));
        CHECK(w.b.receive(3) == ENOMEM);
        w.dev.control.hold(w.sent.cq);
        std::array<ibv_send_wr, 3> chain;
        for (auto& one : chain) one = w.a.request(7, IBV_WR_RDMA_WRITE, &s);
        chain[0].next = &chain[1];
        chain[1].next = &chain[2];
        ibv_send_wr* bad = nullptr;
        if (w.dev.control.character() == sim::character::mlx5) { // where a slot is free only when polled
            CHECK(ibv_post_send(w.a.qp, chain.data(), &bad) == ENOMEM);
            CHECK(bad == &chain[2]);
        }
        w.dev.control.release();
        w.sent.poll();
        w.a.move(IBV_QPS_RESET);
        CHECK(w.a.send(1) == EINVAL);
        CHECK(w.a.receive(1) == EINVAL); // facts B.10
        w.a.to_init();
        CHECK(w.a.receive(1) == 0);
        CHECK(w.a.send(1) == EINVAL);
    }
}

TEST_CASE("handles used after their destruction are refused") {
    for (const char* name : both) {
        device d(name);
        auto* channel = ibv_create_comp_channel(d.context);
        auto* cq = ibv_create_cq(d.context, 4, nullptr, channel, 0);
        ibv_qp_init_attr init{};
        init.send_cq = init.recv_cq = cq;
        init.cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 0};
        init.qp_type = IBV_QPT_RC;
        auto* qp = ibv_create_qp(d.pd, &init);
        ibv_qp_attr attr{};
        CHECK(ibv_destroy_cq(cq) == EBUSY);
        CHECK(ibv_destroy_qp(qp) == 0);
        CHECK(ibv_destroy_qp(qp) == EINVAL);
        CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == EINVAL);
        ibv_recv_wr receive{}, *bad = nullptr;
        CHECK(ibv_post_recv(qp, &receive, &bad) == EINVAL);
        CHECK(bad == &receive);
        CHECK(ibv_destroy_comp_channel(channel) == EBUSY);
        CHECK(ibv_destroy_cq(cq) == 0);
        CHECK(ibv_destroy_cq(cq) == EINVAL);
        ibv_wc wc;
        CHECK(ibv_poll_cq(cq, 1, &wc) < 0);
        CHECK(ibv_req_notify_cq(cq, 0) == EINVAL);
        CHECK(ibv_create_qp(d.pd, &init) == nullptr);
        CHECK(ibv_destroy_comp_channel(channel) == 0);
        CHECK(ibv_create_cq(d.context, 4, nullptr, channel, 0) == nullptr);
        ibv_cq* from;
        void* user;
        CHECK(ibv_get_cq_event(channel, &from, &user) == -1);
    }
}
