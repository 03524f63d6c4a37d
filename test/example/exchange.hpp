#pragma once

// How queue pairs get connected without rdma_cm: the two ends exchange their endpoints over TCP. All of it waits on a
// reactor; put a deadline on it with `with_timeout`. The connection is kept, since it tells when the peer is gone.

#include <verbena/verbena.hpp>

#include <netdb.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace exchange {

/// A descriptor, closed when it dies.
class descriptor {
  public:
    explicit descriptor(int fd = -1) noexcept : fd_(fd) {}
    descriptor(descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    descriptor& operator=(descriptor&& other) noexcept {
        std::swap(fd_, other.fd_);
        return *this;
    }
    ~descriptor() {
        if (fd_ >= 0) ::close(fd_);
    }
    int get() const noexcept { return fd_; }

  private:
    int fd_;
};

inline verbena::error failure(const char* call, int code = errno) {
    return verbena::error(std::error_code(code, std::generic_category()), call);
}

using addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

/// A numeric address, IPv4 or IPv6.
inline addresses parse(const std::string& host, std::uint16_t port) {
    addrinfo hints{}, *found = nullptr;
    hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE;
    hints.ai_socktype = SOCK_STREAM;
    if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) found = nullptr;
    return {found, &::freeaddrinfo};
}

inline descriptor open_socket(const addrinfo& address) {
    return descriptor(::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

/// Port 0: one that is free, see `port_of`.
inline verbena::result<descriptor> listen(const std::string& host, std::uint16_t port) {
    const auto address = parse(host, port);
    if (!address) return verbena::error(verbena::errc::invalid_argument, "getaddrinfo");
    auto socket = open_socket(*address);
    const int on = 1;
    if (socket.get() < 0) return failure("socket");
    ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (::bind(socket.get(), address->ai_addr, address->ai_addrlen) != 0) return failure("bind");
    if (::listen(socket.get(), SOMAXCONN) != 0) return failure("listen");
    return socket;
}

inline std::uint16_t port_of(const descriptor& socket) {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size);
    std::array<char, NI_MAXSERV> text{};
    ::getnameinfo(reinterpret_cast<sockaddr*>(&address), size, nullptr, 0, text.data(), text.size(), NI_NUMERICSERV);
    return static_cast<std::uint16_t>(std::stoul(text.data()));
}

inline verbena::task<verbena::result<descriptor>> accept(verbena::reactor& reactor, const descriptor& listener) {
    for (;;) {
        descriptor socket(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
        if (socket.get() >= 0) co_return socket;
        if (errno != EAGAIN && errno != ECONNABORTED && errno != EINTR) co_return failure("accept4");
        auto readable = co_await reactor.wait_readable(listener.get());
        if (!readable) co_return std::move(readable).error();
    }
}

inline verbena::task<verbena::result<descriptor>> connect(verbena::reactor& reactor, const std::string& host,
                                                          std::uint16_t port) {
    const auto address = parse(host, port);
    if (!address) co_return verbena::error(verbena::errc::invalid_argument, "getaddrinfo");
    auto socket = open_socket(*address);
    if (::connect(socket.get(), address->ai_addr, address->ai_addrlen) == 0) co_return socket;
    if (errno != EINPROGRESS) co_return failure("connect");
    // A reactor waits for what can be read; an epoll descriptor can be when the socket in it can be written.
    const descriptor writable(::epoll_create1(EPOLL_CLOEXEC));
    epoll_event event{.events = EPOLLOUT, .data = {}};
    if (::epoll_ctl(writable.get(), EPOLL_CTL_ADD, socket.get(), &event) != 0) co_return failure("epoll_ctl");
    auto ready = co_await reactor.wait_readable(writable.get());
    if (!ready) co_return std::move(ready).error();
    int code = 0;
    socklen_t size = sizeof code;
    ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &code, &size);
    if (code != 0) co_return failure("connect", code);
    co_return socket;
}

inline verbena::result<void> tell(const descriptor& socket, const verbena::endpoint& mine) {
    const auto bytes = mine.to_bytes();
    const auto sent = ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0) return failure("send");
    if (static_cast<std::size_t>(sent) != bytes.size()) return failure("send", ENOBUFS); // a new socket has room
    return {};
}

inline verbena::task<verbena::result<verbena::endpoint>> hear(verbena::reactor& reactor, const descriptor& socket) {
    std::array<std::byte, verbena::endpoint::encoded_bytes> bytes;
    for (std::size_t have = 0; have < bytes.size();) {
        const auto got = ::recv(socket.get(), bytes.data() + have, bytes.size() - have, 0);
        if (got == 0) co_return failure("recv", ECONNRESET);
        if (got > 0) have += static_cast<std::size_t>(got);
        if (got > 0 || errno == EINTR) continue;
        if (errno != EAGAIN) co_return failure("recv");
        auto readable = co_await reactor.wait_readable(socket.get());
        if (!readable) co_return std::move(readable).error();
    }
    co_return verbena::endpoint::from_bytes(bytes);
}

/// Of the side that connected: its queue pair can send when this has ended.
inline verbena::task<verbena::result<void>> introduce(verbena::reactor& reactor, const descriptor& socket,
                                                      verbena::queue_pair& qp) {
    if (auto told = tell(socket, qp.endpoint()); !told) co_return std::move(told).error();
    const auto remote = co_await hear(reactor, socket);
    if (!remote) co_return remote.error();
    co_return qp.connect(*remote);
}

/// Of the side that accepted. It tells its endpoint last, so that it can receive before the peer can send; it must not
/// send before it has received something.
inline verbena::task<verbena::result<void>> welcome(verbena::reactor& reactor, const descriptor& socket,
                                                    verbena::queue_pair& qp) {
    const auto remote = co_await hear(reactor, socket);
    if (!remote) co_return remote.error();
    if (auto connected = qp.connect(*remote); !connected) co_return std::move(connected).error();
    co_return tell(socket, qp.endpoint());
}

/// Waits until the peer has closed its end, or died.
inline verbena::task<> hung_up(verbena::reactor& reactor, const descriptor& socket) {
    std::array<std::byte, 64> junk;
    for (;;) {
        const auto got = ::recv(socket.get(), junk.data(), junk.size(), 0);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) co_return;
        if (got > 0) continue;
        const auto readable = co_await reactor.wait_readable(socket.get());
        if (!readable) co_return;
    }
}

} // namespace exchange
