#pragma once

#include "wait_backend.hpp"

#include <memory>

namespace verbena::detail {

/// The defaults serve a reactor; tests make rings that overflow at once, and start lower on the ladder of ring flags.
struct ring_options {
    unsigned entries = 64;
    unsigned cq_entries = 1024;
    unsigned first_rung = 0;
};

/// A wait backend on io_uring, for the calling thread only. It may be destroyed on another thread; its watches are then
/// let go of, but the kernel drops their descriptors a little later.
result<std::unique_ptr<wait_backend>> make_ring(const ring_options& options = {});

} // namespace verbena::detail
