#pragma once

#include <verbena/detail/export.hpp>

namespace verbena::detail {

/// Prints "verbena: `rule`" on one line of the standard error stream and aborts. For faults of the program that cannot
/// be reported to anyone: going on would resume a dead coroutine, or none.
[[noreturn]] VERBENA_API void broken_rule(const char* rule) noexcept;

} // namespace verbena::detail
