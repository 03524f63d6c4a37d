#include "work_queue.hpp"

#include "queue_pair_core.hpp"
#include "reactor_core.hpp"
#include "receiver_core.hpp"

#include <verbena/verbs/work_request.hpp>

namespace verbena::detail {
namespace {

constexpr std::uint32_t grh_bytes = 40;

const char* verb_of(ibv_wr_opcode opcode) noexcept {
    switch (opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM: return "rdma write";
    case IBV_WR_RDMA_READ: return "rdma read";
    case IBV_WR_ATOMIC_FETCH_AND_ADD: return "fetch and add";
    case IBV_WR_ATOMIC_CMP_AND_SWP: return "compare and swap";
    default: return "send";
    }
}

} // namespace

void work_queue::revoke(reactor_core& reactor, table_entry& entry) noexcept {
    // If it was signaled, the length of the run before it has been forgotten: the next request begins a new one.
    if (sends_) unsignaled_ = capacity_;
    unlink(entry);
    reactor.table.release(entry);
}

/// A send's completion says that all sends before it have completed; only unsignaled ones have none of their own.
void work_queue::end_unsignaled_before(reactor_core& reactor, const table_entry& entry) noexcept {
    for (table_entry* earlier = first(); earlier != &entry;) {
        auto* next = static_cast<table_entry*>(earlier->next);
        if (!earlier->signaled) end_entry(reactor, *earlier, nullptr, nullptr);
        earlier = next;
    }
}

void work_queue::fail(reactor_core& reactor, table_entry& entry, const ibv_wc& wc) noexcept {
    const std::error_code code = entry.kind == entry_kind::probe && wc.status != IBV_WC_WR_FLUSH_ERR
                                     ? make_code(errc::peer_lost)
                                     : std::error_code(static_cast<int>(wc.status), completion_category());
    queue_pair_core* pair = pair_ != nullptr ? pair_ : reactor.find_pair(wc.qp_num);
    if (pair != nullptr) {
        if (wc.status == IBV_WC_WR_FLUSH_ERR) pair->look_for_cause(*this);
        pair->note_failure(code, wc.vendor_err);
    }
    completion_outcome failure(code, "");
    failure.qp_num = wc.qp_num;
    failure.vendor_error = wc.vendor_err;
    if (pair != nullptr) failure.root_cause = pair->fallen().root_cause;
    end_entry(reactor, entry, nullptr, &failure);
}

void work_queue::end_operation(reactor_core& reactor, operation_state& operation,
                               const completion_outcome& failure) noexcept {
    if (!operation.outcome_.failed) {
        operation.outcome_ = failure;
        const device_request* last = &operation.request_;
        for (std::uint32_t i = 1; i < operation.count_; ++i) last = last->next();
        operation.outcome_.verb = last->receives ? "recv" : verb_of(last->send.opcode);
    }
    if (operation.cancelled_ != 0 &&
        operation.outcome_.code == make_error_condition(errc::connection_reset)) // and not by a failure of its own
        operation.outcome_.code = make_code(static_cast<errc>(operation.cancelled_));
    operation.cancelled_ = 0;
    operation.phase_ = operation_phase::ended;
    operation.unlink();
    reactor.ready.push(operation);
}

/// A signaled request of a chain may have lost its completion, and the chain is gone when its last has ended.
void work_queue::forget_members(table_entry& last) noexcept {
    for (posting_order* e = last.previous; e != &order_; e = e->previous) {
        auto& entry = static_cast<table_entry&>(*e);
        if (entry.kind != entry_kind::member) break;
        entry.kind = entry_kind::quiet;
    }
}

void work_queue::succeed(reactor_core& reactor, table_entry& entry, const ibv_wc& wc) noexcept {
    operation_state& operation = *entry.operation;
    if (!sends_) {
        auto& out = operation.outcome_;
        const bool datagram = pair_->setup().type == queue_pair_type::ud;
        out.byte_len = wc.byte_len - (datagram ? grh_bytes : 0);
        out.source_qp = wc.src_qp;
        if ((wc.wc_flags & IBV_WC_WITH_IMM) != 0) {
            out.has_immediate = true;
            out.immediate = __builtin_bswap32(wc.imm_data);
        }
    }
    operation.phase_ = operation_phase::ended;
    reactor.ready.push(operation);
    free_entry(reactor, entry);
}

void work_queue::complete(reactor_core& reactor, table_entry& entry, const ibv_wc& wc) noexcept {
    if (&entry != first() && sends_) end_unsignaled_before(reactor, entry);
    if (wc.status != IBV_WC_SUCCESS) [[unlikely]] {
        fail(reactor, entry, wc);
    } else if (entry.kind == entry_kind::awaited || entry.kind == entry_kind::receiving) {
        succeed(reactor, entry, wc);
    } else if (entry.kind == entry_kind::chain) {
        forget_members(entry);
        succeed(reactor, entry, wc);
    } else {
        end_entry(reactor, entry, &wc, nullptr);
    }
    if (watched) pair_->want_attention();
}

void work_queue::end_entry(reactor_core& reactor, table_entry& entry, const ibv_wc* wc,
                           const completion_outcome* failure) noexcept {
    switch (entry.kind) {
    case entry_kind::chain: forget_members(entry); [[fallthrough]];
    case entry_kind::awaited:
    case entry_kind::receiving:
        // That it succeeded is known from its own completion alone; half a chain has failed when it was posted.
        end_operation(reactor, *entry.operation, failure != nullptr ? *failure : entry.operation->outcome_);
        break;
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
    free_entry(reactor, entry);
}

void work_queue::end_all(reactor_core& reactor, const completion_outcome& failure) noexcept {
    while (!empty()) end_entry(reactor, *first(), nullptr, &failure);
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
