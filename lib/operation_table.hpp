#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace verbena::detail {

/// Not drawn again before all others were. Never 0 nor all ones, which the upper bits of small numbers, pointers and
/// sentinels of other users of a queue are.
std::uint16_t draw_magic();

class query_state;
class receiver_core;

/// A receive of a shared receive queue, or a query of a command channel.
struct table_entry {
    std::uint64_t wr_id = 0; ///< valid for this use; changes at release
    union {
        table_entry* next; ///< while it is free
        receiver_core* receiver;
        query_state* query; ///< null: it was cancelled
    };
    std::uint32_t slot = 0; ///< of the receiver
    bool used = false;

    table_entry() noexcept : next(nullptr) {}
};

/// Maps a `wr_id` to what carries it, for what completes in any order: 16 bits of a magic drawn anew for every table of
/// the process, 22 bits of the entry's index, 26 bits of its generation. One per reactor, for its shared receive
/// queues, and one per command channel; grows in chunks, whose addresses stay.
class operation_table {
  public:
    static constexpr std::size_t max_entries = std::size_t{1} << 22;
    static constexpr unsigned generation_bits = 26;

    operation_table();

    /// Null: the table is full, or memory is.
    table_entry* acquire() noexcept {
        if (free_ == nullptr && !grow()) return nullptr;
        table_entry* entry = free_;
        free_ = entry->next;
        entry->used = true;
        ++used_;
        return entry;
    }
    void release(table_entry& entry) noexcept {
        entry.wr_id = next_generation(entry.wr_id);
        entry.used = false;
        entry.next = free_;
        free_ = &entry;
        --used_;
    }

    /// True if some operation of this table carried the number once.
    bool ours(std::uint64_t wr_id) const noexcept { return wr_id >> 48 == magic_ && index(wr_id) < size_; }
    /// Null for a number that is not carried now.
    table_entry* find(std::uint64_t wr_id) noexcept {
        const std::size_t i = index(wr_id);
        if (i >= size_) return nullptr;
        table_entry& entry = chunks_[i / chunk_size][i % chunk_size];
        return entry.wr_id == wr_id && entry.used ? &entry : nullptr;
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
