#pragma once

#include "wait_backend.hpp"

#include <memory>

namespace verbena::detail {

/// Without a system call nobody can know whether a descriptor is readable: `pending` says that there may be something
/// every so many calls since the last look, hence at every 64th turn of a reactor that never sleeps.
constexpr unsigned poll_look_every = 64;

/// A wait backend on ppoll(2) and an eventfd, for where io_uring is forbidden or missing. As many watches as
/// RLIMIT_NOFILE says, less one.
result<std::unique_ptr<wait_backend>> make_poll_backend();

} // namespace verbena::detail
