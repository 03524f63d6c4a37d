#include <verbena/verbs/buffer_pool.hpp>

#include "states.hpp"
#include "verb.hpp"

#include <limits>

namespace verbena {
namespace {

constexpr std::size_t cache_line = 64;

void drop_reference(detail::buffer_pool_state* state) noexcept {
    if (--state->references == 0) delete state;
}

} // namespace

void detail::release_pool_buffer(pool_token token) noexcept {
    token.pool->free.push_back(token.index); // within the capacity reserved at creation
    drop_reference(token.pool);
}

result<buffer_pool> buffer_pool::create(const protection_domain& domain, std::size_t count, std::size_t buffer_bytes,
                                        access_flags access) {
    constexpr auto most = std::numeric_limits<std::uint32_t>::max();
    if (count == 0 || buffer_bytes == 0 || count > most || buffer_bytes > most)
        return error(errc::invalid_argument, "buffer_pool::create")
            .with_note("count and buffer_bytes lie between 1 and 2^32 - 1");
    const auto stride = (buffer_bytes + cache_line - 1) / cache_line * cache_line;
    auto region = memory_region::allocate(domain, count * stride, access);
    if (!region) return region.error();
    auto state = std::make_unique<detail::buffer_pool_state>();
    state->region = *std::move(region);
    state->buffer_bytes = static_cast<std::uint32_t>(buffer_bytes);
    state->stride = stride;
    state->count = count;
    state->free.resize(count);
    for (std::size_t i = 0; i < count; ++i) state->free[i] = static_cast<std::uint32_t>(count - 1 - i);
    return buffer_pool(state.release());
}

buffer_pool::~buffer_pool() {
    if (state_) drop_reference(state_);
}

std::optional<pool_buffer> buffer_pool::try_acquire() noexcept {
    if (state_->free.empty()) return std::nullopt;
    const auto index = state_->free.back();
    state_->free.pop_back();
    ++state_->references;
    return pool_buffer({state_, index}, state_->region.slice(index * state_->stride, state_->buffer_bytes));
}

std::size_t buffer_pool::count() const noexcept { return state_->count; }
std::size_t buffer_pool::available() const noexcept { return state_->free.size(); }
std::uint32_t buffer_pool::buffer_bytes() const noexcept { return state_->buffer_bytes; }

} // namespace verbena
