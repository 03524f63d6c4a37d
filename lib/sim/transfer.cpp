// Posting, and what the device does with the requests.

#include "device.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <span>
#include <utility>

namespace verbena::sim {

bool mapped_ipv4(const ibv_gid& gid);
std::array<std::byte, sizeof(ibv_grh)> network_header(const ibv_gid& from, const ibv_gid& to, std::uint32_t payload,
                                                      const ibv_global_route& route);

namespace {

using std::chrono::nanoseconds;

constexpr std::uint32_t psn_mask = 0xffffff;
constexpr std::size_t most_slices = 33; // max_sge, and the header of a datagram
constexpr std::byte junk{0xdb};

struct piece {
    std::byte* at;
    std::uint32_t length;
};
struct pieces {
    std::array<piece, most_slices> list;
    std::size_t count = 0;

    void add(std::byte* at, std::uint32_t length) noexcept {
        if (length > 0) list[count++] = {at, length};
    }
};

bool covers(const region* mr, const ibv_pd* pd, std::uint64_t address, std::uint32_t length, unsigned access) noexcept {
    return mr != nullptr && mr->pd == pd && mr->covers(address, length, access);
}

/// The memory of the first `length` bytes of the slices. False: a key, its bounds or its rights do not fit.
bool resolve(device& d, const ibv_pd* pd, const ibv_sge* slices, std::uint32_t count, std::uint32_t length,
             unsigned access, pieces& out) noexcept {
    for (std::uint32_t i = 0; i < count && length > 0; ++i) {
        const ibv_sge& s = slices[i];
        if (s.length == 0) continue;
        const region* mr = d.regions.find(s.lkey);
        if (!covers(mr, pd, s.addr, s.length, access)) return false;
        const auto part = std::min(s.length, length);
        out.add(mr->at(s.addr), part);
        length -= part;
    }
    return true;
}

/// Source and destination may overlap: a program may send a buffer to itself.
void copy(const pieces& from, const pieces& to) noexcept {
    if (from.count == 1 && to.count == 1) [[likely]] {
        std::memmove(to.list[0].at, from.list[0].at, std::min(from.list[0].length, to.list[0].length));
        return;
    }
    std::size_t f = 0, t = 0;
    std::uint32_t f_at = 0, t_at = 0;
    while (f < from.count && t < to.count) {
        const auto part = std::min(from.list[f].length - f_at, to.list[t].length - t_at);
        std::memmove(to.list[t].at + t_at, from.list[f].at + f_at, part);
        if ((f_at += part) == from.list[f].length) ++f, f_at = 0;
        if ((t_at += part) == to.list[t].length) ++t, t_at = 0;
    }
}

/// Notes the data for later and leaves junk where it will come.
late_write postpone(const ibv_sge* slices, std::uint32_t count, const pieces& from, const pieces& to) {
    late_write late{{slices, slices + count}, {}};
    for (std::size_t i = 0; i < from.count; ++i)
        late.bytes.insert(late.bytes.end(), from.list[i].at, from.list[i].at + from.list[i].length);
    for (std::size_t i = 0; i < to.count; ++i) std::fill_n(to.list[i].at, to.list[i].length, junk);
    return late;
}

bool is_send(ibv_wr_opcode o) noexcept { return o == IBV_WR_SEND || o == IBV_WR_SEND_WITH_IMM; }
bool is_write(ibv_wr_opcode o) noexcept { return o == IBV_WR_RDMA_WRITE || o == IBV_WR_RDMA_WRITE_WITH_IMM; }
bool is_atomic(ibv_wr_opcode o) noexcept { return o == IBV_WR_ATOMIC_CMP_AND_SWP || o == IBV_WR_ATOMIC_FETCH_AND_ADD; }
bool writes_locally(ibv_wr_opcode o) noexcept { return o == IBV_WR_RDMA_READ || is_atomic(o); }
bool has_immediate(ibv_wr_opcode o) noexcept { return o == IBV_WR_SEND_WITH_IMM || o == IBV_WR_RDMA_WRITE_WITH_IMM; }

ibv_wc_opcode completed_opcode(ibv_wr_opcode o) noexcept {
    switch (o) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM: return IBV_WC_RDMA_WRITE;
    case IBV_WR_RDMA_READ: return IBV_WC_RDMA_READ;
    case IBV_WR_ATOMIC_CMP_AND_SWP: return IBV_WC_COMP_SWAP;
    case IBV_WR_ATOMIC_FETCH_AND_ADD: return IBV_WC_FETCH_ADD;
    default: return IBV_WC_SEND;
    }
}

/// Only wr_id, status, qp_num and vendor_err mean something on an error: the rest is what misleads most.
completion error_entry(queue_pair& q, std::uint64_t wr_id, ibv_wc_status status, bool is_receive) noexcept {
    completion c{};
    std::memset(&c.wc, 0xdb, sizeof c.wc);
    c.wc.wr_id = wr_id;
    c.wc.status = status;
    c.wc.qp_num = q.qp_num;
    c.wc.vendor_err = 0x80U + static_cast<std::uint32_t>(status);
    c.wc.opcode = is_receive ? IBV_WC_SEND : IBV_WC_RECV; // facts B.5: a flushed receive comes as 0
    c.pair = &q;
    c.is_receive = is_receive;
    return c;
}

/// ibv_modify_qp(3): the codes of min_rnr_timer, in units of 10 µs.
nanoseconds rnr_delay(unsigned code) noexcept {
    static constexpr std::array<std::uint32_t, 32> tens{
        65536, 1,   2,   3,   4,    6,    8,    12,   16,   24,   32,   48,    64,    96,    128,   192,
        256,   384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};
    return std::chrono::microseconds{10} * tens[code & 31];
}

std::uint32_t packets(const queue_pair& q, std::uint32_t length) noexcept {
    return length == 0 ? 1 : ((length - 1) >> q.mtu_shift) + 1;
}

bool answering(const queue_pair* peer) noexcept {
    if (peer == nullptr || peer->mute || peer->qp_type != IBV_QPT_RC) return false;
    const auto s = peer->attr.qp_state;
    return s == IBV_QPS_RTR || s == IBV_QPS_RTS || s == IBV_QPS_SQD;
}

/// The execution of one request.
class execution {
  public:
    execution(device& d, queue_pair& q) noexcept
        : d_(d), q_(q), at_(q.sends.index.executed), w_(q.sends.request(at_)) {}

