// What the simulated device itself costs: a hand-written loop that posts a receive and a send of 64 bytes and polls
// both completions. Prints nanoseconds per pair; with --expect N it fails above N.

#include <infiniband/verbs.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string_view>

namespace {

void check(bool good, const char* what) {
    if (good) return;
    std::fprintf(stderr, "sim-check: %s failed\n", what);
    std::exit(2);
}

struct end {
    ibv_cq* cq;
    ibv_qp* qp;
};

end make_end(ibv_context* context, ibv_pd* pd) {
    end e{};
    e.cq = ibv_create_cq(context, 64, nullptr, nullptr, 0);
    check(e.cq != nullptr, "ibv_create_cq");
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = e.cq;
    init.cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 0};
    init.qp_type = IBV_QPT_RC;
    e.qp = ibv_create_qp(pd, &init);
    check(e.qp != nullptr, "ibv_create_qp");
    return e;
}

void connect(ibv_context* context, ibv_qp* qp, std::uint32_t peer) {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    check(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0, "INIT");
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_1024;
    attr.dest_qp_num = peer;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.grh.sgid_index = 1;
    check(ibv_query_gid(context, 1, 1, &attr.ah_attr.grh.dgid) == 0, "ibv_query_gid");
    check(ibv_modify_qp(qp, &attr,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                            IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0,
          "RTR");
    attr.qp_state = IBV_QPS_RTS;
    check(ibv_modify_qp(qp, &attr,
                        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                            IBV_QP_MAX_QP_RD_ATOMIC) == 0,
          "RTS");
}

double pair_ns(const char* name) {
    int count = 0;
    ibv_device** list = ibv_get_device_list(&count);
    ibv_context* context = nullptr;
    for (int i = 0; i < count; ++i)
        if (std::strcmp(ibv_get_device_name(list[i]), name) == 0) context = ibv_open_device(list[i]);
    ibv_free_device_list(list);
    check(context != nullptr, name);
    ibv_pd* pd = ibv_alloc_pd(context);
    alignas(64) static std::array<std::byte, 128> memory;
    ibv_mr* mr = ibv_reg_mr(pd, memory.data(), memory.size(), int{IBV_ACCESS_LOCAL_WRITE});
    check(mr != nullptr, "ibv_reg_mr");
    end a = make_end(context, pd), b = make_end(context, pd);
    connect(context, a.qp, b.qp->qp_num);
    connect(context, b.qp, a.qp->qp_num);

    ibv_sge from{reinterpret_cast<std::uintptr_t>(memory.data()), 64, mr->lkey};
    ibv_sge into{reinterpret_cast<std::uintptr_t>(memory.data()) + 64, 64, mr->lkey};
    ibv_send_wr send{};
    send.sg_list = &from;
    send.num_sge = 1;
    send.opcode = IBV_WR_SEND;
    send.send_flags = IBV_SEND_SIGNALED;
    ibv_recv_wr receive{.wr_id = 1, .next = nullptr, .sg_list = &into, .num_sge = 1};
    constexpr int rounds = 100'000;
    double best = std::numeric_limits<double>::max();
    for (int repeat = 0; repeat < 30; ++repeat) {
        const auto start = std::chrono::steady_clock::now();
        for (int i = 0; i < rounds; ++i) {
            ibv_recv_wr* bad_receive;
            ibv_send_wr* bad_send;
            std::array<ibv_wc, 4> entries;
            const bool good = ibv_post_recv(b.qp, &receive, &bad_receive) == 0 &&
                              ibv_post_send(a.qp, &send, &bad_send) == 0 && ibv_poll_cq(b.cq, 4, entries.data()) == 1 &&
                              entries[0].status == IBV_WC_SUCCESS && ibv_poll_cq(a.cq, 4, entries.data()) == 1 &&
                              entries[0].status == IBV_WC_SUCCESS;
            if (!good) check(false, "a round");
        }
        const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
        best = std::min(best, took.count() / rounds);
    }
    ibv_destroy_qp(a.qp);
    ibv_destroy_qp(b.qp);
    ibv_destroy_cq(a.cq);
    ibv_destroy_cq(b.cq);
    ibv_dereg_mr(mr);
    ibv_dealloc_pd(pd);
    ibv_close_device(context);
    return best;
}

} // namespace

int main(int argc, char** argv) {
    const double most = argc == 3 && std::string_view(argv[1]) == "--expect" ? std::atof(argv[2]) : 0;
    int status = 0;
    for (const char* name : {"sim0", "sim1"}) {
        const double ns = pair_ns(name);
        std::printf("%s: %.1f ns for a 64-byte send and receive\n", name, ns);
        if (most > 0 && ns > most) status = 1;
    }
    return status;
}
