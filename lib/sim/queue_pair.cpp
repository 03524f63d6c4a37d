// Queue pairs and shared receive queues: creation, states, destruction.

#include "device.hpp"

#include <algorithm>
#include <cstring>

namespace verbena::sim {
namespace {

struct transition {
    ibv_qp_state from;
    ibv_qp_state to;
    int required_rc;
    int optional_rc;
    int required_ud;
    int optional_ud;
};

// InfiniBand specification, volume 1, 11.2.5.2; the same table decides in Linux (ib_modify_qp_is_ok).
constexpr int addressing =
    IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
constexpr int sending = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
constexpr int running =
    IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_PATH_MIG_STATE;
constexpr int port_rc = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
constexpr int port_ud = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
constexpr int keys_ud = IBV_QP_CUR_STATE | IBV_QP_QKEY;

constexpr transition transitions[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, port_rc, 0, port_ud, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, port_rc, 0, port_ud},
    {IBV_QPS_INIT, IBV_QPS_RTR, addressing, IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX, 0,
     IBV_QP_PKEY_INDEX | IBV_QP_QKEY},
    {IBV_QPS_RTR, IBV_QPS_RTS, sending, running, IBV_QP_SQ_PSN, keys_ud},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0, running, 0, keys_ud},
    {IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {IBV_QPS_SQD, IBV_QPS_RTS, 0, running, 0, keys_ud},
    {IBV_QPS_SQD, IBV_QPS_SQD, 0,
     IBV_QP_PORT | IBV_QP_AV | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC |
         IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_MIN_RNR_TIMER |
         IBV_QP_PATH_MIG_STATE,
     0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY},
    {IBV_QPS_SQE, IBV_QPS_RTS, 0, 0, 0, keys_ud},
};

bool allowed(ibv_qp_type type, ibv_qp_state from, ibv_qp_state to, int mask) {
    if ((mask & IBV_QP_CUR_STATE) != 0 && (from < IBV_QPS_RTR || from > IBV_QPS_SQE)) return false;
    const int others = mask & ~IBV_QP_STATE;
    // To RESET from everywhere; to ERR from everywhere but RESET.
    if (to == IBV_QPS_RESET || (to == IBV_QPS_ERR && from != IBV_QPS_RESET)) return (others & ~IBV_QP_CUR_STATE) == 0;
    for (const transition& t : transitions) {
        if (t.from != from || t.to != to) continue;
        const int required = type == IBV_QPT_RC ? t.required_rc : t.required_ud;
        const int optional = type == IBV_QPT_RC ? t.optional_rc : t.optional_ud;
        return (others & required) == required && (others & ~(required | optional)) == 0;
    }
    return false;
}

bool valid(const device& d, const ibv_qp_attr& a, int mask) {
    const auto has = [mask](int bit) { return (mask & bit) != 0; };
    const int rd_atomic = d.is_mlx5() ? 16 : 128;
    return !(has(IBV_QP_PORT) && a.port_num != 1) && !(has(IBV_QP_PKEY_INDEX) && a.pkey_index != 0) &&
           !(has(IBV_QP_AV) &&
             (a.ah_attr.port_num != 1 || a.ah_attr.is_global == 0 || a.ah_attr.grh.sgid_index >= gid_count)) &&
           !(has(IBV_QP_PATH_MTU) && (number_of(a.path_mtu) < IBV_MTU_256 || number_of(a.path_mtu) > IBV_MTU_4096)) &&
           !(has(IBV_QP_TIMEOUT) && a.timeout > 31) && !(has(IBV_QP_RETRY_CNT) && a.retry_cnt > 7) &&
           !(has(IBV_QP_RNR_RETRY) && a.rnr_retry > 7) && !(has(IBV_QP_MIN_RNR_TIMER) && a.min_rnr_timer > 31) &&
           !(has(IBV_QP_MAX_QP_RD_ATOMIC) && a.max_rd_atomic > rd_atomic) &&
           !(has(IBV_QP_MAX_DEST_RD_ATOMIC) && a.max_dest_rd_atomic > rd_atomic) &&
           !(has(IBV_QP_DEST_QPN) && a.dest_qp_num > 0xffffff);
}

void take(const device& d, queue_pair& q, const ibv_qp_attr& a, int mask) {
    const auto has = [mask](int bit) { return (mask & bit) != 0; };
    auto& to = q.attr;
    if (has(IBV_QP_ACCESS_FLAGS)) to.qp_access_flags = a.qp_access_flags;
    if (has(IBV_QP_PKEY_INDEX)) to.pkey_index = a.pkey_index;
    if (has(IBV_QP_PORT)) to.port_num = a.port_num;
    if (has(IBV_QP_QKEY)) to.qkey = a.qkey;
    if (has(IBV_QP_AV)) {
        to.ah_attr = a.ah_attr;
        q.reachable = std::ranges::any_of(
            d.gids, [&](const ibv_gid& g) { return std::memcmp(&g, &a.ah_attr.grh.dgid, sizeof g) == 0; });
    }
    if (has(IBV_QP_PATH_MTU)) {
        to.path_mtu = a.path_mtu;
        q.mtu_shift = 7U + static_cast<unsigned>(a.path_mtu);
    }
    if (has(IBV_QP_TIMEOUT)) to.timeout = a.timeout;
    if (has(IBV_QP_RETRY_CNT)) to.retry_cnt = a.retry_cnt;
    if (has(IBV_QP_RNR_RETRY)) to.rnr_retry = a.rnr_retry;
    if (has(IBV_QP_RQ_PSN)) q.expected_psn = to.rq_psn = a.rq_psn & 0xffffff;
    if (has(IBV_QP_SQ_PSN)) q.next_psn = to.sq_psn = a.sq_psn & 0xffffff;
    if (has(IBV_QP_MAX_QP_RD_ATOMIC)) to.max_rd_atomic = a.max_rd_atomic;
    if (has(IBV_QP_MAX_DEST_RD_ATOMIC)) to.max_dest_rd_atomic = a.max_dest_rd_atomic;
    if (has(IBV_QP_MIN_RNR_TIMER)) to.min_rnr_timer = a.min_rnr_timer;
    if (has(IBV_QP_DEST_QPN)) to.dest_qp_num = a.dest_qp_num;
    if (has(IBV_QP_ALT_PATH)) {
        to.alt_ah_attr = a.alt_ah_attr;
        to.alt_pkey_index = a.alt_pkey_index;
        to.alt_port_num = a.alt_port_num;
        to.alt_timeout = a.alt_timeout;
    }
    if (has(IBV_QP_PATH_MIG_STATE)) to.path_mig_state = a.path_mig_state;
}

void wait_for_acks(pthread_mutex_t& mutex, pthread_cond_t& changed, const std::uint32_t& completed,
                   const std::uint32_t& reported) {
    pthread_mutex_lock(&mutex);
    while (completed != reported) pthread_cond_wait(&changed, &mutex);
    pthread_mutex_unlock(&mutex);
}

bool fits(std::uint32_t value, int limit) { return value <= static_cast<std::uint32_t>(limit); }

} // namespace
} // namespace verbena::sim

