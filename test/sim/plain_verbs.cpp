// Plain verbs, nothing of the library and nothing of the simulation: all operations, events, a shared receive queue and
// a resize, in one process. It runs on any device: `plain_verbs [DEVICE]...`, else on the first. Exit status 0 if all
// was as ibv_*(3) say.

#include <infiniband/verbs.h>

#include <poll.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

namespace {

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                       \
            std::exit(1);                                                                                              \
        }                                                                                                              \
    } while (false)

constexpr int all_access =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
constexpr std::uint32_t qkey = 0x1111;

struct program {
    ibv_context* context = nullptr;
    ibv_pd* pd = nullptr;
    ibv_mr* mr = nullptr;
    ibv_comp_channel* channel = nullptr;
    ibv_cq* cq = nullptr;
    ibv_gid gid{};
    std::uint8_t gid_index = 0;
    alignas(64) std::array<char, 4096> memory{};

    explicit program(ibv_device* device) {
        CHECK((context = ibv_open_device(device)));
        ibv_device_attr limits;
        CHECK(ibv_query_device(context, &limits) == 0 && limits.phys_port_cnt >= 1);
        ibv_port_attr port;
        CHECK(ibv_query_port(context, 1, &port) == 0 && port.state == IBV_PORT_ACTIVE);
        for (int i = 0; i < port.gid_tbl_len; ++i) { // the last one that is there: RoCE v2 by IPv4
            ibv_gid found{};
            if (ibv_query_gid(context, 1, i, &found) != 0 || found.global.interface_id == 0) continue;
            gid = found;
            gid_index = static_cast<std::uint8_t>(i);
            if (found.raw[10] == 0xff && found.raw[11] == 0xff) break;
        }
        CHECK((pd = ibv_alloc_pd(context)));
        CHECK((mr = ibv_reg_mr(pd, memory.data(), memory.size(), all_access)));
        CHECK((channel = ibv_create_comp_channel(context)));
        CHECK((cq = ibv_create_cq(context, 64, this, channel, 0)) && cq->cqe >= 64);
    }
    program(const program&) = delete;
    program& operator=(const program&) = delete;
    ~program() {
        CHECK(ibv_dereg_mr(mr) == 0);
        CHECK(ibv_destroy_comp_channel(channel) == EBUSY);
        CHECK(ibv_destroy_cq(cq) == 0);
        CHECK(ibv_destroy_comp_channel(channel) == 0);
        CHECK(ibv_dealloc_pd(pd) == 0);
        CHECK(ibv_close_device(context) == 0);
    }

