#pragma once

// What the hand-written loops have in common.

#include "plain.hpp"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <memory>
#include <system_error>

namespace plain {

[[noreturn]] inline void fail(int code, const char* what) {
    throw std::system_error(code, std::system_category(), what);
}

inline void check(int code, const char* what) {
    if (code != 0) fail(code, what);
}

template <auto Destroy>
struct destroyer {
    void operator()(auto* object) const noexcept { Destroy(object); }
};
template <class T, auto Destroy>
using owned = std::unique_ptr<T, destroyer<Destroy>>;

template <class T>
T* created(T* object, const char* what) {
    if (object == nullptr) fail(errno, what);
    return object;
}

class descriptor {
  public:
    descriptor(int fd, const char* what) : fd_(fd) {
        if (fd < 0) fail(errno, what);
    }
    descriptor(const descriptor&) = delete;
    descriptor& operator=(const descriptor&) = delete;
    ~descriptor() { ::close(fd_); }
    int get() const noexcept { return fd_; }

  private:
    int fd_;
};

inline std::uint64_t now_ns() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

} // namespace plain
