#pragma once

// Plain verbs on one simulated device, in the few words that the tests need.

#include "support/catch.hpp"

#include <verbena/sim/control.hpp>

#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace simulated {

namespace sim = verbena::sim;

inline constexpr int all_access =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

/// One device with a domain and 64 KiB of memory; the control is as new before and after. At the end the ledger must
/// balance.
struct device {
    explicit device(const char* name) : control(name) {
        control.reset();
        control.insert();
        control.clear_ledger();
        ibv_device** list = ibv_get_device_list(nullptr);
        for (ibv_device** d = list; *d != nullptr; ++d)
            if (std::strcmp((*d)->name, name) == 0) context = ibv_open_device(*d);
        ibv_free_device_list(list);
        REQUIRE(context != nullptr);
        fcntl(context->async_fd, F_SETFL, O_NONBLOCK);
        pd = ibv_alloc_pd(context);
        mr = ibv_reg_mr(pd, memory.data(), memory.size(), all_access);
        REQUIRE(mr != nullptr);
        ibv_query_gid(context, 1, 1, &gid);
    }
    device(const device&) = delete;
    device& operator=(const device&) = delete;
    ~device() {
        control.reset();
        CHECK(ibv_dereg_mr(mr) == 0);
        CHECK(ibv_dealloc_pd(pd) == 0);
        CHECK(ibv_close_device(context) == 0);
        control.insert();
        check_balance();
    }

    void check_balance() const {
        const auto l = control.ledger();
        CHECK(l.accepted == l.completed + l.flushed + l.silent + l.purged + l.dropped + l.outstanding);
        CHECK(l.completed + l.flushed == l.polled + l.unpolled + l.removed);
    }

    /// The next unread asynchronous event, or -1; acknowledged.
    int async_event() {
        ibv_async_event event;
        if (ibv_get_async_event(context, &event) != 0) return -1;
        ibv_ack_async_event(&event);
        return event.event_type;
    }

    ibv_sge slice(std::size_t at, std::uint32_t length) {
        return {reinterpret_cast<std::uintptr_t>(memory.data()) + at, length, mr->lkey};
    }
    char* at(std::size_t offset) { return memory.data() + offset; }

    sim::control control;
    ibv_context* context = nullptr;
    ibv_pd* pd;
    ibv_mr* mr;
    ibv_gid gid{};
    alignas(64) std::array<char, 65536> memory{};
};

struct queue {
    explicit queue(device& d, int entries = 64) : control(d.control) {
        channel = ibv_create_comp_channel(d.context);
        REQUIRE(channel != nullptr);
        fcntl(channel->fd, F_SETFL, O_NONBLOCK);
        cq = ibv_create_cq(d.context, entries, this, channel, 0);
        REQUIRE(cq != nullptr);
    }
    queue(const queue&) = delete;
    queue& operator=(const queue&) = delete;
    ~queue() {
        CHECK(ibv_destroy_cq(cq) == 0);
        CHECK(ibv_destroy_comp_channel(channel) == 0);
    }

    std::vector<ibv_wc> poll(int most = 64) {
        std::vector<ibv_wc> entries(static_cast<std::size_t>(most));
        const int found = ibv_poll_cq(cq, most, entries.data());
        REQUIRE(found >= 0);
        entries.resize(static_cast<std::size_t>(found));
        return entries;
    }
    /// "wr_id:status" of all, in order.
    std::string texts() {
        std::string all;
        for (const auto& wc : poll())
            all += (all.empty() ? "" : " ") + std::to_string(wc.wr_id) + ":" + std::to_string(wc.status);
        return all;
    }
    int arm(int solicited = 0) { return ibv_req_notify_cq(cq, solicited); }
    bool readable() const { return revents() == POLLIN; }
    int revents() const {
        pollfd fd{.fd = channel->fd, .events = POLLIN, .revents = 0};
        ::poll(&fd, 1, 0);
        return fd.revents;
    }
    /// Takes and acknowledges all events.
    int events() {
        int count = 0;
        ibv_cq* from;
        void* user;
        while (ibv_get_cq_event(channel, &from, &user) == 0) {
            ibv_ack_cq_events(from, 1);
            ++count;
        }
        return count;
    }

    sim::control& control;
    ibv_comp_channel* channel;
    ibv_cq* cq;
};

struct pair_options {
    ibv_qp_type type = IBV_QPT_RC;
    ibv_srq* srq = nullptr;
    std::uint32_t depth = 16;
    int access = all_access;
    std::uint8_t rnr_retry = 7;
    std::uint8_t retry_cnt = 1;
    std::uint8_t timeout = 4; // 65 µs
    std::uint8_t rd_atomic = 1;
    std::uint32_t psn = 0;
};