    /// False: the queue pair waits, or has failed.
    bool run() {
        if (w_.length > max_message) return fail(IBV_WC_LOC_LEN_ERR);
        if (w_.is(IBV_SEND_INLINE))
            local_.add(q_.sends.inline_of(at_), w_.length);
        else if (!resolve(d_, q_.pd, q_.sends.slices_of(at_), w_.num_sge, w_.length,
                          writes_locally(w_.opcode) ? IBV_ACCESS_LOCAL_WRITE : 0, local_))
            return fail(IBV_WC_LOC_PROT_ERR);
        if (q_.qp_type == IBV_QPT_UD) return datagram();

        if (is_atomic(w_.opcode) && w_.length != 8) return fail(IBV_WC_LOC_LEN_ERR);
        if (writes_locally(w_.opcode) && q_.attr.max_rd_atomic == 0) return fail(IBV_WC_LOC_QP_OP_ERR);
        peer_ = q_.reachable ? d_.pairs.find(q_.attr.dest_qp_num) : nullptr;
        if (!answering(peer_) || peer_->expected_psn != q_.next_psn) return block(obstacle::no_answer, nullptr);
        const bool takes_receive = is_send(w_.opcode) || has_immediate(w_.opcode);
        receive_queue& queue = *peer_->receive_from;
        if (takes_receive && queue.index.outstanding() == 0) return block(obstacle::no_receive, &queue);
        if (!is_send(w_.opcode)) {
            if (const auto status = access_remote()) return fail(*status, true);
        }
        if (takes_receive) {
            if (const auto status = deliver(*peer_, queue)) return fail(*status, true);
        }
        q_.next_psn = (q_.next_psn + packets(q_, w_.length)) & psn_mask;
        peer_->expected_psn = q_.next_psn;
        finish();
        return true;
    }

  private:
    bool late() const noexcept { return d_.slow && d_.control.write_late; }

    bool fail(ibv_wc_status status, bool peer_too = false) {
        auto c = error_entry(q_, w_.wr_id, status, false);
        retire(c);
        d_.complete(*q_.send_queue_cq, c);
        if (peer_too) d_.fail_pair(*peer_);
        if (q_.qp_type == IBV_QPT_UD)
            q_.attr.qp_state = q_.state = IBV_QPS_SQE; // advance() flushes the rest
        else
            d_.fail_pair(q_);
        return false;
    }