    ibv_qp* make_qp(ibv_qp_type type, ibv_srq* srq = nullptr) {
        ibv_qp_init_attr init{};
        init.send_cq = init.recv_cq = cq;
        init.srq = srq;
        init.cap = {.max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 2, .max_recv_sge = 2, .max_inline_data = 32};
        init.qp_type = type;
        ibv_qp* qp = ibv_create_qp(pd, &init);
        CHECK(qp != nullptr && qp->state == IBV_QPS_RESET);
        ibv_qp_attr attr{};
        attr.qp_state = IBV_QPS_INIT;
        attr.port_num = 1;
        attr.qkey = qkey;
        attr.qp_access_flags = all_access;
        CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == EINVAL); // attributes are missing
        const int kind = type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
        CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | kind) == 0);
        return qp;
    }

    void connect(ibv_qp* qp, std::uint32_t peer) {
        ibv_qp_attr attr{};
        attr.qp_state = IBV_QPS_RTR;
        attr.path_mtu = IBV_MTU_1024;
        attr.dest_qp_num = peer;
        attr.max_dest_rd_atomic = 1;
        attr.min_rnr_timer = 12;
        attr.ah_attr = address();
        const bool rc = qp->qp_type == IBV_QPT_RC;
        CHECK(ibv_modify_qp(qp, &attr,
                            IBV_QP_STATE | (rc ? IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                                     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER
                                               : 0)) == 0);
        attr.qp_state = IBV_QPS_RTS;
        attr.timeout = 14;
        attr.retry_cnt = attr.rnr_retry = 7;
        attr.max_rd_atomic = 1;
        CHECK(ibv_modify_qp(
                  qp, &attr,
                  IBV_QP_STATE | IBV_QP_SQ_PSN |
                      (rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0)) == 0);
        ibv_qp_init_attr init;
        CHECK(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) == 0 && attr.qp_state == IBV_QPS_RTS);
    }

    ibv_ah_attr address() const {
        ibv_ah_attr a{};
        a.is_global = 1;
        a.port_num = 1;
        a.grh.dgid = gid;
        a.grh.sgid_index = gid_index;
        a.grh.hop_limit = 64;
        return a;
    }

    ibv_sge slice(std::size_t at, std::uint32_t length) const {
        return {reinterpret_cast<std::uintptr_t>(memory.data() + at), length, mr->lkey};
    }

    void receive(ibv_qp* qp, std::uint64_t wr_id, std::size_t at, std::uint32_t length) {
        ibv_sge s = slice(at, length);
        ibv_recv_wr wr{.wr_id = wr_id, .next = nullptr, .sg_list = &s, .num_sge = 1}, *bad;
        CHECK((qp->srq ? ibv_post_srq_recv(qp->srq, &wr, &bad) : ibv_post_recv(qp, &wr, &bad)) == 0);
    }

    ibv_send_wr request(ibv_wr_opcode opcode, ibv_sge* s, unsigned flags = IBV_SEND_SIGNALED) const {
        ibv_send_wr wr{};
        wr.wr_id = 100 + static_cast<unsigned>(opcode);
        wr.sg_list = s;
        wr.num_sge = 1;
        wr.opcode = opcode;
        wr.send_flags = flags;
        wr.imm_data = 0x01020304;
        wr.wr.rdma.remote_addr = reinterpret_cast<std::uintptr_t>(memory.data()) + 2048;
        wr.wr.rdma.rkey = mr->rkey;
        return wr;
    }
    void post(ibv_qp* qp, ibv_send_wr wr) {
        ibv_send_wr* bad;
        CHECK(ibv_post_send(qp, &wr, &bad) == 0);
    }

    void take_event() {
        ibv_cq* from;
        void* user;
        CHECK(ibv_get_cq_event(channel, &from, &user) == 0 && from == cq && user == this);
        ibv_ack_cq_events(cq, 1);
    }
    bool readable(int milliseconds) const {
        pollfd fd{.fd = channel->fd, .events = POLLIN, .revents = 0};
        return ::poll(&fd, 1, milliseconds) == 1;
    }
    /// Sleeps for an event if there is none, as ibv_get_cq_event(3) shows.
    ibv_wc next() {
        ibv_wc wc;
        for (;;) {
            int found = ibv_poll_cq(cq, 1, &wc);
            CHECK(found >= 0);
            if (found == 1) return wc;
            CHECK(ibv_req_notify_cq(cq, 0) == 0);
            if (ibv_poll_cq(cq, 1, &wc) == 1) return wc; // its event may come still
            take_event();
        }
    }
    ibv_wc next(std::uint64_t wr_id, ibv_wc_status status = IBV_WC_SUCCESS) {
        const ibv_wc wc = next();
        if (wc.wr_id != wr_id || wc.status != status)
            std::fprintf(stderr, "wr_id %llu: %s\n", static_cast<unsigned long long>(wc.wr_id),
                         ibv_wc_status_str(wc.status));
        CHECK(wc.wr_id == wr_id && wc.status == status);
        return wc;
    }
    /// Two completions of different queues come in any order.
    std::array<ibv_wc, 2> both(std::uint64_t first, std::uint64_t second) {
        std::array<ibv_wc, 2> got{next(), next()};
        if (got[0].wr_id != first) std::swap(got[0], got[1]);
        CHECK(got[0].wr_id == first && got[1].wr_id == second);
        CHECK(got[0].status == IBV_WC_SUCCESS && got[1].status == IBV_WC_SUCCESS);
        return got;
    }
};

