#pragma once

#include <verbena/verbs/buffer_pool.hpp>
#include <verbena/verbs/completion_queue.hpp>
#include <verbena/verbs/protection_domain.hpp>
#include <verbena/verbs/shared_receive_queue.hpp>
#include <verbena/verbs/work_request.hpp>

#include <array>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

struct ibv_qp;

namespace verbena {

/// The transport. Source: ibv_create_qp(3).
enum class queue_pair_type : std::uint8_t {
    rc, ///< reliable connection
    ud, ///< unreliable datagram
};

/// Where a queue pair stands. Source: ibv_modify_qp(3).
enum class queue_pair_state : std::uint8_t {
    reset,            ///< RESET: taken from the device
    init,             ///< INIT: as it was created; receives may be posted
    ready_to_receive, ///< RTR: inside `connect` and `activate`
    ready_to_send,    ///< RTS: connected, or activated
    drained,          ///< SQD: never by this library
    send_error,       ///< SQE: a send of a UD queue pair failed; the library moves it back to RTS
    error,            ///< ERR: everything posted is flushed
};

/// When an awaited request reaches the device.
enum class post_mode : std::uint8_t {
    immediate, ///< when it is awaited
    batched,   ///< with all others of the queue pair, by one call per turn of the reactor
};

/// What a peer must know to connect: exchanged out of band.
struct endpoint {
    /// qp_num (4), psn (4), qkey (4), lid (2), link (1), type (1), mtu (1), reserved (7), gid (16); big-endian.
    static constexpr std::size_t encoded_bytes = 40;

    std::uint32_t qp_num = 0;                   ///< 24 bits
    std::uint32_t psn = 0;                      ///< of the first packet, 24 bits
    std::uint32_t qkey = 0;                     ///< UD only, 0 before `activate`
    std::uint16_t lid = 0;                      ///< InfiniBand only
    std::uint32_t mtu = 0;                      ///< bytes: the port's active MTU
    link_layer link = link_layer::unspecified;  ///< both ends have the same
    queue_pair_type type = queue_pair_type::rc; ///< likewise
    verbena::gid gid{};                         ///< of the port, at the index the queue pair uses

    /// In the form above.
    VERBENA_API std::array<std::byte, encoded_bytes> to_bytes() const noexcept;
    /// Errors: `invalid_argument`: a wrong size, or values no queue pair has.
    VERBENA_API static result<endpoint> from_bytes(std::span<const std::byte> bytes);
    bool operator==(const endpoint&) const = default;
};

/// How a queue pair is made. Source: ibv_create_qp(3).
struct queue_pair_options {
    completion_queue send_cq;                   ///< where sends, writes, reads and atomics complete
    completion_queue recv_cq;                   ///< where receives complete; may be the same
    std::uint32_t max_send = 16;                ///< requests outstanding in the send queue; reserved in `send_cq`
    std::uint32_t max_recv = 16;                ///< likewise in `recv_cq`; without meaning with an `srq`
    std::uint32_t max_send_slices = 4;          ///< slices of one request
    std::uint32_t max_recv_slices = 4;          ///< slices of one receive
    std::uint32_t max_inline = 64;              ///< bytes
    queue_pair_type type = queue_pair_type::rc; ///< the transport
    std::optional<shared_receive_queue> srq{};  ///< where its receives come from, if not from itself
    std::uint8_t port = 1;                      ///< of the device
    std::optional<std::uint8_t> gid_index{}; ///< default: the first RoCE v2 IPv4-mapped entry, else the first valid one
    std::uint16_t pkey_index = 0;            ///< in the port's table of partition keys
    /// What the peer may do to memory that is registered for it.
    access_flags access = access_flags::remote_read | access_flags::remote_write | access_flags::remote_atomic;
    /// When what is awaited reaches the device.
    verbena::post_mode post_mode = verbena::post_mode::immediate;
    /// RC: asks the peer for a sign of life when it was silent for so long and only receives are outstanding, of which
    /// RC reports nothing when the peer is gone. By a zero-length RDMA write, which needs `access_flags::remote_write`
    /// there. Its failure ends the connection with `peer_lost`, after at most twice this time and the retries of
    /// `connection_options`. 0: never.
    std::chrono::milliseconds keepalive{0};
};

/// Attributes of a connection; see ibv_modify_qp(3).
struct connection_options {
    std::uint32_t mtu = 0;           ///< bytes, 256 to 4096; 0: the smaller of the two ports' active MTUs
    std::uint8_t retry_cnt = 7;      ///< 0 to 7
    std::uint8_t rnr_retry = 7;      ///< 0 to 7; 7 is for ever
    std::uint8_t timeout = 14;       ///< 4.096 µs × 2^timeout until a retry; 0: never
    std::uint8_t min_rnr_timer = 12; ///< code of ibv_modify_qp(3); 12 is 0.64 ms
    std::uint8_t rd_atomic = 16;     ///< outstanding reads and atomics each way, cut to the device's limit
    std::uint8_t service_level = 0;  ///< 0 to 15
    std::uint8_t traffic_class = 0;  ///< RoCE and routed InfiniBand
    std::uint8_t hop_limit = 64;     ///< likewise
};

/// A pair of a send and a receive queue. Move-only; keeps its domain and its completion queues alive.
///
/// It is posted to by hand (`post`) or awaited on, never both: what came second fails with `in_use`. Awaiting needs
/// both completion queues attached to one reactor, of which one has at most 65,536 send and receive queues: an
/// operation of one more fails with `resource`. Capacity for `max_send + max_recv` completions is reserved at creation.
///
/// When a request of an RC queue pair fails, all others fail with `connection_reset` and the first failure as their
/// root cause; so they do when the queue pair is destroyed with work outstanding, or a coroutine whose request the
/// device has. In each case the buffers are quiet before anyone is resumed.
///
/// Thread: reactor-bound; without a reactor it belongs to one thread at a time.
class VERBENA_API queue_pair {
  public:
    /// Ends in the INIT state: receives may be posted. Errors: `invalid_argument`: sizes beyond the device's limits, an
    /// empty handle, or one of another context; `not_found`: no such port, or no valid GID; `resource`: a completion
    /// queue can neither hold nor grow to what is to be reserved, or the device has none left; `not_attached`: the
    /// receive completion queue is not attached to the reactor of `srq`; `wrong_thread`: a completion queue would have
    /// to grow that is attached elsewhere. Sources: ibv_create_qp(3), ibv_modify_qp(3).
    static result<queue_pair> create(const protection_domain& domain, const queue_pair_options& options);
    queue_pair(queue_pair&&) noexcept;
    queue_pair& operator=(queue_pair&&) noexcept;
    ~queue_pair();

