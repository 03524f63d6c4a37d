#pragma once

// Bytes as choices. Past the end every choice is 0.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace fuzz {

class input {
  public:
    explicit input(std::span<const std::uint8_t> bytes) noexcept : rest_(bytes) {}

    bool empty() const noexcept { return rest_.empty(); }
    std::uint8_t byte() noexcept { return number<std::uint8_t>(); }
    template <class T>
    T number() noexcept {
        T value{};
        const auto size = std::min(sizeof value, rest_.size());
        if (size > 0) std::memcpy(&value, rest_.data(), size);
        rest_ = rest_.subspan(size);
        return value;
    }
    /// 0 to `count` - 1.
    std::size_t below(std::size_t count) noexcept { return byte() % count; }
    std::uint32_t between(std::uint32_t least, std::uint32_t most) noexcept {
        return least + static_cast<std::uint32_t>(below(most - least + 1));
    }
    /// Seldom, and never past the end: what is wrong, or strange.
    bool odd() noexcept { return byte() >= 224; }
    template <class Range>
    const auto& one_of(const Range& range) noexcept {
        return range[below(std::size(range))];
    }
    std::span<const std::uint8_t> take(std::size_t most) noexcept {
        const auto taken = rest_.first(std::min(most, rest_.size()));
        rest_ = rest_.subspan(taken.size());
        return taken;
    }

  private:
    std::span<const std::uint8_t> rest_;
};

} // namespace fuzz
