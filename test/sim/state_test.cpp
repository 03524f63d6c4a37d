// Invariant: a queue pair moves only along the transitions of the specification, with exactly the attributes that each
// of them needs or allows.

#include "fixture.hpp"

using namespace simulated;

namespace {

int modify(ibv_qp* qp, ibv_qp_attr attr, ibv_qp_state state, int mask) {
    attr.qp_state = state;
    return ibv_modify_qp(qp, &attr, IBV_QP_STATE | mask);
}

constexpr int init_mask = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
constexpr int rtr_mask =
    IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
constexpr int rts_mask = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;

} // namespace

TEST_CASE("every attribute of a transition is needed, and no other is taken") {
    for (const char* name : both) {
        device d(name);
        queue q(d);
        end e(d, q);
        ibv_qp_attr good{};
        good.port_num = good.ah_attr.port_num = 1;
        good.path_mtu = IBV_MTU_1024;
        good.ah_attr.is_global = 1;
        good.ah_attr.grh.dgid = d.gid;
        REQUIRE(e.move(IBV_QPS_RESET) == 0);
        const auto strict = [&](ibv_qp_state state, int mask, int foreign) {
            for (int bit = 1; bit <= IBV_QP_DEST_QPN; bit <<= 1)
                if ((mask & bit) != 0) CHECK(modify(e.qp, good, state, mask & ~bit) == EINVAL);
            CHECK(modify(e.qp, good, state, mask | foreign) == EINVAL);
            CHECK(modify(e.qp, good, state, mask) == 0);
            CHECK(e.state() == state);
        };
        CHECK(modify(e.qp, good, IBV_QPS_RTR, rtr_mask) == EINVAL);
        CHECK(modify(e.qp, good, IBV_QPS_ERR, 0) == EINVAL);
        strict(IBV_QPS_INIT, init_mask, IBV_QP_QKEY);
        CHECK(modify(e.qp, good, IBV_QPS_RTS, rts_mask) == EINVAL);
        strict(IBV_QPS_RTR, rtr_mask, IBV_QP_SQ_PSN);
        strict(IBV_QPS_RTS, rts_mask, IBV_QP_AV);
        CHECK(modify(e.qp, good, IBV_QPS_INIT, init_mask) == EINVAL);
        CHECK(modify(e.qp, good, IBV_QPS_RTS, IBV_QP_CUR_STATE) == EINVAL); // it is not in RESET
        good.cur_qp_state = IBV_QPS_RTS;
        CHECK(modify(e.qp, good, IBV_QPS_RTS, IBV_QP_CUR_STATE) == 0);
        CHECK(modify(e.qp, good, IBV_QPS_SQD, 0) == 0);
        CHECK(modify(e.qp, good, IBV_QPS_RTS, 0) == 0);
        CHECK(modify(e.qp, good, IBV_QPS_ERR, 0) == 0);
        CHECK(modify(e.qp, good, IBV_QPS_ERR, 0) == 0);
        CHECK(modify(e.qp, good, IBV_QPS_RTS, 0) == EINVAL);
        CHECK(modify(e.qp, good, IBV_QPS_UNKNOWN, 0) == EINVAL);
        CHECK(modify(e.qp, good, IBV_QPS_RESET, 0) == 0);
    }
}

TEST_CASE("values out of range are refused and change nothing") {
    for (const char* name : both) {
        device d(name);
        queue q(d);
        end e(d, q);
        ibv_qp_attr good{};
        good.port_num = good.ah_attr.port_num = 1;
        good.path_mtu = IBV_MTU_1024;
        good.ah_attr.is_global = 1;
        const auto refused = [&](auto&& spoil) {
            auto bad = good;
            spoil(bad);
            CHECK(modify(e.qp, bad, IBV_QPS_RTR, rtr_mask) == EINVAL);
            CHECK(e.state() == IBV_QPS_INIT);
        };
        refused([](auto& a) { a.ah_attr.is_global = 0; }); // Ethernet
        refused([](auto& a) { a.ah_attr.port_num = 2; });
        refused([](auto& a) { a.ah_attr.grh.sgid_index = 9; });
        refused([](auto& a) { a.path_mtu = static_cast<ibv_mtu>(6); });
        refused([](auto& a) { a.max_dest_rd_atomic = 200; });
        refused([](auto& a) { a.min_rnr_timer = 32; });
        CHECK(modify(e.qp, good, IBV_QPS_RTR, rtr_mask) == 0);
    }
}

TEST_CASE("SQD holds back what is posted, RTS lets it go") {
    for (const char* name : both) {
        device d(name);
        queue q(d);
        end a(d, q), b(d, q);
        connect(a, b);
        REQUIRE(b.receive(2) == 0);
        ibv_qp_attr attr{};
        attr.en_sqd_async_notify = 1;
        CHECK(modify(a.qp, attr, IBV_QPS_SQD, IBV_QP_EN_SQD_ASYNC_NOTIFY) == 0);
        CHECK(d.async_event() == IBV_EVENT_SQ_DRAINED);
        REQUIRE(a.send(1) == 0);
        CHECK(q.texts().empty());
        CHECK(modify(a.qp, attr, IBV_QPS_RTS, 0) == 0);
        CHECK(q.texts() == "2:0 1:0");
    }
}

TEST_CASE("limits that the device reports are those it keeps") {
    for (const char* name : both) {
        device d(name);
        queue q(d);
        ibv_device_attr limits{};
        REQUIRE(ibv_query_device(d.context, &limits) == 0);
        const auto made = [&](auto&& change) {
            ibv_qp_init_attr init{};
            init.send_cq = init.recv_cq = q.cq;
            init.cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 0};
            init.qp_type = IBV_QPT_RC;
            change(init);
            ibv_qp* qp = ibv_create_qp(d.pd, &init);
            if (qp != nullptr) ibv_destroy_qp(qp);
            return qp != nullptr;
        };
        const auto wr = static_cast<std::uint32_t>(limits.max_qp_wr);
        const auto sge = static_cast<std::uint32_t>(limits.max_sge);
        CHECK(made([](auto&) {}));
        CHECK(made([&](auto& i) { i.cap.max_send_sge = sge; }));
        CHECK(!made([&](auto& i) { i.cap.max_send_sge = sge + 1; }));
        CHECK(!made([&](auto& i) { i.cap.max_recv_sge = sge + 1; }));
        CHECK(!made([&](auto& i) { i.cap.max_send_wr = wr + 1; }));
        CHECK(!made([&](auto& i) { i.cap.max_recv_wr = ~0U; }));
        CHECK(!made([&](auto& i) { i.cap.max_inline_data = 1 << 20; }));
        CHECK(!made([&](auto& i) { i.qp_type = IBV_QPT_XRC_SEND; }));
        CHECK(!made([&](auto& i) { i.send_cq = nullptr; }));
    }
}
