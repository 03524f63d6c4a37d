#pragma once

// What most tests of the runtime need: a device, a domain, a reactor with its queue, and connected queue pairs.

#include "support.hpp"

#include <verbena/verbena.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace support {

namespace vb = verbena;

/// A reactor with one attached completion queue. The safety re-poll is off, so that a lost event shows.
struct engine {
    explicit engine(const vb::context& device, vb::wait_policy wait = vb::wait_policy::park_at_once(),
                    std::size_t entries = 256, std::chrono::milliseconds safety = std::chrono::milliseconds{0})
        : reactor({.wait = wait, .safety_repoll = safety}), channel(vb::completion_channel::create(device).value()),
          cq(vb::completion_queue::create(device, entries, {.channel = channel}).value()) {
        reactor.attach(cq, slots).value();
    }

    std::array<vb::poll_slot, 32> slots;
    vb::reactor reactor;
    vb::completion_channel channel;
    vb::completion_queue cq;
};

inline vb::queue_pair make_pair_end(const vb::protection_domain& domain, const vb::completion_queue& cq,
                                    vb::queue_pair_options options) {
    options.send_cq = cq;
    options.recv_cq = cq;
    return vb::queue_pair::create(domain, options).value();
}

/// Options without queues, for `make_pair_end`.
inline vb::queue_pair_options pair_options(std::uint32_t depth = 16) {
    return {.send_cq = {}, .recv_cq = {}, .max_send = depth, .max_recv = depth};
}

/// Connects with few retries, so that failures end soon.
inline void connect(vb::queue_pair& a, vb::queue_pair& b) {
    const vb::connection_options options{.retry_cnt = 2, .rnr_retry = 7, .timeout = 8, .min_rnr_timer = 1};
    a.connect(b.endpoint(), options).value();
    b.connect(a.endpoint(), options).value();
}

/// Two connected RC queue pairs on one engine.
struct wire {
    wire(const vb::protection_domain& domain, engine& left_engine, engine& right_engine, vb::queue_pair_options options)
        : left(make_pair_end(domain, left_engine.cq, options)), right(make_pair_end(domain, right_engine.cq, options)) {
    }
    wire(const vb::protection_domain& domain, engine& both, vb::queue_pair_options options = pair_options())
        : wire(domain, both, both, options) {
        connect();
    }
    void connect() { support::connect(left, right); }

    vb::queue_pair left;
    vb::queue_pair right;
};

inline void put_number(std::span<std::byte> bytes, std::uint64_t number) {
    for (std::size_t at = 0; at + sizeof number <= bytes.size(); at += sizeof number)
        std::memcpy(bytes.data() + at, &number, sizeof number);
}
inline bool has_number(std::span<const std::byte> bytes, std::uint64_t number) {
    for (std::size_t at = 0; at + sizeof number <= bytes.size(); at += sizeof number)
        if (std::memcmp(bytes.data() + at, &number, sizeof number) != 0) return false;
    return !bytes.empty();
}

inline std::string describe(const vb::reactor_stats& stats) { return fmt::format("{}", stats); }

} // namespace support
