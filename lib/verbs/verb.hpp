#pragma once

// What all the handles do alike when they make and destroy a verbs object.

#include "../check.hpp"

#include <verbena/log.hpp>

#include <fcntl.h>

namespace verbena::detail {

inline error no_parent(const char* verb, const char* what) {
    return error(errc::invalid_argument, verb).with_note(std::string("the ") + what + " is an empty handle");
}

/// Destroys in a destructor, where a failure can only be logged. Whether it succeeded.
template <class Call>
bool destroy(const char* verb, Call&& call) noexcept {
    const auto destroyed = check_errno_value(verb, call);
    if (!destroyed) log(log_level::error, destroyed.error().message());
    return destroyed.has_value();
}

inline result<void> set_non_blocking(int fd) {
    auto flags = check_minus_one("fcntl", [&] { return fcntl(fd, F_GETFL); });
    if (flags) flags = check_minus_one("fcntl", [&] { return fcntl(fd, F_SETFL, *flags | O_NONBLOCK); });
    if (!flags) return flags.error();
    return {};
}

} // namespace verbena::detail
