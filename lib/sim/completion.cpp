// Completion queues, their arming, and completion channels.

#include "device.hpp"

#include <fcntl.h>
#include <poll.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace verbena::sim {

// ---- a completion's way

void device::complete(completion_queue& cq, const completion& c, late_write* late) {
    if (slow) [[unlikely]] {
        if (delayed(cq)) return delay(cq, c, late);
        if (late != nullptr) write(*late);
    }
    push(cq, c);
}

void device::delay(completion_queue& cq, const completion& c, late_write* late) {
    const bool held = cq.held || control.hold_all;
    pending.push_back({++last_pending, &cq, c, late != nullptr ? std::move(*late) : late_write{}, held, {}});
    if (held) return;
    const auto at = std::prev(pending.end());
    auto& last = c.pair->last_delivery[c.is_receive ? 1 : 0];
    last = std::max(last, later.now() + control.delay());
    at->delivery = act(last - later.now(), [this, at] { deliver(at); });
}

void device::deliver(std::list<pending_completion>::iterator at) {
    pending_completion p = std::move(*at);
    pending.erase(at);
    later.cancel(p.delivery);
    write(p.late);
    push(*p.cq, p.entry);
}

std::size_t device::release_pending(completion_queue* cq) {
    std::size_t released = 0;
    for (auto at = pending.begin(); at != pending.end();) {
        const auto next = std::next(at);
        if ((cq == nullptr || at->cq == cq) && at->held) {
            deliver(at);
            ++released;
        }
        at = next;
    }
    return released;
}

/// The region that a receive or read of this slice writes to; null if its slice is wrong.
const region* device::written_by(const ibv_sge& slice) const noexcept {
    const region* mr = regions.find(slice.lkey);
    return mr != nullptr && mr->covers(slice.addr, slice.length, IBV_ACCESS_LOCAL_WRITE) ? mr : nullptr;
}

// A region that is gone by now belongs to a program that gave its memory back too early: nothing is written. Nor is it
// by a request that was never looked at and has a wrong slice.
void device::write(late_write& late) noexcept {
    std::size_t written = 0;
    for (const ibv_sge& slice : late.slices) {
        const std::size_t part = std::min<std::size_t>(slice.length, late.bytes.size() - written);
        if (const region* mr = written_by(slice)) std::memcpy(mr->at(slice.addr), late.bytes.data() + written, part);
        written += part;
    }
}

void device::push(completion_queue& cq, const completion& c) {
    --counts.outstanding;
    if (cq.overrun || cq.ring.full()) [[unlikely]] {
        ++counts.dropped;
        if (is_mlx5() && c.is_receive && c.pair->shared != nullptr) ++c.pair->receive_from->index.done;
        if (cq.overrun) return;
        raise(IBV_EVENT_CQ_ERR, cq.context, &cq, cq.generated_async);
        unsettled = true;
        if (is_mlx5()) {
            cq.overrun = true;
            overrun_queues.push_back(&cq);
        } else if (c.is_receive) {
            broken_pairs.push_back(c.pair); // a lost send completion goes unnoticed (facts B.5)
        }
        return;
    }
    ++(c.wc.status == IBV_WC_WR_FLUSH_ERR ? counts.flushed : counts.completed);
    cq.ring.push(c);
    if (cq.arm == completion_queue::arm_state::off) return;
    if (cq.arm == completion_queue::arm_state::next || c.solicited || c.wc.status != IBV_WC_SUCCESS) notify(cq);
}

void device::notify(completion_queue& cq) {
    cq.arm = completion_queue::arm_state::off;
    cq.fired_at = cq.taken_events;
    if (cq.channel == nullptr) return;
    if (slow) [[unlikely]] {
        if (cq.events_to_drop > 0) {
            --cq.events_to_drop;
            return;
        }
        if (cq.events_to_double > 0) {
            --cq.events_to_double;
            send_event(cq);
        }
        if (control.seeded) {
            // The first id of the list is the first to come: all are removed together or one by one in this order.
            cq.events_on_way.push_back(act(control.delay(), [this, &cq] {
                const auto now = later.now();
                std::erase_if(cq.events_on_way, [&](const auto& id) { return id.when <= now; });
                send_event(cq);
            }));
            return;
        }
    }
    send_event(cq);
}

