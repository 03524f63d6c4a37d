#include "receiver_core.hpp"

#include "check.hpp"
#include "process.hpp"
#include "queue_pair_core.hpp"
#include "reactor_core.hpp"

#include <verbena/detail/broken_rule.hpp>
#include <verbena/log.hpp>

#include <algorithm>
#include <utility>

namespace verbena::detail {
namespace {

constexpr std::uint32_t none = next_state::none;
constexpr std::uint32_t grh_bytes = address_handle::grh_bytes;
constexpr std::uint32_t line = 64;

} // namespace

receiver_core::receiver_core(memory_region region, std::shared_ptr<protection_domain_state> domain, std::uint32_t depth,
                             std::uint32_t message_bytes, bool datagram)
    : region_(std::move(region)), domain_(std::move(domain)), message_bytes_(message_bytes),
      head_bytes_(datagram ? grh_bytes : 0), slots_(depth) {
    stride_ = (message_bytes_ + head_bytes_ + line - 1) / line * line;
    returned_.reserve(depth);
}

result<receiver_core*> receiver_core::build(const std::shared_ptr<protection_domain_state>& domain, std::uint32_t depth,
                                            std::uint32_t message_bytes, bool datagram) {
    if (message_bytes == 0 || message_bytes > (1u << 31) - 4096)
        return error(errc::invalid_argument, "receiver::create").with_note("message_bytes is 1 to 2 GiB - 4 KiB");
    const std::size_t stride = (std::size_t{message_bytes} + (datagram ? grh_bytes : 0) + line - 1) / line * line;
    auto region = memory_region::allocate(access::make<protection_domain>(domain), stride * depth);
    if (!region) return std::move(region).error();
    return new receiver_core(std::move(region).value(), domain, depth, message_bytes, datagram);
}

result<receiver_core*> receiver_core::create(queue_pair_core& pair, receiver_options options) {
    const auto& setup = pair.setup();
    const std::uint32_t depth = options.depth == 0 ? setup.max_recv : options.depth;
    if (depth > setup.max_recv || depth == 0)
        return error(errc::invalid_argument, "receiver::create").with_note("deeper than the queue pair's max_recv");
    auto built = build(setup.domain, depth, options.message_bytes, setup.type == queue_pair_type::ud);
    if (!built) return built;
    receiver_core* core = *built;
    if (auto adopted = pair.adopt(*core); !adopted) {
        core->drop_reference();
        return std::move(adopted).error();
    }
    core->pair_ = &pair;
    core->port_ = setup.port;
    core->reactor_ = pair.reactor();
    core->add_reference();
    core->reactor_->receivers.push_back(core->in_reactor);
    if (auto posted = core->post_all(); !posted) {
        core->close();
        core->drop_reference();
        return std::move(posted).error();
    }
    return core;
}

result<receiver_core*> receiver_core::create(reactor_core& reactor, std::shared_ptr<shared_receive_queue_state> srq,
                                             receiver_options options) {
    constexpr auto verb = "receiver::create";
    if (!srq) return error(errc::invalid_argument, verb).with_note("an empty shared receive queue");
    if (srq->domain->context->process.forked()) return fork_error(verb);
    if (!reactor.on_thread()) return reactor.refused(verb);
    if (srq->receiver != nullptr)
        return error(errc::in_use, verb).with_note("the shared receive queue has a receiver already");
    const std::uint32_t depth = options.depth == 0 ? srq->max_wr : options.depth;
    if (depth > srq->max_wr)
        return error(errc::invalid_argument, verb).with_note("deeper than the shared receive queue's max_wr");
    if (!srq->belongs_to(reactor))
        return error(errc::invalid_argument, verb)
            .with_note("the receive completion queue of one of its queue pairs is not attached to this reactor");
    auto built = build(srq->domain, depth, options.message_bytes, false);
    if (!built) return built;
    receiver_core* core = *built;
    core->srq_ = srq.get();
    core->reactor_ = &reactor;
    core->add_reference();
    srq->receiver = core;
    srq->reactor = &reactor;
    reactor.receivers.push_back(core->in_reactor);
    if (auto posted = core->post_all(); !posted) {
        core->close();
        core->drop_reference();
        return std::move(posted).error();
    }
    return core;
}

result<void> receiver_core::post_all() {
    for (std::uint32_t slot = 0; slot < slots_.size(); ++slot)
        if (!post(slot)) return error(errc::resource, "ibv_post_recv").with_note("the receive queue takes no more");
    return {};
}

bool receiver_core::post(std::uint32_t slot) noexcept {
    memory_slice slice{reinterpret_cast<std::uint64_t>(region_.bytes().data()) + std::uint64_t{slot} * stride_,
                       message_bytes_ + head_bytes_, region_.lkey()};
    if (pair_ != nullptr) return pair_->post_receive(*this, slot, slice);
    table_entry* entry = reactor_->table.acquire();
    if (entry == nullptr) return false;
    entry->receiver = this;
    entry->slot = slot;
    ibv_recv_wr wr{.wr_id = entry->wr_id, .next = nullptr, .sg_list = reinterpret_cast<ibv_sge*>(&slice), .num_sge = 1};
    ibv_recv_wr* bad;
    if (!check_errno_value("ibv_post_srq_recv", [&] { return ibv_post_srq_recv(srq_->native, &wr, &bad); })) {
        reactor_->table.release(*entry);
        return false;
    }
    slots_[slot].entry = entry;
    return true;
}

void receiver_core::completed(reactor_core& reactor, table_entry& entry, const ibv_wc& wc) noexcept {
    const std::uint32_t slot = entry.slot;
    slots_[slot].entry = nullptr;
    reactor.table.release(entry);
    if (wc.status == IBV_WC_SUCCESS) return completed(reactor, slot, &wc, nullptr);
    const auto failure = failure_of(wc, code_of(wc), reactor.find_pair(wc.qp_num), false);
    completed(reactor, slot, nullptr, &failure);
}

void receiver_core::completed(reactor_core& reactor, std::uint32_t slot, const ibv_wc* wc,
                              const completion_outcome* failure) noexcept {
    if (failure != nullptr) {
        ++stats_.failed;
        // A shared receive queue goes on without the queue pair that failed, and UD without the datagram that did not
        // fit.
        if (srq_ != nullptr || head_bytes_ != 0) {
            returned_.push_back(slot);
            reactor.returned_receives = true;
            return;
        }
        error cause(failure->code, failure->verb == nullptr || *failure->verb == '\0' ? "recv" : failure->verb);
        cause.with_completion(failure->qp_num, failure->vendor_error).with_root_cause(failure->root_cause);
        fail(std::move(cause));
        return;
    }
    if (closed_) {
        ++stats_.dropped;
        return;
    }
    slot_state& state = slots_[slot];
    state.next = none;
    state.byte_len = wc->byte_len - head_bytes_;
    state.has_immediate = (wc->wc_flags & IBV_WC_WITH_IMM) != 0;
    state.immediate = state.has_immediate ? __builtin_bswap32(wc->imm_data) : 0;
    state.qp_num = wc->qp_num;
    if (head_bytes_ != 0) state.datagram = *wc;
    if (!waiters_.empty()) {
        next_state& waiter = first_waiter();
        waiter.slot = slot;
        reactor.ready.push(waiter);
        return;
    }
    (last_ != none ? slots_[last_].next : first_) = slot;
    last_ = slot;
}

void receiver_core::fail(error cause) noexcept {
    if (ended_) return;
    ended_ = true;
    end_ = std::move(cause);
    while (!waiters_.empty()) {
        next_state& waiter = first_waiter();
        waiter.ended = true;
        if (reactor_ != nullptr) reactor_->ready.push(waiter);
    }
}

void receiver_core::queue_gone() noexcept {
    if (srq_ != nullptr && reactor_ != nullptr)
        for (slot_state& slot : slots_) {
            if (slot.entry == nullptr) continue;
            reactor_->table.release(*std::exchange(slot.entry, nullptr));
            ++stats_.failed;
        }
    fail(error(errc::closed, "receiver"));
    in_reactor.unlink();
    pair_ = nullptr;
    srq_ = nullptr;
    reactor_ = nullptr;
    drop_reference();
}

void receiver_core::reactor_gone() noexcept {
    if (!ended_) {
        ended_ = true;
        end_ = error(errc::not_attached, "receiver");
    }
    // Nobody resumes them any more. What a shared receive queue still holds stays with it, and so do these buffers.
    while (!waiters_.empty()) first_waiter().ended = true;
    reactor_ = nullptr;
}

bool receiver_core::uses(const completion_queue_state& queue) const noexcept {
    if (srq_ == nullptr) return pair_ != nullptr && pair_->uses(queue);
    return std::any_of(srq_->users.begin(), srq_->users.end(), [&](const auto& u) { return u.first.get() == &queue; });
}

void receiver_core::post_returned() noexcept {
    if (!live() || ended_ || (pair_ != nullptr && pair_->failed())) return;
    while (!returned_.empty()) {
        const std::uint32_t slot = returned_.back();
        returned_.pop_back();
        if (!post(slot)) fail(error(errc::resource, "ibv_post_recv").with_note("a buffer could not be posted again"));
    }
}

void receiver_core::close() noexcept {
    closed_ = true;
    fail(error(errc::closed, "receiver"));
    while (first_ != none) {
        const std::uint32_t slot = std::exchange(first_, slots_[first_].next);
        ++stats_.dropped;
        (void)slot;
    }
    last_ = none;
}

void receiver_core::give_back(std::uint32_t slot) noexcept {
    if (!live() || ended_ || (pair_ != nullptr && pair_->failed())) return;
    if (!reactor_->on_thread()) {
        if (reactor_->process.forked()) return;
        broken_rule("a message was destroyed on another thread than the one that runs its reactor");
    }
    if (pair_ != nullptr && pair_->setup().post_mode == post_mode::batched) {
        returned_.push_back(slot);
        pair_->want_flush();
        return;
    }
    if (!post(slot)) fail(error(errc::resource, "ibv_post_recv").with_note("a buffer could not be posted again"));
}

bool receiver_core::take(next_state& next) noexcept {
    if (first_ != none && waiters_.empty()) {
        next.slot = std::exchange(first_, slots_[first_].next);
        if (first_ == none) last_ = none;
        return true;
    }
    if (reactor_ != nullptr && !reactor_->on_thread()) {
        if (reactor_->process.forked()) {
            next.cause = errc::wrong_thread;
            return true;
        }
        broken_rule("receiver::next was awaited on another thread than the one that runs its reactor");
    }
    return ended_ ? (next.ended = true) : false;
}

void receiver_core::abandon(std::uint32_t slot) noexcept {
    if (closed_) {
        ++stats_.dropped;
        return;
    }
    if (!waiters_.empty() && reactor_ != nullptr) {
        next_state& waiter = first_waiter();
        waiter.slot = slot;
        reactor_->ready.push(waiter);
        return;
    }
    slots_[slot].next = first_;
    first_ = slot;
    if (last_ == none) last_ = slot;
}

message receiver_core::make_message(std::uint32_t slot) noexcept {
    add_reference();
    ++stats_.messages;
    return message(this, slot);
}

memory_slice receiver_core::payload(std::uint32_t slot) const noexcept {
    return {reinterpret_cast<std::uint64_t>(region_.bytes().data()) + std::uint64_t{slot} * stride_ + head_bytes_,
            slots_[slot].byte_len, region_.lkey()};
}

std::span<const std::byte> receiver_core::header(std::uint32_t slot) const noexcept {
    return region_.bytes().subspan(std::size_t{slot} * stride_, head_bytes_);
}

next_state::~next_state() {
    if (slot != none) receiver->abandon(slot);
    if (waited) receiver->drop_reference();
}
void next_state::cancel(errc why, list<ready_node>& woken) noexcept {
    if (!std::exchange(queued, false)) return;
    unlink();
    ended = true;
    cause = why;
    woken.push_back(*this);
}
bool next_state::take() noexcept { return receiver->take(*this); }
void next_state::wait() noexcept {
    waited = true;
    receiver->add_reference();
    receiver->wait(*this);
}

} // namespace verbena::detail

