#pragma once

// What goes over a connection of the key-value server. A message is a header of 24 bytes, then a key, then a value;
// numbers have their most significant byte first. Whatever a peer sends is looked at by `decode` alone.

#include <verbena/verbena.hpp>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>

namespace kv {

namespace vb = verbena;

inline constexpr std::uint32_t magic = 0x6b763031;
inline constexpr std::size_t header_bytes = 24, max_key = 64, max_value = 1024;
inline constexpr std::size_t small_value = 128;    ///< `get` brings values up to this size
inline constexpr std::size_t message_bytes = 2048; ///< of a receive: more than is valid, so that too much is seen

enum class opcode : std::uint8_t {
    hello = 1, ///< the first; answered with how many requests may be outstanding, as `number`
    locate,    ///< answered with a `location`, to be read by the client itself
    get,       ///< answered with the value if that is small
    put,
    erase,
    bye,     ///< the last; not answered: `number` is how many replies have come. Then the server ends the connection
    goodbye, ///< from the server: no more requests, please. What was sent already is answered
    fault,   ///< from the server: the reply to a malformed request
};
inline constexpr std::size_t opcodes = 9;

enum class status : std::uint8_t {
    ok,
    not_found,
    too_large, ///< of `get`: use `locate`
    full,      ///< no room for another value
    bad_magic, ///< this one and those below: the request is malformed
    bad_length,
    unknown_opcode,
    key_too_long,
    value_too_long,
};
inline constexpr std::size_t statuses = 9;
constexpr bool malformed(status s) noexcept { return s >= status::bad_magic; }

constexpr const char* name_of(status s) noexcept {
    constexpr std::array<const char*, statuses> names{
        "ok",         "not found",      "too large",    "full",          "bad magic",
        "bad length", "unknown opcode", "key too long", "value too long"};
    return names[static_cast<std::size_t>(s)];
}

struct message {
    opcode op{};
    status state = status::ok;
    std::uint64_t number = 0; ///< of a request, given back in its reply
    std::string_view key{};
    std::span<const std::byte> value{};
};

template <class Number>
void put_number(std::span<std::byte> to, Number number) noexcept {
    for (std::size_t i = 0; i < sizeof number; ++i)
        to[i] = static_cast<std::byte>(number >> 8 * (sizeof number - 1 - i));
}
template <class Number>
Number get_number(std::span<const std::byte> from) noexcept {
    std::uint64_t number = 0;
    for (std::size_t i = 0; i < sizeof(Number); ++i) number = number << 8 | std::to_integer<std::uint64_t>(from[i]);
    return static_cast<Number>(number);
}

/// Its size. `to` has `message_bytes`, and the value may lie in its place there already.
inline std::size_t encode(const message& m, std::span<std::byte> to) noexcept {
    put_number(to.subspan(0), magic);
    put_number(to.subspan(4), static_cast<std::uint8_t>(m.op));
    put_number(to.subspan(5), static_cast<std::uint8_t>(m.state));
    put_number(to.subspan(6), static_cast<std::uint16_t>(m.key.size()));
    put_number(to.subspan(8), static_cast<std::uint32_t>(m.value.size()));
    put_number(to.subspan(12), std::uint32_t{0});
    put_number(to.subspan(16), m.number);
    if (!m.key.empty()) std::memcpy(to.data() + header_bytes, m.key.data(), m.key.size());
    if (!m.value.empty()) std::memmove(to.data() + header_bytes + m.key.size(), m.value.data(), m.value.size());
    return header_bytes + m.key.size() + m.value.size();
}

/// A malformed message has its fault as `state`, and its number if it got so far. Refers to `from`.
inline message decode(std::span<const std::byte> from) noexcept {
    message m{.state = status::bad_length};
    if (from.size() < header_bytes) return m;
    m.number = get_number<std::uint64_t>(from.subspan(16));
    m.state = status::bad_magic;
    if (get_number<std::uint32_t>(from) != magic) return m;
    const std::size_t key = get_number<std::uint16_t>(from.subspan(6)),
                      value = get_number<std::uint32_t>(from.subspan(8));
    m.op = static_cast<opcode>(from[4]);
    m.state = static_cast<status>(from[5]);
    if (m.op < opcode::hello || m.op > opcode::fault || static_cast<std::size_t>(from[5]) >= statuses)
        m.state = status::unknown_opcode;
    else if (key > max_key)
        m.state = status::key_too_long;
    else if (value > max_value)
        m.state = status::value_too_long;
    else if (header_bytes + key + value != from.size())
        m.state = status::bad_length;
    else
        m.key = {reinterpret_cast<const char*>(from.data()) + header_bytes, key},
        m.value = from.subspan(header_bytes + key);
    return m;
}

/// A value as it lies in the server's memory, where clients read it while the server may write: they take what they
/// read for the value only if version and checksum are right. In the byte order of little-endian machines.
static_assert(std::endian::native == std::endian::little);
struct slot_header {
    std::uint64_t version; ///< no two values have the same
    std::uint64_t checksum;
};

/// Where a value can be read: a `slot_header` and the value.
struct location {
    static constexpr std::size_t encoded_bytes = vb::remote_slice::encoded_bytes + 8;
    vb::remote_slice where;
    std::uint64_t version = 0;

    std::array<std::byte, encoded_bytes> to_bytes() const noexcept {
        std::array<std::byte, encoded_bytes> bytes;
        const auto slice = where.to_bytes();
        std::memcpy(bytes.data(), slice.data(), slice.size());
        put_number(std::span(bytes).subspan<slice.size()>(), version);
        return bytes;
    }
    static std::optional<location> from_bytes(std::span<const std::byte> bytes) noexcept {
        if (bytes.size() != encoded_bytes) return {};
        location l{vb::remote_slice::from_bytes(bytes.first<16>()), get_number<std::uint64_t>(bytes.subspan(16))};
        if (l.where.length < sizeof(slot_header) || l.where.length > sizeof(slot_header) + max_value) return {};
        return l;
    }
};

/// Of the value of this version: a mixture of both, wrong with all but certainty if either was half written.
inline std::uint64_t checksum(std::uint64_t version, std::span<const std::byte> value) noexcept {
    std::uint64_t sum = version * 0x9e3779b97f4a7c15 + value.size();
    while (!value.empty()) {
        std::uint64_t word = 0;
        const std::size_t size = value.size() < 8 ? value.size() : 8;
        std::memcpy(&word, value.data(), size);
        sum = (sum ^ word) * 0xff51afd7ed558ccd;
        sum ^= sum >> 32;
        value = value.subspan(size);
    }
    return sum;
}

/// The value in what was read from a `location`, if it is the one that was told.
inline std::optional<std::span<const std::byte>> intact(std::span<const std::byte> read,
                                                        std::uint64_t version) noexcept {
    slot_header header;
    std::memcpy(&header, read.data(), sizeof header);
    const auto value = read.subspan(sizeof header);
    if (header.version != version || header.checksum != checksum(version, value)) return {};
    return value;
}

} // namespace kv