void device::send_event(completion_queue& cq) {
    const std::uint64_t handle = reinterpret_cast<std::uintptr_t>(&cq);
    static_cast<channel*>(cq.channel)->events->push(&handle);
    ++cq.generated_events;
    ++counts.events;
}

void device::retire(const completion& c) noexcept {
    if (c.is_receive)
        ++c.pair->receive_from->index.done;
    else
        c.pair->sends.index.done = c.retires;
}

// ---- the verbs behind ibv_context.ops

int poll_cq(ibv_cq* cq, int count, ibv_wc* entries) {
    auto& queue = *static_cast<completion_queue*>(cq);
    if (queue.magic != alive) [[unlikely]]
        return -1;
    device& d = *queue.dev;
    if (d.slow) [[unlikely]] {
        reach(d, point::poll_begins, cq, nullptr);
        if (const auto f = fault_of(d, "ibv_poll_cq")) return f->value;
        const locked guard(d);
        d.spend(d.control.choices.verb_time);
        if (const auto consumed = std::exchange(queue.poll_failure, std::nullopt)) {
            for (std::uint32_t i = 0; i < *consumed && queue.ring.count() > 0; ++i) {
                if (d.is_mlx5()) d.retire(queue.ring.front());
                queue.ring.pop();
                ++d.counts.polled;
                ++d.counts.consumed;
            }
            return -2;
        }
    }
    int found = 0;
    {
        const locked guard(d);
        const auto most = std::min(static_cast<std::uint32_t>(std::max(count, 0)), queue.ring.count());
        const bool retires = d.is_mlx5();
        for (; static_cast<std::uint32_t>(found) < most; ++found) {
            const completion& c = queue.ring.front();
            entries[found] = c.wc;
            if (retires) d.retire(c);
            queue.ring.pop();
        }
        d.counts.polled += most;
    }
    if (d.slow) [[unlikely]]
        reach(d, point::poll_ends, cq, nullptr);
    return found;
}

int req_notify_cq(ibv_cq* cq, int solicited_only) {
    using arm_state = completion_queue::arm_state;
    auto& queue = *static_cast<completion_queue*>(cq);
    if (queue.magic != alive) [[unlikely]]
        return EINVAL;
    device& d = *queue.dev;
    if (d.slow) [[unlikely]] {
        reach(d, point::arm_begins, cq, nullptr);
        if (const auto f = fault_of(d, "ibv_req_notify_cq")) return answer(*f, convention::positive_errno);
        const locked guard(d);
        d.spend(d.control.choices.verb_time);
    }
    {
        const locked guard(d);
        if (!answers(*state_of(cq->context))) return d.is_mlx5() ? 0 : EIO; // a store, or a system call
        const auto wanted = solicited_only != 0 ? arm_state::solicited : arm_state::next;
        if (d.is_mlx5() && queue.fired_at == queue.taken_events) {
            ++d.counts.ignored_arms;
        } else if (queue.arm >= wanted) {
            if (d.control.redundant_arm_loses) queue.arm = arm_state::off;
        } else {
            queue.arm = wanted;
        }
    }
    if (d.slow) [[unlikely]]
        reach(d, point::arm_ends, cq, nullptr);
    return 0;
}