    /// This end, for the peer's `connect`, or for address handles and sends to a UD queue pair.
    verbena::endpoint endpoint() const noexcept;
    /// RC: to RTR and RTS. Errors: `invalid_argument`: another type or link layer, or attributes out of range;
    /// `closed`; `wrong_thread` in a fork; what the device says. Source: ibv_modify_qp(3).
    result<void> connect(const verbena::endpoint& remote, const connection_options& options = {});
    /// UD: to RTR and RTS, accepting datagrams that carry this key. Errors: `invalid_argument`: another type; else as
    /// `connect`. Source: ibv_modify_qp(3).
    result<void> activate(std::uint32_t qkey);

    /// To a receive that the peer has posted. Source: ibv_post_send(3), as of all up to `chain`.
    template <std::convertible_to<slice_list> Slices = slice_list>
    send_operation send(const Slices& local, const send_options& options = detail::default_options) const noexcept {
        return operation<send_operation>(work_kind::send, local, options);
    }
    /// Gathered from these slices.
    send_operation send(memory_slice first, memory_slice second,
                        std::same_as<memory_slice> auto... rest) const noexcept {
        return send(std::array{first, second, rest...});
    }
    /// With 32 bits that the peer gets beside the message: `received::immediate`.
    template <std::convertible_to<slice_list> Slices = slice_list>
    send_operation send_with_immediate(const Slices& local, std::uint32_t immediate,
                                       const send_options& options = detail::default_options) const noexcept {
        return operation<send_operation>(work_kind::send, local, options, detail::no_remote, immediate);
    }
    /// UD: to this destination.
    template <std::convertible_to<slice_list> Slices = slice_list>
    send_operation send_to(const ud_destination& to, const Slices& local,
                           const send_options& options = detail::default_options) const noexcept {
        return operation<send_operation>(work_kind::send, local, options, detail::no_remote, {}, to);
    }
    /// Receives one message. UD: the first 40 bytes of the list receive the GRH; `byte_len` does not count them.
    /// Source: ibv_post_recv(3).
    template <std::convertible_to<slice_list> Slices = slice_list>
    recv_operation recv(const Slices& local) const noexcept {
        return operation<recv_operation>(work_kind::recv, local);
    }
    /// Scattered to these slices.
    recv_operation recv(memory_slice first, memory_slice second,
                        std::same_as<memory_slice> auto... rest) const noexcept {
        return recv(std::array{first, second, rest...});
    }
    /// RC: writes the local bytes, as many as there are, to the beginning of `remote`; the peer gets no completion.
    template <std::convertible_to<slice_list> Slices = slice_list>
    write_operation write(const Slices& local, const remote_slice& remote,
                          const send_options& options = detail::default_options) const noexcept {
        return operation<write_operation>(work_kind::write, local, options, remote);
    }
    /// The same, and ends one of the peer's receives, with 32 bits for it.
    template <std::convertible_to<slice_list> Slices = slice_list>
    write_operation write_with_immediate(const Slices& local, const remote_slice& remote, std::uint32_t immediate,
                                         const send_options& options = detail::default_options) const noexcept {
        return operation<write_operation>(work_kind::write, local, options, remote, immediate);
    }
    /// RC: reads as many bytes as the local slices have, from the beginning of `remote`.
    template <std::convertible_to<slice_list> Slices = slice_list>
    read_operation read(const Slices& local, const remote_slice& remote) const noexcept {
        return operation<read_operation>(work_kind::read, local, detail::default_options, remote);
    }
    /// RC: adds to 8 bytes of the peer, atomically for its device. `local`: 8 bytes for the value before; `remote`: 8
    /// bytes, aligned to 8.
    fetch_add_operation fetch_add(memory_slice local, const remote_slice& remote, std::uint64_t add) const noexcept {
        return operation<fetch_add_operation>(work_kind::fetch_add, local, detail::default_options, remote, {}, {},
                                              {.compare_add = add});
    }
    /// RC: replaces 8 bytes of the peer by `desired` if they are `expected`; otherwise as `fetch_add`.
    compare_swap_operation compare_swap(memory_slice local, const remote_slice& remote, std::uint64_t expected,
                                        std::uint64_t desired) const noexcept {
        return operation<compare_swap_operation>(work_kind::compare_swap, local, detail::default_options, remote, {},
                                                 {}, {.compare_add = expected, .swap = desired});
    }
    /// `qp.chain(write_request{…}, send_request{…})`: the `signaled` of all but the last is disregarded; no receives.
    /// See `chain_operation`.
    template <std::convertible_to<work_request>... Requests>
        requires(sizeof...(Requests) > 0)
    chain_operation<sizeof...(Requests)> chain(const Requests&... requests) const noexcept {
        return chain_operation<sizeof...(Requests)>(core_.get(), requests...);
    }
    /// Awaits the unsignaled sends posted so far. If no later signaled request is on its way it posts a zero-length
    /// RDMA write, which needs `access_flags::remote_write` at the peer's queue pair.
    flush_operation flushed() const noexcept { return flush_operation(core_.get()); }

