#pragma once

// What the hand-written loops have in common.

#include "plain.hpp"

#include <infiniband/verbs.h>

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>

namespace plain {

[[noreturn]] inline void fail(int code, const char* what) {
    throw std::system_error(code, std::system_category(), what);
}

inline void check(int code, const char* what) {
    if (code != 0) fail(code, what);
}

template <auto Destroy>
struct destroyer {
    void operator()(auto* object) const noexcept { Destroy(object); }
};
template <class T, auto Destroy>
using owned = std::unique_ptr<T, destroyer<Destroy>>;

template <class T>
T* created(T* object, const char* what) {
    if (object == nullptr) fail(errno, what);
    return object;
}

class descriptor {
  public:
    descriptor(int fd, const char* what) : fd_(fd) {
        if (fd < 0) fail(errno, what);
    }
    descriptor(const descriptor&) = delete;
    descriptor& operator=(const descriptor&) = delete;
    ~descriptor() { ::close(fd_); }
    int get() const noexcept { return fd_; }

  private:
    int fd_;
};

class event_descriptor : public descriptor {
  public:
    event_descriptor() : descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd") {}
    void wake() const {
        if (::eventfd_write(get(), 1) != 0) fail(errno, "eventfd_write");
    }
    void take() const {
        eventfd_t value = 0;
        if (::eventfd_read(get(), &value) != 0) fail(errno, "eventfd_read");
    }
};

inline void set_non_blocking(int fd) {
    const int flags = ::fcntl(fd, F_GETFL);
    if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0) fail(errno, "fcntl");
}

/// The device of this name, by `open`; empty: the first one.
inline ibv_context* open_device(const std::string& name, const char* verb, ibv_context* (*open)(ibv_device*)) {
    int count = 0;
    const owned<ibv_device*, ibv_free_device_list> list(created(ibv_get_device_list(&count), "ibv_get_device_list"));
    for (ibv_device* device : std::span(list.get(), static_cast<std::size_t>(count)))
        if (name.empty() || name == ibv_get_device_name(device)) return created(open(device), verb);
    throw std::runtime_error("no RDMA device " + name);
}

constexpr std::uint8_t port_number = 1;
constexpr int local_write = IBV_ACCESS_LOCAL_WRITE; // an int: the macro ibv_reg_mr mixes it with another enumeration

struct device {
    explicit device(const options& options) {
        context.reset(open_device(options.device, "ibv_open_device", ibv_open_device));
        domain.reset(created(ibv_alloc_pd(context.get()), "ibv_alloc_pd"));
        check(ibv_query_port(context.get(), port_number, &port), "ibv_query_port");
        gid_index = options.gid_index >= 0 ? static_cast<std::uint8_t>(options.gid_index) : first_ipv4_gid();
        if (ibv_query_gid(context.get(), port_number, gid_index, &gid) != 0) fail(errno, "ibv_query_gid");
    }

    std::uint8_t first_ipv4_gid() const {
        constexpr std::array<std::uint8_t, 12> ipv4_mapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
        for (std::uint32_t i = 0; i < static_cast<std::uint32_t>(port.gid_tbl_len) && i < 256; ++i) {
            ibv_gid_entry entry{};
            if (ibv_query_gid_ex(context.get(), port_number, i, &entry, 0) == 0 &&
                entry.gid_type == IBV_GID_TYPE_ROCE_V2 && std::ranges::equal(ipv4_mapped, std::span(entry.gid.raw, 12)))
                return static_cast<std::uint8_t>(i);
        }
        return 0;
    }

    owned<ibv_context, ibv_close_device> context;
    owned<ibv_pd, ibv_dealloc_pd> domain;
    ibv_port_attr port{};
    std::uint8_t gid_index = 0;
    ibv_gid gid{};
};

/// Ends in the INIT state.
class rc_queue_pair {
  public:
    rc_queue_pair(const device& device, ibv_cq* cq, std::uint32_t max_send, std::uint32_t max_recv) {
        ibv_qp_init_attr init{};
        init.send_cq = init.recv_cq = cq;
        init.qp_type = IBV_QPT_RC;
        init.cap = {.max_send_wr = max_send,
                    .max_recv_wr = max_recv,
                    .max_send_sge = 1,
                    .max_recv_sge = 1,
                    .max_inline_data = 0};
        qp_.reset(created(ibv_create_qp(device.domain.get(), &init), "ibv_create_qp"));
        ibv_qp_attr attr{};
        attr.qp_state = IBV_QPS_INIT;
        attr.port_num = port_number;
        attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
        modify(attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    }

    /// This end sends from packet sequence number 0 on, and the peer from `psn`.
    void connect(const device& device, std::uint32_t peer, std::uint32_t psn = 0) {
        ibv_qp_attr attr{};
        attr.qp_state = IBV_QPS_RTR;
        attr.path_mtu = device.port.active_mtu;
        attr.dest_qp_num = peer;
        attr.rq_psn = psn;
        attr.max_dest_rd_atomic = 1;
        attr.min_rnr_timer = 12;
        attr.ah_attr.port_num = port_number;
        if (device.port.link_layer == IBV_LINK_LAYER_INFINIBAND) {
            attr.ah_attr.dlid = device.port.lid;
        } else {
            attr.ah_attr.is_global = 1;
            attr.ah_attr.grh.dgid = device.gid;
            attr.ah_attr.grh.sgid_index = device.gid_index;
            attr.ah_attr.grh.hop_limit = 64;
        }
        modify(attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                         IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
        attr.qp_state = IBV_QPS_RTS;
        attr.timeout = 14;
        attr.retry_cnt = 7;
        attr.rnr_retry = 7;
        attr.max_rd_atomic = 1;
        modify(attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                         IBV_QP_MAX_QP_RD_ATOMIC);
    }

    std::uint32_t number() const { return qp_->qp_num; }
    ibv_qp* get() const { return qp_.get(); }

  private:
    void modify(ibv_qp_attr& attr, int mask) { check(ibv_modify_qp(qp_.get(), &attr, mask), "ibv_modify_qp"); }

    owned<ibv_qp, ibv_destroy_qp> qp_;
};

} // namespace plain
