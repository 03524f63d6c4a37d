#pragma once

#include <verbena/detail/export.hpp>
#include <verbena/result.hpp>

#include <cstdint>
#include <string>
#include <string_view>

#include <netinet/in.h>
#include <sys/socket.h>

namespace verbena {

/// An IPv4 or IPv6 address with a port. A value; a default one is no address at all.
class VERBENA_API socket_address {
  public:
    socket_address() noexcept : v6_{} {}
    /// Of an IPv4 or IPv6 address that the system gave; any other gives none.
    explicit socket_address(const sockaddr& native) noexcept;

    /// "10.9.9.1", "::1", "fe80::1%eth0". Errors: `invalid_argument`: not numeric, or no interface of that name.
    static result<socket_address> parse(std::string_view host, std::uint16_t port);

    /// Of IPv4 or IPv6.
    explicit operator bool() const noexcept { return size() != 0; }
    /// 0.0.0.0 or ::.
    bool is_wildcard() const noexcept;
    /// In host order.
    std::uint16_t port() const noexcept { return ntohs(v4_.sin_port); } // at one place in both
    const sockaddr* native() const noexcept { return &any_; }           ///< `size()` bytes
    /// Of what `native` gives, in bytes; 0: no address.
    socklen_t size() const noexcept {
        return any_.sa_family == AF_INET ? sizeof v4_ : any_.sa_family == AF_INET6 ? sizeof v6_ : 0;
    }
    /// "10.9.9.1:7471", "[fe80::1%2]:7471".
    std::string to_string() const;

    /// Whether address, port and scope are equal.
    VERBENA_API friend bool operator==(const socket_address& a, const socket_address& b) noexcept;

  private:
    union {
        sockaddr_in6 v6_;
        sockaddr_in v4_;
        sockaddr any_;
    };
};

} // namespace verbena
