#include <verbena/verbs/memory_region.hpp>

#include "states.hpp"
#include "verb.hpp"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <limits>

namespace verbena {
namespace {

constexpr auto verb = "ibv_reg_mr";

result<void> check_arguments(const protection_domain& domain, std::size_t bytes, access_flags access) {
    if (auto checked = detail::check_parent(domain, verb, "protection domain"); !checked) return checked;
    if (bytes == 0) return error(errc::invalid_argument, verb).with_note("there are no bytes to register");
    const bool remote_writes = (access & (access_flags::remote_write | access_flags::remote_atomic)) != access_flags{};
    if (remote_writes && !has(access, access_flags::local_write))
        return error(errc::invalid_argument, verb).with_note("remote_write and remote_atomic need local_write");
    return {};
}

result<void> register_with(detail::memory_region_state& state, const protection_domain& domain, std::byte* begin,
                           std::size_t bytes, access_flags access) {
    state.domain = detail::access::state(domain);
    state.begin = begin;
    state.bytes = bytes;
    auto native = detail::check_pointer(
        verb, [&] { return ibv_reg_mr(state.domain->native, begin, bytes, static_cast<int>(access)); });
    if (!native) return native.error();
    state.native = *native;
    return {};
}

std::byte* put_big_endian(std::byte* out, std::uint64_t value, int bytes) noexcept {
    for (int shift = (bytes - 1) * 8; shift >= 0; shift -= 8) *out++ = static_cast<std::byte>(value >> shift);
    return out;
}

std::uint64_t big_endian(std::span<const std::byte> bytes) noexcept {
    std::uint64_t value = 0;
    for (auto byte : bytes) value = value << 8 | std::to_integer<std::uint64_t>(byte);
    return value;
}

} // namespace

detail::memory_region_state::~memory_region_state() {
    // Memory that a device may still write to is lost rather than freed. So is a fork's copy, which it may not have
    // (MADV_DONTFORK).
    if (native && !destroy(*domain->context, "ibv_dereg_mr", [&] { return ibv_dereg_mr(native); })) return;
    std::free(owned);
}

std::array<std::byte, remote_slice::encoded_bytes> remote_slice::to_bytes() const noexcept {
    std::array<std::byte, encoded_bytes> bytes;
    put_big_endian(put_big_endian(put_big_endian(bytes.data(), address, 8), length, 4), rkey, 4);
    return bytes;
}

remote_slice remote_slice::from_bytes(std::span<const std::byte, encoded_bytes> bytes) noexcept {
    return {big_endian(bytes.first<8>()), static_cast<std::uint32_t>(big_endian(bytes.subspan<8, 4>())),
            static_cast<std::uint32_t>(big_endian(bytes.subspan<12, 4>()))};
}

result<memory_region> memory_region::register_memory(const protection_domain& domain, std::span<std::byte> bytes,
                                                     access_flags access) {
    if (auto checked = check_arguments(domain, bytes.size(), access); !checked) return checked.error();
    auto state = std::make_shared<detail::memory_region_state>();
    auto registered = register_with(*state, domain, bytes.data(), bytes.size(), access);
    if (!registered) return registered.error();
    return memory_region(std::move(state));
}

result<memory_region> memory_region::allocate(const protection_domain& domain, std::size_t bytes, access_flags access) {
    if (auto checked = check_arguments(domain, bytes, access); !checked) return checked.error();
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    if (bytes > std::numeric_limits<std::size_t>::max() - page) return error(errc::resource, "aligned_alloc");
    const auto whole_pages = (bytes + page - 1) / page * page;
    auto state = std::make_shared<detail::memory_region_state>();
    // No RLIMIT_MEMLOCK note here: nothing is locked yet.
    state->owned = std::aligned_alloc(page, whole_pages);
    if (!state->owned) return error(detail::system_code(ENOMEM), "aligned_alloc");
    std::memset(state->owned, 0, whole_pages);
    auto registered = register_with(*state, domain, static_cast<std::byte*>(state->owned), bytes, access);
    if (!registered) return registered.error();
    return memory_region(std::move(state));
}

std::span<std::byte> memory_region::bytes() const noexcept { return {state_->begin, state_->bytes}; }

memory_slice memory_region::slice() const { return slice(0, state_->bytes); }

memory_slice memory_region::slice(std::size_t offset, std::size_t length) const {
    if (offset > state_->bytes || length > state_->bytes - offset)
        throw std::out_of_range("verbena: slice beyond its memory region");
    if (length > std::numeric_limits<std::uint32_t>::max())
        throw std::out_of_range("verbena: a slice holds less than 4 GiB");
    return {reinterpret_cast<std::uintptr_t>(state_->begin + offset), static_cast<std::uint32_t>(length), lkey()};
}

remote_slice memory_region::remote() const { return remote(0, state_->bytes); }

remote_slice memory_region::remote(std::size_t offset, std::size_t length) const {
    const auto local = slice(offset, length);
    return {local.address, local.length, rkey()};
}

std::uint32_t memory_region::lkey() const noexcept { return state_->native->lkey; }
std::uint32_t memory_region::rkey() const noexcept { return state_->native->rkey; }
protection_domain memory_region::domain() const noexcept {
    return detail::access::make<protection_domain>(state_ ? state_->domain : nullptr);
}
ibv_mr* memory_region::native_handle() const noexcept { return state_ ? state_->native : nullptr; }

} // namespace verbena