namespace {

/// Both providers take 2^k - 1.
std::uint32_t rounded(std::uint32_t entries) { return std::bit_ceil(entries + 1) - 1; }

void wait_for(pthread_mutex_t& mutex, pthread_cond_t& changed, auto&& done) {
    pthread_mutex_lock(&mutex);
    while (!done()) pthread_cond_wait(&changed, &mutex);
    pthread_mutex_unlock(&mutex);
}

int start_poll(ibv_cq_ex*, ibv_poll_cq_attr*) { return EOPNOTSUPP; }

ibv_cq* create_queue(ibv_context* context, const ibv_cq_init_attr_ex& wanted) {
    device& d = device_of(context);
    auto* ch = static_cast<channel*>(wanted.channel);
    if (wanted.cqe < 1 || wanted.cqe > static_cast<std::uint32_t>(d.kind.max_cqe) ||
        wanted.comp_vector >= comp_vectors || (ch != nullptr && (!usable(ch) || ch->context != context)))
        return fail_with<ibv_cq>(EINVAL);
    auto cq = std::make_unique<completion_queue>();
    if (!cq->ring.make(rounded(wanted.cqe))) return fail_with<ibv_cq>(ENOMEM);
    cq->context = context;
    cq->channel = ch;
    cq->cq_context = wanted.cq_context;
    cq->cqe = static_cast<int>(cq->ring.capacity());
    pthread_mutex_init(&cq->mutex, nullptr);
    pthread_cond_init(&cq->cond, nullptr);
    cq->magic = alive;
    cq->dev = &d;
    const locked guard(d);
    if (!answers(*state_of(context))) return fail_with<ibv_cq>(EIO);
    cq->handle = ++d.last_handle;
    if (ch != nullptr) ++ch->refcnt;
    state_of(context)->queues.push_back(cq.get());
    return cq.release();
}

} // namespace

ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* wanted) {
    if (const auto f = fault_of(device_of(context), "ibv_create_cq_ex")) return fail_with<ibv_cq_ex>(f->value);
    const auto flags = (wanted->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS) != 0 ? wanted->flags : 0;
    if ((wanted->wc_flags & ~std::uint64_t{IBV_WC_STANDARD_FLAGS}) != 0 ||
        (wanted->comp_mask & ~std::uint32_t{IBV_CQ_INIT_ATTR_MASK_FLAGS}) != 0 ||
        (flags & ~std::uint32_t{IBV_CREATE_CQ_ATTR_SINGLE_THREADED}) != 0)
        return fail_with<ibv_cq_ex>(EOPNOTSUPP);
    auto* cq = reinterpret_cast<ibv_cq_ex*>(create_queue(context, *wanted));
    if (cq != nullptr) cq->start_poll = start_poll;
    return cq;
}

// Takes the numbers, as mlx5 does or not at all, and raises every event at once all the same.
int modify_cq(ibv_cq* cq, ibv_modify_cq_attr* wanted) {
    auto* queue = static_cast<completion_queue*>(cq);
    if (!usable(queue)) return EINVAL;
    device& d = *queue->dev;
    if (const auto f = fault_of(d, "ibv_modify_cq")) return answer(*f, convention::positive_errno);
    if (d.kind.moderation.max_cq_count == 0) return EOPNOTSUPP;
    if (wanted->attr_mask != IBV_CQ_ATTR_MODERATE || wanted->moderate.cq_period > d.kind.moderation.max_cq_period)
        return EINVAL;
    const locked guard(d);
    return answers(*state_of(cq->context)) ? 0 : EIO;
}

} // namespace verbena::sim

using namespace verbena::sim;

extern "C" {

ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
    device& d = device_of(context);
    if (const auto f = fault_of(d, "ibv_create_comp_channel")) return fail_with<ibv_comp_channel>(f->value);
    auto ch = std::make_unique<channel>();
    if (ch->events->fd() < 0) return nullptr;
    ch->context = context;
    ch->fd = ch->events->fd();
    ch->refcnt = 0;
    ch->magic = alive;
    const locked guard(d);
    if (!answers(*state_of(context))) return fail_with<ibv_comp_channel>(EIO);
    state_of(context)->channels.push_back(ch.get());
    return ch.release();
}

int ibv_destroy_comp_channel(ibv_comp_channel* channel_handle) {
    auto* ch = static_cast<channel*>(channel_handle);
    if (!usable(ch)) return EINVAL;
    device& d = device_of(ch->context);
    if (const auto f = fault_of(d, "ibv_destroy_comp_channel")) return answer(*f, convention::positive_errno);
    const locked guard(d);
    if (ch->refcnt != 0) return EBUSY; // libibverbs counts this one itself
    std::erase(state_of(ch->context)->channels, ch);
    ch->magic = dead;
    ch->events.reset();
    d.bury([ch] { delete ch; });
    return 0;
}

ibv_cq* ibv_create_cq(ibv_context* context, int entries, void* cq_context, ibv_comp_channel* channel_handle,
                      int comp_vector) {
    if (const auto f = fault_of(device_of(context), "ibv_create_cq")) return fail_with<ibv_cq>(f->value);
    ibv_cq_init_attr_ex wanted{};
    wanted.cqe = static_cast<std::uint32_t>(entries); // a negative one is too large
    wanted.cq_context = cq_context;
    wanted.channel = channel_handle;
    wanted.comp_vector = static_cast<std::uint32_t>(comp_vector);
    return create_queue(context, wanted);
}

