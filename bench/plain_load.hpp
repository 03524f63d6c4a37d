#pragma once

// Messages that come whether or not the earlier ones were taken: what policies and loops are compared under.

#include "plain_side.hpp"

#include <atomic>

namespace plain {

/// One per run. It has a core of its own: it spins until a message is due.
class generator {
  public:
    explicit generator(const options& options);

    std::uint32_t number() const { return ends_.connections[0].number(); }
    void connect(std::uint32_t peer, std::uint32_t psn) { ends_.connections[0].connect(device_, peer, psn); }

    /// Sends all rounds; each message carries the time at which it was due. A receiver's depth is never exceeded.
    void run();

    /// How many messages the receiver has taken, and posted their receives again.
    alignas(64) std::atomic<std::uint64_t> taken = 0;

  private:
    const options& options_;
    device device_;
    side ends_;
};

} // namespace plain
