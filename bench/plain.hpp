#pragma once

// The same work as the coroutine benches, written by hand over libibverbs and libmlx5 alone: the bar they are measured
// against. Both ends live in this process, on port 1 of one device. Every function throws on failure.

#include <time.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

namespace plain {

struct options {
    std::string device;               ///< empty: the first one found
    int gid_index = -1;               ///< -1: the first RoCE v2 IPv4-mapped one, else 0
    std::uint64_t rounds = 1000;      ///< of all clients together
    std::uint32_t in_flight = 1;      ///< messages a client has unanswered at once
    std::uint32_t clients = 1;        ///< queue pairs on each side; each side has one completion queue
    std::uint32_t message_bytes = 64; ///< 8 or more
    std::uint32_t depth = 64;         ///< receives kept posted on each queue pair, at least twice `in_flight`
    std::uint32_t idle_queues = 0;    ///< writes and idle loops: completion queues beside the one in use
    std::uint32_t pending = 0;        ///< awaited writes only: receives awaited meanwhile that never complete
    std::uint32_t sleep_us = 200;     ///< idle loops only: how long a round sleeps
    double rate = 0;                  ///< of offered load: messages a second; 0: as many as are taken
    bool batched = false;             ///< coroutines only: what a turn posts is one call for each queue pair
    bool polls = false;               ///< loops by hand that park: in poll(2), not in epoll_wait
    bool count_doorbells = false;     ///< coroutines only: costs a call for each
    bool one_way = false;             ///< busy loops only: no reply, a round ends where its message arrives
    bool echoes = true;               ///< queries only: the device answers with the number that is in a command
    std::span<std::uint64_t> samples; ///< nanoseconds of each round, `rounds` of them; empty: the loop reads no clock
};

/// Counts are those of both sides together.
struct figures {
    std::uint64_t rounds = 0;
    std::uint64_t total_ns = 0; ///< from the first post to the last arrival
    std::uint64_t cpu_ns = 0;   ///< of the thread that serves offered load
    std::uint64_t polls = 0;
    std::uint64_t parks = 0; ///< calls of epoll_wait or poll
    std::uint64_t wakes = 0; ///< those of them that found something readable
    std::uint64_t arms = 0;
    std::uint64_t events = 0;
    std::uint64_t enters = 0;      ///< reactors only: calls of io_uring_enter
    std::uint64_t allocations = 0; ///< coroutines only
    std::uint64_t doorbells = 0;   ///< calls of ibv_post_send; coroutines only, where they were to be counted
    std::uint64_t errors = 0;      ///< payloads that did not carry their number

    double ns_per_round() const { return static_cast<double>(total_ns) / static_cast<double>(rounds); }
};

/// One thread holds both ends and polls their two completion queues in turn.
figures busy_ping_pong(const options& options);

/// Two threads, each with a completion channel: drain, arm, drain, epoll_wait, one ibv_get_cq_event, an ack every 64.
figures parked_ping_pong(const options& options);

/// `busy_ping_pong` with `clients` queue pairs on each of the two completion queues.
figures busy_echo(const options& options);

/// RDMA writes of a queue pair that is connected to itself: a thread keeps `in_flight` of them posted, each by a call,
/// and polls the completion queues in turn. Its time is CPU time: that of others on the machine does not show.
figures busy_writes(const options& options);

/// Two threads wake each other by eventfds, which each of them reads when it was woken. A round is both wakes.
figures parked_eventfds(const options& options);

/// Takes the messages of a generator on another thread, which come at random times and wait for nobody. A sample is the
/// time from when a message was due. Busy, or asleep in epoll_wait when nothing is there.
figures busy_load(const options& options);
figures parked_load(const options& options);

/// A round sleeps `sleep_us` in epoll_wait, with the channel of `idle_queues` armed completion queues and one more. Its
/// time is CPU time.
figures parked_idle(const options& options);

/// Asynchronous DEVX queries of one object: one thread keeps `in_flight` of them unanswered, with outputs of
/// `message_bytes`, and reads the descriptor over and over. `in_flight` queries before the first round and as many
/// behind the last are not measured.
figures busy_queries(const options& options);

/// The same, but when the read says EAGAIN it sleeps in epoll_wait.
figures parked_queries(const options& options);

inline std::uint64_t now_ns() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

inline std::uint64_t thread_cpu_ns() {
    timespec now{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
}

/// Writes the number to both ends of the payload, so that a short or mixed message shows.
inline void stamp(std::span<std::byte> payload, std::uint64_t number) {
    std::memcpy(payload.data(), &number, sizeof number);
    std::memcpy(payload.data() + payload.size() - sizeof number, &number, sizeof number);
}

inline bool carries(std::span<const std::byte> payload, std::uint64_t number) {
    return payload.size() >= sizeof number && std::memcmp(payload.data(), &number, sizeof number) == 0 &&
           std::memcmp(payload.data() + payload.size() - sizeof number, &number, sizeof number) == 0;
}

} // namespace plain
