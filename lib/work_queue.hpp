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
        : pair_(pair), capacity_(capacity), room_(capacity), sends_(sends) {
        order_.previous = order_.next = &order_;
    }
    work_queue(const work_queue&) = delete;
    work_queue& operator=(const work_queue&) = delete;

    std::uint32_t capacity() const noexcept { return capacity_; }
    std::uint32_t room() const noexcept { return room_; }
    void take(std::uint32_t places) noexcept { room_ -= places; }
    void give(std::uint32_t places) noexcept { room_ += places; }
    bool empty() const noexcept { return order_.next == &order_; }
    /// Of those outstanding; there must be one.
    table_entry* first() const noexcept { return static_cast<table_entry*>(order_.next); }
    table_entry* last() const noexcept { return static_cast<table_entry*>(order_.previous); }
    std::uint64_t posted() const noexcept { return posted_; }
    std::uint32_t outstanding() const noexcept {
        std::uint32_t count = 0;
        for (const posting_order* entry = order_.next; entry != &order_; entry = entry->next) ++count;
        return count;
    }
    /// True when all up to this number have completed.
    bool done(std::uint64_t sequence) const noexcept { return empty() || first()->sequence > sequence; }

    /// Whether the next send must carry the signaled flag although nobody asked: so that room always comes back.
    bool must_signal() const noexcept { return unsignaled_ + 1 >= (capacity_ / 2 > 1 ? capacity_ / 2 : 1); }

    /// True if there is something outstanding, of which the device will report nothing.
    bool silent() const noexcept {
        const posting_order* entry = order_.previous;
        while (entry != &order_ && !static_cast<const table_entry*>(entry)->signaled) entry = entry->previous;
        return !empty() && entry == &order_;
    }

    /// Takes an entry and appends it. Null: the table is full. Does not take room.
    table_entry* append(operation_table& table, bool signaled, entry_kind kind) noexcept {
        table_entry* entry = table.acquire();
        if (entry == nullptr) [[unlikely]]
            return nullptr;
        entry->queue = this;
        entry->kind = kind;
        entry->signaled = signaled;
        entry->sequence = ++posted_;
        entry->next = &order_;
        entry->previous = order_.previous;
        order_.previous->next = entry;
        order_.previous = entry;
        unsignaled_ = signaled ? 0 : unsignaled_ + 1;
        return entry;
    }
    /// Undoes `append` of a request that was not posted. Does not give room.
    void revoke(reactor_core& reactor, table_entry& entry) noexcept;

    /// What most completions are: that of the send which is next in order, awaited alone, and succeeded. False: not
    /// one of those, and nothing has happened.
    static bool complete_next(reactor_core& reactor, table_entry& entry, const ibv_wc& wc) noexcept;
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
    /// A completion may be what somebody waits for who is not its operation: for room, a flush or a drain.
    bool watched = false;

  private:
    void forget_members(table_entry& last) noexcept;
    void free_entry(reactor_core& reactor, table_entry& entry) noexcept;
    [[gnu::noinline]] void end_unsignaled_before(reactor_core& reactor, const table_entry& entry) noexcept;
    [[gnu::noinline]] void fail(reactor_core& reactor, table_entry& entry, const ibv_wc& wc) noexcept;
    void succeed(reactor_core& reactor, table_entry& entry, const ibv_wc& wc) noexcept;
    [[gnu::noinline]] void end_entry(reactor_core& reactor, table_entry& entry, const ibv_wc* wc,
                                     const completion_outcome* failure) noexcept;
    static void unlink(const posting_order& entry) noexcept {
        entry.previous->next = entry.next;
        entry.next->previous = entry.previous;
    }

    queue_pair_core* pair_; ///< null: a shared receive queue
    posting_order order_;
    std::uint64_t posted_ = 0;
    std::uint32_t capacity_;
    std::uint32_t room_;
    std::uint32_t unsignaled_ = 0;
    bool sends_;
};

} // namespace verbena::detail
