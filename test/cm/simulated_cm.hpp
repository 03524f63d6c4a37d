#pragma once

// What only the simulated connection management can do. See simulated_cm.cpp.

#include <cstdint>

namespace cm {

/// Every connection hears that its device is gone.
void remove_device();
/// `rdma_destroy_id` would have waited for an acknowledgement.
std::uint64_t blocked_destructions();
/// Identifiers and channels that are open.
std::uint64_t open_objects();
/// The next call of this function fails so.
void refuse_next(const char* function, int error);

} // namespace cm
