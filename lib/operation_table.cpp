#include "operation_table.hpp"

#include <atomic>
#include <new>
#include <random>

namespace verbena::detail {

std::uint16_t draw_magic() {
    static std::atomic<std::uint32_t> next{std::random_device{}()};
    std::uint16_t magic;
    do {
        magic = static_cast<std::uint16_t>(next.fetch_add(1, std::memory_order_relaxed));
    } while (magic == 0 || magic == 0xffff);
    return magic;
}

operation_table::operation_table() : magic_(draw_magic()) {}

bool operation_table::grow() noexcept {
    if (size_ + chunk_size > max_entries) return false;
    try {
        chunks_.reserve(chunks_.size() + 1);
        auto chunk = std::make_unique<table_entry[]>(chunk_size);
        for (std::size_t i = chunk_size; i-- > 0;) {
            chunk[i].wr_id = magic_ << 48 | (size_ + i) << generation_bits;
            chunk[i].next = free_;
            free_ = &chunk[i];
        }
        chunks_.push_back(std::move(chunk));
    } catch (const std::bad_alloc&) {
        return false;
    }
    size_ += chunk_size;
    return true;
}

} // namespace verbena::detail
