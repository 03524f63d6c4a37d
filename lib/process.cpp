#include "process.hpp"

#include "reactor_core.hpp"

#include <new>

#include <pthread.h>

namespace verbena::detail {
namespace {

constinit std::atomic<std::uint64_t> last_number{0};

/// Runs in the child, on its only thread.
void in_child() noexcept {
    process_number.fetch_add(1, std::memory_order_relaxed);
    number_here = 0;
    reactor_core::leave_to_parent();
}

} // namespace

constinit std::atomic<std::uint32_t> process_number{0};
constinit thread_local std::uint64_t number_here = 0;

std::uint32_t process_mark::watched_process() {
    static const bool watched = [] {
        if (pthread_atfork(nullptr, nullptr, in_child) != 0) throw std::bad_alloc();
        return true;
    }();
    static_cast<void>(watched);
    return process_number.load(std::memory_order_relaxed);
}

std::uint64_t number_thread() noexcept {
    if (number_here == 0) number_here = last_number.fetch_add(1, std::memory_order_relaxed) + 1;
    return number_here;
}

} // namespace verbena::detail
