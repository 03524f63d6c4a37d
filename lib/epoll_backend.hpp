#pragma once

#include "wait_backend.hpp"

#include <memory>

namespace verbena::detail {

/// Without a system call nobody can know whether a descriptor is readable: `pending` says that there may be something
/// every so many calls since the last look, hence at every 64th turn of a reactor that never sleeps.
constexpr unsigned epoll_look_every = 64;

/// A wait backend on epoll(7), a timerfd and an eventfd: for reactors in a loop of somebody else's, who waits for the
/// epoll descriptor, and for where io_uring is forbidden or missing. Several watches of one descriptor take a
/// descriptor each.
result<std::unique_ptr<wait_backend>> make_epoll_backend();

} // namespace verbena::detail