void reliable(program& p) {
    ibv_qp* a = p.make_qp(IBV_QPT_RC);
    ibv_qp* b = p.make_qp(IBV_QPT_RC);
    p.receive(b, 1, 1024, 64); // before the peer can send
    p.connect(a, b->qp_num);
    p.connect(b, a->qp_num);

    std::strcpy(p.memory.data(), "send");
    ibv_sge s = p.slice(0, 16);
    p.post(a, p.request(IBV_WR_SEND, &s, IBV_SEND_SIGNALED | IBV_SEND_SOLICITED));
    auto got = p.both(1, 100 + IBV_WR_SEND);
    CHECK(got[0].opcode == IBV_WC_RECV && got[0].byte_len == 16 && (got[0].wc_flags & IBV_WC_WITH_IMM) == 0);
    CHECK(got[1].opcode == IBV_WC_SEND && std::strcmp(p.memory.data() + 1024, "send") == 0);

    p.receive(b, 2, 1024, 64);
    std::strcpy(p.memory.data(), "inline");
    p.post(a, p.request(IBV_WR_SEND_WITH_IMM, &s, IBV_SEND_SIGNALED | IBV_SEND_INLINE));
    p.memory[0] = 'X'; // the buffer is ours again already
    got = p.both(2, 100 + IBV_WR_SEND_WITH_IMM);
    CHECK((got[0].wc_flags & IBV_WC_WITH_IMM) != 0 && got[0].imm_data == 0x01020304);
    CHECK(std::strcmp(p.memory.data() + 1024, "inline") == 0);

    p.post(a, p.request(IBV_WR_RDMA_WRITE, &s));
    CHECK(p.next(100 + IBV_WR_RDMA_WRITE).opcode == IBV_WC_RDMA_WRITE && p.memory[2048] == 'X');
    p.receive(b, 3, 1024, 0);
    p.post(a, p.request(IBV_WR_RDMA_WRITE_WITH_IMM, &s));
    got = p.both(3, 100 + IBV_WR_RDMA_WRITE_WITH_IMM);
    CHECK(got[0].opcode == IBV_WC_RECV_RDMA_WITH_IMM && got[0].byte_len == 16);
    std::strcpy(p.memory.data() + 2048, "read");
    p.post(a, p.request(IBV_WR_RDMA_READ, &s));
    CHECK(p.next(100 + IBV_WR_RDMA_READ).opcode == IBV_WC_RDMA_READ && std::strcmp(p.memory.data(), "read") == 0);

    const auto word = [&](std::size_t at) {
        std::uint64_t value;
        std::memcpy(&value, p.memory.data() + at, sizeof value);
        return value;
    };
    const std::uint64_t before = 5;
    std::memcpy(p.memory.data() + 2048, &before, sizeof before);
    s = p.slice(0, 8);
    auto wr = p.request(IBV_WR_ATOMIC_FETCH_AND_ADD, &s);
    wr.wr.atomic.remote_addr = reinterpret_cast<std::uintptr_t>(p.memory.data()) + 2048;
    wr.wr.atomic.rkey = p.mr->rkey;
    wr.wr.atomic.compare_add = 3;
    p.post(a, wr);
    CHECK(p.next(wr.wr_id).opcode == IBV_WC_FETCH_ADD && word(0) == 5 && word(2048) == 8);
    wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
    wr.wr.atomic.compare_add = 8;
    wr.wr.atomic.swap = 42;
    p.post(a, wr);
    CHECK(p.next(wr.wr_id).opcode == IBV_WC_COMP_SWAP && word(0) == 8 && word(2048) == 42);

    // A resize between two messages, with one of them unpolled.
    s = p.slice(0, 16);
    p.receive(b, 4, 1024, 64);
    p.post(a, p.request(IBV_WR_SEND, &s));
    const int resized = ibv_resize_cq(p.cq, 200);
    CHECK(resized == EOPNOTSUPP || (resized == 0 && p.cq->cqe >= 200));
    p.both(4, 100 + IBV_WR_SEND);

    // An error: the request that caused it, then what is outstanding, unsignaled or not.
    p.receive(b, 5, 1024, 64);
    p.receive(b, 6, 1024, 64);
    wr = p.request(IBV_WR_RDMA_WRITE, &s, 0);
    wr.wr.rdma.rkey ^= 0x5500;
    p.post(a, wr);
    bool seen[3] = {};
    for (int i = 0; i < 3; ++i) {
        const ibv_wc wc = p.next();
        const bool cause = wc.wr_id == wr.wr_id;
        CHECK(wc.status == (cause ? IBV_WC_REM_ACCESS_ERR : IBV_WC_WR_FLUSH_ERR));
        seen[cause ? 0 : wc.wr_id - 4] = true;
    }
    CHECK(seen[0] && seen[1] && seen[2]);
    CHECK(ibv_destroy_cq(p.cq) == EBUSY);
    CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0);
}

