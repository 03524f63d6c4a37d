#pragma once

// A load that harms itself, on a simulated device that misbehaves: cancels, deadlines, closes, detaches, destructions
// at any moment, failing verbs, lost events, a removed device. Everything is drawn from one number.

#include "common.hpp"

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>

namespace seeds::adversary {

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
    any,
    both,
    wrong_key,
    nested,
    wait,
    sleep,
    yield,
    drain,
    close,
};
inline constexpr std::array<std::string_view, 26> kind_names{"send",
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
                                                             "when_any",
                                                             "when_all",
                                                             "write with a wrong key",
                                                             "nested scope",
                                                             "wait for a child",
                                                             "sleep",
                                                             "yield",
                                                             "drain",
                                                             "close"};

/// What else is counted. In the summary each must have happened.
enum class fact : std::uint8_t {
    seeds_mlx5,
    seeds_rxe,
    parks,
    ended_well,
    abandoned,
    timed_out,
    timed_out_posted,
    stopped,
    stopped_before,
    connection_resets,
    root_failures,
    refused_posts,
    half_chains,
    queue_failures,
    not_attached,
    device_removed,
    missing,
    purged,
    flushed,
    silent,
    crowds_destroyed,
    crowds_stopped,
    stops_requested,
    pairs_destroyed,
    receivers_destroyed,
    detaches,
    detached_for_long,
    reactor_stops,
    functions,
    exceptions,
    verb_faults,
    queue_faults,
    creations_refused,
    resets_refused,
    destructions_refused,
    resizes,
    lost_events,
    rescued,
    doubled_events,
    spurious_events,
    starved_flushes,
    messages_out,
    kept_messages,
    connections,
    calm_operations,
    seeds_late,
    seeds_removed,
    seeds_keepalive,
    ending_stop,
    ending_close,
    ending_frames_first,
    ending_reactor_first,
    ending_detach,
};
inline constexpr std::array<std::string_view, 53> fact_names{"seeds on sim0",
                                                             "seeds on sim1",
                                                             "parks",
                                                             "operations that ended well",
                                                             "operations whose coroutine was destroyed",
                                                             "operations that timed out",
                                                             "of those, posted ones",
                                                             "operations that were stopped",
                                                             "operations stopped before they began",
                                                             "operations that fell with their connection",
                                                             "operations that failed first",
                                                             "posts refused",
                                                             "chains posted in part",
                                                             "operations whose completion queue failed",
                                                             "operations that met no reactor",
                                                             "operations that met no device",
                                                             "requests of which no end was reported",
                                                             "requests purged",
                                                             "requests flushed",
                                                             "silent sends",
                                                             "scopes destroyed in full run",
                                                             "scopes told to stop",
                                                             "stop sources used",
                                                             "queue pairs destroyed",
                                                             "receivers destroyed",
                                                             "detaches",
                                                             "detaches for a while",
                                                             "reactor stops",
                                                             "posted functions that did harm",
                                                             "exceptions out of posted functions",
                                                             "faults at posts and state changes",
                                                             "faults at polls, arms and event reads",
                                                             "creations refused",
                                                             "RESETs refused",
                                                             "destructions refused",
                                                             "resizes",
                                                             "events lost",
                                                             "completions rescued",
                                                             "events doubled",
                                                             "spurious events",
                                                             "queue pairs that flush too little",
                                                             "receivers destroyed with messages out",
                                                             "messages kept beyond everything",
                                                             "connections",
                                                             "operations of a connection that nobody harms",
                                                             "seeds with late writes",
                                                             "seeds that remove the device",
                                                             "seeds with keepalive",
                                                             "seeds that stop everything",
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

} // namespace seeds::adversary
