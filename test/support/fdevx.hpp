#pragma once

// The parameters of the guest's DEVX device, test/vm/fdevx.

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <fstream>
#include <string>
#include <utility>

namespace support::fdevx {

inline std::string path_of(const std::string& parameter) { return "/sys/module/fdevx/parameters/" + parameter; }

/// Answers 0 or an errno.
inline int set(const std::string& parameter, const std::string& value) {
    const int fd = ::open(path_of(parameter).c_str(), O_WRONLY | O_CLOEXEC);
    if (fd < 0) return errno;
    const int code = ::write(fd, value.data(), value.size()) < 0 ? errno : 0;
    ::close(fd);
    return code;
}
inline int set(const std::string& parameter, std::uint64_t value) { return set(parameter, std::to_string(value)); }

/// All as at first, and what is held is delivered; a removed device stays away. Answers 0 or an errno.
inline int reset() {
    for (const auto& [parameter, value] : {std::pair{"hold", "0"},
                                           {"delay_ms", "0"},
                                           {"shuffle", "0"},
                                           {"throttle", "16"},
                                           {"old_kernel", "0"},
                                           {"window", "1048576"},
                                           {"refuse", "1 0 0"},
                                           {"lose", "0"},
                                           {"lose_events", "0"}})
        if (const int code = set(parameter, value)) return code;
    return 0;
}

struct ledger {
    std::uint64_t calls = 0, accepted = 0, completed = 0, cancelled = 0, read = 0, dropped = 0;
    ledger() {
        std::ifstream file(path_of("ledger"));
        file.exceptions(std::ios::failbit);
        file >> calls >> accepted >> completed >> cancelled >> read >> dropped;
    }
};

} // namespace support::fdevx
