#pragma once

// The other end of the examples in a loop of somebody else's: a thread with a reactor of its own that echoes.

#include "device/rig.hpp"

#include <cstdint>
#include <future>
#include <string>
#include <string_view>
#include <thread>

namespace example {

namespace vb = verbena;

constexpr std::uint32_t message_bytes = 64;

class far_end {
  public:
    /// Echoes until its peer closes; `peer` is the end to connect to.
    far_end(const vb::context& device, const vb::endpoint& peer)
        : thread_([this, device, peer] {
              auto domain = vb::protection_domain::create(device).value();
              support::engine engine(device, vb::wait_policy::adaptive(), 64);
              auto qp = support::make_pair_end(domain, engine.cq, {.send_cq = {}, .recv_cq = {}});
              auto inbox = vb::receiver::create(qp, {.depth = 8, .message_bytes = message_bytes}).value();
              qp.connect(peer).value();
              endpoint_.set_value(qp.endpoint());
              engine.reactor.run(echo(qp, inbox));
          }) {}

    vb::endpoint endpoint() { return endpoint_.get_future().get(); }

  private:
    static vb::task<> echo(vb::queue_pair& qp, vb::receiver& inbox) {
        while (auto message = co_await inbox.next()) {
            const bool last = message->bytes().length == 1; // a word of one letter
            const auto sent = co_await qp.send(message->bytes());
            if (!sent || last) co_return;
        }
    }

    std::promise<vb::endpoint> endpoint_;
    std::jthread thread_;
};

/// One end of a connection on a reactor that somebody else drives.
struct near_end {
    near_end(const vb::context& device, vb::reactor& reactor)
        : domain(vb::protection_domain::create(device).value()),
          channel(vb::completion_channel::create(device).value()),
          cq(vb::completion_queue::create(device, 64, {.channel = channel}).value()) {
        reactor.attach(cq, slots).value();
        qp.emplace(support::make_pair_end(domain, cq, {.send_cq = {}, .recv_cq = {}}));
        inbox.emplace(vb::receiver::create(*qp, {.depth = 8, .message_bytes = message_bytes}).value());
        other.emplace(device, qp->endpoint());
        qp->connect(other->endpoint()).value();
        memory.emplace(vb::memory_region::allocate(domain, message_bytes).value());
    }

    vb::protection_domain domain;
    std::array<vb::poll_slot, 16> slots;
    vb::completion_channel channel;
    vb::completion_queue cq;
    std::optional<vb::memory_region> memory;
    std::optional<far_end> other;
    std::optional<vb::queue_pair> qp;
    std::optional<vb::receiver> inbox;
};

/// Sends a word, at most `message_bytes` long, and gives what came back. A word of one letter is the last.
inline vb::task<std::string> ask(near_end& end, std::string word) {
    auto slice = end.memory->slice(0, word.size());
    std::memcpy(slice.bytes().data(), word.data(), word.size());
    (co_await end.qp->send(slice)).value();
    const auto answer = (co_await vb::with_timeout(end.inbox->next(), std::chrono::seconds{20})).value();
    const auto bytes = answer.bytes().bytes();
    co_return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

} // namespace example
