#pragma once

// A mixed load on a simulated device, of which everything is drawn from one number.

#include "common.hpp"

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace seeds {

enum class kind : std::uint8_t {
    send,
    send_immediate,
    send_inline,
    send_unsignaled,
    send_detached_inline,
    send_detached_pool,
    send_datagram,
    write,
    write_immediate,
    read,
    fetch_add,
    compare_swap,
    chain,
    flushed,
    recv,
    next,
    next_shared,
    sleep,
    yield,
    posted_function,
    resize,
};
inline constexpr std::array<std::string_view, 21> kind_names{"send",
                                                             "send with immediate",
                                                             "inline send",
                                                             "unsignaled send",
                                                             "detached inline send",
                                                             "detached send",
                                                             "datagram",
                                                             "write",
                                                             "write with imm.",
                                                             "read",
                                                             "fetch and add",
                                                             "compare and swap",
                                                             "chain",
                                                             "flushed",
                                                             "recv",
                                                             "next",
                                                             "next of an SRQ",
                                                             "sleep",
                                                             "yield",
                                                             "posted function",
                                                             "resize"};

/// What else is counted. In the summary each must have happened.
enum class fact : std::uint8_t {
    seeds_mlx5,
    seeds_rxe,
    parks,
    wakes,
    early_returns,
    arms,
    events,
    spurious_events,
    doubled_events,
    empty_polls,
    queued, ///< operations that met a full queue
    detached_retries,
    ahead_of_receive, ///< sends posted while the peer had no receive
    held_messages,
    kept_messages, ///< that outlived their reactor
    flush_errors,
    purged_requests,
    connection_resets,
    root_failures,
    refused_posts,
    abandoned_frames,
    lost_datagrams,
    silent_sends,
    late_writes,
    batched_pairs,
    teardown_closed,
    teardown_frames_first,
    teardown_reactor_first,
    teardown_detach,
};
inline constexpr std::array<std::string_view, 29> fact_names{"seeds on sim0",
                                                             "seeds on sim1",
                                                             "parks",
                                                             "wakes",
                                                             "parks that ended for no reason",
                                                             "arms",
                                                             "events",
                                                             "spurious events",
                                                             "doubled events",
                                                             "empty polls",
                                                             "operations that found a full queue",
                                                             "detached sends tried again",
                                                             "messages sent ahead of their receive",
                                                             "messages held for a while",
                                                             "messages kept beyond the reactor",
                                                             "flush errors",
                                                             "requests purged by RESET",
                                                             "operations that fell with their connection",
                                                             "operations that failed first",
                                                             "posts refused",
                                                             "operations abandoned",
                                                             "datagrams lost",
                                                             "silent sends",
                                                             "seeds with late writes",
                                                             "batched connections",
                                                             "seeds that close everything",
                                                             "seeds that destroy waiting frames",
                                                             "seeds that destroy the reactor first",
                                                             "seeds that detach first"};

using totals = tally<kind, kind_names.size(), fact, fact_names.size()>;

/// The devices of all seeds, and what is reused from one to the next.
class worlds {
  public:
    worlds();
    ~worlds();
    worlds(const worlds&) = delete;
    worlds& operator=(const worlds&) = delete;

    /// One seed. Answers the hash of its trace and adds to `sum`. What goes wrong is thrown, or told to `failed`.
    std::uint64_t run(std::uint64_t seed, totals& sum);

  private:
    std::array<std::unique_ptr<world>, 2> worlds_;
};

/// The seed that runs, or ran last: its number, its parameters, its last events. Allocates nothing.
void print_state() noexcept;

} // namespace seeds
