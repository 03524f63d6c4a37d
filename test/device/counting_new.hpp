#pragma once

#include <cstdint>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define VERBENA_COUNTS_ALLOCATIONS 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define VERBENA_COUNTS_ALLOCATIONS 0
#endif
#endif
#ifndef VERBENA_COUNTS_ALLOCATIONS
#define VERBENA_COUNTS_ALLOCATIONS 1
#endif

namespace support {

/// How often this thread has allocated.
std::uint64_t allocations() noexcept;
/// The memory that this thread has allocated, less what it has freed.
std::int64_t allocated_bytes() noexcept;

} // namespace support
