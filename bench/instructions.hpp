#pragma once

// Instructions of one round, by callgrind: the program runs itself under it, twice, so that set-up cancels out.

#include "plain.hpp"

#include <optional>
#include <span>
#include <string_view>

namespace bench {

/// Of the loop of this name: "awaited" or "by-hand" writes, or "idle". Absent without valgrind. The device must do its
/// work in the process, as the simulated one does.
std::optional<double> instructions(std::string_view loop, plain::options options, std::uint32_t rounds);

/// What runs under callgrind: main's arguments behind --loop.
int run_loop(std::span<char*> arguments);

} // namespace bench
