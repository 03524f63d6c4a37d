#pragma once

#include "store.hpp"
#include "transport.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace kv {

struct server_options {
    address listen{"127.0.0.1", 0};
    transport_kind transport = transport_kind::tcp;
    unsigned threads = 1;
    std::size_t slots = 256;                   ///< values in each of the store's 16 shards
    std::uint32_t credits = 16;                ///< requests that a client may have outstanding
    std::size_t replies = 64;                  ///< buffers for replies of each thread; who finds none waits
    int backlog = 128;                         ///< connections on their way to their first request; more are refused
    std::chrono::milliseconds handshake{5000}; ///< until the first request
    std::chrono::milliseconds send{5000};      ///< a client that takes no reply for so long loses its connection
    std::chrono::milliseconds drain{1000};     ///< of a shutdown
};

struct metrics {
    std::array<std::uint64_t, opcodes> requests{}; ///< by opcode, all answered or counted as undelivered
    std::array<std::uint64_t, statuses> answers{}; ///< by status
    std::uint64_t bytes_in = 0, bytes_out = 0;
    std::uint64_t accepted = 0, refused = 0, failed_handshakes = 0, established = 0;
    std::uint64_t vanished = 0;    ///< connections that ended without a `bye`
    std::uint64_t undelivered = 0; ///< replies to clients that were gone, or took none
    std::uint64_t lost = 0;        ///< replies that a client misses in its `bye`
    std::uint64_t forced = 0;      ///< connections that a shutdown did not wait for any longer
    std::uint64_t rescued = 0;     ///< of the reactors
    std::vector<vb::reactor_stats> reactors;

    std::uint64_t malformed() const noexcept;
    /// No reply was lost, and no client ended by force.
    bool clean() const noexcept { return lost + forced + rescued == 0; }
    metrics& operator+=(const metrics& other);
    std::string text() const;
};

/// Says each kind of misfortune once.
class complaints {
  public:
    explicit complaints(std::function<void(const std::string&)> say) : say_(std::move(say)) {}
    void once(const std::string& kind, const std::string& detail);

  private:
    std::mutex mutex_;
    std::set<std::string> said_;
    std::function<void(const std::string&)> say_;
};

/// What all threads share.
struct shared {
    shared(const vb::context& d, const server_options& o, std::function<void(const std::string&)> say)
        : options(o), device(d), domain(vb::protection_domain::create(d).value()), values(domain, o.slots),
          log(std::move(say)) {}

    const server_options options;
    const vb::context device;
    const vb::protection_domain domain;
    store values;
    complaints log;
    std::atomic<int> handshakes{0};
};

class server_thread;

class server {
  public:
    /// Listens from here on. Throws `std::system_error`. `log`: from any thread.
    server(const vb::context& device, const server_options& options, std::function<void(const std::string&)> log);
    ~server();

    std::uint16_t port() const { return transport_->port(); }
    /// `beside`, if any, runs on the reactor of thread 0, 1, ... as well.
    using beside = std::function<vb::task<>(vb::reactor&, const vb::completion_queue&, unsigned thread)>;
    /// Serves until `stop_fd` is readable, then lets every client finish: a clean end if nothing is `forced` or `lost`.
    metrics run(int stop_fd, const beside& more = {});
    std::chrono::nanoseconds shutdown_took() const noexcept { return shutdown_took_; }

  private:
    vb::task<> listen(int stop_fd);
    vb::task<> accept();

    shared shared_;
    vb::reactor reactor_; ///< of the listener
    std::unique_ptr<transport> transport_;
    std::vector<std::unique_ptr<server_thread>> threads_;
    metrics metrics_;
    std::chrono::nanoseconds shutdown_took_{};
};

/// What the server says to one request: fills `reply`, of `message_bytes`, and gives its size.
std::size_t answer(store& values, std::uint32_t credits, const message& request, std::span<std::byte> reply,
                   status& said);

} // namespace kv
