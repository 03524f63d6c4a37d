#pragma once

// What all the handles do alike when they make and destroy a verbs object.

#include "../check.hpp"
#include "states.hpp"

#include <verbena/log.hpp>

#include <fcntl.h>

namespace verbena::detail {

inline error no_parent(const char* verb, const char* what) {
    return error(errc::invalid_argument, verb).with_note(std::string("the ") + what + " is an empty handle");
}

inline const context_state& context_of(const context_state& context) noexcept { return context; }
inline const context_state& context_of(const protection_domain_state& domain) noexcept { return *domain.context; }

/// An empty handle, or one of the process that this one was forked from, makes nothing.
template <class Handle>
result<void> check_parent(const Handle& parent, const char* verb, const char* what) {
    if (!parent) return no_parent(verb, what);
    if (context_of(*access::state(parent)).process.forked()) return fork_error(verb);
    return {};
}

/// Destroys in a destructor, where a failure can only be logged. Whether it succeeded. In a fork nothing is destroyed:
/// the object is the parent's.
template <class Call>
bool destroy(const context_state& context, const char* verb, Call&& call) noexcept {
    if (context.process.forked()) return false;
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
