#pragma once

// Connections with a completion queue, and how the loops sleep.

#include "plain_parts.hpp"

#include <infiniband/verbs.h>

#include <poll.h>
#include <sys/epoll.h>

#include <initializer_list>
#include <vector>

namespace plain {

constexpr std::uint32_t events_per_ack = 64;

/// A queue pair and its registered slots. A work request's wr_id names the connection and the slot.
class connection {
  public:
    connection(const device& device, ibv_cq* cq, std::uint32_t index, std::uint32_t slots, const options& options)
        : id_(std::uint64_t{index} << 32), stride_((std::size_t{options.message_bytes} + 63) / 64 * 64),
          memory_(stride_ * slots),
          region_(created(ibv_reg_mr(device.domain.get(), memory_.data(), memory_.size(), local_write), "ibv_reg_mr")),
          qp_(device, cq, options.depth, options.depth) {
        for (std::uint32_t slot = 0; slot < options.depth; ++slot) post_receive(slot, options.message_bytes);
    }

    void connect(const device& device, const connection& peer) { connect(device, peer.number()); }
    void connect(const device& device, std::uint32_t peer, std::uint32_t psn = 0) { qp_.connect(device, peer, psn); }
    std::uint32_t number() const { return qp_.number(); }

    void post_receive(std::uint32_t slot, std::uint32_t bytes) {
        ibv_sge piece = slice(slot, bytes);
        ibv_recv_wr request{.wr_id = id_ | slot, .next = nullptr, .sg_list = &piece, .num_sge = 1};
        ibv_recv_wr* bad = nullptr;
        if (const int code = ibv_post_recv(qp_.get(), &request, &bad)) fail(code, "ibv_post_recv");
    }

    void post_send(std::uint32_t slot, std::uint32_t bytes) {
        ibv_sge piece = slice(slot, bytes);
        ibv_send_wr request{};
        request.wr_id = id_ | slot;
        request.sg_list = &piece;
        request.num_sge = 1;
        request.opcode = IBV_WR_SEND;
        request.send_flags = IBV_SEND_SIGNALED;
        ibv_send_wr* bad = nullptr;
        if (const int code = ibv_post_send(qp_.get(), &request, &bad)) fail(code, "ibv_post_send");
    }

    std::span<std::byte> payload(std::uint32_t slot, std::uint32_t bytes) {
        return {memory_.data() + slot * stride_, bytes};
    }

  private:
    ibv_sge slice(std::uint32_t slot, std::uint32_t bytes) const {
        return {reinterpret_cast<std::uintptr_t>(memory_.data()) + slot * stride_, bytes, region_->lkey};
    }

    std::uint64_t id_;
    std::size_t stride_;
    std::vector<std::byte> memory_;
    owned<ibv_mr, ibv_dereg_mr> region_;
    rc_queue_pair qp_;
};

/// One completion queue with its connections.
class alignas(64) side {
  public:
    side(const device& device, std::uint32_t slots, bool parks, const options& options) {
        if (parks) {
            channel_.reset(created(ibv_create_comp_channel(device.context.get()), "ibv_create_comp_channel"));
            set_non_blocking(channel_->fd);
        }
        const auto entries = static_cast<int>(options.clients * 2 * options.depth);
        cq_.reset(created(ibv_create_cq(device.context.get(), entries, nullptr, channel_.get(), 0), "ibv_create_cq"));
        connections.reserve(options.clients);
        for (std::uint32_t i = 0; i < options.clients; ++i)
            connections.emplace_back(device, cq_.get(), i, slots, options);
    }
    side(const side&) = delete;
    side& operator=(const side&) = delete;
    ~side() {
        // An event that was got and not acked would block ibv_destroy_cq for ever.
        if (unacked_ != 0) ibv_ack_cq_events(cq_.get(), unacked_);
    }

