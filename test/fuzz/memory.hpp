#pragma once

// Registered memory in slots, of which each belongs to the device, or to nobody: then it may not be touched.

#include <verbena/verbs/memory_region.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define VERBENA_FUZZ_POISONS 1
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#define VERBENA_FUZZ_POISONS 1
#endif
#ifdef VERBENA_FUZZ_POISONS
#include <sanitizer/asan_interface.h>
#endif

namespace fuzz {

namespace vb = verbena;

[[noreturn]] inline void fail(const char* what) {
    std::fprintf(stderr, "broken: %s\n", what);
    std::abort();
}

class arena {
  public:
    static constexpr std::uint32_t slot_bytes = 128;
    static constexpr std::uint32_t slot_count = 96;
    static constexpr std::uint32_t common_bytes = 4096; ///< behind the slots: what anybody may use at any time

    explicit arena(const vb::protection_domain& domain)
        : region_(vb::memory_region::allocate(domain, slot_bytes * slot_count + common_bytes,
                                              vb::access_flags::local_write | vb::access_flags::remote_read |
                                                  vb::access_flags::remote_write | vb::access_flags::remote_atomic)
                      .value()) {
        for (std::uint32_t slot = slot_count; slot > 0; --slot) give(slot - 1);
    }
    arena(const arena&) = delete;
    arena& operator=(const arena&) = delete;
    ~arena() {
        while (!free_.empty()) take();
    }

    bool empty() const noexcept { return free_.empty(); }
    std::uint32_t take() {
        const auto slot = free_.back();
        free_.pop_back();
        const auto all = bytes(slot);
#ifdef VERBENA_FUZZ_POISONS
        __asan_unpoison_memory_region(all.data(), all.size());
#endif
        if (!std::ranges::all_of(all, [](std::byte b) { return b == quiet; }))
            fail("a buffer was written to after its operation had ended");
        return slot;
    }
    void give(std::uint32_t slot) {
        const auto all = bytes(slot);
        std::ranges::fill(all, quiet);
#ifdef VERBENA_FUZZ_POISONS
        __asan_poison_memory_region(all.data(), all.size());
#endif
        free_.push_back(slot);
    }
    std::span<std::byte> bytes(std::uint32_t slot) const {
        return region_.bytes().subspan(std::size_t{slot} * slot_bytes, slot_bytes);
    }
    vb::memory_slice slice(std::uint32_t slot, std::uint32_t length) const {
        return region_.slice(std::size_t{slot} * slot_bytes, length);
    }
    vb::memory_slice common(std::uint32_t length) const {
        return region_.slice(std::size_t{slot_bytes} * slot_count, length);
    }
    vb::remote_slice remote(std::uint32_t offset, std::uint32_t length) const {
        return region_.remote(std::size_t{slot_bytes} * slot_count + offset, length);
    }
    const vb::memory_region& region() const noexcept { return region_; }

  private:
    static constexpr std::byte quiet{0xee};

    vb::memory_region region_;
    std::vector<std::uint32_t> free_;
};

/// One slot, or none.
class lease {
  public:
    lease() noexcept = default;
    explicit lease(arena& from) : arena_(&from), slot_(from.take()) {}
    lease(lease&& other) noexcept : arena_(std::exchange(other.arena_, nullptr)), slot_(other.slot_) {}
    lease& operator=(lease&&) = delete;
    ~lease() {
        if (arena_ != nullptr) arena_->give(slot_);
    }
    vb::memory_slice slice(std::uint32_t length) const { return arena_->slice(slot_, length); }

  private:
    arena* arena_ = nullptr;
    std::uint32_t slot_ = 0;
};

} // namespace fuzz