    void retire(completion& c) noexcept {
        c.retires = ++q_.sends.index.executed;
        if (!d_.is_mlx5()) q_.sends.index.done = c.retires;
    }

    void finish() {
        completion& c = q_.send_queue_cq->ring.next();
        retire(c);
        if (!q_.all_signaled && !w_.is(IBV_SEND_SIGNALED)) {
            ++d_.counts.silent;
            --d_.counts.outstanding;
            // It has no moment of its own, and a later completion says that the bytes are there.
            if (postponed_) d_.write(*postponed_);
            return;
        }
        c.wc = {};
        c.wc.wr_id = w_.wr_id;
        c.wc.status = IBV_WC_SUCCESS;
        c.wc.opcode = completed_opcode(w_.opcode);
        c.wc.byte_len = w_.length;
        c.wc.qp_num = q_.qp_num;
        c.pair = &q_;
        c.is_receive = false;
        c.solicited = false;
        d_.complete(*q_.send_queue_cq, c, postponed_ ? &*postponed_ : nullptr);
    }

    bool block(obstacle what, receive_queue* queue) {
        nanoseconds delay{};
        bool for_ever;
        if (what == obstacle::no_receive) {
            for_ever = q_.attr.rnr_retry == 7;
            delay = rnr_delay(peer_->attr.min_rnr_timer) * q_.attr.rnr_retry;
            if (q_.attr.rnr_retry == 0) return fail(IBV_WC_RNR_RETRY_EXC_ERR);
        } else {
            for_ever = q_.attr.timeout == 0;
            delay = nanoseconds{4096LL << q_.attr.timeout} * (q_.attr.retry_cnt + 1);
        }
        q_.blocked = what;
        q_.waits_for = queue;
        if (queue != nullptr) ++queue->waiting_senders;
        d_.blocked.push_back(&q_);
        if (!for_ever) q_.deadline = d_.act(delay, [&d = d_, &q = q_] { expire(d, q); });
        return false;
    }

    static void expire(device& d, queue_pair& q);

