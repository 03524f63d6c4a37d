#include <verbena/log.hpp>

#include <cstdio>
#include <mutex>
#include <utility>

namespace verbena {
namespace {

struct logger {
    std::mutex mutex;
    log_sink sink;
};

/// Never destroyed: handles of static storage may still log while the process ends.
logger& the_logger() {
    static auto& instance = *new logger;
    return instance;
}

} // namespace

void set_log_sink(log_sink sink) {
    const std::lock_guard lock(the_logger().mutex);
    the_logger().sink = std::move(sink);
}

namespace detail {

void log(log_level level, std::string_view text) noexcept {
    const std::lock_guard lock(the_logger().mutex);
    if (the_logger().sink)
        the_logger().sink(level, text);
    else if (level >= log_level::warning)
        std::fprintf(stderr, "verbena: %s: %.*s\n", level == log_level::error ? "error" : "warning",
                     static_cast<int>(text.size()), text.data());
}

} // namespace detail
} // namespace verbena
