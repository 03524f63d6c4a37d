#include "queue.hpp"

#include <algorithm>
#include <bit>

namespace verbena::sim {

void receive_queue::make(std::uint32_t size_wanted, std::uint32_t sge_wanted) {
    size = size_wanted;
    max_sge = sge_wanted;
    const auto slots = std::bit_ceil(std::max(size, 1U));
    mask = slots - 1;
    requests.resize(slots);
    slices.resize(std::size_t{slots} * std::max(max_sge, 1U));
}

void send_queue::make(std::uint32_t size_wanted, std::uint32_t sge_wanted, std::uint32_t inline_wanted) {
    size = size_wanted;
    max_sge = sge_wanted;
    max_inline = inline_wanted;
    const auto slots = std::bit_ceil(std::max(size, 1U));
    mask = slots - 1;
    requests.resize(slots);
    slices.resize(std::size_t{slots} * std::max(max_sge, 1U));
    inline_data.resize(std::size_t{slots} * max_inline);
}

bool completion_ring::make(std::uint32_t capacity) {
    auto* memory = static_cast<completion*>(std::calloc(std::size_t{capacity} + 1, sizeof(completion)));
    if (memory == nullptr) return false;
    entries_.reset(memory);
    mask_ = capacity;
    head_ = tail_ = 0;
    return true;
}

} // namespace verbena::sim