    /// Writes, reads, atomics: nothing, or the status that the requester gets.
    std::optional<ibv_wc_status> access_remote() {
        const unsigned right = is_write(w_.opcode)             ? IBV_ACCESS_REMOTE_WRITE
                               : w_.opcode == IBV_WR_RDMA_READ ? IBV_ACCESS_REMOTE_READ
                                                               : IBV_ACCESS_REMOTE_ATOMIC;
        const bool outstanding_refused = writes_locally(w_.opcode) && peer_->attr.max_dest_rd_atomic == 0;
        if ((peer_->attr.qp_access_flags & right) == 0 || outstanding_refused ||
            (is_atomic(w_.opcode) && w_.remote_addr % 8 != 0)) {
            report(IBV_EVENT_QP_REQ_ERR);
            return IBV_WC_REM_INV_REQ_ERR;
        }
        if (w_.length == 0) return std::nullopt;
        const region* mr = d_.regions.find(w_.rkey);
        if (mr == nullptr || mr->rkey != w_.rkey || !covers(mr, peer_->pd, w_.remote_addr, w_.length, right)) {
            report(IBV_EVENT_QP_ACCESS_ERR);
            return IBV_WC_REM_ACCESS_ERR;
        }
        std::byte* const there = mr->at(w_.remote_addr);
        pieces remote;
        std::uint64_t old;
        if (is_write(w_.opcode)) {
            remote.add(there, w_.length);
            copy(local_, remote);
            return std::nullopt;
        }
        if (is_atomic(w_.opcode)) {
            const std::atomic_ref word(*reinterpret_cast<std::uint64_t*>(there));
            old = w_.compare_add;
            if (w_.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
                old = word.fetch_add(w_.compare_add);
            else
                word.compare_exchange_strong(old, w_.swap);
            remote.add(reinterpret_cast<std::byte*>(&old), sizeof old);
        } else {
            remote.add(there, w_.length);
        }
        if (late())
            postponed_ = postpone(q_.sends.slices_of(at_), w_.num_sge, remote, local_);
        else
            copy(remote, local_);
        return std::nullopt;
    }

    void report(ibv_event_type event) {
        if (d_.is_mlx5()) d_.raise(event, peer_->context, peer_, peer_->generated_async);
    }

    /// Into the next receive of `queue`: nothing, or the status that the requester gets.
    std::optional<ibv_wc_status> deliver(queue_pair& to, receive_queue& queue, const std::byte* header = nullptr) {
        constexpr std::uint32_t header_bytes = sizeof(ibv_grh);
        const bool with_data = is_send(w_.opcode);
        const std::uint32_t length = (with_data ? w_.length : 0) + (header != nullptr ? header_bytes : 0);
        const auto at = queue.index.executed;
        const receive_request r = queue.request(at);
        const auto refuse = [&](ibv_wc_status here, ibv_wc_status there) {
            consume(to, queue);
            d_.complete(*to.recv_queue_cq, error_entry(to, r.wr_id, here, true));
            return there;
        };
        if (length > r.length) {
            if (to.qp_type == IBV_QPT_RC) report(IBV_EVENT_QP_REQ_ERR);
            return refuse(d_.is_mlx5() ? IBV_WC_LOC_LEN_ERR : IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_INV_REQ_ERR);
        }
        std::optional<late_write> later;
        if (length > 0) {
            const ibv_pd* pd = to.shared != nullptr ? to.shared->pd : to.pd;
            pieces into;
            if (!resolve(d_, pd, queue.slices_of(at), r.num_sge, length, IBV_ACCESS_LOCAL_WRITE, into))
                return refuse(d_.is_mlx5() ? IBV_WC_LOC_PROT_ERR : IBV_WC_LOC_QP_OP_ERR, IBV_WC_REM_OP_ERR);
            pieces from;
            if (header != nullptr) from.add(const_cast<std::byte*>(header), header_bytes);
            for (std::size_t i = 0; i < local_.count; ++i) from.add(local_.list[i].at, local_.list[i].length);
            if (late())
                later = postpone(queue.slices_of(at), r.num_sge, from, into);
            else
                copy(from, into);
        }
        consume(to, queue);
        completion& c = to.recv_queue_cq->ring.next();
        c.wc = {};
        c.wc.wr_id = r.wr_id;
        c.wc.status = IBV_WC_SUCCESS;
        c.wc.opcode = with_data ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM;
        c.wc.byte_len = with_data ? length : w_.length;
        c.wc.qp_num = to.qp_num;
        c.wc.src_qp = q_.qp_num;
        if (has_immediate(w_.opcode)) {
            c.wc.wc_flags |= IBV_WC_WITH_IMM;
            c.wc.imm_data = w_.imm_data;
        }
        if (header != nullptr) c.wc.wc_flags |= IBV_WC_GRH;
        c.pair = &to;
        c.retires = 0;
        c.is_receive = true;
        c.solicited = w_.is(IBV_SEND_SOLICITED);
        d_.complete(*to.recv_queue_cq, c, later ? &*later : nullptr);
        return std::nullopt;
    }

    void consume(queue_pair& to, receive_queue& queue) {
        ++queue.index.executed;
        if (!d_.is_mlx5()) ++queue.index.done;
        if (to.shared == nullptr || to.shared->limit == 0 || queue.index.outstanding() >= to.shared->limit) return;
        to.shared->limit = 0;
        d_.raise(IBV_EVENT_SRQ_LIMIT_REACHED, to.shared->context, to.shared, to.shared->generated_async);
    }

    /// What does not arrive is no error.
    bool datagram() {
        if (w_.length > 1U << q_.mtu_shift) {
            if (d_.is_mlx5()) return fail(IBV_WC_LOC_LEN_ERR);
            finish();
            return true;
        }
        queue_pair* to = d_.pairs.find(w_.rkey);
        const auto& route = w_.route.grh;
        const bool here = std::ranges::any_of(
            d_.gids, [&](const ibv_gid& gid) { return std::memcmp(&gid, &route.dgid, sizeof gid) == 0; });
        const std::uint32_t qkey = (w_.qkey & 0x80000000U) != 0 ? q_.attr.qkey : w_.qkey;
        if (here && to != nullptr && !to->mute && to->qp_type == IBV_QPT_UD && to->attr.qp_state >= IBV_QPS_RTR &&
            to->attr.qp_state != IBV_QPS_ERR && to->attr.qkey == qkey && to->receive_from->index.outstanding() > 0) {
            const auto header = network_header(d_.gids[route.sgid_index], route.dgid, w_.length, route);
            peer_ = to;
            const auto& r = to->receive_from->request(to->receive_from->index.executed);
            // rxe drops a datagram that does not fit; a receive with a bad key breaks the receiver.
            if (d_.is_mlx5() || r.length >= w_.length + sizeof(ibv_grh)) {
                const auto refused = deliver(*to, *to->receive_from, header.data());
                if (refused == IBV_WC_REM_OP_ERR) {
                    finish();
                    d_.fail_pair(*to);
                    return q_.attr.qp_state == IBV_QPS_RTS;
                }
            }
        }
        finish();
        return true;
    }

    device& d_;
    queue_pair& q_;
    const std::uint32_t at_;
    send_request& w_;
    queue_pair* peer_ = nullptr;
    pieces local_;
    std::optional<late_write> postponed_;
};

void unblock(device& d, queue_pair& q) noexcept {
    if (q.blocked == obstacle::none) return;
    d.later.cancel(q.deadline);
    if (q.waits_for != nullptr) --q.waits_for->waiting_senders;
    q.waits_for = nullptr;
    q.blocked = obstacle::none;
    std::erase(d.blocked, &q);
}

void execution::expire(device& d, queue_pair& q) {
    const auto status = q.blocked == obstacle::no_receive ? IBV_WC_RNR_RETRY_EXC_ERR : IBV_WC_RETRY_EXC_ERR;
    q.deadline = {};
    unblock(d, q);
    execution(d, q).fail(status);
}

/// Tries again, without a new deadline if nothing has changed for it.
void retry(device& d, queue_pair& q) {
    if (d.control.seeded) {
        unblock(d, q);
        return d.schedule(q);
    }
    auto deadline = std::exchange(q.deadline, {});
    const auto obstacle_before = q.blocked;
    const auto request_before = q.sends.index.executed;
    unblock(d, q);
    d.advance(q);
    if (deadline && q.blocked == obstacle_before && q.sends.index.executed == request_before) {
        d.later.cancel(q.deadline);
        q.deadline = deadline;
    } else {
        d.later.cancel(deadline);
    }
}

/// Junk for everything that the device might have written; nothing unless the control wants it.
std::optional<late_write> spoil(device& d, const ibv_sge* slices, std::uint32_t count, std::uint32_t length) {
    if (!d.slow || !d.control.write_late || length == 0) return std::nullopt;
    late_write late;
    std::size_t bytes = 0;
    for (const ibv_sge& slice : std::span(slices, count)) {
        if (d.written_by(slice) == nullptr) continue;
        late.slices.push_back(slice);
        bytes += slice.length;
    }
    late.bytes.assign(std::min<std::size_t>(bytes, length), junk);
    return late;
}
std::optional<late_write> spoil(device& d, queue_pair& q, std::uint32_t send) {
    const auto& w = q.sends.request(send);
    if (!writes_locally(w.opcode) || w.length > max_message) return std::nullopt;
    return spoil(d, q.sends.slices_of(send), w.num_sge, w.length);
}
std::optional<late_write> spoil(device& d, receive_queue& queue, std::uint32_t receive) {
    const auto& r = queue.request(receive);
    return spoil(d, queue.slices_of(receive), r.num_sge, r.length);
}

bool may_flush(queue_pair& q) noexcept {
    if (!q.flush_budget) return true;
    if (*q.flush_budget == 0) return false;
    --*q.flush_budget;
    return true;
}

void flush_sends(device& d, queue_pair& q) {
    auto& index = q.sends.index;
    while (index.outstanding() > 0 && may_flush(q)) {
        auto late = spoil(d, q, index.executed);
        auto c = error_entry(q, q.sends.request(index.executed).wr_id, IBV_WC_WR_FLUSH_ERR, false);
        c.retires = ++index.executed;
        if (!d.is_mlx5()) index.done = c.retires;
        d.complete(*q.send_queue_cq, c, late ? &*late : nullptr);
    }
}

void flush_receives(device& d, queue_pair& q) {
    if (q.shared != nullptr) return; // never flushed: another queue pair may take them
    auto& index = q.receives.index;
    while (index.outstanding() > 0 && may_flush(q)) {
        auto late = spoil(d, q.receives, index.executed);
        const auto wr_id = q.receives.request(index.executed).wr_id;
        ++index.executed;
        if (!d.is_mlx5()) ++index.done;
        d.complete(*q.recv_queue_cq, error_entry(q, wr_id, IBV_WC_WR_FLUSH_ERR, true), late ? &*late : nullptr);
    }
}

} // namespace

void device::advance(queue_pair& q) {
    while (!q.mute && q.sends.index.outstanding() > 0 && q.blocked == obstacle::none) {
        if (q.attr.qp_state == IBV_QPS_RTS) [[likely]] {
            execution(*this, q).run();
            continue;
        }
        if (q.attr.qp_state == IBV_QPS_ERR || q.attr.qp_state == IBV_QPS_SQE) flush_sends(*this, q);
        return;
    }
}

void device::schedule(queue_pair& q) {
    if (!slow || !control.seeded) [[likely]]
        return advance(q);
    if (q.run || q.mute || q.blocked != obstacle::none || q.sends.index.outstanding() == 0) return;
    q.run = act(control.delay(), [this, &q] {
        q.run = {};
        auto batch = 1 + control.random.up_to(std::max(control.choices.max_batch, 1U) - 1);
        while (batch-- > 0 && q.attr.qp_state == IBV_QPS_RTS && q.sends.index.outstanding() > 0 &&
               q.blocked == obstacle::none)
            execution(*this, q).run();
        if (q.attr.qp_state == IBV_QPS_RTS)
            schedule(q);
        else
            advance(q);
    });
}

void device::enter_error(queue_pair& q) {
    const bool first = q.attr.qp_state != IBV_QPS_ERR;
    q.attr.qp_state = q.state = IBV_QPS_ERR;
    unblock(*this, q);
    later.cancel(q.run);
    if (q.mute) return;
    flush_sends(*this, q);
    flush_receives(*this, q);
    if (!first) return;
    // rxe 6.1 does not tell.
    if (q.shared != nullptr && is_mlx5()) raise(IBV_EVENT_QP_LAST_WQE_REACHED, q.context, &q, q.generated_async);
    retry_blocked(q.qp_num);
}

void device::fail_pair(queue_pair& q) {
    if (q.attr.qp_state == IBV_QPS_ERR || q.attr.qp_state == IBV_QPS_RESET) return;
    enter_error(q);
}

void device::retry_blocked(std::uint32_t destination) {
    if (blocked.empty()) return;
    for (queue_pair* q : std::vector(blocked))
        if (q->blocked != obstacle::none && q->attr.dest_qp_num == destination) retry(*this, *q);
}

// A loop without allocation: programs that meet no receive at every message are slow enough.
void device::receive_posted(receive_queue& queue) {
    while (queue.waiting_senders > 0 && queue.index.outstanding() > 0) {
        const auto first = std::ranges::find(blocked, &queue, &queue_pair::waits_for);
        retry(*this, **first);
    }
}

void device::clear(queue_pair& q) {
    unblock(*this, q);
    later.cancel(q.run);
    const auto spoil_now = [&](std::optional<late_write> late) {
        if (late) write(*late);
    };
    if (slow && control.write_late && !q.mute) {
        for (auto at = q.sends.index.executed; at != q.sends.index.posted; ++at) spoil_now(spoil(*this, q, at));
        if (q.shared == nullptr)
            for (auto at = q.receives.index.executed; at != q.receives.index.posted; ++at)
                spoil_now(spoil(*this, q.receives, at));
    }
    const auto purge = [&](std::uint64_t count) {
        counts.purged += count;
        counts.outstanding -= count;
    };
    purge(q.sends.index.outstanding());
    if (q.shared == nullptr) purge(q.receives.index.outstanding());
    const auto give_back = [&](const completion& c) {
        if (is_mlx5() && c.is_receive && q.shared != nullptr) ++q.receive_from->index.done;
    };
    for (auto at = pending.begin(); at != pending.end();) {
        const auto here = at++;
        if (here->entry.pair != &q) continue;
        write(here->late);
        later.cancel(here->delivery);
        give_back(here->entry);
        purge(1);
        pending.erase(here);
    }
    if (is_mlx5()) {
        const auto mine = [&](const completion& c) {
            if (c.pair != &q) return false;
            give_back(c);
            return true;
        };
        counts.removed += q.send_queue_cq->ring.remove_if(mine);
        counts.removed += q.recv_queue_cq->ring.remove_if(mine);
    }
    q.sends.index = {};
    if (q.shared == nullptr) q.receives.index = {};
    q.last_delivery = {};
}

void device::settle() {
    while (!overrun_queues.empty() || !broken_pairs.empty()) {
        for (completion_queue* cq : std::exchange(overrun_queues, {}))
            for (open_context* c : contexts)
                for (queue_pair* q : c->pairs) {
                    if (q->send_queue_cq != cq && q->recv_queue_cq != cq) continue;
                    if (q->attr.qp_state == IBV_QPS_RESET || q->attr.qp_state == IBV_QPS_ERR) continue;
                    raise(IBV_EVENT_QP_FATAL, q->context, q, q->generated_async);
                    fail_pair(*q);
                }
        for (queue_pair* q : std::exchange(broken_pairs, {})) fail_pair(*q);
    }
    unsettled = false;
}

namespace {

int accept(device& d, queue_pair& q, const ibv_send_wr& wr) noexcept {
    const bool ud = q.qp_type == IBV_QPT_UD;
    if (number_of(wr.opcode) > IBV_WR_ATOMIC_FETCH_AND_ADD || (ud && !is_send(wr.opcode))) return EINVAL;
    if (q.attr.qp_state < IBV_QPS_RTS) return EINVAL;
    if (wr.num_sge < 0 || static_cast<std::uint32_t>(wr.num_sge) > q.sends.max_sge)
        return d.is_mlx5() ? ENOMEM : EINVAL;
    if (wr.num_sge > 0 && wr.sg_list == nullptr) return EINVAL;
    if (q.sends.index.used() >= q.sends.size) return ENOMEM;
    const auto at = q.sends.index.posted;
    send_request& w = q.sends.request(at);
    w.wr_id = wr.wr_id;
    w.opcode = wr.opcode;
    w.flags = wr.send_flags;
    w.imm_data = wr.imm_data;
    w.num_sge = static_cast<std::uint32_t>(wr.num_sge);
    std::uint64_t length = 0;
    ibv_sge* const slices = q.sends.slices_of(at);
    for (std::uint32_t i = 0; i < w.num_sge; ++i) {
        slices[i] = wr.sg_list[i];
        length += slices[i].length;
    }
    w.length = static_cast<std::uint32_t>(std::min<std::uint64_t>(length, max_message + 1ULL));
    if (w.is(IBV_SEND_INLINE)) {
        if (writes_locally(wr.opcode)) return EINVAL;
        if (length > q.sends.max_inline) return d.is_mlx5() ? ENOMEM : EINVAL;
        std::byte* into = q.sends.inline_of(at);
        for (std::uint32_t i = 0; i < w.num_sge; ++i) {
            if (slices[i].length == 0) continue;
            std::memcpy(into, reinterpret_cast<const void*>(slices[i].addr), slices[i].length);
            into += slices[i].length;
        }
    }
    if (ud) {
        const auto* ah = static_cast<const address*>(wr.wr.ud.ah);
        if (!usable(ah) || ah->pd != q.pd) return EINVAL;
        w.route = ah->attributes;
        w.rkey = wr.wr.ud.remote_qpn;
        w.qkey = wr.wr.ud.remote_qkey;
    } else if (is_atomic(wr.opcode)) {
        w.remote_addr = wr.wr.atomic.remote_addr;
        w.rkey = wr.wr.atomic.rkey;
        w.compare_add = wr.wr.atomic.compare_add;
        w.swap = wr.wr.atomic.swap;
    } else {
        w.remote_addr = wr.wr.rdma.remote_addr;
        w.rkey = wr.wr.rdma.rkey;
    }
    ++q.sends.index.posted;
    ++d.counts.accepted;
    ++d.counts.outstanding;
    return 0;
}

int accept(device& d, receive_queue& queue, const ibv_recv_wr& wr) noexcept {
    if (wr.num_sge < 0 || static_cast<std::uint32_t>(wr.num_sge) > queue.max_sge) return EINVAL;
    if (wr.num_sge > 0 && wr.sg_list == nullptr) return EINVAL;
    if (queue.index.used() >= queue.size) return ENOMEM;
    const auto at = queue.index.posted;
    receive_request& r = queue.request(at);
    r.wr_id = wr.wr_id;
    r.num_sge = static_cast<std::uint32_t>(wr.num_sge);
    std::uint64_t length = 0;
    ibv_sge* const slices = queue.slices_of(at);
    for (std::uint32_t i = 0; i < r.num_sge; ++i) {
        slices[i] = wr.sg_list[i];
        length += slices[i].length;
    }
    r.length = static_cast<std::uint32_t>(std::min<std::uint64_t>(length, max_message));
    ++queue.index.posted;
    ++d.counts.accepted;
    ++d.counts.outstanding;
    return 0;
}

/// The chain, up to the request that cannot be, or to the one that the control refuses.
template <class Wr, class Accept>
int accept_chain(Wr* wr, Wr** bad, const std::optional<fault>& refused, Accept&& take) {
    std::uint32_t accepted = 0;
    for (; wr != nullptr; wr = wr->next, ++accepted) {
        int code = 0;
        if (refused && accepted == refused->accepted)
            code = answer(*refused, convention::positive_errno);
        else
            code = take(*wr);
        if (code == 0) continue;
        if (bad != nullptr) *bad = wr;
        return code;
    }
    if (!refused || refused->accepted != fault::all) return 0;
    if (bad != nullptr) *bad = nullptr;
    return answer(*refused, convention::positive_errno);
}

std::optional<fault> prelude(device& d, point begins, ibv_qp* qp, std::string_view verb) {
    reach(d, begins, nullptr, qp);
    auto refused = fault_of(d, verb);
    const locked guard(d);
    d.spend(d.control.choices.verb_time);
    return refused;
}

} // namespace

int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
    auto& q = *static_cast<queue_pair*>(qp);
    if (q.magic != alive) [[unlikely]] {
        if (bad != nullptr) *bad = wr;
        return EINVAL;
    }
    device& d = *q.dev;
    std::optional<fault> refused;
    if (d.slow) [[unlikely]]
        refused = prelude(d, point::post_send_begins, qp, "ibv_post_send");
    int code;
    {
        const locked guard(d);
        if (q.mute && !d.is_mlx5()) [[unlikely]] {
            if (bad != nullptr) *bad = wr;
            return EIO;
        }
        code = accept_chain(wr, bad, refused, [&](const ibv_send_wr& one) { return accept(d, q, one); });
        d.schedule(q);
    }
    if (d.slow) [[unlikely]]
        reach(d, point::post_send_ends, nullptr, qp);
    return code;
}

