#include "work_queue.hpp"

#include "queue_pair_core.hpp"
#include "reactor_core.hpp"
#include "receiver_core.hpp"

#include <verbena/verbs/work_request.hpp>

#include <bit>
#include <new>

namespace verbena::detail {
namespace {

constexpr std::uint32_t grh_bytes = 40;

// Soon passes the end of the 32 bits, so that whatever goes wrong there is seen in every run.
constexpr std::uint32_t first_position = ~std::uint32_t{0} - 63;

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

work_queue_index::work_queue_index() : first_(std::uint64_t{draw_magic()} << 16) {}

bool work_queue_index::add(work_queue& queue) noexcept {
    if (free_.empty()) {
        if (size_ == max_queues) return false;
        try {
            free_.reserve(size_ + 1); // so that `remove` does not allocate
            positions_.push_back(first_position);
            queues_.push_back(&nobody_);
        } catch (const std::bad_alloc&) {
            positions_.resize(size_);
            return false;
        }
        free_.push_back(static_cast<std::uint16_t>(size_++));
    }
    const std::uint16_t i = free_.back();
    free_.pop_back();
    queues_[i] = &queue;
    queue.base_ = (first_ + i) << 32;
    const std::uint32_t room = queue.room();
    queue.first_ = queue.next_ = positions_[i];
    queue.limit_ = queue.next_ + room;
    return true;
}

void work_queue_index::remove(const work_queue& queue) noexcept {
    const auto i = static_cast<std::uint16_t>(queue.base_ >> 32);
    queues_[i] = &nobody_;
    positions_[i] = static_cast<std::uint32_t>(queue.next_);
    free_.push_back(i);
}

work_queue::work_queue(queue_pair_core* pair, bool sends, std::uint32_t capacity)
    : limit_(capacity), mask_(std::bit_ceil(capacity) - 1), alone_(std::make_unique<operation_state*[]>(mask_ + 1)),
      entries_(std::make_unique<queue_entry[]>(mask_ + 1)), pair_(pair), capacity_(capacity), sends_(sends) {}

bool work_queue::enter(reactor_core& reactor) noexcept { return capacity_ == 0 || reactor.work_queues.add(*this); }

void work_queue::leave(reactor_core& reactor) noexcept {
    if (base_ != 0) reactor.work_queues.remove(*this);
    base_ = 0;
}

bool work_queue::silent() const noexcept {
    for (std::uint64_t position = next_; position != first_;)
        if (const queue_entry entry = at(--position); entry.signaled && entry.kind != entry_kind::free) return false;
    return !empty();
}

void work_queue::append(reactor_core& reactor, const queue_entry& entry) noexcept {
    run_ = entry.signaled ? 0 : run() + 1;
    if (entry.kind == entry_kind::awaited)
        alone_[next_ & mask_] = entry.operation;
    else
        entries_[next_ & mask_] = entry;
    run_end_ = ++next_;
    ++limit_;
    ++reactor.outstanding;
}

void work_queue::revoke(reactor_core& reactor) noexcept {
    // If it was signaled, the length of the run before it has been forgotten: the next request begins a new one.
    if (sends_) run_ = capacity_;
    run_end_ = --next_;
    --limit_;
    set_free(next_);
    --reactor.outstanding;
}

void work_queue::free_entry(reactor_core& reactor, std::uint64_t position) noexcept {
    set_free(position);
    --reactor.outstanding;
    if (position == first_) {
        ++first_;
        ++limit_;
        pass_holes();
        return;
    }
    ++holes_;
    watched = true;
    if (pair_ != nullptr) pair_->close_short_way();
}

/// A send's completion says that all sends before it have completed; only unsignaled ones have none of their own.
void work_queue::end_unsignaled_before(reactor_core& reactor, std::uint64_t position) noexcept {
    for (std::uint64_t earlier = first_; earlier != position; ++earlier)
        if (const queue_entry entry = at(earlier); !entry.signaled && entry.kind != entry_kind::free)
            end_entry(reactor, earlier, nullptr, nullptr);
}

completion_outcome failure_of(const ibv_wc& wc, std::error_code code, queue_pair_core* pair, bool sends) noexcept {
    completion_outcome failure(code, "");
    failure.qp_num = wc.qp_num;
    failure.vendor_error = wc.vendor_err;
    if (pair != nullptr) {
        if (wc.status == IBV_WC_WR_FLUSH_ERR) pair->look_for_cause(sends);
        pair->note_failure(code, wc.vendor_err);
        failure.root_cause = pair->fallen().root_cause;
    }
    return failure;
}

void work_queue::fail(reactor_core& reactor, std::uint64_t position, const ibv_wc& wc) noexcept {
    const bool lost = at(position).kind == entry_kind::probe && wc.status != IBV_WC_WR_FLUSH_ERR;
    const auto failure = failure_of(wc, lost ? make_code(errc::peer_lost) : code_of(wc), pair_, sends_);
    end_entry(reactor, position, nullptr, &failure);
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
void work_queue::forget_members(std::uint64_t last) noexcept {
    while (last != first_) {
        const entry_kind kind = at(--last).kind;
        if (kind == entry_kind::free) continue;
        if (kind != entry_kind::member) break;
        entries_[last & mask_].kind = entry_kind::quiet;
    }
}

void work_queue::succeed(reactor_core& reactor, std::uint64_t position, const ibv_wc& wc) noexcept {
    operation_state& operation = *at(position).operation;
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
    free_entry(reactor, position);
}

bool work_queue::complete(reactor_core& reactor, const ibv_wc& wc) noexcept {
    const std::uint32_t behind = static_cast<std::uint32_t>(wc.wr_id) - static_cast<std::uint32_t>(first_);
    if (behind >= next_ - first_) return false;
    const std::uint64_t position = first_ + behind;
    const entry_kind kind = at(position).kind;
    if (kind == entry_kind::free) return false;
    if (behind != 0 && sends_) end_unsignaled_before(reactor, position);
    if (wc.status != IBV_WC_SUCCESS) [[unlikely]] {
        fail(reactor, position, wc);
    } else if (kind == entry_kind::awaited || kind == entry_kind::receiving) {
        succeed(reactor, position, wc);
    } else if (kind == entry_kind::chain) {
        forget_members(position);
        succeed(reactor, position, wc);
    } else {
        end_entry(reactor, position, &wc, nullptr);
    }
    if (watched) tell_watchers();
    return true;
}

void work_queue::tell_watchers() noexcept {
    pass_holes();
    if (pair_ != nullptr) pair_->want_attention();
}

void work_queue::end_entry(reactor_core& reactor, std::uint64_t position, const ibv_wc* wc,
                           const completion_outcome* failure) noexcept {
    const queue_entry entry = at(position);
    switch (entry.kind) {
    case entry_kind::chain: forget_members(position); [[fallthrough]];
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
    free_entry(reactor, position);
}

void work_queue::end_all(reactor_core& reactor, const completion_outcome& failure) noexcept {
    while (!empty()) end_entry(reactor, first_, nullptr, &failure);
    run_ = 0;
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
