#pragma once

// The DEVX device that a test runs on: sim0 in the program that is linked with sim_device.cpp, fdevx0 of the guest in
// the one that is linked with kernel_device.cpp.

#include <cstddef>
#include <cstdint>
#include <random>

struct mlx5dv_devx_event_channel;

namespace devx {

struct thing;

/// Its remote control. What is not said here is said by verbena/sim/devx_control.hpp.
struct test_device {
    static const char* const name;
    static const char* const without_devx; ///< another device
    static const bool simulated;
    static const std::uint64_t allocations_of_issue; ///< by mlx5dv_devx_obj_query_async itself

    /// All as at first, and what is held is delivered. A removed device stays away.
    void reset();
    void remove();
    void insert();

    /// Asynchronous queries issued and not yet answered.
    std::uint64_t in_flight() const;
    void hold();
    void release();
    /// False: none is held.
    bool release_oldest();
    /// Delivers some of what is held, one at least if there is any, in random order; it goes on to hold.
    void release_shuffled(std::minstd_rand& random);

    void refuse(std::uint8_t status, std::uint32_t syndrome, std::uint32_t count = 1);
    void lose(std::uint32_t count = 1);
    void throttle(std::uint32_t limit);
    void old_kernel(bool on);
    void window(std::size_t bytes);

    /// An event of `of`, or of none if it is null; the number is in bytes 32 to 39 of its data, in network order.
    /// False: nobody has subscribed.
    bool raise(const thing* of, std::uint16_t event, std::uint64_t number);
    /// The next `count` events of the channel, and no other may get any meanwhile.
    void lose_events(mlx5dv_devx_event_channel* channel, std::uint32_t count);
};

} // namespace devx
