#pragma once

// Instructions of one write, by callgrind: the program runs itself under it, twice, so that set-up cancels out.

#include "plain.hpp"

#include <optional>
#include <span>

namespace bench {

enum class writes { awaited, by_hand };

/// Absent without valgrind. The device must do its work in the process, as the simulated one does.
std::optional<double> instructions_per_write(writes how, plain::options options);

/// What runs under callgrind: main's arguments behind --writes.
int run_writes(std::span<char*> arguments);

} // namespace bench
