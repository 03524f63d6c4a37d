#pragma once

// Stand-ins for channels (eventfds, pipes) and for the sources that watch them.

#include "support/catch.hpp"

#include "epoll_backend.hpp"
#include "ring.hpp"

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

using namespace std::chrono_literals;
using verbena::errc;
using verbena::detail::epoll_look_every;
using verbena::detail::make_ring;
using verbena::detail::ring_options;
using verbena::detail::time_point;
using verbena::detail::wait_backend;
using verbena::detail::watch;

constexpr unsigned all = 1'000'000;

inline time_point now() { return std::chrono::steady_clock::now(); }

class descriptor {
  public:
    explicit descriptor(int fd) : fd_(fd) {
        if (fd < 0) throw std::system_error(errno, std::system_category(), "descriptor");
    }
    descriptor(descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    ~descriptor() { close(); }

    int get() const { return fd_; }
    void close() {
        if (fd_ >= 0) ::close(std::exchange(fd_, -1));
    }

  private:
    int fd_;
};

struct event_fd : descriptor {
    explicit event_fd(int flags = 0) : descriptor(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC | flags)) {}

    void signal() const {
        const std::uint64_t one = 1;
        if (::write(get(), &one, sizeof one) != sizeof one) throw std::system_error(errno, std::system_category());
    }
    std::uint64_t take() const {
        std::uint64_t count = 0;
        return ::read(get(), &count, sizeof count) == sizeof count ? count : 0;
    }
};

struct pipe_ends {
    std::array<int, 2> made = make();
    descriptor reader{made[0]};
    descriptor writer{made[1]};

    /// Whether the kernel has let go of every reader, within `milliseconds`.
    bool reader_gone(int milliseconds = 0) const {
        pollfd p{writer.get(), 0, 0};
        return ::poll(&p, 1, milliseconds) == 1 && (p.revents & POLLERR) != 0;
    }

  private:
    static std::array<int, 2> make() {
        std::array<int, 2> ends{};
        if (::pipe(ends.data()) != 0) throw std::system_error(errno, std::system_category(), "pipe");
        return ends;
    }
};

struct recorder : watch {
    unsigned calls = 0;
    unsigned events = 0; // of the last call
    std::function<void()> then;

    virtual ~recorder() = default;

    void ready(unsigned bits) noexcept override {
        ++calls;
        events = bits;
        if (then) then();
    }
};

/// An eventfd whose watch takes what has come.
struct counter final : recorder {
    event_fd fd;
    std::uint64_t taken = 0;

    counter() {
        then = [this] { taken += fd.take(); };
    }
};

/// Looks until there is nothing more to collect.
inline unsigned settle(wait_backend& backend) {
    unsigned told = 0;
    for (unsigned more = 1; more != 0 || backend.pending(); told += more) more = backend.collect(all);
    return told;
}

inline ring_options tiny(unsigned rung = 0) { return {.entries = 2, .cq_entries = 2, .first_rung = rung}; }

/// The backends: a ring that starts on a rung of its flags, or epoll(7).
using backend_kind = std::optional<unsigned>;
constexpr backend_kind by_epoll = std::nullopt;

inline verbena::result<std::unique_ptr<wait_backend>> make_backend(backend_kind kind, ring_options options = {}) {
    if (!kind) return verbena::detail::make_epoll_backend();
    options.first_rung = *kind;
    return make_ring(options);
}

/// Each of them, one after the other.
#define EVERY_BACKEND GENERATE(backend_kind{0u}, backend_kind{1u}, backend_kind{2u}, by_epoll)

/// A backend of that kind in `name`. Arguments as of `make_backend`.
#define BACKEND_OR_SKIP(name, ...) MADE_OR_SKIP(name, make_backend(__VA_ARGS__))

/// A ring in `name`, or the test case is skipped where there is no io_uring.
#define RING_OR_SKIP(name, ...) MADE_OR_SKIP(name, make_ring(__VA_ARGS__))

#define MADE_OR_SKIP(name, ...)                                                                                        \
    auto name##_made = __VA_ARGS__;                                                                                    \
    if (!name##_made && name##_made.error() == errc::unsupported) VERBENA_SKIP(name##_made.error().message());         \
    if (!name##_made && name##_made.error().code().value() == EPERM) VERBENA_SKIP(name##_made.error().message());      \
    auto name = std::move(name##_made).value()
