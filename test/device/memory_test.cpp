// Invariant: a slice never names memory outside its region, and a pool hands every buffer out once until it comes back.

#include "support.hpp"

#include "verbs/states.hpp"

#include <verbena/verbs/buffer_pool.hpp>

#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <set>
#include <vector>

namespace vb = verbena;
using vb::access_flags;

TEST_CASE("a region over the caller's memory") {
    VERBENA_REQUIRE_DEVICE(device);
    const auto domain = vb::protection_domain::create(device).value();
    std::vector<std::byte> memory(1000);
    auto region = vb::memory_region::register_memory(domain, memory).value();
    CHECK(region.bytes().data() == memory.data());
    CHECK(region.bytes().size() == 1000);
    CHECK(region.domain() == domain);
    const auto all = region.slice();
    CHECK(all.address == reinterpret_cast<std::uintptr_t>(memory.data()));
    CHECK(all.length == 1000);
    CHECK(all.lkey == region.lkey());
    CHECK(region.slice(1000, 0).length == 0);
    CHECK(region.slice(10, 20).address == all.address + 10);
    CHECK_THROWS_AS(region.slice(0, 1001), std::out_of_range);
    CHECK_THROWS_AS(region.slice(1001, 0), std::out_of_range);
    CHECK_THROWS_AS(region.slice(1, ~std::size_t{0}), std::out_of_range);
    CHECK_THROWS_AS(region.remote(990, 11), std::out_of_range);
    CHECK(region.remote(10, 20) == vb::remote_slice{all.address + 10, 20, region.rkey()});
    CHECK(fmt::format("{}", region).find("1000 bytes") != std::string::npos);

    auto moved = std::move(region);
    CHECK(!region);
    CHECK(moved.bytes().data() == memory.data());
    CHECK(fmt::format("{}", region) == "memory_region(empty)");
}

TEST_CASE("memory of its own is zeroed and starts a page") {
    VERBENA_REQUIRE_DEVICE(device);
    const auto domain = vb::protection_domain::create(device).value();
    const auto region =
        vb::memory_region::allocate(domain, 5000, access_flags::local_write | access_flags::remote_read).value();
    CHECK(region.bytes().size() == 5000);
    CHECK(reinterpret_cast<std::uintptr_t>(region.bytes().data()) % static_cast<std::uintptr_t>(getpagesize()) == 0);
    CHECK(std::ranges::all_of(region.bytes(), [](std::byte b) { return b == std::byte{}; }));
}

TEST_CASE("what cannot be registered is refused, and says why") {
    VERBENA_REQUIRE_DEVICE(device);
    const auto domain = vb::protection_domain::create(device).value();
    std::array<std::byte, 16> memory{};
    const auto code = [](const auto& result) { return result.error().code(); };
    CHECK(code(vb::memory_region::register_memory({}, memory)) == vb::errc::invalid_argument);
    CHECK(code(vb::memory_region::register_memory(domain, {})) == vb::errc::invalid_argument);
    CHECK(code(vb::memory_region::allocate(domain, 0)) == vb::errc::invalid_argument);
    CHECK(code(vb::memory_region::allocate(domain, ~std::size_t{0})) == vb::errc::resource);
    for (const auto remote : {access_flags::remote_write, access_flags::remote_atomic})
        CHECK(code(vb::memory_region::register_memory(domain, memory, remote)) == vb::errc::invalid_argument);
    // Page 0 is not mapped.
    auto* const nowhere = reinterpret_cast<std::byte*>(std::uintptr_t{64});
    const auto unmapped = vb::memory_region::register_memory(domain, {nowhere, 64});
    REQUIRE(!unmapped);
    CHECK(unmapped.error() == vb::errc::invalid_argument);
    CHECK(unmapped.error().message().find("ibv_reg_mr: ") == 0);
}