void datagrams(program& p) {
    ibv_qp* qp = p.make_qp(IBV_QPT_UD);
    p.connect(qp, 0);
    ibv_ah_attr to = p.address();
    ibv_ah* ah = ibv_create_ah(p.pd, &to);
    CHECK(ah != nullptr);
    for (int round = 0; round < 2; ++round) {
        p.receive(qp, 1, 1024, 40 + 64);
        std::snprintf(p.memory.data(), 16, "datagram %d", round);
        ibv_sge s = p.slice(0, 16);
        auto wr = p.request(IBV_WR_SEND, &s);
        wr.wr.ud = {.ah = ah, .remote_qpn = qp->qp_num, .remote_qkey = qkey};
        p.post(qp, wr);
        const auto got = p.both(1, wr.wr_id);
        CHECK(got[0].byte_len == 40 + 16 && (got[0].wc_flags & IBV_WC_GRH) != 0 && got[0].src_qp == qp->qp_num);
        CHECK(std::strcmp(p.memory.data() + 1024 + 40, p.memory.data()) == 0);
        CHECK(ibv_destroy_ah(ah) == 0);
        ibv_wc wc = got[0]; // the second time by the address that the first came from
        CHECK((ah = ibv_create_ah_from_wc(p.pd, &wc, reinterpret_cast<ibv_grh*>(p.memory.data() + 1024), 1)));
    }
    CHECK(ibv_destroy_ah(ah) == 0 && ibv_destroy_qp(qp) == 0);
}

void shared(program& p) {
    ibv_srq_init_attr init{};
    init.attr = {.max_wr = 8, .max_sge = 1, .srq_limit = 0};
    ibv_srq* srq = ibv_create_srq(p.pd, &init);
    CHECK(srq != nullptr);
    ibv_qp* a = p.make_qp(IBV_QPT_RC);
    ibv_qp* b = p.make_qp(IBV_QPT_RC, srq);
    for (std::uint64_t i = 0; i < 4; ++i) p.receive(b, i, 1024 + 64 * i, 64);
    ibv_srq_attr limit{.max_wr = 0, .max_sge = 0, .srq_limit = 3};
    CHECK(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT) == 0);
    CHECK(ibv_query_srq(srq, &limit) == 0 && limit.srq_limit == 3 && limit.max_wr >= 8);
    p.connect(a, b->qp_num);
    p.connect(b, a->qp_num);
    ibv_sge s = p.slice(0, 16);
    for (std::uint64_t i = 0; i < 2; ++i) {
        p.post(a, p.request(IBV_WR_SEND, &s));
        CHECK(p.both(i, 100 + IBV_WR_SEND)[0].qp_num == b->qp_num);
    }
    ibv_async_event event; // waits for it
    CHECK(ibv_get_async_event(p.context, &event) == 0);
    CHECK(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == srq);
    ibv_ack_async_event(&event);
    CHECK(ibv_destroy_srq(srq) == EBUSY);
    CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0 && ibv_destroy_srq(srq) == 0);
}

void events(program& p) {
    ibv_qp* a = p.make_qp(IBV_QPT_RC);
    ibv_qp* b = p.make_qp(IBV_QPT_RC);
    p.receive(b, 1, 1024, 64);
    p.receive(b, 2, 1024, 64);
    p.connect(a, b->qp_num);
    p.connect(b, a->qp_num);
    while (p.readable(0)) p.take_event(); // left over from before
    ibv_sge s = p.slice(0, 16);
    CHECK(ibv_req_notify_cq(p.cq, 1) == 0);
    p.post(a, p.request(IBV_WR_SEND, &s)); // not solicited
    for (int found = 0; found < 2;) {
        ibv_wc wc;
        found += ibv_poll_cq(p.cq, 1, &wc);
    }
    CHECK(!p.readable(0));
    p.post(a, p.request(IBV_WR_SEND, &s, IBV_SEND_SIGNALED | IBV_SEND_SOLICITED));
    CHECK(p.readable(5000));
    p.take_event();
    p.both(2, 100 + IBV_WR_SEND);
    CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0);
}

} // namespace

int main(int argc, char** argv) {
    int count = 0;
    ibv_device** devices = ibv_get_device_list(&count);
    CHECK(devices != nullptr && count > 0);
    const std::vector<const char*> wanted(argv + 1, argv + argc);
    std::size_t ran = 0;
    for (int i = 0; i < count; ++i) {
        const char* name = ibv_get_device_name(devices[i]);
        bool chosen = wanted.empty() && i == 0;
        for (const char* w : wanted) chosen = chosen || std::strcmp(w, name) == 0;
        if (!chosen) continue;
        program p(devices[i]);
        reliable(p);
        datagrams(p);
        shared(p);
        events(p);
        std::printf("pass  plain verbs on %s\n", name);
        ++ran;
    }
    ibv_free_device_list(devices);
    CHECK(ran == (wanted.empty() ? 1 : wanted.size()));
    std::printf("%zu passed, 0 failed, 0 skipped\n", ran);
    return 0;
}