using namespace verbena::sim;

extern "C" {

ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* init) {
    auto* owner = static_cast<domain*>(pd);
    if (!usable(owner)) return fail_with<ibv_qp>(EINVAL);
    device& d = device_of(pd->context);
    if (const auto f = fault_of(d, "ibv_create_qp")) return fail_with<ibv_qp>(f->value);
    auto* send_cq = static_cast<completion_queue*>(init->send_cq);
    auto* recv_cq = static_cast<completion_queue*>(init->recv_cq);
    auto* shared = static_cast<shared_queue*>(init->srq);
    if (const auto type = number_of(init->qp_type); type != IBV_QPT_RC && type != IBV_QPT_UD)
        return fail_with<ibv_qp>(EOPNOTSUPP);
    if (!usable(send_cq) || !usable(recv_cq) || (shared != nullptr && !usable(shared)))
        return fail_with<ibv_qp>(EINVAL);
    if (send_cq->context != pd->context || recv_cq->context != pd->context ||
        (shared != nullptr && shared->context != pd->context))
        return fail_with<ibv_qp>(EINVAL);
    const auto& cap = init->cap;
    const auto& limits = d.kind;
    if (!fits(cap.max_send_wr, limits.max_qp_wr) || !fits(cap.max_send_sge, limits.max_sge) ||
        cap.max_inline_data > limits.max_inline ||
        (shared == nullptr && (!fits(cap.max_recv_wr, limits.max_qp_wr) || !fits(cap.max_recv_sge, limits.max_sge))))
        return fail_with<ibv_qp>(EINVAL);
    std::unique_ptr<queue_pair> q;
    try {
        q = std::make_unique<queue_pair>();
        q->sends.make(cap.max_send_wr, cap.max_send_sge, cap.max_inline_data);
        if (shared == nullptr) q->receives.make(cap.max_recv_wr, cap.max_recv_sge);
    } catch (const std::bad_alloc&) {
        return fail_with<ibv_qp>(ENOMEM);
    }
    q->context = pd->context;
    q->qp_context = init->qp_context;
    q->pd = pd;
    q->send_cq = send_cq;
    q->recv_cq = recv_cq;
    q->srq = shared;
    q->state = IBV_QPS_RESET;
    q->qp_type = init->qp_type;
    pthread_mutex_init(&q->mutex, nullptr);
    pthread_cond_init(&q->cond, nullptr);
    q->magic = alive;
    q->dev = &d;
    q->pd_state = owner;
    q->send_queue_cq = send_cq;
    q->recv_queue_cq = recv_cq;
    q->shared = shared;
    q->receive_from = shared != nullptr ? &shared->receives : &q->receives;
    q->all_signaled = init->sq_sig_all != 0;
    if (shared != nullptr) init->cap.max_recv_wr = init->cap.max_recv_sge = 0;
    q->init = *init;
    q->attr.qp_state = IBV_QPS_RESET;
    q->attr.cap = init->cap;
    const locked guard(d);
    if (!answers(*state_of(pd->context))) return fail_with<ibv_qp>(EIO);
    q->qp_num = d.pairs.add(q.get());
    if (q->qp_num == 0) return fail_with<ibv_qp>(ENOMEM);
    q->handle = ++d.last_handle;
    ++owner->users;
    ++send_cq->users;
    ++recv_cq->users;
    if (shared != nullptr) ++shared->users;
    state_of(pd->context)->pairs.push_back(q.get());
    return q.release();
}

