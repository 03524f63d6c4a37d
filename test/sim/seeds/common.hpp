#pragma once

// What the seeded loads share: numbers and where they are drawn from, the trace, memory, a device, and what they count.

#include <verbena/sim/control.hpp>
#include <verbena/verbena.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace seeds {

namespace vb = verbena;
namespace sim = verbena::sim;
using std::chrono::nanoseconds;

/// For the program to define: a seed failed, of which a coroutine is the first to know.
[[noreturn]] void failed(const std::string& what);

/// What the seeds of a load did, in sum.
template <class Kind, std::size_t Kinds, class Fact, std::size_t Facts>
struct tally {
    std::array<std::uint64_t, Kinds> operations{};
    std::array<std::uint64_t, Facts> facts{};
    std::uint64_t most_outstanding = 0;
    std::uint64_t most_operations = 0; ///< of one seed
    std::uint64_t least_operations = ~std::uint64_t{0};

    std::uint64_t& operator[](Kind k) noexcept { return operations[static_cast<std::size_t>(k)]; }
    std::uint64_t& operator[](Fact f) noexcept { return facts[static_cast<std::size_t>(f)]; }
    void add(const tally& seed) noexcept {
        for (std::size_t i = 0; i < Kinds; ++i) operations[i] += seed.operations[i];
        for (std::size_t i = 0; i < Facts; ++i) facts[i] += seed.facts[i];
        most_outstanding = std::max(most_outstanding, seed.most_outstanding);
        most_operations = std::max(most_operations, seed.most_operations);
        least_operations = std::min(least_operations, seed.least_operations);
    }
};

inline constexpr std::uint32_t slot_bytes = 256; ///< of the memory that all operations share
inline constexpr std::uint32_t slot_count = 2048;
inline constexpr std::uint32_t most_bytes = 128; ///< of a message
inline constexpr std::uint32_t header_bytes = vb::address_handle::grh_bytes;
inline constexpr std::uint32_t pool_buffers = 8;
inline constexpr std::uint32_t qkey = 0x1234;

inline void put_number(std::span<std::byte> bytes, std::uint64_t number) noexcept {
    for (std::size_t at = 0; at + sizeof number <= bytes.size(); at += sizeof number)
        std::memcpy(&bytes[at], &number, sizeof number);
}
inline bool has_number(std::span<const std::byte> bytes, std::uint64_t number) noexcept {
    for (std::size_t at = 0; at + sizeof number <= bytes.size(); at += sizeof number)
        if (std::memcmp(&bytes[at], &number, sizeof number) != 0) return false;
    return true;
}

class dice {
  public:
    explicit dice(std::uint64_t seed) noexcept : state_(seed * 0x9e3779b97f4a7c15 + 0x1234567) {}
    /// 0 to `count` - 1.
    std::uint32_t below(std::uint32_t count) noexcept { return static_cast<std::uint32_t>((next() >> 16) % count); }
    std::uint32_t between(std::uint32_t least, std::uint32_t most) noexcept { return least + below(most - least + 1); }
    bool one_in(std::uint32_t n) noexcept { return below(n) == 0; }

  private:
    std::uint64_t next() noexcept {
        state_ ^= state_ << 13;
        state_ ^= state_ >> 7;
        state_ ^= state_ << 17;
        return state_;
    }
    std::uint64_t state_;
};

/// The last things that happened, and a hash of all. What they are is the load's to say, in enumerations of one byte.
class trace {
  public:
    void restart() noexcept {
        count_ = 0;
        hash_ = 0xcbf29ce484222325;
    }
    template <class Mark, class Kind>
    void add(nanoseconds when, Mark what, Kind k, std::uint64_t number) noexcept {
        const line l{when, number, static_cast<std::uint8_t>(what), static_cast<std::uint8_t>(k)};
        for (const std::uint64_t word : {static_cast<std::uint64_t>(when.count()), number,
                                         static_cast<std::uint64_t>(l.what) << 8 | std::uint64_t{l.of}}) {
            hash_ ^= word;
            hash_ *= 0x100000001b3;
            hash_ ^= hash_ >> 29;
        }
        lines_[count_++ % lines_.size()] = l;
    }
    std::uint64_t hash() const noexcept { return hash_; }
    /// `print_rest(what, of, number)` ends each line.
    template <class F>
    void print(F&& print_rest) const noexcept {
        for (std::size_t i = count_ > lines_.size() ? count_ - lines_.size() : 0; i < count_; ++i) {
            const line& l = lines_[i % lines_.size()];
            std::printf("  %9" PRId64 " ns  ", static_cast<std::int64_t>(l.when.count()));
            print_rest(l.what, l.of, l.number);
            std::printf("\n");
        }
    }

