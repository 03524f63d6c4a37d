#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace verbena::detail {

class operation_state;
class query_state;
class receiver_core;
class work_queue;
struct buffer_pool_state;

/// Who learns of a completion.
enum class entry_kind : std::uint8_t {
    free,
    quiet,     ///< nobody: an unsignaled send, resumed when it was posted; a flush marker; a query that was cancelled
    probe,     ///< nobody: a sign of life is wanted
    awaited,   ///< an operation: its only request, a send
    receiving, ///< an operation: its only request, a receive
    chain,     ///< an operation: the last request of its chain
    member,    ///< an operation: an earlier request of its chain
    pooled,    ///< nobody, but a pool buffer goes back
    receive,   ///< a receiver's slot
};

/// A place in the order of posting: the list of a queue is a ring through its `work_queue`.
struct posting_order {
    posting_order* previous = nullptr;
    posting_order* next = nullptr;
};

/// One posted work request. One cache line.
struct alignas(64) table_entry : posting_order {
    std::uint64_t wr_id = 0; ///< valid for this use; changes at release
    work_queue* queue = nullptr;
    union {
        operation_state* operation;
        receiver_core* receiver;
        buffer_pool_state* pool;
        query_state* query; ///< in the table of a command channel
    };
    std::uint64_t sequence = 0; ///< position in its queue since the queue was made
    std::uint32_t slot = 0;     ///< of the receiver or the pool
    entry_kind kind = entry_kind::free;
    bool signaled = true;

    table_entry() noexcept : operation(nullptr) {}
};

/// Maps a `wr_id` to the request that carries it: 16 bits of a magic drawn anew for every table of the process, 22 bits
/// of the entry's index, 26 bits of its generation. One per reactor, and one per command channel; grows in chunks,
/// whose addresses stay.
class operation_table {
  public:
    static constexpr std::size_t max_entries = std::size_t{1} << 22;
    static constexpr unsigned generation_bits = 26;

    operation_table();

    bool has_free() const noexcept { return free_ != nullptr; }
    /// Null: the table is full, or memory is.
    table_entry* acquire() noexcept {
        if (free_ == nullptr && !grow()) return nullptr;
        table_entry* entry = free_;
        free_ = static_cast<table_entry*>(entry->next);
        ++used_;
        return entry;
    }
    void release(table_entry& entry) noexcept {
        entry.wr_id = next_generation(entry.wr_id);
        entry.kind = entry_kind::free;
        entry.next = free_;
        free_ = &entry;
        --used_;
    }

    /// True if some operation of this table carried the number once.
    bool ours(std::uint64_t wr_id) const noexcept { return wr_id >> 48 == magic_ && index(wr_id) < size_; }
    /// Null for a number that is not carried now.
    table_entry* find(std::uint64_t wr_id) noexcept {
        table_entry* entry = last_named(wr_id);
        return entry != nullptr && entry->kind != entry_kind::free ? entry : nullptr;
    }
    /// The same, or one that is free.
    table_entry* last_named(std::uint64_t wr_id) noexcept {
        const std::size_t i = index(wr_id);
        if (i >= size_) [[unlikely]]
            return nullptr;
        table_entry& entry = chunks_[i / chunk_size][i % chunk_size];
        return entry.wr_id == wr_id ? &entry : nullptr;
    }
    std::size_t used() const noexcept { return used_; }

  private:
    static constexpr std::size_t chunk_size = 1024;
    static constexpr std::uint64_t generation_mask = (std::uint64_t{1} << generation_bits) - 1;

    static std::size_t index(std::uint64_t wr_id) noexcept { return wr_id >> generation_bits & (max_entries - 1); }
    static std::uint64_t next_generation(std::uint64_t wr_id) noexcept {
        return (wr_id & ~generation_mask) | ((wr_id + 1) & generation_mask);
    }
    bool grow() noexcept;

    std::uint64_t magic_;
    table_entry* free_ = nullptr;
    std::size_t used_ = 0;
    std::size_t size_ = 0;
    std::vector<std::unique_ptr<table_entry[]>> chunks_;
};

} // namespace verbena::detail