namespace verbena {

result<message> next_operation::awaiter::await_resume() {
    if (slot != none) return receiver->make_message(std::exchange(slot, none));
    if (cause == errc::wrong_thread) return detail::fork_error("receiver::next");
    if (cause != errc{}) return error(cause, "receiver::next");
    return receiver->end();
}

message::~message() {
    if (receiver_ == nullptr) return;
    receiver_->give_back(slot_);
    receiver_->drop_reference();
}
memory_slice message::bytes() const noexcept { return receiver_->payload(slot_); }
std::optional<std::uint32_t> message::immediate() const noexcept {
    const auto& slot = receiver_->slot(slot_);
    return slot.has_immediate ? std::optional(slot.immediate) : std::nullopt;
}
std::uint32_t message::qp_num() const noexcept { return receiver_->slot(slot_).qp_num; }
std::uint32_t message::source_qp() const noexcept { return receiver_->slot(slot_).datagram.src_qp; }
result<address_handle> message::reply_address() const {
    return address_handle::create(detail::access::make<protection_domain>(receiver_->domain()),
                                  work_completion(receiver_->slot(slot_).datagram), receiver_->header(slot_),
                                  receiver_->port());
}

result<receiver> receiver::create(queue_pair& qp, const receiver_options& options) {
    auto core = detail::receiver_core::create(*detail::access::core(qp), options);
    if (!core) return std::move(core).error();
    return receiver(*core);
}
result<receiver> receiver::create(class reactor& reactor, const shared_receive_queue& srq,
                                  const receiver_options& options) {
    auto core = detail::receiver_core::create(*detail::access::core(reactor), detail::access::state(srq), options);
    if (!core) return std::move(core).error();
    return receiver(*core);
}
receiver::~receiver() {
    if (core_ == nullptr) return;
    core_->close();
    core_->drop_reference();
}
error receiver::error() const { return core_->end(); }
receiver_stats receiver::stats() const noexcept { return core_->stats(); }

} // namespace verbena
