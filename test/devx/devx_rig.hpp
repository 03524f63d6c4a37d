#pragma once

// The DEVX device under test with its remote control, and a reactor that reads a command channel of it.

#include "device/by_hand.hpp"
#include "support/deadline.hpp"
#include "support/network_order.hpp"
#include "test_device.hpp"

#include <verbena/mlx5/command_channel.hpp>
#include <verbena/mlx5/error.hpp>
#include <verbena/mlx5/general_command.hpp>
#include <verbena/mlx5/object.hpp>
#include <verbena/mlx5/open_context.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace devx {

namespace vb = verbena;
namespace mlx5 = verbena::mlx5;
using namespace std::chrono_literals;
using support::ending_log;
using support::get;
using support::put;

using command = std::array<std::byte, 32>;
template <std::size_t bytes = 64>
using output = std::array<std::byte, bytes>;

inline constexpr std::uint16_t create_general = 0xa00, modify_general = 0xa01, query_general = 0xa02;
inline constexpr std::uint16_t alloc_counter = 0x939, query_counter = 0x93b;
inline constexpr std::uint16_t general_type = 0x27;

inline command make_command(std::uint16_t opcode, std::uint16_t type = 0) {
    command c{};
    put(&c[0], opcode, 2);
    put(&c[6], type, 2);
    return c;
}

/// An object of the device, and the commands for it.
struct thing {
    thing(const vb::context& device, bool general_object) : general(general_object) {
        output<16> out;
        handle = mlx5::object::create(
                     device, general ? make_command(create_general, general_type) : make_command(alloc_counter), out)
                     .value();
        id = static_cast<std::uint32_t>(get(&out[8], 4));
    }

    command query(std::uint64_t number) const {
        command c = general ? make_command(query_general, general_type) : make_command(query_counter);
        put(&c[general ? 8 : 28], id, 4);
        put(&c[16], number, 8);
        return c;
    }
    /// Whether this is what the device answers.
    bool answers(std::span<const std::byte> out, std::uint64_t number) const {
        if (get(&out[0], 8) != 0 || get(&out[8], 4) != id || get(&out[16], 8) != number) return false;
        for (std::size_t i = 24; i < out.size(); ++i)
            if (out[i] != static_cast<std::byte>(number + i)) return false;
        return true;
    }

    bool general;
    mlx5::object handle;
    std::uint32_t id = 0;
};

/// The device as new, before and after.
struct fresh_device {
    test_device devx;

    fresh_device() { renew(); }
    fresh_device(const fresh_device&) = delete;
    fresh_device& operator=(const fresh_device&) = delete;
    ~fresh_device() { renew(); }
    void renew() {
        devx.reset();
        devx.insert();
    }
};

struct rig : fresh_device {
    explicit rig(std::size_t max_response = 4096)
        : device(mlx5::open_context(test_device::name).value()),
          reactor({.wait = vb::wait_policy::park_at_once(), .safety_repoll = 0ms}),
          channel(mlx5::command_channel::create(device, {.max_response = max_response}).value()),
          counter(device, false), general(device, true) {
        reactor.attach(channel).value();
    }
    ~rig() { devx.reset(); } // else the context waits for what is held

    template <class Condition>
    void turn_until(Condition condition) {
        support::turn_until(reactor, condition);
    }
    void turns() { support::some_turns(reactor); }
    void finish(vb::scope& scope) {
        reactor.run([](vb::scope& s) -> vb::task<> { co_await s.join(); }(scope));
    }
    /// Runs while a coroutine sleeps, and answers how many turns that took.
    std::uint64_t idle_turns(std::chrono::milliseconds time = 50ms) {
        const auto before = reactor.stats().turns;
        reactor.run([](vb::reactor& r, auto asleep) -> vb::task<> { co_await r.sleep_for(asleep); }(reactor, time));
        return reactor.stats().turns - before;
    }

    vb::context device;
    vb::reactor reactor;
    mlx5::command_channel channel;
    thing counter;
    thing general;
};

/// Queries once. What it gets must be its own.
inline vb::task<> ask(const mlx5::command_channel& channel, const thing& of, std::uint64_t number, ending_log& log) {
    output<> out{};
    const auto in = of.query(number);
    const auto got = co_await channel.query(of.handle, in, out);
    if (got) {
        CHECK(got->certain());
        CHECK(got->bytes().data() == out.data());
        CHECK(of.answers(got->bytes(), number));
    }
    log.add(got);
}

/// Queries one after the other, until one fails or gets other bytes than its own.
inline vb::task<> ask_many(const mlx5::command_channel& channel, const thing& of, std::uint64_t first,
                           std::uint64_t count, ending_log& log) {
    output<> out;
    for (std::uint64_t number = first; number < first + count; ++number) {
        const auto in = of.query(number);
        const auto got = co_await channel.query(of.handle, in, out);
        if (got && !of.answers(got->bytes(), number))
            log.failures.emplace_back(vb::errc::invalid_argument, "a response of another query");
        else
            log.add(got);
        if (!log.failures.empty()) co_return;
    }
}

/// All failed alike.
inline bool all_are(const std::vector<vb::error>& failures, vb::errc condition) {
    return std::ranges::all_of(failures, [&](const vb::error& e) { return e == condition; });
}

} // namespace devx
