#pragma once

#include <verbena/verbs/protection_domain.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>

namespace verbena {

namespace detail {
struct memory_region_state;
}

/// What a device may do with a memory region or, for the remote ones, what a queue pair lets its peer do. Source:
/// ibv_reg_mr(3).
enum class access_flags : unsigned {
    local_read = 0,                                 ///< always there
    local_write = IBV_ACCESS_LOCAL_WRITE,           ///< the device may write: receives, reads, atomics
    remote_write = IBV_ACCESS_REMOTE_WRITE,         ///< the peer may write; needs local_write
    remote_read = IBV_ACCESS_REMOTE_READ,           ///< the peer may read
    remote_atomic = IBV_ACCESS_REMOTE_ATOMIC,       ///< the peer may do atomics; needs local_write
    relaxed_ordering = IBV_ACCESS_RELAXED_ORDERING, ///< writes may overtake each other on the way to memory
};

/// Both.
constexpr access_flags operator|(access_flags a, access_flags b) noexcept {
    return static_cast<access_flags>(static_cast<unsigned>(a) | static_cast<unsigned>(b));
}
/// What they share.
constexpr access_flags operator&(access_flags a, access_flags b) noexcept {
    return static_cast<access_flags>(static_cast<unsigned>(a) & static_cast<unsigned>(b));
}
/// Adds some.
constexpr access_flags& operator|=(access_flags& a, access_flags b) noexcept { return a = a | b; }
/// Whether `flags` holds all of `wanted`.
constexpr bool has(access_flags flags, access_flags wanted) noexcept { return (flags & wanted) == wanted; }

/// A piece of registered local memory, as a work request names it. The layout is that of `ibv_sge`.
struct memory_slice {
    std::uint64_t address = 0; ///< in this process
    std::uint32_t length = 0;  ///< in bytes
    std::uint32_t lkey = 0;    ///< `memory_region::lkey()`

    /// The first `count` bytes. Throws std::out_of_range if that is more than the length.
    constexpr memory_slice first(std::size_t count) const { return subslice(0, count); }
    /// `count` bytes from byte `offset` on. Throws std::out_of_range if they do not lie within this slice.
    constexpr memory_slice subslice(std::size_t offset, std::size_t count) const {
        if (offset > length || count > length - offset) throw std::out_of_range("verbena: subslice beyond its slice");
        return {address + offset, static_cast<std::uint32_t>(count), lkey};
    }
    /// The memory itself.
    std::span<std::byte> bytes() const noexcept {
        return {reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(address)), length};
    }
    friend bool operator==(const memory_slice&, const memory_slice&) noexcept = default;
};
static_assert(sizeof(memory_slice) == sizeof(ibv_sge) && offsetof(memory_slice, address) == offsetof(ibv_sge, addr) &&
              offsetof(memory_slice, length) == offsetof(ibv_sge, length) &&
              offsetof(memory_slice, lkey) == offsetof(ibv_sge, lkey));

/// A piece of a peer's registered memory, for RDMA reads, writes and atomics.
struct VERBENA_API remote_slice {
    std::uint64_t address = 0; ///< in the peer's process
    std::uint32_t length = 0;  ///< in bytes
    std::uint32_t rkey = 0;    ///< the peer's `memory_region::rkey()`

    static constexpr std::size_t encoded_bytes = 16; ///< of `to_bytes`
    /// The form to send to a peer: address (8 bytes), length (4), rkey (4), each with the most significant byte first.
    std::array<std::byte, encoded_bytes> to_bytes() const noexcept;
    /// What a peer's `to_bytes` gave. Nothing in it is checked: the device does, at every access.
    static remote_slice from_bytes(std::span<const std::byte, encoded_bytes> bytes) noexcept;

    /// `count` bytes from byte `offset` on. Throws std::out_of_range if they do not lie within this slice.
    constexpr remote_slice subslice(std::size_t offset, std::size_t count) const {
        if (offset > length || count > length - offset) throw std::out_of_range("verbena: subslice beyond its slice");
        return {address + offset, static_cast<std::uint32_t>(count), rkey};
    }
    friend bool operator==(const remote_slice&, const remote_slice&) noexcept = default;
};

/// Memory that the device may reach. Move-only; deregistered when it dies, which work in flight on it must not outlive.
/// *Thread-safe* once created, as it never changes.
class VERBENA_API memory_region {
  public:
    /// Registers the caller's memory, which must outlive the region. Errors: `invalid_argument`: no bytes, memory that
    /// is not mapped, remote_write or remote_atomic without local_write; `resource`: the note names RLIMIT_MEMLOCK.
    /// Source: ibv_reg_mr(3).
    static result<memory_region> register_memory(const protection_domain& domain, std::span<std::byte> bytes,
                                                 access_flags access = access_flags::local_write);
    /// Registers memory of its own: page-aligned and zeroed. Errors as above. Source: ibv_reg_mr(3).
    static result<memory_region> allocate(const protection_domain& domain, std::size_t bytes,
                                          access_flags access = access_flags::local_write);

    memory_region() noexcept = default;
    memory_region(memory_region&&) noexcept = default;
    memory_region& operator=(memory_region&&) noexcept = default;
    explicit operator bool() const noexcept { return state_ != nullptr; }

    std::span<std::byte> bytes() const noexcept; ///< all of the memory
    /// All of it. Throws std::out_of_range if that is more than a slice can name, 4 GiB - 1.
    memory_slice slice() const;
    /// `length` bytes from byte `offset` on. Throws std::out_of_range if they do not lie within the region.
    memory_slice slice(std::size_t offset, std::size_t length) const;
    /// What to tell a peer. Throws as `slice` does.
    remote_slice remote() const;
    /// A part of it, as `slice`.
    remote_slice remote(std::size_t offset, std::size_t length) const;

    std::uint32_t lkey() const noexcept; ///< for work requests of this side
    std::uint32_t rkey() const noexcept; ///< for those of a peer
    protection_domain domain() const noexcept;
    ibv_mr* native_handle() const noexcept;

  private:
    friend struct detail::access;
    explicit memory_region(std::shared_ptr<detail::memory_region_state> state) noexcept : state_(std::move(state)) {}

    std::shared_ptr<detail::memory_region_state> state_;
};

} // namespace verbena