TEST_CASE("registering beyond the limit of locked memory names the limit") {
    VERBENA_REQUIRE_DEVICE(device);
    // CAP_IPC_LOCK, which root has, lifts the limit: give up being root on this thread for the call.
    const auto domain = vb::protection_domain::create(device).value();
    rlimit before{};
    REQUIRE(getrlimit(RLIMIT_MEMLOCK, &before) == 0);
    const rlimit small{.rlim_cur = 64 * 1024, .rlim_max = before.rlim_max};
    REQUIRE(setrlimit(RLIMIT_MEMLOCK, &small) == 0);
    const bool root = geteuid() == 0;
    if (root) REQUIRE(seteuid(65534) == 0);
    const auto region = vb::memory_region::allocate(domain, 4 << 20);
    if (root) REQUIRE(seteuid(0) == 0);
    REQUIRE(setrlimit(RLIMIT_MEMLOCK, &before) == 0);
    REQUIRE(!region);
    CHECK(region.error() == vb::errc::resource);
    const auto text = region.error().message();
    CHECK(text.find("ibv_reg_mr: ") == 0);
    CHECK(text.find("RLIMIT_MEMLOCK") != std::string::npos);
    CHECK(text.find("64 KiB") != std::string::npos);
    CHECK(text.find("ulimit -l") != std::string::npos);
}

TEST_CASE("a pool hands out every buffer once") {
    VERBENA_REQUIRE_DEVICE(device);
    const auto domain = vb::protection_domain::create(device).value();
    auto pool = vb::buffer_pool::create(domain, 5, 100).value();
    CHECK(pool.count() == 5);
    CHECK(pool.buffer_bytes() == 100);
    std::vector<vb::pool_buffer> out;
    std::set<std::uint64_t> addresses;
    while (auto buffer = pool.try_acquire()) {
        CHECK(buffer->size() == 100);
        CHECK(buffer->slice().address % 64 == 0);
        addresses.insert(buffer->slice().address);
        out.push_back(*std::move(buffer));
    }
    CHECK(out.size() == 5);
    CHECK(addresses.size() == 5);
    CHECK(pool.available() == 0);

    out[2].resize(10);
    CHECK(out[2].bytes().size() == 10);
    CHECK(out[2].slice().length == 10);
    CHECK(out[2].capacity() == 100);
    CHECK_THROWS_AS(out[2].resize(101), std::out_of_range);
    CHECK(fmt::format("{}", out[2]) == "pool_buffer(10 of 100 bytes)");

    const auto address = out[2].slice().address;
    out.erase(out.begin() + 2);
    CHECK(pool.available() == 1);
    auto again = pool.try_acquire();
    REQUIRE(again);
    CHECK(again->slice().address == address);
    CHECK(again->size() == 100);

    const auto token = vb::detail::access::release(*std::move(again));
    again.reset();
    CHECK(pool.available() == 0);
    vb::detail::release_pool_buffer(token);
    CHECK(pool.available() == 1);
    CHECK(fmt::format("{}", pool) == "buffer_pool(1 of 5 buffers free, 100 bytes each)");
}

TEST_CASE("a buffer keeps its pool's memory") {
    VERBENA_REQUIRE_DEVICE(device);
    vb::pool_buffer last;
    {
        auto pool = vb::buffer_pool::create(vb::protection_domain::create(device).value(), 2, 64).value();
        last = pool.try_acquire().value();
        auto moved = std::move(pool);
        CHECK(!pool);
        CHECK(moved.available() == 1);
    }
    std::ranges::fill(last.bytes(), std::byte{1});
    last = {};
    CHECK(!last);
}

TEST_CASE("a pool of nothing is refused") {
    VERBENA_REQUIRE_DEVICE(device);
    const auto domain = vb::protection_domain::create(device).value();
    CHECK(vb::buffer_pool::create(domain, 0, 64).error() == vb::errc::invalid_argument);
    CHECK(vb::buffer_pool::create(domain, 1, 0).error() == vb::errc::invalid_argument);
    CHECK(vb::buffer_pool::create(domain, std::size_t{1} << 32, 1).error() == vb::errc::invalid_argument);
    CHECK(vb::buffer_pool::create({}, 1, 64).error() == vb::errc::invalid_argument);
}
