#pragma once

#include "support.hpp"

#include <verbena/verbs/completion_queue.hpp>
#include <verbena/verbs/protection_domain.hpp>

#include <cstdint>

namespace support {

/// A raw queue pair that puts `sends` completions into a queue, whatever others have reserved there, and its peer.
class overrunner {
  public:
    overrunner(const verbena::protection_domain& domain, const verbena::completion_queue& cq, std::uint32_t sends)
        : sends_(sends), other_(verbena::completion_queue::create(domain.context(), 2 * sends).value()),
          sender_(make_raw_qp(domain.native_handle(), cq.native_handle(), other_.native_handle(), sends)),
          receiver_(make_raw_qp(domain.native_handle(), other_.native_handle(), other_.native_handle(), sends)) {
        connect_raw_qp(sender_, receiver_->qp_num, domain.context());
        connect_raw_qp(receiver_, sender_->qp_num, domain.context());
    }
    overrunner(const overrunner&) = delete;
    overrunner& operator=(const overrunner&) = delete;
    ~overrunner() {
        ibv_destroy_qp(sender_);
        ibv_destroy_qp(receiver_);
    }

    void operator()() {
        for (std::uint32_t i = 0; i < sends_; ++i) {
            ibv_recv_wr receive{.wr_id = i, .next = nullptr, .sg_list = nullptr, .num_sge = 0};
            ibv_recv_wr* bad_receive = nullptr;
            require_zero(ibv_post_recv(receiver_, &receive, &bad_receive), "ibv_post_recv");
            ibv_send_wr send{};
            send.opcode = IBV_WR_SEND;
            send.send_flags = IBV_SEND_SIGNALED;
            ibv_send_wr* bad_send = nullptr;
            require_zero(ibv_post_send(sender_, &send, &bad_send), "ibv_post_send");
        }
    }

  private:
    std::uint32_t sends_;
    verbena::completion_queue other_;
    ibv_qp* sender_;
    ibv_qp* receiver_;
};

} // namespace support
