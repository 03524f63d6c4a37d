#pragma once

#include <verbena/verbs/memory_region.hpp>

#include <optional>
#include <utility>

namespace verbena {

namespace detail {
struct buffer_pool_state;

/// A pool buffer without its destructor: whoever holds it owes the pool one `release_pool_buffer`.
struct pool_token {
    buffer_pool_state* pool = nullptr;
    std::uint32_t index = 0;
};
VERBENA_API void release_pool_buffer(pool_token token) noexcept;
} // namespace detail

/// A buffer taken from a pool; goes back when it dies. Keeps the pool's memory and registration alive. Move-only,
/// *reactor-bound* with its pool.
class VERBENA_API pool_buffer {
  public:
    pool_buffer() noexcept = default;
    pool_buffer(pool_buffer&& other) noexcept
        : token_(std::exchange(other.token_, {})), slice_(std::exchange(other.slice_, {})),
          capacity_(std::exchange(other.capacity_, 0)) {}
    pool_buffer& operator=(pool_buffer&& other) noexcept {
        pool_buffer taken(std::move(other));
        std::swap(token_, taken.token_);
        std::swap(slice_, taken.slice_);
        std::swap(capacity_, taken.capacity_);
        return *this;
    }
    ~pool_buffer() {
        if (token_.pool) detail::release_pool_buffer(token_);
    }
    explicit operator bool() const noexcept { return token_.pool != nullptr; }

    std::span<std::byte> bytes() const noexcept { return slice_.bytes(); } ///< the first `size()` bytes
    memory_slice slice() const noexcept { return slice_; }                 ///< the same, for a work request
    std::uint32_t size() const noexcept { return slice_.length; }          ///< bytes
    std::uint32_t capacity() const noexcept { return capacity_; }          ///< bytes
    /// Sets how many bytes `bytes` and `slice` cover; at first it is the capacity, beyond which it throws
    /// std::out_of_range. The contents stay.
    void resize(std::size_t bytes) {
        if (bytes > capacity_) throw std::out_of_range("verbena: pool_buffer::resize beyond the buffer");
        slice_.length = static_cast<std::uint32_t>(bytes);
    }

  private:
    friend class buffer_pool;
    friend struct detail::access;
    pool_buffer(detail::pool_token token, memory_slice slice) noexcept
        : token_(token), slice_(slice), capacity_(slice.length) {}
    detail::pool_token release() noexcept {
        slice_ = {};
        capacity_ = 0;
        return std::exchange(token_, {});
    }

    detail::pool_token token_;
    memory_slice slice_;
    std::uint32_t capacity_ = 0;
};

/// Registered buffers of one size, taken and given back in constant time without allocating. The memory lives until the
/// pool and the last buffer are gone. *Reactor-bound*: pool and buffers belong to one thread at a time.
class VERBENA_API buffer_pool {
  public:
    /// `count` buffers of `buffer_bytes` each, every one beginning on a cache line. Errors: `invalid_argument`: a zero,
    /// or sizes beyond 32 bits; else as `memory_region::allocate`.
    static result<buffer_pool> create(const protection_domain& domain, std::size_t count, std::size_t buffer_bytes,
                                      access_flags access = access_flags::local_write);

    buffer_pool() noexcept = default;
    buffer_pool(buffer_pool&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}
    buffer_pool& operator=(buffer_pool&& other) noexcept {
        buffer_pool taken(std::move(other));
        std::swap(state_, taken.state_);
        return *this;
    }
    ~buffer_pool();
    explicit operator bool() const noexcept { return state_ != nullptr; }

    /// A buffer, its contents whatever the last user left; nothing if all are out.
    std::optional<pool_buffer> try_acquire() noexcept;
    std::size_t count() const noexcept;          ///< buffers in all
    std::size_t available() const noexcept;      ///< buffers that are not out
    std::uint32_t buffer_bytes() const noexcept; ///< bytes of one, as asked for

  private:
    explicit buffer_pool(detail::buffer_pool_state* state) noexcept : state_(state) {}

    detail::buffer_pool_state* state_ = nullptr;
};

} // namespace verbena
