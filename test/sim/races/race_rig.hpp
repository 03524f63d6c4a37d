#pragma once

// What the tests of races need: a simulated device with its remote control, a reactor with two queues on one channel,
// and moments at which a completion lands. The safety re-poll is off, so that nothing repairs what was lost.

#include "device/by_hand.hpp"
#include "support/deadline.hpp"

#include <verbena/sim/control.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace races {

namespace vb = verbena;
namespace sim = verbena::sim;
using sim::point;
using support::ending_log;

inline constexpr std::uint32_t message_bytes = 64;
inline constexpr std::byte pattern{0x5a};
inline constexpr auto rights = vb::access_flags::local_write | vb::access_flags::remote_write |
                               vb::access_flags::remote_read | vb::access_flags::remote_atomic;

/// Both characters, or the one that VERBENA_DEVICE names.
inline std::vector<std::string> devices() {
    const char* one = std::getenv("VERBENA_DEVICE");
    if (one != nullptr && *one != '\0') return {one};
    return {"sim0", "sim1"};
}

/// Delivers what is held for this queue; what comes later is held again.
inline unsigned let_go(sim::control& control, const ibv_cq* cq) {
    unsigned count = 0;
    for (const auto& held : control.held())
        if (held.cq == cq && control.release(held.id)) ++count;
    return count;
}

struct lab_options {
    std::uint32_t depth = 16;
    std::size_t slots = 32;
    bool attach = true;
    std::chrono::milliseconds safety_repoll{0};
    vb::post_mode mode = vb::post_mode::immediate;
};

/// A connection, `left` and `right`, whose sends complete in one queue and whose receives complete in another.
struct lab {
    explicit lab(const std::string& name, const lab_options& wanted = {})
        : control(fresh(name)), device(vb::context::open(name).value()),
          domain(vb::protection_domain::create(device).value()), options(wanted), slots(wanted.slots),
          reactor({.wait = vb::wait_policy::park_at_once(), .safety_repoll = wanted.safety_repoll}),
          channel(vb::completion_channel::create(device).value()),
          send_cq(vb::completion_queue::create(device, 4, {.channel = channel}).value()),
          recv_cq(vb::completion_queue::create(device, 4, {.channel = channel}).value()), left(make()), right(make()),
          memory(vb::memory_region::allocate(domain, 8192, rights).value()) {
        support::connect(*left, *right);
        if (options.attach) attach();
    }
    lab(const lab&) = delete;
    lab& operator=(const lab&) = delete;
    /// Before anything dies: the functions at the points refer to objects of the test.
    ~lab() { control.reset(); }

    void attach(const vb::attach_options& with = {}) {
        reactor.attach(send_cq, slots, with).value();
        reactor.attach(recv_cq, slots, with).value();
    }
    vb::queue_pair make() {
        return vb::queue_pair::create(domain, {.send_cq = send_cq,
                                               .recv_cq = recv_cq,
                                               .max_send = options.depth,
                                               .max_recv = options.depth,
                                               .post_mode = options.mode})
            .value();
    }
    vb::memory_slice slice(std::size_t index) const { return memory.slice(index * message_bytes, message_bytes); }
    std::span<std::byte> bytes(std::size_t index) {
        return memory.bytes().subspan(index * message_bytes, message_bytes);
    }
    ibv_cq* sends() const { return send_cq.native_handle(); }
    ibv_cq* receives() const { return recv_cq.native_handle(); }

    void finish(vb::scope& scope) {
        reactor.run([](vb::scope& s) -> vb::task<> { co_await s.join(); }(scope));
    }
    void turns() { support::some_turns(reactor); }
    unsigned let_go(const ibv_cq* cq) { return races::let_go(control, cq); }

    void hold() {
        control.hold(sends());
        control.hold(receives());
    }
    /// Delivers what is held, and from now on completions land at once.
    void release() {
        control.release(sends());
        control.release(receives());
        control.at(point::arm_ends, {});
        control.at(point::poll_ends, {});
        control.at(point::post_send_ends, {});
        armed_.clear();
        silent_.clear();
    }
    /// From now on every completion lands when its queue was armed and then found empty: the reactor is about to sleep,
    /// and the event wakes it. If that has been before, with the post: such a queue is polled no more.
    void complete_asleep() {
        hold();
        control.at(point::arm_ends, [this](const auto& at) {
            armed_.insert(at.cq);
            silent_.erase(at.cq);
        });
        control.at(point::poll_ends, [this](const auto& at) {
            if (!armed_.contains(at.cq)) return;
            if (let_go(at.cq) > 0)
                armed_.erase(at.cq);
            else
                silent_.insert(at.cq);
        });
        control.at(point::post_send_ends, [this](const auto&) {
            for (const ibv_cq* cq : std::set(silent_))
                if (let_go(cq) > 0) {
                    armed_.erase(cq);
                    silent_.erase(cq);
                }
        });
    }
    /// From now on every completion lands when its queue has just been armed: there is an event, and the drain before
    /// the sleep finds the entry first.
    void complete_at_arm() {
        hold();
        control.at(point::poll_ends, {});
        control.at(point::post_send_ends, {});
        control.at(point::arm_ends, [this](const auto& at) { let_go(at.cq); });
    }

    sim::control control;
    vb::context device;
    vb::protection_domain domain;
    lab_options options;
    std::vector<vb::poll_slot> slots;
    vb::reactor reactor;
    vb::completion_channel channel;
    vb::completion_queue send_cq;
    vb::completion_queue recv_cq;
    std::optional<vb::queue_pair> left;
    std::optional<vb::queue_pair> right;
    vb::memory_region memory;

  private:
    static sim::control fresh(const std::string& name) {
        sim::control control(name);
        control.reset();
        control.clear_ledger();
        return control;
    }

    std::set<const ibv_cq*> armed_;
    std::set<const ibv_cq*> silent_; ///< of these
};

/// A connection beside that of the lab, in a queue of its own.
struct beside {
    beside(lab& l, const vb::completion_queue& cq)
        : left(support::make_pair_end(l.domain, cq, support::pair_options(4))),
          right(support::make_pair_end(l.domain, cq, support::pair_options(4))) {
        support::connect(left, right);
    }
    vb::queue_pair left;
    vb::queue_pair right;
};

/// Sends and receives one message.
inline vb::task<> exchange(lab& l, ending_log& log) {
    auto [got, sent] = co_await vb::when_all(l.right->recv(l.slice(0)), l.left->send(l.slice(1)));
    log.add(got);
    log.add(sent);
}
inline vb::task<> exchanges(lab& l, unsigned count, ending_log& log) {
    for (unsigned i = 0; i < count; ++i) co_await exchange(l, log);
}

inline vb::task<> receive_numbered(const vb::queue_pair& qp, vb::memory_slice into, int number,
                                   std::vector<int>& order) {
    const auto got = co_await qp.recv(into);
    order.push_back(got ? number : -number);
}
inline vb::task<> send_numbered(const vb::queue_pair& qp, vb::memory_slice from, int number, std::vector<int>& order) {
    const auto sent = co_await qp.send(from);
    order.push_back(sent ? number : -number);
}
inline std::vector<int> numbers(int from, int to) {
    std::vector<int> list;
    for (int i = from; i <= to; ++i) list.push_back(i);
    return list;
}

} // namespace races