struct end {
    end(device& d, queue& send, queue& receive, const pair_options& options = {}) : dev(d), options(options) {
        ibv_qp_init_attr init{};
        init.send_cq = send.cq;
        init.recv_cq = receive.cq;
        init.srq = options.srq;
        init.cap = {.max_send_wr = options.depth,
                    .max_recv_wr = options.depth,
                    .max_send_sge = 4,
                    .max_recv_sge = 4,
                    .max_inline_data = 64};
        init.qp_type = options.type;
        qp = ibv_create_qp(d.pd, &init);
        REQUIRE(qp != nullptr);
        to_init();
    }
    end(device& d, queue& both, const pair_options& options = {}) : end(d, both, both, options) {}
    end(const end&) = delete;
    end& operator=(const end&) = delete;
    ~end() {
        if (qp != nullptr) CHECK(ibv_destroy_qp(qp) == 0);
    }

    void to_init() {
        ibv_qp_attr attr{};
        attr.qp_state = IBV_QPS_INIT;
        attr.port_num = 1;
        attr.qkey = 7;
        attr.qp_access_flags = static_cast<unsigned>(options.access);
        REQUIRE(ibv_modify_qp(qp, &attr,
                              IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                                  (options.type == IBV_QPT_RC ? IBV_QP_ACCESS_FLAGS : IBV_QP_QKEY)) == 0);
    }
    ibv_qp_attr to_rtr(std::uint32_t peer) {
        ibv_qp_attr attr{};
        attr.qp_state = IBV_QPS_RTR;
        attr.path_mtu = IBV_MTU_1024;
        attr.dest_qp_num = peer;
        attr.max_dest_rd_atomic = options.rd_atomic;
        attr.min_rnr_timer = 1; // 10 µs
        attr.ah_attr.is_global = 1;
        attr.ah_attr.port_num = 1;
        attr.ah_attr.grh.dgid = dev.gid;
        attr.ah_attr.grh.sgid_index = 1;
        attr.ah_attr.grh.hop_limit = 64;
        attr.rq_psn = options.psn;
        const int addressing = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                               IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
        REQUIRE(ibv_modify_qp(qp, &attr, IBV_QP_STATE | (options.type == IBV_QPT_RC ? addressing : 0)) == 0);
        return attr;
    }
    void connect(std::uint32_t peer) {
        auto attr = to_rtr(peer);
        attr.qp_state = IBV_QPS_RTS;
        attr.timeout = options.timeout;
        attr.retry_cnt = options.retry_cnt;
        attr.rnr_retry = options.rnr_retry;
        attr.max_rd_atomic = options.rd_atomic;
        attr.sq_psn = options.psn;
        const int sending = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
        REQUIRE(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | (options.type == IBV_QPT_RC ? sending : 0)) ==
                0);
    }
    int move(ibv_qp_state state) {
        ibv_qp_attr attr{};
        attr.qp_state = state;
        return ibv_modify_qp(qp, &attr, IBV_QP_STATE);
    }
    ibv_qp_state state() {
        ibv_qp_attr attr{};
        ibv_qp_init_attr init{};
        REQUIRE(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) == 0);
        return attr.qp_state;
    }

    int receive(std::uint64_t wr_id, std::size_t at = 4096, std::uint32_t length = 64) {
        ibv_sge s = dev.slice(at, length);
        return receive(wr_id, &s, 1);
    }
    int receive(std::uint64_t wr_id, ibv_sge* slices, int count) {
        ibv_recv_wr wr{.wr_id = wr_id, .next = nullptr, .sg_list = slices, .num_sge = count}, *bad;
        return qp->srq != nullptr ? ibv_post_srq_recv(qp->srq, &wr, &bad) : ibv_post_recv(qp, &wr, &bad);
    }
    ibv_send_wr request(std::uint64_t wr_id, ibv_wr_opcode opcode, ibv_sge* slices, int count = 1) {
        ibv_send_wr wr{};
        wr.wr_id = wr_id;
        wr.sg_list = slices;
        wr.num_sge = count;
        wr.opcode = opcode;
        wr.send_flags = IBV_SEND_SIGNALED;
        wr.wr.rdma.remote_addr = reinterpret_cast<std::uintptr_t>(dev.memory.data()) + 8192;
        wr.wr.rdma.rkey = dev.mr->rkey;
        return wr;
    }
    int post(ibv_send_wr wr) {
        ibv_send_wr* bad;
        return ibv_post_send(qp, &wr, &bad);
    }
    int send(std::uint64_t wr_id, unsigned flags = IBV_SEND_SIGNALED, std::size_t at = 0, std::uint32_t length = 64) {
        ibv_sge s = dev.slice(at, length);
        auto wr = request(wr_id, IBV_WR_SEND, &s);
        wr.send_flags = flags;
        return post(wr);
    }

    device& dev;
    pair_options options;
    ibv_qp* qp;
};

inline void connect(end& a, end& b) {
    a.connect(b.qp->qp_num);
    b.connect(a.qp->qp_num);
}

/// Ints: the macro of ibv_reg_mr mixes its argument with another enumeration.
inline constexpr int local_write = IBV_ACCESS_LOCAL_WRITE;

/// Both characters, where they do not differ.
inline constexpr std::array both{"sim0", "sim1"};

} // namespace simulated