    // Takes one batch; answers whether there may be more.
    template <class Handle>
    bool poll(Handle&& handle, std::uint64_t& taken) {
        std::array<ibv_wc, 32> entries;
        ++counts.polls;
        const int found = ibv_poll_cq(cq_.get(), static_cast<int>(entries.size()), entries.data());
        if (found < 0) throw std::runtime_error("ibv_poll_cq failed");
        for (const ibv_wc& entry : std::span(entries.data(), static_cast<std::size_t>(found))) {
            if (entry.status != IBV_WC_SUCCESS) throw std::runtime_error(ibv_wc_status_str(entry.status));
            handle(connections[entry.wr_id >> 32], entry);
        }
        taken += static_cast<std::uint64_t>(found);
        return found == static_cast<int>(entries.size());
    }

    template <class Handle>
    std::uint64_t drain(Handle&& handle) {
        std::uint64_t taken = 0;
        while (poll(handle, taken)) {}
        return taken;
    }

    void arm() {
        ++counts.arms;
        check(ibv_req_notify_cq(cq_.get(), 0), "ibv_req_notify_cq");
    }

    // One arm gives at most one event, so one read is enough.
    bool take_event() {
        ibv_cq* cq = nullptr;
        void* cookie = nullptr;
        errno = 0;
        if (ibv_get_cq_event(channel_.get(), &cq, &cookie) != 0) {
            if (errno == EAGAIN) return false;
            fail(errno != 0 ? errno : EIO, "ibv_get_cq_event");
        }
        ++counts.events;
        if (++unacked_ == events_per_ack) {
            ibv_ack_cq_events(cq, unacked_);
            unacked_ = 0;
        }
        return true;
    }

    int channel_fd() const { return channel_->fd; }

  private:
    owned<ibv_comp_channel, ibv_destroy_comp_channel> channel_;
    owned<ibv_cq, ibv_destroy_cq> cq_;
    std::uint32_t unacked_ = 0;

  public:
    std::vector<connection> connections;
    figures counts;
};

/// Waits until one of its descriptors is readable.
class sleeper {
  public:
    /// `polls`: with poll(2) instead of epoll.
    sleeper(bool polls, std::initializer_list<int> fds)
        : polls_(polls), epoll_(::epoll_create1(EPOLL_CLOEXEC), "epoll_create1") {
        for (const int fd : fds) {
            polled_.push_back({.fd = fd, .events = POLLIN, .revents = 0});
            epoll_event event{};
            // An armed queue owes one event at most and each is read, so edges suffice; level-triggered costs 1 % more.
            event.events = EPOLLIN | EPOLLET;
            event.data.fd = fd;
            if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) fail(errno, "epoll_ctl");
        }
    }

    /// The descriptor; -1: a signal came.
    int wait() {
        epoll_event event{};
        const int found =
            polls_ ? ::poll(polled_.data(), polled_.size(), -1) : ::epoll_wait(epoll_.get(), &event, 1, -1);
        if (found < 0 && errno != EINTR) fail(errno, polls_ ? "poll" : "epoll_wait");
        if (found < 0) return -1;
        if (!polls_) return event.data.fd;
        return std::ranges::find_if(polled_, [](const pollfd& p) { return p.revents != 0; })->fd;
    }

  private:
    bool polls_;
    descriptor epoll_;
    std::vector<pollfd> polled_;
};

/// Drain, arm, drain, sleep, take the event, until the peer is done or another descriptor than its channel's is
/// readable.
template <class Peer>
void run_parked(Peer& peer, sleeper& sleep) {
    for (bool armed = false;;) {
        peer.drain();
        if (peer.done()) return;
        if (!armed) {
            peer.ends.arm();
            armed = true;
            // What was there before the arm raises no event.
            if (peer.drain() != 0) continue;
        }
        ++peer.ends.counts.parks;
        const int fd = sleep.wait();
        if (fd < 0) continue;
        ++peer.ends.counts.wakes;
        if (fd != peer.ends.channel_fd()) return;
        if (peer.ends.take_event()) armed = false;
    }
}

} // namespace plain
