#include <verbena/sim/control.hpp>

#include "device.hpp"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>

namespace verbena::sim {
namespace {

constexpr std::array verbs{"ibv_get_device_list",
                           "ibv_open_device",
                           "ibv_close_device",
                           "ibv_query_device",
                           "ibv_query_port",
                           "ibv_query_gid",
                           "ibv_query_gid_ex",
                           "ibv_query_gid_table",
                           "ibv_query_pkey",
                           "ibv_get_async_event",
                           "ibv_alloc_pd",
                           "ibv_dealloc_pd",
                           "ibv_reg_mr",
                           "ibv_dereg_mr",
                           "ibv_create_ah",
                           "ibv_destroy_ah",
                           "ibv_init_ah_from_wc",
                           "ibv_create_comp_channel",
                           "ibv_destroy_comp_channel",
                           "ibv_create_cq",
                           "ibv_resize_cq",
                           "ibv_destroy_cq",
                           "ibv_get_cq_event",
                           "ibv_poll_cq",
                           "ibv_req_notify_cq",
                           "ibv_create_qp",
                           "ibv_modify_qp",
                           "ibv_query_qp",
                           "ibv_destroy_qp",
                           "ibv_create_srq",
                           "ibv_modify_srq",
                           "ibv_query_srq",
                           "ibv_destroy_srq",
                           "ibv_post_send",
                           "ibv_post_recv",
                           "ibv_post_srq_recv"};

completion_queue& of(device& d, ibv_cq* cq) {
    auto* q = static_cast<completion_queue*>(cq);
    if (!usable(q) || q->dev != &d) throw std::invalid_argument("not a completion queue of this device");
    return *q;
}

} // namespace

control::control(std::string_view name) : device_(nullptr) {
    for (device* d : all_devices())
        if (name == d->entry.name) device_ = d;
    if (device_ == nullptr) throw std::invalid_argument("no simulated device " + std::string(name));
}

control::control(ibv_context* context) : device_(nullptr) {
    for (device* d : all_devices()) {
        const locked guard(*d);
        for (open_context* c : d->contexts)
            if (&c->context == context) device_ = d;
    }
    if (device_ == nullptr) throw std::invalid_argument("not a context of a simulated device");
}

sim::character control::character() const noexcept { return device_->kind.character; }

void control::hold(ibv_cq* cq) {
    const locked guard(*device_);
    of(*device_, cq).held = true;
    device_->slow = true;
}

void control::hold() {
    const locked guard(*device_);
    device_->control.hold_all = true;
    device_->slow = true;
}

std::vector<held_completion> control::held() const {
    const locked guard(*device_);
    std::vector<held_completion> list;
    for (const auto& p : device_->pending)
        if (p.held)
            list.push_back({p.id, p.cq, p.entry.wc.wr_id, p.entry.wc.status, p.entry.wc.qp_num, p.entry.is_receive});
    return list;
}

bool control::release(std::uint64_t id) {
    const locked guard(*device_);
    auto& pending = device_->pending;
    const auto at = std::ranges::find_if(pending, [id](const auto& p) { return p.held && p.id == id; });
    if (at == pending.end()) return false;
    device_->deliver(at);
    return true;
}

std::size_t control::release(ibv_cq* cq) {
    const locked guard(*device_);
    auto& queue = of(*device_, cq);
    queue.held = false;
    return device_->release_pending(&queue);
}

std::size_t control::release() {
    const locked guard(*device_);
    device_->control.hold_all = false;
    for (open_context* c : device_->contexts)
        for (completion_queue* cq : c->queues) cq->held = false;
    return device_->release_pending(nullptr);
}

void control::at(point where, std::function<void(const point_reached&)> function) {
    const locked guard(*device_);
    device_->slow = true;
    device_->control.points.at(static_cast<std::size_t>(where)).swap(function);
}

void control::fail(std::string_view verb, const fault& how) {
    if (std::ranges::find(verbs, verb) == verbs.end() || how.call == 0 || how.times == 0)
        throw std::invalid_argument("no such call of a verb: " + std::string(verb));
    const locked guard(*device_);
    device_->slow = true;
    device_->control.faults.emplace(verb, how);
}

void control::forgive() {
    const locked guard(*device_);
    device_->control.faults.clear();
}

void control::drop_events(ibv_cq* cq, std::uint32_t count) {
    const locked guard(*device_);
    device_->slow = true;
    of(*device_, cq).events_to_drop = count;
}

void control::double_events(ibv_cq* cq, std::uint32_t count) {
    const locked guard(*device_);
    device_->slow = true;
    of(*device_, cq).events_to_double = count;
}

void control::spurious_event(ibv_cq* cq) {
    const locked guard(*device_);
    auto& queue = of(*device_, cq);
    if (queue.channel != nullptr) device_->send_event(queue);
}

void control::redundant_arm_loses(bool on) {
    const locked guard(*device_);
    device_->control.redundant_arm_loses = on;
}

void control::flush_only(ibv_qp* qp, std::uint32_t count) {
    const locked guard(*device_);
    auto* q = static_cast<queue_pair*>(qp);
    if (!usable(q) || q->dev != device_) throw std::invalid_argument("not a queue pair of this device");
    q->flush_budget = count;
}

void control::fail_poll(ibv_cq* cq, std::uint32_t consumed) {
    const locked guard(*device_);
    device_->slow = true;
    of(*device_, cq).poll_failure = consumed;
}

void control::write_late(bool on) {
    const locked guard(*device_);
    device_->slow = true;
    device_->control.write_late = on;
}

void control::raise(int event, ibv_cq* cq) {
    const locked guard(*device_);
    auto& queue = of(*device_, cq);
    device_->raise(static_cast<ibv_event_type>(event), cq->context, cq, queue.generated_async);
}

void control::raise(int event, ibv_qp* qp) {
    const locked guard(*device_);
    auto* q = static_cast<queue_pair*>(qp);
    if (!usable(q) || q->dev != device_) throw std::invalid_argument("not a queue pair of this device");
    device_->raise(static_cast<ibv_event_type>(event), qp->context, qp, q->generated_async);
}

void control::raise(int event, ibv_srq* srq) {
    const locked guard(*device_);
    auto* s = static_cast<shared_queue*>(srq);
    if (!usable(s) || s->dev != device_) throw std::invalid_argument("not a shared receive queue of this device");
    device_->raise(static_cast<ibv_event_type>(event), srq->context, srq, s->generated_async);
}

void control::raise(int event, std::uint8_t port) {
    const locked guard(*device_);
    std::uint32_t never_acked = 0;
    for (open_context* c : device_->contexts)
        device_->raise(static_cast<ibv_event_type>(event), &c->context,
                       reinterpret_cast<void*>(static_cast<std::uintptr_t>(port)), never_acked);
}

void control::remove() {
    const locked guard(*device_);
    device_->remove();
}

void control::insert() {
    const locked guard(*device_);
    device_->listed = true;
}

void control::seed(std::uint64_t number, const seeded_options& options) {
    const locked guard(*device_);
    device_->later.set_manual(true);
    device_->control.random = dice(number);
    device_->control.choices = options;
    device_->control.seeded = true;
    device_->slow = true;
}

void control::use_manual_clock() {
    const locked guard(*device_);
    device_->later.set_manual(true);
}

std::chrono::nanoseconds control::now() const {
    const locked guard(*device_);
    return device_->later.now();
}

std::optional<std::chrono::nanoseconds> control::next() const {
    const locked guard(*device_);
    const auto when = device_->later.next();
    if (!when) return std::nullopt;
    return std::max(*when - device_->later.now(), std::chrono::nanoseconds{0});
}

bool control::step() {
    const locked guard(*device_);
    return device_->later.step();
}

void control::advance(std::chrono::nanoseconds by) {
    const locked guard(*device_);
    device_->later.advance(by);
}

std::uint64_t control::calls() const {
    const locked guard(*device_);
    return device_->calls;
}

sim::ledger control::ledger() const {
    const locked guard(*device_);
    auto counts = device_->counts;
    counts.unpolled = counts.completed + counts.flushed - counts.polled - counts.removed;
    return counts;
}

void control::clear_ledger() {
    const locked guard(*device_);
    auto& counts = device_->counts;
    // What is still on its way is accounted for when it ends.
    const auto unpolled = counts.completed + counts.flushed - counts.polled - counts.removed;
    const auto outstanding = counts.outstanding;
    counts = {.accepted = outstanding + unpolled, .completed = unpolled, .outstanding = outstanding};
}

void control::reset() {
    const locked guard(*device_);
    device& d = *device_;
    const bool was_seeded = d.control.seeded;
    d.control = hooks{};
    while (!d.pending.empty()) d.deliver(d.pending.begin());
    for (open_context* c : d.contexts) {
        for (completion_queue* cq : c->queues) {
            cq->held = false;
            cq->events_to_drop = cq->events_to_double = 0;
            cq->poll_failure.reset();
        }
        for (queue_pair* q : c->pairs) {
            q->flush_budget.reset();
            d.later.cancel(q->run);
            if (was_seeded) d.advance(*q);
        }
    }
    d.later.set_manual(false);
    d.slow = false;
}

} // namespace verbena::sim
