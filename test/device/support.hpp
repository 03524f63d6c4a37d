#pragma once

// The device under test, and work on it by plain verbs: what the tests of the handles need before there is a queue
// pair.

#include "support/catch.hpp"

#include <verbena/format.hpp>
#include <verbena/verbs/context.hpp>
#include <verbena/verbs/memory_region.hpp>

#include <infiniband/verbs.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace support {

/// The device that VERBENA_DEVICE names, whose absence is a failure; else the first, whose absence is a skip.
inline verbena::result<verbena::context> open_device() {
    if (const char* name = std::getenv("VERBENA_DEVICE"); name && *name) return verbena::context::open(name).value();
    return verbena::context::open_default();
}

/// What queue pairs take by default: the first RoCE v2 GID of an IPv4 address, else the first valid one.
inline verbena::gid_entry usable_gid(const verbena::context& device) {
    const auto gids = device.gids(1).value();
    const auto best = std::ranges::find_if(gids, [](const verbena::gid_entry& entry) {
        return entry.type == verbena::gid_type::roce_v2 && entry.gid.is_ipv4_mapped();
    });
    return best != gids.end() ? *best : gids.at(0);
}

inline void require_zero(int answer, const char* what) {
    if (answer != 0) throw std::runtime_error(fmt::format("{} answered {}", what, answer));
}

template <class T>
T* require_pointer(T* pointer, const char* what) {
    if (!pointer) throw std::runtime_error(fmt::format("{} answered NULL", what));
    return pointer;
}

/// One raw RC queue pair in INIT.
inline ibv_qp* make_raw_qp(ibv_pd* domain, ibv_cq* send, ibv_cq* receive, std::uint32_t depth) {
    ibv_qp_init_attr wanted{};
    wanted.send_cq = send;
    wanted.recv_cq = receive;
    wanted.cap = {
        .max_send_wr = depth, .max_recv_wr = depth, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 0};
    wanted.qp_type = IBV_QPT_RC;
    auto* qp = require_pointer(ibv_create_qp(domain, &wanted), "ibv_create_qp");
    ibv_qp_attr init{};
    init.qp_state = IBV_QPS_INIT;
    init.port_num = 1;
    require_zero(ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
                 "INIT");
    return qp;
}

inline void connect_raw_qp(ibv_qp* qp, std::uint32_t peer, const verbena::context& device) {
    const auto local = usable_gid(device);
    const auto port = device.port(1).value();
    ibv_qp_attr ready{};
    ready.qp_state = IBV_QPS_RTR;
    ready.path_mtu = IBV_MTU_1024;
    ready.dest_qp_num = peer;
    ready.max_dest_rd_atomic = 1;
    ready.min_rnr_timer = 1;
    ready.ah_attr.port_num = 1;
    ready.ah_attr.dlid = port.lid;
    ready.ah_attr.is_global = 1;
    ready.ah_attr.grh.dgid = local.gid.native();
    ready.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(local.index);
    ready.ah_attr.grh.hop_limit = 64;
    require_zero(ibv_modify_qp(qp, &ready,
                               IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
                 "RTR");
    ibv_qp_attr sending{};
    sending.qp_state = IBV_QPS_RTS;
    sending.timeout = 14;
    sending.retry_cnt = 6;
    sending.rnr_retry = 6;
    sending.max_rd_atomic = 1;
    require_zero(ibv_modify_qp(qp, &sending,
                               IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                   IBV_QP_MAX_QP_RD_ATOMIC),
                 "RTS");
}

/// Fills a completion queue: a pair of queue pairs whose messages complete as receives in it.
class filler {
  public:
    filler(const verbena::protection_domain& domain, ibv_cq* filled, std::uint32_t depth)
        : region_(verbena::memory_region::allocate(domain, 64).value()) {
        const auto device = domain.context();
        sent_ = require_pointer(ibv_create_cq(device.native_handle(), static_cast<int>(depth), nullptr, nullptr, 0),
                                "ibv_create_cq");
        sender_ = make_raw_qp(domain.native_handle(), sent_, sent_, depth);
        receiver_ = make_raw_qp(domain.native_handle(), sent_, filled, depth);
        connect_raw_qp(sender_, receiver_->qp_num, device);
        connect_raw_qp(receiver_, sender_->qp_num, device);
    }
    filler(const filler&) = delete;
    filler& operator=(const filler&) = delete;
    ~filler() {
        ibv_destroy_qp(sender_);
        ibv_destroy_qp(receiver_);
        ibv_destroy_cq(sent_);
    }

    /// When it returns the queue holds `count` more completions, with the `wr_id`s from `first` on. A receive completes
    /// before its message is acknowledged, so that the sender's completions tell.
    void fill(std::uint32_t count, std::uint64_t first) {
        ibv_sge sge{reinterpret_cast<std::uintptr_t>(region_.bytes().data()), 8, region_.lkey()};
        for (std::uint32_t i = 0; i < count; ++i) {
            ibv_recv_wr receive{.wr_id = first + i, .next = nullptr, .sg_list = &sge, .num_sge = 1};
            ibv_recv_wr* bad_receive = nullptr;
            require_zero(ibv_post_recv(receiver_, &receive, &bad_receive), "ibv_post_recv");
            ibv_send_wr send{};
            send.sg_list = &sge;
            send.num_sge = 1;
            send.opcode = IBV_WR_SEND;
            send.send_flags = IBV_SEND_SIGNALED;
            ibv_send_wr* bad_send = nullptr;
            require_zero(ibv_post_send(sender_, &send, &bad_send), "ibv_post_send");
        }
        for (std::uint32_t done = 0; done < count;) {
            ibv_wc wc;
            const int polled = ibv_poll_cq(sent_, 1, &wc);
            if (polled < 0 || (polled == 1 && wc.status != IBV_WC_SUCCESS)) throw std::runtime_error("a send failed");
            done += static_cast<std::uint32_t>(polled);
        }
    }

  private:
    verbena::memory_region region_;
    ibv_cq* sent_ = nullptr;
    ibv_qp* sender_ = nullptr;
    ibv_qp* receiver_ = nullptr;
};

} // namespace support

/// Declares `device`, or ends the test case as skipped.
#define VERBENA_REQUIRE_DEVICE(device)                                                                                 \
    const auto device##_opened = ::support::open_device();                                                             \
    if (!device##_opened) VERBENA_SKIP(device##_opened.error().message());                                             \
    const verbena::context device = *device##_opened
