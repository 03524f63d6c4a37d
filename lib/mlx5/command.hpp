#pragma once

// What commands and their outputs have in common: numbers in network order, and a status in the output.

#include "../check.hpp"

#include <verbena/mlx5/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace verbena::detail {

inline constexpr std::size_t header_bytes = 16;       // of a command, and of an output
inline constexpr std::size_t longest_command = 65535; // the kernel takes the length in 16 bits

/// Precondition: it lies in the header.
template <class Number>
Number number_at(std::span<const std::byte> bytes, std::size_t at) noexcept {
    Number value = 0;
    for (const std::byte b : bytes.subspan(at, sizeof(Number)))
        value = static_cast<Number>(value << 8 | std::to_integer<Number>(b));
    return value;
}

inline bool is_size(std::size_t bytes, std::size_t longest) noexcept {
    return bytes >= header_bytes && bytes <= longest;
}
inline error wrong_size(std::size_t bytes, std::size_t longest, const char* what, const char* verb) {
    return error(errc::invalid_argument, verb)
        .with_note(fmt::format("{} of {} bytes, where {} to {} can be", what, bytes, header_bytes, longest));
}
inline result<void> check_size(std::size_t bytes, std::size_t longest, const char* what, const char* verb) {
    if (is_size(bytes, longest)) return {};
    return wrong_size(bytes, longest, what, verb);
}

/// The second layer inside success: what the firmware says in the output.
inline bool is_refusal(std::span<const std::byte> output) noexcept { return output[0] != std::byte{0}; }
inline error refusal(std::span<const std::byte> output, const char* verb) noexcept {
    return error(std::error_code(std::to_integer<int>(output[0]), mlx5::devx_category()), verb)
        .with_completion(0, number_at<std::uint32_t>(output, 4));
}

/// Makes a blocking call that answers 0 or an errno value. A refusal comes as an errno value, with the status in the
/// output, from older kernels as success.
template <class Call>
result<void> execute(std::span<const std::byte> command, std::span<std::byte> output, const char* verb, Call&& call) {
    if (auto sized = check_size(command.size(), longest_command, "a command", verb); !sized) return sized;
    if (auto sized = check_size(output.size(), longest_command, "an output", verb); !sized) return sized;
    std::ranges::fill(output.first(header_bytes), std::byte{0}); // what stands there is no status
    auto done = check_errno_value(verb, std::forward<Call>(call));
    return is_refusal(output) ? refusal(output, verb) : std::move(done);
}

} // namespace verbena::detail