int post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad) {
    auto& q = *static_cast<queue_pair*>(qp);
    if (q.magic != alive || q.shared != nullptr) [[unlikely]] {
        if (bad != nullptr) *bad = wr;
        return EINVAL;
    }
    device& d = *q.dev;
    std::optional<fault> refused;
    if (d.slow) [[unlikely]]
        refused = prelude(d, point::post_recv_begins, qp, "ibv_post_recv");
    int code;
    {
        const locked guard(d);
        if ((q.mute && !d.is_mlx5()) || q.attr.qp_state == IBV_QPS_RESET) [[unlikely]] {
            if (bad != nullptr) *bad = wr;
            return q.mute ? EIO : EINVAL;
        }
        code = accept_chain(wr, bad, refused, [&](const ibv_recv_wr& one) { return accept(d, q.receives, one); });
        if (q.receives.waiting_senders > 0) [[unlikely]]
            d.receive_posted(q.receives);
        // rxe looks at its receive queue only when something arrives or the state is changed (facts B.5, B.10).
        if (q.attr.qp_state == IBV_QPS_ERR && d.is_mlx5() && !q.mute) [[unlikely]]
            flush_receives(d, q);
    }
    if (d.slow) [[unlikely]]
        reach(d, point::post_recv_ends, nullptr, qp);
    return code;
}

int post_srq_recv(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad) {
    auto& s = *static_cast<shared_queue*>(srq);
    if (s.magic != alive) [[unlikely]] {
        if (bad != nullptr) *bad = wr;
        return EINVAL;
    }
    device& d = *s.dev;
    std::optional<fault> refused;
    if (d.slow) [[unlikely]]
        refused = prelude(d, point::post_recv_begins, nullptr, "ibv_post_srq_recv");
    int code;
    {
        const locked guard(d);
        if (!answers(*state_of(srq->context)) && !d.is_mlx5()) {
            if (bad != nullptr) *bad = wr;
            return EIO;
        }
        code = accept_chain(wr, bad, refused, [&](const ibv_recv_wr& one) { return accept(d, s.receives, one); });
        if (s.receives.waiting_senders > 0) [[unlikely]]
            d.receive_posted(s.receives);
    }
    if (d.slow) [[unlikely]]
        reach(d, point::post_recv_ends, nullptr, nullptr);
    return code;
}

} // namespace verbena::sim
