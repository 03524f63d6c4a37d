#include <verbena/cm/socket_address.hpp>

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <string>

#include <arpa/inet.h>
#include <net/if.h>

namespace verbena {

socket_address::socket_address(const sockaddr& native) noexcept : socket_address() {
    any_.sa_family = native.sa_family;
    std::memcpy(&v6_, &native, size());
    if (size() == 0) v6_ = {};
}

result<socket_address> socket_address::parse(std::string_view host, std::uint16_t port) {
    socket_address address;
    const std::string text(host.substr(0, host.find('%')));
    if (inet_pton(AF_INET, std::string(host).c_str(), &address.v4_.sin_addr) == 1) {
        address.v4_.sin_family = AF_INET;
        address.v4_.sin_port = htons(port);
        return address;
    }
    const error invalid = error(errc::invalid_argument, "socket_address::parse").with_note(std::string(host));
    address = {};
    if (inet_pton(AF_INET6, text.c_str(), &address.v6_.sin6_addr) != 1) return invalid;
    if (text.size() != host.size()) {
        address.v6_.sin6_scope_id = if_nametoindex(std::string(host.substr(text.size() + 1)).c_str());
        if (address.v6_.sin6_scope_id == 0) return invalid;
    }
    address.v6_.sin6_family = AF_INET6;
    address.v6_.sin6_port = htons(port);
    return address;
}

bool socket_address::is_wildcard() const noexcept {
    return any_.sa_family == AF_INET ? v4_.sin_addr.s_addr == INADDR_ANY
                                     : any_.sa_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&v6_.sin6_addr);
}

std::string socket_address::to_string() const {
    std::array<char, INET6_ADDRSTRLEN> text{};
    switch (any_.sa_family) {
    case AF_INET:
        inet_ntop(AF_INET, &v4_.sin_addr, text.data(), text.size());
        return fmt::format("{}:{}", text.data(), port());
    case AF_INET6:
        inet_ntop(AF_INET6, &v6_.sin6_addr, text.data(), text.size());
        if (v6_.sin6_scope_id != 0) return fmt::format("[{}%{}]:{}", text.data(), v6_.sin6_scope_id, port());
        return fmt::format("[{}]:{}", text.data(), port());
    default: return "no address";
    }
}

bool operator==(const socket_address& a, const socket_address& b) noexcept {
    if (a.any_.sa_family != b.any_.sa_family || a.port() != b.port()) return false;
    if (a.any_.sa_family == AF_INET) return a.v4_.sin_addr.s_addr == b.v4_.sin_addr.s_addr;
    return std::memcmp(&a.v6_.sin6_addr, &b.v6_.sin6_addr, sizeof a.v6_.sin6_addr) == 0 &&
           a.v6_.sin6_scope_id == b.v6_.sin6_scope_id;
}

} // namespace verbena
