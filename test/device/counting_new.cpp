// Replaces the global allocation functions of this executable by ones that count for each thread. Sanitizers have their
// own, which are left alone.

#include "counting_new.hpp"

#include <cstdlib>
#include <new>

namespace {
constinit thread_local std::uint64_t count = 0;
} // namespace

std::uint64_t support::allocations() noexcept { return count; }

#if VERBENA_COUNTS_ALLOCATIONS

namespace {

void* take(std::size_t bytes) {
    ++count;
    if (void* memory = std::malloc(bytes != 0 ? bytes : 1)) return memory;
    throw std::bad_alloc();
}
void* take(std::size_t bytes, std::align_val_t alignment) {
    ++count;
    const auto step = static_cast<std::size_t>(alignment);
    if (void* memory = std::aligned_alloc(step, (bytes + step - 1) / step * step)) return memory;
    throw std::bad_alloc();
}

} // namespace

void* operator new(std::size_t bytes) { return take(bytes); }
void* operator new[](std::size_t bytes) { return take(bytes); }
void* operator new(std::size_t bytes, std::align_val_t alignment) { return take(bytes, alignment); }
void* operator new[](std::size_t bytes, std::align_val_t alignment) { return take(bytes, alignment); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

#endif
