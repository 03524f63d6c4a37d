#pragma once

// The commands of the DEVX loops, hand-written and awaited: queries of a flow counter, in network order.

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace devx_query {

using command = std::array<std::byte, 32>;

template <class Number>
void put(std::span<std::byte> to, std::size_t at, Number number) {
    for (std::size_t i = 0; i < sizeof number; ++i)
        to[at + i] = static_cast<std::byte>(number >> 8 * (sizeof number - 1 - i));
}

inline command allocation() {
    command c{};
    put<std::uint16_t>(c, 0, 0x939); // ALLOC_FLOW_COUNTER
    return c;
}

/// `allocated` is the output of the allocation.
inline command query(std::span<const std::byte> allocated) {
    command c{};
    put<std::uint16_t>(c, 0, 0x93b); // QUERY_FLOW_COUNTER
    std::memcpy(&c[28], &allocated[8], 4);
    return c;
}

inline constexpr std::size_t number_at = 16; // 8 bytes, of a command and of what the test devices answer

inline void stamp(command& c, std::uint64_t number) { put(c, number_at, number); }

inline bool carries(std::span<const std::byte> output, std::uint64_t number) {
    std::array<std::byte, sizeof number> expected;
    put(expected, 0, number);
    return std::memcmp(&output[number_at], expected.data(), sizeof number) == 0;
}

} // namespace devx_query
