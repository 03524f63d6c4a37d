#pragma once

#include "operation_table.hpp"

#include <verbena/detail/list.hpp>
#include <verbena/detail/operation.hpp>

#include <infiniband/verbs.h>

#include <cstdint>

namespace verbena::detail {

class queue_pair_core;
class reactor_core;

/// One direction of a queue pair, or a shared receive queue: its room, what is outstanding in the order of posting, and
/// who waits for room.
class work_queue {
  public:
    work_queue(queue_pair_core* pair, bool sends, std::uint32_t capacity) noexcept
        : pair_(pair), capacity_(capacity), room_(capacity), sends_(sends) {}

    std::uint32_t capacity() const noexcept { return capacity_; }
    std::uint32_t room() const noexcept { return room_; }
    void take(std::uint32_t places) noexcept { room_ -= places; }
    void give(std::uint32_t places) noexcept { room_ += places; }
    bool empty() const noexcept { return head_ == nullptr; }
    table_entry* last() const noexcept { return tail_; }
    std::uint64_t posted() const noexcept { return posted_; }
    std::uint32_t outstanding() const noexcept {
        std::uint32_t count = 0;
        for (const table_entry* entry = head_; entry != nullptr; entry = entry->next) ++count;
        return count;
    }
    /// True when all up to this number have completed.
    bool done(std::uint64_t sequence) const noexcept { return head_ == nullptr || head_->sequence > sequence; }

    /// Whether the next send must carry the signaled flag although nobody asked: so that room always comes back.
    bool must_signal() const noexcept { return unsignaled_ + 1 >= (capacity_ / 2 > 1 ? capacity_ / 2 : 1); }

    /// True if there is something outstanding, of which the device will report nothing.
    bool silent() const noexcept {
        const table_entry* entry = tail_;
        while (entry != nullptr && !entry->signaled) entry = entry->previous;
        return head_ != nullptr && entry == nullptr;
    }

    /// Takes an entry and appends it. Null: the table is full. Does not take room.
    table_entry* append(operation_table& table, bool signaled) noexcept {
        table_entry* entry = table.acquire();
        if (entry == nullptr) [[unlikely]]
            return nullptr;
        entry->queue = this;
        entry->signaled = signaled;
        entry->sequence = ++posted_;
        entry->next = nullptr;
        entry->previous = tail_;
        (tail_ != nullptr ? tail_->next : head_) = entry;
        tail_ = entry;
        unsignaled_ = signaled ? 0 : unsignaled_ + 1;
        return entry;
    }
    /// Undoes `append` of a request that was not posted. Does not give room.
    void revoke(reactor_core& reactor, table_entry& entry) noexcept;

    /// The completion of one request of this queue, and with it that of the unsignaled sends before it.
    void complete(reactor_core& reactor, table_entry& entry, const ibv_wc& wc) noexcept;
    /// Ends everything outstanding, in order. The device must have let go of it.
    void end_all(reactor_core& reactor, const completion_outcome& failure) noexcept;
    /// Ends the operations that wait for room.
    void end_waiting(reactor_core& reactor, const completion_outcome& failure) noexcept;
    /// Ends one operation that the device does not have.
    static void end_operation(reactor_core& reactor, operation_state& operation,
                              const completion_outcome& failure) noexcept;

    list<operation_state> waiting; ///< for room
    list<operation_state> batch;   ///< have room, wait for the flush

  private:
    static void forget_members(table_entry& last) noexcept;
    void free_entry(reactor_core& reactor, table_entry& entry) noexcept;
    [[gnu::noinline]] void end_unsignaled_before(reactor_core& reactor, const table_entry& entry) noexcept;
    [[gnu::noinline]] void fail(reactor_core& reactor, table_entry& entry, const ibv_wc& wc) noexcept;
    void succeed(reactor_core& reactor, table_entry& entry, const ibv_wc& wc) noexcept;
    [[gnu::noinline]] void end_entry(reactor_core& reactor, table_entry& entry, const ibv_wc* wc,
                                     const completion_outcome* failure) noexcept;
    void unlink(table_entry& entry) noexcept {
        (entry.previous != nullptr ? entry.previous->next : head_) = entry.next;
        (entry.next != nullptr ? entry.next->previous : tail_) = entry.previous;
    }

    queue_pair_core* pair_; ///< null: a shared receive queue
    table_entry* head_ = nullptr;
    table_entry* tail_ = nullptr;
    std::uint64_t posted_ = 0;
    std::uint32_t capacity_;
    std::uint32_t room_;
    std::uint32_t unsignaled_ = 0;
    bool sends_;
};

} // namespace verbena::detail
