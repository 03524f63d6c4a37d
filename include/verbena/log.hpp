#pragma once

#include <verbena/detail/export.hpp>

#include <functional>
#include <string_view>

namespace verbena {

/// How much a line matters.
enum class log_level {
    debug,   ///< no line of the library so far
    info,    ///< likewise
    warning, ///< it goes on with less than was asked for
    error,   ///< something is lost, such as an object that could not be destroyed
};

/// Takes one line of text without its newline. It may be called from any thread, by one at a time, and must neither
/// throw nor log.
using log_sink = std::function<void(log_level, std::string_view)>;

/// Where the library's log lines go from now on; an empty sink restores the default, which prints warnings and errors
/// to stderr. *Thread-safe.*
VERBENA_API void set_log_sink(log_sink sink);

namespace detail {
void log(log_level level, std::string_view text) noexcept;
}

} // namespace verbena
