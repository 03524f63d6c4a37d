#pragma once

#include <verbena/detail/broken_rule.hpp>

#include <coroutine>

namespace verbena::detail {

/// Stands where a coroutine is wanted and calls a function when it is resumed, so that waiting for something without
/// a coroutine costs no frame. Derive from it; `resumed` gets the address of this base, and may destroy the object.
///
/// GCC and clang (on 64-bit ABIs) lay a frame out alike: the pointer to the resume function, the one to the destroy
/// function, the promise. A `std::coroutine_handle<>` uses the two pointers alone.
class continuation {
  public:
    explicit continuation(void (*resumed)(void*)) noexcept : resume_(resumed) {}
    continuation(const continuation&) = delete;
    continuation& operator=(const continuation&) = delete;

    std::coroutine_handle<> handle() noexcept { return std::coroutine_handle<>::from_address(this); }

  private:
    static_assert(sizeof(void*) == 8, "32-bit ABIs pass the frame to the resume function in their own ways");

    [[maybe_unused]] void (*resume_)(void*);
    [[maybe_unused]] void (*destroy_)(void*) = [](void*) {
        broken_rule("only the owner of a coroutine may destroy it");
    };
};

} // namespace verbena::detail