int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* attr, int mask) {
    auto* q = static_cast<queue_pair*>(qp);
    if (!usable(q)) return EINVAL;
    device& d = *q->dev;
    if (const auto f = fault_of(d, "ibv_modify_qp")) return answer(*f, convention::positive_errno);
    const locked guard(d);
    if (q->mute) return EIO;
    if ((mask & IBV_QP_STATE) != 0 && number_of(attr->qp_state) > IBV_QPS_ERR) return EINVAL;
    const auto from = q->attr.qp_state;
    const auto to = (mask & IBV_QP_STATE) != 0 ? attr->qp_state : from;
    if ((mask & IBV_QP_CUR_STATE) != 0 && attr->cur_qp_state != from) return EINVAL;
    if (!allowed(qp->qp_type, from, to, mask) || !valid(d, *attr, mask)) return EINVAL;
    take(d, *q, *attr, mask);
    switch (to) {
    case IBV_QPS_RESET:
        d.clear(*q);
        q->attr.qp_state = q->state = to;
        d.retry_blocked(q->qp_num);
        return 0;
    case IBV_QPS_ERR: d.enter_error(*q); return 0;
    default: break;
    }
    q->attr.qp_state = q->state = to;
    if (from == to) return 0;
    if (to == IBV_QPS_RTR) d.retry_blocked(q->qp_num);
    if (to == IBV_QPS_RTS) d.schedule(*q);
    if (to == IBV_QPS_SQD && (mask & IBV_QP_EN_SQD_ASYNC_NOTIFY) != 0 && attr->en_sqd_async_notify != 0)
        d.raise(IBV_EVENT_SQ_DRAINED, qp->context, qp, q->generated_async);
    return 0;
}

int ibv_query_qp(ibv_qp* qp, ibv_qp_attr* attr, int, ibv_qp_init_attr* init) {
    auto* q = static_cast<queue_pair*>(qp);
    if (!usable(q)) return EINVAL;
    device& d = *q->dev;
    if (const auto f = fault_of(d, "ibv_query_qp")) return answer(*f, convention::positive_errno);
    const locked guard(d);
    if (q->mute) return EIO;
    *attr = q->attr;
    attr->cur_qp_state = q->attr.qp_state;
    attr->sq_psn = q->next_psn;
    attr->rq_psn = q->expected_psn;
    *init = q->init;
    return 0;
}

