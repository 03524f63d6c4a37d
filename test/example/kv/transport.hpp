#pragma once

// How queue pairs get connected, and how an end hears that the other is gone: over TCP, or by rdma_cm. Nothing else of
// server and client depends on which it is.

#include "../exchange.hpp"

#include <verbena/verbena.hpp>

#include <cstdint>
#include <memory>
#include <string>

namespace kv {

namespace vb = verbena;

class transport;

/// The way to a peer that is being connected, or is. Reactor-bound.
class peer {
  public:
    virtual ~peer() = default;
    /// To the reactor of another transport of the same kind, before anything is awaited, on the thread of its own.
    virtual vb::result<void> move_to(transport& other) = 0;
    /// Connects the queue pair, on either side; its receives are posted.
    virtual vb::task<vb::result<void>> connect(vb::queue_pair& qp) = 0;
    /// Waits until the peer has closed its end, or died.
    virtual vb::task<> ended() = 0;
    /// Tells the peer that this end is done.
    virtual vb::task<> close() = 0;
};

struct address {
    std::string host;
    std::uint16_t port = 0;
};

/// One for each reactor.
class transport {
  public:
    virtual ~transport() = default;
    virtual vb::result<void> listen(const address& at) = 0;
    virtual std::uint16_t port() const = 0; ///< that it listens at
    virtual vb::task<vb::result<std::unique_ptr<peer>>> next() = 0;
    virtual vb::task<vb::result<std::unique_ptr<peer>>> reach(const address& to) = 0;
};

enum class transport_kind { tcp, cm };

/// `cm` is `unsupported` without an RDMA device of the kernel, and in builds without connection management.
vb::result<std::unique_ptr<transport>> make_transport(transport_kind kind, vb::reactor& reactor);
vb::result<std::unique_ptr<transport>> make_cm_transport(vb::reactor& reactor);

} // namespace kv
