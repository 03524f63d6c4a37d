#include "check.hpp"

#include <fmt/format.h>

#include <sys/resource.h>

namespace verbena::detail {

error system_error_of(int value, const char* verb) {
    error e(system_code(value), verb);
    if (value == ENOMEM) {
        rlimit limit{};
        getrlimit(RLIMIT_MEMLOCK, &limit);
        const auto soft =
            limit.rlim_cur == RLIM_INFINITY ? std::string("unlimited") : fmt::format("{} KiB", limit.rlim_cur / 1024);
        e.with_note(fmt::format("RLIMIT_MEMLOCK, the limit of locked memory, is {}; raise it with `ulimit -l`, "
                                "`memlock` in /etc/security/limits.conf, or LimitMEMLOCK= of a systemd unit",
                                soft));
    }
    return e;
}

} // namespace verbena::detail
