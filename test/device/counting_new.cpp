// Replaces the global allocation functions of this executable by ones that count for each thread. Sanitizers have their
// own, which are left alone.

#include "counting_new.hpp"

#include <cstdlib>
#include <new>

#include <malloc.h>

namespace {
constinit thread_local std::uint64_t count = 0;
constinit thread_local std::int64_t bytes_held = 0;
} // namespace

std::uint64_t support::allocations() noexcept { return count; }
std::int64_t support::allocated_bytes() noexcept { return bytes_held; }

#if VERBENA_COUNTS_ALLOCATIONS

namespace {

void* counted(void* memory) {
    if (memory == nullptr) throw std::bad_alloc();
    ++count;
    bytes_held += static_cast<std::int64_t>(malloc_usable_size(memory));
    return memory;
}
void* take(std::size_t bytes) { return counted(std::malloc(bytes != 0 ? bytes : 1)); }
void* take(std::size_t bytes, std::align_val_t alignment) {
    const auto step = static_cast<std::size_t>(alignment);
    return counted(std::aligned_alloc(step, (bytes + step - 1) / step * step));
}
void give_back(void* memory) {
    bytes_held -= static_cast<std::int64_t>(malloc_usable_size(memory)); // 0 of null
    std::free(memory);
}

} // namespace

void* operator new(std::size_t bytes) { return take(bytes); }
void* operator new[](std::size_t bytes) { return take(bytes); }
void* operator new(std::size_t bytes, std::align_val_t alignment) { return take(bytes, alignment); }
void* operator new[](std::size_t bytes, std::align_val_t alignment) { return take(bytes, alignment); }
void operator delete(void* memory) noexcept { give_back(memory); }
void operator delete[](void* memory) noexcept { give_back(memory); }
void operator delete(void* memory, std::size_t) noexcept { give_back(memory); }
void operator delete[](void* memory, std::size_t) noexcept { give_back(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { give_back(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { give_back(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { give_back(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { give_back(memory); }

#endif