int ibv_resize_cq(ibv_cq* cq, int entries) {
    auto* queue = static_cast<completion_queue*>(cq);
    if (!usable(queue)) return EINVAL;
    device& d = *queue->dev;
    if (const auto f = fault_of(d, "ibv_resize_cq")) return answer(*f, convention::positive_errno);
    if (entries < 1 || entries > d.kind.max_cqe) return EINVAL;
    completion_ring fresh;
    if (!fresh.make(rounded(static_cast<std::uint32_t>(entries)))) return ENOMEM;
    const locked guard(d);
    if (!answers(*state_of(cq->context))) return EIO;
    if (static_cast<std::uint32_t>(entries) < queue->ring.count()) return EINVAL;
    if (fresh.capacity() == queue->ring.capacity()) return 0;
    for (; queue->ring.count() > 0; queue->ring.pop()) fresh.push(queue->ring.front());
    queue->ring = std::move(fresh);
    queue->cqe = static_cast<int>(queue->ring.capacity());
    // No provider promises that an arm survives (facts B.7); on rxe it does.
    if (d.is_mlx5()) queue->arm = completion_queue::arm_state::off;
    return 0;
}

int ibv_destroy_cq(ibv_cq* cq) {
    auto* queue = static_cast<completion_queue*>(cq);
    if (!usable(queue)) return EINVAL;
    device& d = *queue->dev;
    if (const auto f = fault_of(d, "ibv_destroy_cq")) return answer(*f, convention::positive_errno);
    auto* ch = static_cast<channel*>(cq->channel);
    {
        const locked guard(d);
        if (queue->users != 0 && answers(*state_of(cq->context))) return EBUSY;
        const auto handle = reinterpret_cast<std::uintptr_t>(cq);
        for (auto& event : std::exchange(queue->events_on_way, {})) d.later.cancel(event);
        const auto names = [&](const void* record) { return std::memcmp(record, &handle, sizeof handle) == 0; };
        if (ch != nullptr) queue->generated_events -= static_cast<std::uint32_t>(ch->events->remove(names));
        d.forget_async(cq->context, handle, queue->generated_async);
        d.counts.removed += queue->ring.count();
        while (queue->ring.count() > 0) queue->ring.pop();
    }
    // As libibverbs: the object is gone, its events are not yet acknowledged. Of a removed device it asks nothing.
    if (answers(*state_of(cq->context)))
        wait_for(cq->mutex, cq->cond, [&] {
            return cq->comp_events_completed == queue->generated_events &&
                   cq->async_events_completed == queue->generated_async;
        });
    const locked guard(d);
    if (ch != nullptr) --ch->refcnt;
    std::erase(state_of(cq->context)->queues, queue);
    queue->magic = dead;
    queue->ring = {};
    d.bury([queue] { delete queue; });
    return 0;
}

int ibv_get_cq_event(ibv_comp_channel* channel_handle, ibv_cq** cq, void** cq_context) {
    auto* ch = static_cast<channel*>(channel_handle);
    const auto refuse = [](int code) {
        errno = code;
        return -1;
    };
    if (!usable(ch)) return refuse(EBADF);
    device& d = device_of(ch->context);
    if (const auto f = fault_of(d, "ibv_get_cq_event")) return answer(*f, convention::minus_one_and_errno);
    {
        const locked guard(d);
        if (!answers(*state_of(ch->context))) return refuse(EIO);
        // Nobody else moves the manual clock while the program sleeps here.
        if (d.later.manual() && (fcntl(ch->fd, F_GETFL) & O_NONBLOCK) == 0) {
            pollfd readable{.fd = ch->fd, .events = POLLIN, .revents = 0};
            while (::poll(&readable, 1, 0) == 0 && d.later.step()) {}
        }
    }
    std::uint64_t handle;
    if (ch->events->take(&handle) != 0) return -1;
    *cq = reinterpret_cast<ibv_cq*>(handle);
    *cq_context = (*cq)->cq_context;
    {
        const locked guard(d);
        ++static_cast<completion_queue*>(*cq)->taken_events;
        ch->events->refill();
    }
    if (d.slow) reach(d, point::event_taken, *cq, nullptr);
    return 0;
}

void ibv_ack_cq_events(ibv_cq* cq, unsigned count) {
    pthread_mutex_lock(&cq->mutex);
    cq->comp_events_completed += count;
    pthread_cond_signal(&cq->cond);
    pthread_mutex_unlock(&cq->mutex);
}

} // extern "C"