    /// Fire and forget: the bytes are copied at the call. A later failure shows in the queue pair's next operation.
    /// Errors: `resource`: the send queue is full, or others wait for room; else those of a `send_operation`. Source:
    /// ibv_post_send(3).
    result<void> send_detached(inline_data data);
    /// Fire and forget: the buffer goes back to its pool when the device has sent it. On an error it goes back at once.
    /// Errors: the same. Source: ibv_post_send(3).
    result<void> send_detached(pool_buffer buffer);

    /// Ends the connection in order: from now on nothing is posted (`connection_reset`, root cause `closed`), what is
    /// outstanding gets 100 ms to be flushed, and with a shared receive queue the device to report its last receive;
    /// then the queue pair is taken from the device, and who still waits ends with `connection_reset`.
    ///
    /// - Completes when: nothing of this queue pair is outstanding, and its buffers are the caller's; without
    ///   suspending if nothing was.
    /// - Gives: how many completions never came.
    /// - In flight together: any number.
    /// - Errors: `wrong_thread`.
    /// - Cancel safety: cannot be ended early; destroying the wait leaves the drain going on.
    /// - Thread: reactor-bound. Without a reactor, as for a queue pair posted to by hand, the completions are the
    ///   caller's to collect.
    drain_operation drain() const noexcept { return {core_.get(), false}; }
    /// The same, then destroys the queue pair on the device and gives back what it reserved of its completion queues.
    /// The handle stays, for `qp_num` and the errors that operations on it give.
    drain_operation close() noexcept { return {core_.get(), true}; }

    /// By hand. The completion carries `wr_id` and is polled from the completion queue; the caller counts capacity.
    /// Errors: `in_use`: its operations are awaited, or it has a receiver; `not_connected`; `invalid_argument`;
    /// `closed`; the device's own, of which ENOMEM is a full queue. Sources: ibv_post_send(3), ibv_post_recv(3).
    result<void> post(const work_request& request, std::uint64_t wr_id);

    /// Asks the device. Errors: `closed`; what it says. Source: ibv_query_qp(3).
    result<queue_pair_state> state() const;
    std::uint32_t qp_num() const noexcept;     ///< of this end, also once it was closed
    queue_pair_type type() const noexcept;     ///< as asked for
    std::uint32_t max_inline() const noexcept; ///< bytes, as asked for
    protection_domain domain() const noexcept;
    /// Null once it was closed.
    ibv_qp* native_handle() const noexcept;

  private:
    friend struct detail::access;
    explicit queue_pair(std::unique_ptr<detail::queue_pair_core> core) noexcept;
    template <class Operation, class Slices>
    Operation operation(work_kind kind, const Slices& local, const send_options& options = detail::default_options,
                        const remote_slice& remote = detail::no_remote,
                        const std::optional<std::uint32_t>& immediate = {}, const ud_destination& to = {},
                        const detail::atomic_operands& atomic = {}) const noexcept {
        return Operation(core_.get(), kind, detail::held_by(local), options, immediate, remote, to, atomic);
    }

    std::unique_ptr<detail::queue_pair_core> core_;
};

} // namespace verbena
