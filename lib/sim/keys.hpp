#pragma once

#include "abi.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace verbena::sim {

struct region : ibv_mr {
    std::uint32_t magic;
    unsigned access;
    std::uint64_t begin;  ///< the address that work requests use: the memory's own, or the iova
    std::uint64_t pinned; ///< bytes counted against the limit of locked memory

    bool covers(std::uint64_t address, std::uint64_t bytes, unsigned rights) const noexcept {
        return (access & rights) == rights && address >= begin && address - begin <= length &&
               bytes <= length - (address - begin);
    }
    std::byte* at(std::uint64_t address) const noexcept { return static_cast<std::byte*>(addr) + (address - begin); }
};

/// Numbers with a generation: a number whose owner is gone is not found again, even when its slot has a new owner.
/// A number is `slot << shift | generation` or `generation << shift | slot`; 0 is never one.
template <class T>
class number_table {
  public:
    explicit number_table(unsigned slot_bits, unsigned slot_shift, unsigned generation_shift) noexcept
        : slot_mask_((1U << slot_bits) - 1), slot_shift_(slot_shift), generation_shift_(generation_shift) {}

    T* find(std::uint32_t number) const noexcept {
        const std::uint32_t slot = number >> slot_shift_ & slot_mask_;
        if (slot >= slots_.size()) return nullptr;
        const auto& s = slots_[slot];
        return s.number == number ? s.owner : nullptr;
    }
    /// 0: the table is full.
    std::uint32_t add(T* owner) {
        std::uint32_t slot;
        // A freed slot rests until there are others: a number is not used again soon.
        if (slots_.size() <= slot_mask_ && free_.size() < resting) {
            slot = static_cast<std::uint32_t>(slots_.size());
            slots_.push_back({nullptr, 0, 0});
        } else if (free_.empty()) {
            return 0;
        } else {
            slot = free_.front();
            free_.pop_front();
        }
        auto& s = slots_[slot];
        s.owner = owner;
        s.number = slot << slot_shift_ | s.generation << generation_shift_;
        return s.number;
    }
    void remove(std::uint32_t number) {
        const std::uint32_t slot = number >> slot_shift_ & slot_mask_;
        auto& s = slots_[slot];
        s = {nullptr, 0, (s.generation + 1) & 0xff};
        free_.push_back(slot);
    }

  private:
    struct slot_state {
        T* owner = nullptr;
        std::uint32_t number = 0; ///< 0: free
        std::uint32_t generation = 0;
    };
    static constexpr std::size_t resting = 32;

    std::uint32_t slot_mask_;
    unsigned slot_shift_;
    unsigned generation_shift_;
    std::vector<slot_state> slots_ =
        std::vector<slot_state>(16); ///< the first are nobody's: queue pairs 0 and 1 are special
    std::deque<std::uint32_t> free_;
};

} // namespace verbena::sim