  private:
    struct line {
        nanoseconds when;
        std::uint64_t number;
        std::uint8_t what;
        std::uint8_t of;
    };
    std::array<line, 64> lines_;
    std::size_t count_ = 0;
    std::uint64_t hash_ = 0;
};

inline trace events;

/// Registered memory in slots of one size. What is not in use holds junk, so that a slot given back too early is read
/// and written as such; if nothing is used again, that junk shows at the end who wrote afterwards.
class arena {
  public:
    explicit arena(const vb::protection_domain& domain)
        : region_(vb::memory_region::allocate(domain, std::size_t{slot_bytes} * slot_count,
                                              vb::access_flags::local_write | vb::access_flags::remote_read |
                                                  vb::access_flags::remote_write | vb::access_flags::remote_atomic)
                      .value()) {
        restart();
    }
    void restart(bool uses_again = true) {
        uses_again_ = uses_again;
        given_back_.clear();
        free_.clear();
        for (std::uint32_t slot = slot_count; slot > 0; --slot) free_.push_back(slot - 1);
    }
    bool all_free() const noexcept { return free_.size() + given_back_.size() == slot_count; }
    std::uint32_t take() {
        if (free_.empty()) failed("the load holds more memory than there is");
        const auto slot = free_.back();
        free_.pop_back();
        return slot;
    }
    void give(std::uint32_t slot) noexcept {
        std::memset(region_.bytes().data() + std::size_t{slot} * slot_bytes, std::to_integer<int>(junk), slot_bytes);
        (uses_again_ ? free_ : given_back_).push_back(slot);
    }
    /// Whether nobody has written to what was given back.
    bool quiet() const noexcept {
        return std::ranges::all_of(given_back_, [this](std::uint32_t slot) {
            const auto bytes = region_.bytes().subspan(std::size_t{slot} * slot_bytes, slot_bytes);
            return std::ranges::all_of(bytes, [](std::byte b) { return b == junk; });
        });
    }
    const vb::memory_region& region() const noexcept { return region_; }

  private:
    static constexpr std::byte junk{0xee};

    vb::memory_region region_;
    std::vector<std::uint32_t> free_;
    std::vector<std::uint32_t> given_back_; ///< if not to be used again
    bool uses_again_ = true;
};

/// One slot.
class buffer {
  public:
    explicit buffer(arena& from) : arena_(&from), slot_(from.take()) {}
    buffer(buffer&& other) noexcept : arena_(std::exchange(other.arena_, nullptr)), slot_(other.slot_) {}
    buffer& operator=(buffer&& other) noexcept {
        std::swap(arena_, other.arena_);
        std::swap(slot_, other.slot_);
        return *this;
    }
    ~buffer() {
        if (arena_ != nullptr) arena_->give(slot_);
    }
    vb::memory_slice slice(std::uint32_t length, std::uint32_t offset = 0) const {
        return arena_->region().slice(std::size_t{slot_} * slot_bytes + offset, length);
    }
    vb::remote_slice remote(std::uint32_t length) const {
        return arena_->region().remote(std::size_t{slot_} * slot_bytes, length);
    }
    std::span<std::byte> bytes(std::uint32_t length) const { return slice(length).bytes(); }
    std::uint64_t word() const {
        std::uint64_t value;
        std::memcpy(&value, bytes(sizeof value).data(), sizeof value);
        return value;
    }

  private:
    arena* arena_;
    std::uint32_t slot_;
};

/// A device, and what is reused from one seed to the next.
class world {
  public:
    explicit world(const char* name)
        : device(vb::context::open(name).value()), domain(vb::protection_domain::create(device).value()),
          memory(domain), pool(vb::buffer_pool::create(domain, pool_buffers, most_bytes).value()), control(name) {
        const auto gids = device.gids(1).value();
        const auto& gid = gids.back();
        way = vb::address_handle::create(domain,
                                         {.destination = gid.gid, .gid_index = static_cast<std::uint8_t>(gid.index)})
                  .value();
    }

    vb::context device;
    vb::protection_domain domain;
    arena memory;
    vb::buffer_pool pool;
    vb::address_handle way; ///< to this device itself
    sim::control control;
};

} // namespace seeds
