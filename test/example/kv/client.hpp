#pragma once

#include "protocol.hpp"
#include "transport.hpp"

#include <chrono>
#include <deque>
#include <optional>
#include <vector>

namespace kv {

struct client_options {
    std::uint32_t window = 8;                   ///< requests outstanding, at most 255; fewer if the server wants fewer
    std::chrono::milliseconds deadline{10'000}; ///< of each request, and of the connection
};

/// What a request gave: `size` bytes of a value, if `state` is ok.
struct reply {
    status state{};
    std::size_t size = 0;
};

/// A connection to the server. Any number of coroutines may make requests; those beyond the window wait. An error says
/// that the connection is over: `closed` where the server asked for that. Reactor-bound.
class client {
  public:
    using outcome = vb::result<reply>;

    client(const vb::protection_domain& domain, const vb::completion_queue& queue, const client_options& options);
    vb::task<vb::result<void>> connect(transport& way, const address& server);
    /// Of the four, `key` and the spans are the caller's again at the end.
    vb::task<outcome> put(std::string_view key, std::span<const std::byte> value);
    vb::task<outcome> get(std::string_view key, std::span<std::byte> to);
    vb::task<outcome> erase(std::string_view key);
    /// The value by an RDMA read of this side, of which the server's processor knows nothing.
    vb::task<outcome> read(std::string_view key, std::span<std::byte> to);
    /// When no request is outstanding: tells the server so, and waits until it has ended the connection.
    vb::task<vb::result<void>> close();

    /// The server wants to end: requests fail with `closed` from now on.
    bool told_to_finish() const noexcept { return goodbye_; }
    std::uint64_t requests() const noexcept { return requests_; }
    std::uint64_t replies() const noexcept { return replies_; } ///< without a loss, as many
    std::uint64_t reads() const noexcept { return reads_; }
    std::uint64_t torn() const noexcept { return torn_; } ///< reads that met a value while it was replaced

  private:
    struct slot {
        std::uint64_t index;
        vb::memory_slice request, value;
        std::uint64_t number = 0; ///< of the request that it waits for
        std::span<std::byte> to{};
        reply got{};
        vb::event answered{};
    };

    vb::task<outcome> call(message request, std::span<std::byte> to);
    vb::task<outcome> call_in(slot& s, message request, std::span<std::byte> to);
    vb::task<outcome> read_in(slot& s, std::string_view key, std::span<std::byte> to);
    vb::task<> collect();
    void take(const message& m);
    slot& take_slot();

    client_options options_;
    vb::memory_region memory_;
    std::deque<slot> slots_;
    std::vector<slot*> free_;
    vb::semaphore window_{0}; ///< a permit for each slot that may be used
    std::unique_ptr<peer> peer_;
    vb::queue_pair qp_;
    vb::receiver inbox_;
    bool goodbye_ = false, ended_ = false;
    std::uint64_t sequence_ = 0, requests_ = 0, replies_ = 0, reads_ = 0, torn_ = 0;
    vb::scope collecting_;
};

} // namespace kv
