#pragma once

// What the hand-written loops have in common.

#include "plain.hpp"

#include <infiniband/verbs.h>

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
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

inline void set_non_blocking(int fd) {
    const int flags = ::fcntl(fd, F_GETFL);
    if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0) fail(errno, "fcntl");
}

/// The device of this name, by `open`; empty: the first one.
inline ibv_context* open_device(const std::string& name, const char* verb, ibv_context* (*open)(ibv_device*)) {
    int count = 0;
    const owned<ibv_device*, ibv_free_device_list> list(created(ibv_get_device_list(&count), "ibv_get_device_list"));
    for (ibv_device* device : std::span(list.get(), static_cast<std::size_t>(count)))
        if (name.empty() || name == ibv_get_device_name(device)) return created(open(device), verb);
    throw std::runtime_error("no RDMA device " + name);
}

} // namespace plain
