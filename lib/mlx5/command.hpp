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

inline result<void> check_size(std::size_t bytes, std::size_t longest, const char* what, const char* verb) {
    if (bytes >= header_bytes && bytes <= longest) return {};
    return error(errc::invalid_argument, verb)
        .with_note(fmt::format("{} of {} bytes, where {} to {} can be", what, bytes, header_bytes, longest));
}

/// The second layer inside success: what the firmware says in the output.
inline result<void> check_status(std::span<const std::byte> output, const char* verb) noexcept {
    const auto status = std::to_integer<int>(output[0]);
    if (status == 0) return {};
    return error(std::error_code(status, mlx5::devx_category()), verb)
        .with_completion(0, number_at<std::uint32_t>(output, 4));
}

/// Makes a blocking call that answers 0 or an errno value. A refusal comes as an errno value, with the status in the
/// output, from older kernels as success.
template <class Call>
result<void> execute(std::span<const std::byte> command, std::span<std::byte> output, const char* verb, Call&& call) {
    if (auto sized = check_size(command.size(), longest_command, "a command", verb); !sized) return sized;
    if (auto sized = check_size(output.size(), longest_command, "an output", verb); !sized) return sized;
    std::ranges::fill(output.first(header_bytes), std::byte{0}); // what stands there is no status
    const auto done = check_errno_value(verb, std::forward<Call>(call));
    const auto accepted = check_status(output, verb);
    return accepted ? done : accepted;
}

} // namespace verbena::detail