int ibv_destroy_qp(ibv_qp* qp) {
    auto* q = static_cast<queue_pair*>(qp);
    if (!usable(q)) return EINVAL;
    device& d = *q->dev;
    if (const auto f = fault_of(d, "ibv_destroy_qp")) return answer(*f, convention::positive_errno);
    {
        const locked guard(d);
        d.clear(*q);
        d.pairs.remove(qp->qp_num);
        std::erase(state_of(qp->context)->pairs, q);
        q->attr.qp_state = q->state = IBV_QPS_RESET;
        d.retry_blocked(qp->qp_num);
        d.forget_async(qp->context, reinterpret_cast<std::uintptr_t>(qp), q->generated_async);
    }
    if (answers(*state_of(qp->context))) wait_for_acks(qp->mutex, qp->cond, qp->events_completed, q->generated_async);
    const locked guard(d);
    --q->pd_state->users;
    --q->send_queue_cq->users;
    --q->recv_queue_cq->users;
    if (q->shared != nullptr) --q->shared->users;
    q->magic = dead;
    q->sends = {};
    q->receives = {};
    d.bury([q] { delete q; });
    return 0;
}

ibv_srq* ibv_create_srq(ibv_pd* pd, ibv_srq_init_attr* init) {
    auto* owner = static_cast<domain*>(pd);
    if (!usable(owner)) return fail_with<ibv_srq>(EINVAL);
    device& d = device_of(pd->context);
    if (const auto f = fault_of(d, "ibv_create_srq")) return fail_with<ibv_srq>(f->value);
    const auto& wanted = init->attr;
    if (wanted.max_wr == 0 || !fits(wanted.max_wr, d.kind.max_srq_wr) || !fits(wanted.max_sge, d.kind.max_sge))
        return fail_with<ibv_srq>(EINVAL);
    std::unique_ptr<shared_queue> s;
    try {
        s = std::make_unique<shared_queue>();
        s->receives.make(wanted.max_wr, wanted.max_sge);
    } catch (const std::bad_alloc&) {
        return fail_with<ibv_srq>(ENOMEM);
    }
    s->context = pd->context;
    s->srq_context = init->srq_context;
    s->pd = pd;
    pthread_mutex_init(&s->mutex, nullptr);
    pthread_cond_init(&s->cond, nullptr);
    s->magic = alive;
    s->dev = &d;
    const locked guard(d);
    if (!answers(*state_of(pd->context))) return fail_with<ibv_srq>(EIO);
    s->handle = ++d.last_handle;
    ++owner->users;
    return s.release();
}

int ibv_modify_srq(ibv_srq* srq, ibv_srq_attr* attr, int mask) {
    auto* s = static_cast<shared_queue*>(srq);
    if (!usable(s)) return EINVAL;
    device& d = *s->dev;
    if (const auto f = fault_of(d, "ibv_modify_srq")) return answer(*f, convention::positive_errno);
    const locked guard(d);
    if (!answers(*state_of(srq->context))) return EIO;
    if ((mask & ~IBV_SRQ_LIMIT) != 0) return EOPNOTSUPP; // no resizing
    if ((mask & IBV_SRQ_LIMIT) == 0) return 0;
    if (attr->srq_limit > s->receives.size) return EINVAL;
    s->limit = attr->srq_limit;
    return 0;
}

int ibv_query_srq(ibv_srq* srq, ibv_srq_attr* attr) {
    auto* s = static_cast<shared_queue*>(srq);
    if (!usable(s)) return EINVAL;
    device& d = *s->dev;
    if (const auto f = fault_of(d, "ibv_query_srq")) return answer(*f, convention::positive_errno);
    const locked guard(d);
    if (!answers(*state_of(srq->context))) return EIO;
    *attr = {.max_wr = s->receives.size, .max_sge = s->receives.max_sge, .srq_limit = s->limit};
    return 0;
}

int ibv_destroy_srq(ibv_srq* srq) {
    auto* s = static_cast<shared_queue*>(srq);
    if (!usable(s)) return EINVAL;
    device& d = *s->dev;
    if (const auto f = fault_of(d, "ibv_destroy_srq")) return answer(*f, convention::positive_errno);
    {
        const locked guard(d);
        if (s->users != 0 && answers(*state_of(srq->context))) return EBUSY;
        d.counts.purged += s->receives.index.outstanding();
        d.counts.outstanding -= s->receives.index.outstanding();
        s->receives.index = {};
        d.forget_async(srq->context, reinterpret_cast<std::uintptr_t>(srq), s->generated_async);
    }
    if (answers(*state_of(srq->context)))
        wait_for_acks(srq->mutex, srq->cond, srq->events_completed, s->generated_async);
    const locked guard(d);
    --static_cast<domain*>(srq->pd)->users;
    s->magic = dead;
    d.bury([s] { delete s; });
    return 0;
}

} // extern "C"
