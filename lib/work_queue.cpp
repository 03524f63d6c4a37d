#include "work_queue.hpp"

#include "queue_pair_core.hpp"
#include "reactor_core.hpp"
#include "receiver_core.hpp"

#include <verbena/verbs/work_request.hpp>

namespace verbena::detail {
namespace {

constexpr std::uint32_t grh_bytes = 40;

const char* verb_of(work_kind kind) noexcept {
    switch (kind) {
    case work_kind::send: return "send";
    case work_kind::recv: return "recv";
    case work_kind::write: return "rdma write";
    case work_kind::read: return "rdma read";
    case work_kind::fetch_add: return "fetch and add";
    case work_kind::compare_swap: return "compare and swap";
    }
    return "";
}

} // namespace

table_entry* work_queue::append(reactor_core& reactor, bool signaled) noexcept {
    table_entry* entry = reactor.table.acquire();
    if (entry == nullptr) return nullptr;
    entry->queue = this;
    entry->signaled = signaled;
    entry->sequence = ++posted_;
    entry->next = nullptr;
    entry->previous = tail_;
    (tail_ != nullptr ? tail_->next : head_) = entry;
    tail_ = entry;
    if (sends_) unsignaled_ = signaled ? 0 : unsignaled_ + 1;
    return entry;
}

void work_queue::unlink(table_entry& entry) noexcept {
    (entry.previous != nullptr ? entry.previous->next : head_) = entry.next;
    (entry.next != nullptr ? entry.next->previous : tail_) = entry.previous;
}

void work_queue::revoke(reactor_core& reactor, table_entry& entry) noexcept {
    // If it was signaled, the length of the run before it has been forgotten: the next request begins a new one.
    if (sends_) unsignaled_ = capacity_;
    unlink(entry);
    reactor.table.release(entry);
}

void work_queue::complete(reactor_core& reactor, table_entry& entry, const ibv_wc& wc) noexcept {
    if (sends_) {
        // A send's completion says that all sends before it have completed; only unsignaled ones have none of their
        // own.
        for (table_entry* earlier = head_; earlier != &entry;) {
            table_entry* next = earlier->next;
            if (!earlier->signaled) end_entry(reactor, *earlier, nullptr, nullptr);
            earlier = next;
        }
    }
    if (wc.status == IBV_WC_SUCCESS) [[likely]] {
        end_entry(reactor, entry, &wc, nullptr);
    } else {
        const std::error_code code = entry.kind == entry_kind::probe && wc.status != IBV_WC_WR_FLUSH_ERR
                                         ? make_code(errc::peer_lost)
                                         : std::error_code(static_cast<int>(wc.status), completion_category());
        queue_pair_core* pair = pair_ != nullptr ? pair_ : reactor.find_pair(wc.qp_num);
        if (pair != nullptr) {
            if (wc.status == IBV_WC_WR_FLUSH_ERR) pair->look_for_cause(*this);
            pair->note_failure(code, wc.vendor_err);
        }
        completion_outcome failure;
        failure.failed = true;
        failure.code = code;
        failure.qp_num = wc.qp_num;
        failure.vendor_error = wc.vendor_err;
        if (pair != nullptr) failure.root_cause = pair->fallen().root_cause;
        end_entry(reactor, entry, nullptr, &failure);
    }
    if (pair_ != nullptr && (!waiting.empty() || pair_->awaited())) pair_->want_attention();
}

void work_queue::end_operation(reactor_core& reactor, operation_state& operation,
                               const completion_outcome& failure) noexcept {
    if (!operation.outcome_.failed) {
        operation.outcome_ = failure;
        operation.outcome_.verb = verb_of(operation.requests_[operation.count_ - 1].kind);
    }
    if (operation.cancelled_ != errc{} &&
        operation.outcome_.code == make_error_condition(errc::connection_reset)) // and not by a failure of its own
        operation.outcome_.code = make_code(operation.cancelled_);
    operation.phase_ = operation_phase::ended;
    operation.last_ = nullptr;
    operation.unlink();
    reactor.ready.push(operation);
}

void work_queue::end_entry(reactor_core& reactor, table_entry& entry, const ibv_wc* wc,
                           const completion_outcome* failure) noexcept {
    switch (entry.kind) {
    case entry_kind::awaited: {
        operation_state& operation = *entry.operation;
        // A signaled request of the chain may have lost its completion, and the chain is gone before it ends.
        for (table_entry* e = entry.previous; e != nullptr && e->kind == entry_kind::member; e = e->previous)
            e->kind = entry_kind::quiet;
        if (failure != nullptr) {
            end_operation(reactor, operation, *failure);
            break;
        }
        if (!sends_) {
            auto& out = operation.outcome_;
            const bool datagram = pair_->setup().type == queue_pair_type::ud;
            out.byte_len = wc->byte_len - (datagram ? grh_bytes : 0);
            out.source_qp = wc->src_qp;
            if ((wc->wc_flags & IBV_WC_WITH_IMM) != 0) {
                out.has_immediate = true;
                out.immediate = __builtin_bswap32(wc->imm_data);
            }
        }
        operation.phase_ = operation_phase::ended;
        reactor.ready.push(operation);
        break;
    }
    case entry_kind::member:
        // The chain ends with its last request, and with the failure of the first that failed.
        if (failure != nullptr && !entry.operation->outcome_.failed) {
            entry.operation->outcome_ = *failure;
            entry.operation->outcome_.verb = "chain";
        }
        break;
    case entry_kind::receive: entry.receiver->completed(reactor, entry.slot, wc, failure); break;
    case entry_kind::pooled: release_pool_buffer({entry.pool, entry.slot}); break;
    case entry_kind::quiet:
    case entry_kind::probe:
    case entry_kind::free: break;
    }
    unlink(entry);
    reactor.table.release(entry);
    ++room_;
}

void work_queue::end_all(reactor_core& reactor, const completion_outcome& failure) noexcept {
    while (head_ != nullptr) end_entry(reactor, *head_, nullptr, &failure);
    unsignaled_ = 0;
}

void work_queue::end_waiting(reactor_core& reactor, const completion_outcome& failure) noexcept {
    while (!batch.empty()) {
        operation_state& operation = batch.pop_front();
        give(operation.count_);
        end_operation(reactor, operation, failure);
    }
    while (!waiting.empty()) end_operation(reactor, waiting.pop_front(), failure);
}

} // namespace verbena::detail
