#pragma once

#include <cstdint>
#include <span>

namespace fuzz {

/// Runs the program that the bytes are: steps on a simulated device whose clock is manual. Aborts when a rule is
/// broken.
void run(std::span<const std::uint8_t> bytes);

} // namespace fuzz
