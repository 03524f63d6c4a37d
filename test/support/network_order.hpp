#pragma once

// Numbers of a DEVX command or its output, which are in network order.

#include <cstdint>

namespace support {

template <class Byte>
void put(Byte* to, std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) to[i] = static_cast<Byte>(value >> 8 * (bytes - 1 - i));
}
template <class Byte>
std::uint64_t get(const Byte* from, int bytes) {
    std::uint64_t value = 0;
    for (int i = 0; i < bytes; ++i) value = value << 8 | static_cast<std::uint8_t>(from[i]);
    return value;
}

} // namespace support
