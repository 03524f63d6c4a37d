#pragma once

#include <verbena/detail/operation.hpp>
#include <verbena/verbs/memory_region.hpp>

#include <array>
#include <concepts>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

struct ibv_ah;

namespace verbena {

/// Bytes that the post copies: they need no registration, and are the caller's again as soon as they are posted.
/// At most `queue_pair_options::max_inline` bytes. A value, which does not own them.
class inline_data {
  public:
    /// For sends and writes alone.
    explicit inline_data(std::span<const std::byte> bytes) noexcept : bytes_(bytes) {}
    std::span<const std::byte> bytes() const noexcept { return bytes_; } ///< the caller's

  private:
    std::span<const std::byte> bytes_;
};

/// What a work request gathers from or scatters to. Holds up to four slices; a longer list is a span that stays the
/// caller's until the operation has ended. A value, which owns no memory.
class slice_list {
  public:
    static constexpr std::size_t held = detail::held_slices; ///< so many it holds

    slice_list() noexcept : slice_list(memory_slice{}) { size_ = 0; }
    /// @{
    /// Of one slice; of a few, copied; of as many as the queue pair takes, not copied; of bytes that the post copies.
    slice_list(memory_slice slice) noexcept : size_(1) { new (bytes_.data()) memory_slice(slice); }
    template <std::size_t N>
        requires(N <= held)
    slice_list(const std::array<memory_slice, N>& slices) noexcept : slice_list() {
        size_ = N;
        if constexpr (N > 0) std::memcpy(bytes_.data(), slices.data(), sizeof slices);
    }
    slice_list(std::span<const memory_slice> slices) noexcept : slice_list() {
        far_ = slices.data();
        size_ = static_cast<std::uint32_t>(slices.size());
    }
    slice_list(inline_data data) noexcept
        : slice_list(memory_slice{reinterpret_cast<std::uint64_t>(data.bytes().data()),
                                  static_cast<std::uint32_t>(data.bytes().size()), 0}) {
        inlined_ = true;
    }
    /// @}

    /// The slices, `size()` of them.
    const memory_slice* data() const noexcept {
        return far_ != nullptr ? far_ : std::launder(reinterpret_cast<const memory_slice*>(bytes_.data()));
    }
    std::uint32_t size() const noexcept { return size_; } ///< slices
    bool far() const noexcept { return far_ != nullptr; } ///< the slices are the caller's
    bool inlined() const noexcept { return inlined_; }    ///< it was made from `inline_data`
    /// The sum of the lengths.
    std::uint64_t bytes() const noexcept {
        if (size_ == 1) [[likely]]
            return data()->length;
        std::uint64_t sum = 0;
        for (std::uint32_t i = 0; i < size_; ++i) sum += data()[i].length;
        return sum;
    }

  private:
    // Slices that are not there are never written: a list is made for every operation.
    alignas(memory_slice) std::array<std::byte, held * sizeof(memory_slice)> bytes_;
    const memory_slice* far_ = nullptr;
    std::uint32_t size_;
    bool inlined_ = false;
};

/// Where a UD send goes. A value: the handle is the caller's to keep until the send has completed.
class ud_destination {
  public:
    ud_destination() noexcept = default;
    /// `handle`: `address_handle::native_handle()`.
    ud_destination(ibv_ah* handle, std::uint32_t qp_num, std::uint32_t qkey) noexcept
        : handle_(handle), qp_num_(qp_num), qkey_(qkey) {}

    ibv_ah* native_handle() const noexcept { return handle_; } ///< the path to it; null: none
    std::uint32_t qp_num() const noexcept { return qp_num_; }  ///< the peer's
    std::uint32_t qkey() const noexcept { return qkey_; }      ///< that of the peer's `activate`

  private:
    ibv_ah* handle_ = nullptr;
    std::uint32_t qp_num_ = 0;
    std::uint32_t qkey_ = 0;
};

/// What a work request does.
enum class work_kind : std::uint8_t {
    send,         ///< `send_request`
    recv,         ///< `recv_request`
    write,        ///< `write_request`
    read,         ///< `read_request`
    fetch_add,    ///< `fetch_add_request`
    compare_swap, ///< `compare_swap_request`
};

/// Any work request, for `queue_pair::post` and `queue_pair::chain`: made from one of the request types below.
struct work_request {
    work_kind kind = work_kind::send; ///< which of the rest count
    bool has_immediate = false;       ///< of sends and writes
    bool signaled = true;             ///< see `send_options`
    bool solicited = false;           ///< see `send_options`
    bool fence = false;               ///< see `send_options`
    std::uint32_t immediate = 0;      ///< in host order
    slice_list local;                 ///< gathered from, or scattered to
    remote_slice remote;              ///< of writes, reads and atomics
    std::uint64_t compare_add = 0;    ///< of atomics: what is added, or expected
    std::uint64_t swap = 0;           ///< of `compare_swap`
    ud_destination to;                ///< of sends of a UD queue pair
};

/// As `queue_pair::send`, `send_with_immediate` and `send_to`.
struct send_request {
    slice_list local;                         ///< the message
    std::optional<std::uint32_t> immediate{}; ///< in host order
    bool signaled = true;                     ///< see `send_options`
    bool solicited = false;                   ///< see `send_options`
    bool fence = false;                       ///< see `send_options`
    ud_destination to{};                      ///< UD only
    /// The same.
    operator work_request() const noexcept {
        return {.kind = work_kind::send,
                .has_immediate = immediate.has_value(),
                .signaled = signaled,
                .solicited = solicited,
                .fence = fence,
                .immediate = immediate.value_or(0),
                .local = local,
                .remote = {},
                .to = to};
    }
};

/// As `queue_pair::recv`.
struct recv_request {
    slice_list local; ///< where the message goes; UD: behind 40 bytes for the GRH
    /// The same.
    operator work_request() const noexcept { return {.kind = work_kind::recv, .local = local, .remote = {}, .to = {}}; }
};

/// As `queue_pair::write` and `write_with_immediate`.
struct write_request {
    slice_list local;                         ///< the bytes
    remote_slice remote;                      ///< where they go; no shorter
    std::optional<std::uint32_t> immediate{}; ///< in host order
    bool signaled = true;                     ///< see `send_options`
    bool solicited = false;                   ///< see `send_options`; with `immediate` only
    bool fence = false;                       ///< see `send_options`
    /// The same.
    operator work_request() const noexcept {
        return {.kind = work_kind::write,
                .has_immediate = immediate.has_value(),
                .signaled = signaled,
                .solicited = solicited,
                .fence = fence,
                .immediate = immediate.value_or(0),
                .local = local,
                .remote = remote,
                .to = {}};
    }
};

/// As `queue_pair::read`.
struct read_request {
    slice_list local;     ///< where the bytes go
    remote_slice remote;  ///< where they are; no shorter
    bool signaled = true; ///< see `send_options`
    bool fence = false;   ///< see `send_options`
    /// The same.
    operator work_request() const noexcept {
        return {
            .kind = work_kind::read, .signaled = signaled, .fence = fence, .local = local, .remote = remote, .to = {}};
    }
};

/// As `queue_pair::fetch_add`.
struct fetch_add_request {
    memory_slice local;    ///< 8 bytes, which receive the value before
    remote_slice remote;   ///< 8 bytes, aligned to 8
    std::uint64_t add = 0; ///< what is added
    bool signaled = true;  ///< see `send_options`
    bool fence = false;    ///< see `send_options`
    /// The same.
    operator work_request() const noexcept {
        return {.kind = work_kind::fetch_add,
                .signaled = signaled,
                .fence = fence,
                .local = local,
                .remote = remote,
                .compare_add = add,
                .to = {}};
    }
};

/// As `queue_pair::compare_swap`.
struct compare_swap_request {
    memory_slice local;         ///< 8 bytes, which receive the value before
    remote_slice remote;        ///< 8 bytes, aligned to 8
    std::uint64_t expected = 0; ///< the value that is replaced
    std::uint64_t desired = 0;  ///< what by
    bool signaled = true;       ///< see `send_options`
    bool fence = false;         ///< see `send_options`
    /// The same.
    operator work_request() const noexcept {
        return {.kind = work_kind::compare_swap,
                .signaled = signaled,
                .fence = fence,
                .local = local,
                .remote = remote,
                .compare_add = expected,
                .swap = desired,
                .to = {}};
    }
};

/// How a send-queue operation is posted.
struct send_options {
    /// false: the operation ends when it is posted, and its buffer is the device's until a later signaled request of
    /// that queue pair has completed, which `queue_pair::flushed` awaits.
    bool signaled = true;
    bool solicited = false; ///< wake a peer that armed for solicited completions only
    bool fence = false;     ///< start after the reads and atomics before it have ended
};

/// What a receive brought.
struct received {
    std::uint32_t byte_len = 0;               ///< for UD without the 40-byte GRH
    std::optional<std::uint32_t> immediate{}; ///< the peer's, in host order
    std::uint32_t source_qp = 0;              ///< UD only
};

/// @cond internal
namespace detail {

/// One slice as it is: what is copied into a coroutine's frame is stored there, whoever reads it.
inline const memory_slice& held_by(const memory_slice& slice) noexcept { return slice; }
inline const slice_list& held_by(const slice_list& list) noexcept { return list; }
template <class Slices>
slice_list held_by(const Slices& slices) noexcept {
    return slices;
}

struct atomic_operands {
    std::uint64_t compare_add = 0;
    std::uint64_t swap = 0;
};

/// Fills `request`, which is nothing yet. `local`: a `slice_list`, or one slice.
template <class Slices>
void describe(device_request& request, work_kind kind, const Slices& local, const send_options& options,
              const std::optional<std::uint32_t>& immediate, const remote_slice& remote, const ud_destination& to = {},
              const atomic_operands& atomic = {}) noexcept {
    const memory_slice* slices = request.held;
    std::uint32_t count = 1;
    std::uint64_t bytes = 0;
    bool inlined = false;
    if constexpr (std::same_as<Slices, memory_slice>) {
        request.held[0] = local;
        bytes = local.length;
    } else {
        count = local.size();
        bytes = local.bytes();
        inlined = local.inlined();
        if (local.far())
            slices = local.data();
        else
            for (std::uint32_t i = 0; i < count; ++i) request.held[i] = local.data()[i];
    }
    auto* const list = reinterpret_cast<ibv_sge*>(const_cast<memory_slice*>(slices)); // libibverbs knows no const
    request.receives = kind == work_kind::recv;
    request.signaled = options.signaled;
    if (request.receives) {
        request.receive.next = nullptr;
        request.receive.sg_list = list;
        request.receive.num_sge = static_cast<int>(count);
        request.way = inlined ? post_way::inline_receives : post_way::checked;
        return;
    }
    ibv_send_wr& wr = request.send;
    wr.next = nullptr;
    wr.sg_list = list;
    wr.num_sge = static_cast<int>(count);
    wr.send_flags = (options.signaled ? unsigned{IBV_SEND_SIGNALED} : 0) |
                    (options.solicited ? unsigned{IBV_SEND_SOLICITED} : 0) |
                    (options.fence ? unsigned{IBV_SEND_FENCE} : 0) | (inlined ? unsigned{IBV_SEND_INLINE} : 0);
    wr.imm_data = __builtin_bswap32(immediate.value_or(0));
    post_way way = options.signaled && !inlined && count <= slice_list::held ? direct_with(count) : post_way::checked;
    if (kind == work_kind::send) {
        wr.opcode = immediate ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND;
        wr.wr.ud.ah = to.native_handle();
        wr.wr.ud.remote_qpn = to.qp_num();
        wr.wr.ud.remote_qkey = to.qkey();
        if (to.native_handle() != nullptr) way = post_way::checked;
    } else if (kind == work_kind::write || kind == work_kind::read) {
        const bool reads = kind == work_kind::read;
        wr.opcode = reads ? IBV_WR_RDMA_READ : immediate ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
        wr.wr.rdma.remote_addr = remote.address;
        wr.wr.rdma.rkey = remote.rkey;
        if (reads && inlined) way = post_way::inline_receives;
        if (bytes > remote.length) way = post_way::remote_too_short;
    } else {
        wr.opcode = kind == work_kind::fetch_add ? IBV_WR_ATOMIC_FETCH_AND_ADD : IBV_WR_ATOMIC_CMP_AND_SWP;
        wr.wr.atomic.remote_addr = remote.address;
        wr.wr.atomic.rkey = remote.rkey;
        wr.wr.atomic.compare_add = atomic.compare_add;
        wr.wr.atomic.swap = atomic.swap;
        const bool fits = count == 1 && bytes == 8 && remote.length == 8 && remote.address % 8 == 0;
        way = fits ? post_way::checked : post_way::no_atomic;
    }
    request.way = way;
}

inline void describe(device_request& request, const work_request& r) noexcept {
    describe(request, r.kind, r.local, {.signaled = r.signaled, .solicited = r.solicited, .fence = r.fence},
             r.has_immediate ? std::optional(r.immediate) : std::nullopt, r.remote, r.to, {r.compare_add, r.swap});
}

inline constexpr send_options default_options{};
inline constexpr remote_slice no_remote{};

/// Ends with the coroutine that awaits, whoever has the operation. Destroying it while the request is posted ends the
/// connection (see queue_pair.hpp).
template <class Operation>
class [[nodiscard]] work_awaiter {
  public:
    explicit work_awaiter(Operation& operation) noexcept : operation_(&operation) {}
    work_awaiter(const work_awaiter&) = delete;
    work_awaiter& operator=(const work_awaiter&) = delete;
    ~work_awaiter() {
        if (operation_ != nullptr) [[unlikely]]
            operation_->abandon();
    }

    bool await_ready() const noexcept { return false; }
    bool await_suspend(std::coroutine_handle<> waiting) noexcept { return operation_->begin(waiting); }
    auto await_resume() { return std::exchange(operation_, nullptr)->ended(); }
    void cancel(errc cause, list<ready_node>& woken) noexcept {
        if (operation_ != nullptr) operation_->cancel(cause, woken);
    }

  private:
    Operation* operation_; ///< null: it is over, and may be awaited by another
};

/// Every single work request. Its queue's entry names it while it is awaited, so that no allocation is needed.
template <class Result>
class work_operation : public operation_state {
  public:
    using result_type = result<Result>;

    template <class... Description>
    explicit work_operation(queue_pair_core* qp, const Description&... description) noexcept : operation_state(qp, 1) {
        describe(request_, description...);
    }
    work_awaiter<work_operation> operator co_await() noexcept { return work_awaiter<work_operation>(*this); }

  private:
    friend work_awaiter<work_operation>;
    result<Result> ended() {
        if (!succeeded()) [[unlikely]]
            return take_failure();
        if constexpr (std::is_void_v<Result>)
            return {};
        else if constexpr (std::same_as<Result, received>) {
            const bool has_immediate = std::exchange(outcome_.has_immediate, false);
            return received{.byte_len = outcome_.byte_len,
                            .immediate = has_immediate ? std::optional(outcome_.immediate) : std::nullopt,
                            .source_qp = outcome_.source_qp};
        } else {
            std::uint64_t before; // the caller's memory need not be aligned
            std::memcpy(&before, request_.held[0].bytes().data(), sizeof before);
            return before;
        }
    }
};

class flush_awaiter : public flush_state {
  public:
    using flush_state::flush_state;
    bool await_ready() const noexcept { return false; }
    bool await_suspend(std::coroutine_handle<> waiting) noexcept {
        continuation = waiting;
        return submit(*this);
    }
    result<void> await_resume() const {
        if (!succeeded()) return failure();
        return {};
    }
};

} // namespace detail
/// @endcond

/// A send. Gives nothing.
///
/// An operation describes what to post; awaiting it posts, from where it is. It may be passed around, copied, kept, and
/// awaited again when it has ended; while it is awaited it must stay, and its queue pair's handle must live. A copy has
/// not been awaited.
///
/// Completes when   the request's completion was polled; an unsignaled one when it was posted.
/// In flight        any number; beyond the queue's capacity they wait in the order they were awaited.
/// Buffers          the device's from the post to the completion.
/// Errors           the completion's status (category `completion_category()`), the post's errno, `not_connected`,
///                  `not_attached`, `in_use`, `invalid_argument`, `connection_reset` with the root cause,
///                  `queue_failed`, `resource`, `wrong_thread`.
/// Cancel safety    class 1; class 2 while it waits for capacity: it is then taken out alone. A posted one cannot be
///                  recalled: destroying its coroutine, or ending it early (with_timeout.hpp), ends the queue pair,
///                  after which buffers are quiet. An unsignaled send that was posted has ended, and destroying its
///                  coroutine recalls nothing: `flushed` tells when its buffer is the caller's.
/// Thread           reactor-bound.
class [[nodiscard]] send_operation : public detail::work_operation<void> {
    using work_operation::work_operation;
};
/// A receive. Gives `received`.
///
/// @copydetails send_operation
class [[nodiscard]] recv_operation : public detail::work_operation<received> {
    using work_operation::work_operation;
};
/// An RDMA write. Gives nothing.
///
/// @copydetails send_operation
class [[nodiscard]] write_operation : public detail::work_operation<void> {
    using work_operation::work_operation;
};
/// An RDMA read. Gives nothing: the bytes are in the local slices.
///
/// @copydetails send_operation
class [[nodiscard]] read_operation : public detail::work_operation<void> {
    using work_operation::work_operation;
};
/// An atomic addition. Gives the value before.
///
/// @copydetails send_operation
class [[nodiscard]] fetch_add_operation : public detail::work_operation<std::uint64_t> {
    using work_operation::work_operation;
};
/// An atomic exchange. Gives the value before: it was swapped if that equals `expected`.
///
/// @copydetails send_operation
class [[nodiscard]] compare_swap_operation : public detail::work_operation<std::uint64_t> {
    using work_operation::work_operation;
};

/// N requests of the send queue, posted by one call in this order, of which the last is signaled and awaited.
///
/// Takes N places of the queue at once. Fails with the first failure among them; a post that the device took in part
/// ends the queue pair. N above `max_send` is an `invalid_argument`.
///
/// @copydetails send_operation
template <std::size_t N>
    requires(N > 0 && N <= UINT16_MAX)
class [[nodiscard]] chain_operation : public detail::operation_state {
  public:
    using result_type = result<void>;
    template <class First, class... Requests>
    explicit chain_operation(detail::queue_pair_core* qp, const First& first, const Requests&... requests) noexcept
        : operation_state(qp, N) {
        describe(request_, static_cast<work_request>(first));
        [[maybe_unused]] auto* next = others_.data();
        (describe(*next++, static_cast<work_request>(requests)), ...);
        if (request_.way < detail::post_way::checked) request_.way = detail::post_way::checked;
        link();
    }
    chain_operation(const chain_operation& other) noexcept : operation_state(other), others_(other.others_) { link(); }
    detail::work_awaiter<chain_operation> operator co_await() noexcept {
        return detail::work_awaiter<chain_operation>(*this);
    }

  private:
    friend detail::work_awaiter<chain_operation>;
    result<void> ended() {
        if (!succeeded()) [[unlikely]]
            return take_failure();
        return {};
    }
    void link() noexcept {
        detail::device_request* last = &request_;
        for (auto& request : others_) last = last->link(request);
    }
    std::array<detail::device_request, N - 1> others_;
};

/// Waits for the unsignaled sends of a queue pair. See `queue_pair::flushed`.
///
/// Completes when   the buffers of all sends posted before it are the caller's again; at once if they are.
/// In flight        any number.
/// Errors           `connection_reset` with the root cause, also when the queue pair had failed before; `wrong_thread`.
/// Cancel safety    class 2; the sends go on.
/// Thread           reactor-bound.
class [[nodiscard]] flush_operation {
  public:
    using result_type = result<void>;
    explicit flush_operation(detail::queue_pair_core* qp) noexcept : qp_(qp) {}
    detail::flush_awaiter operator co_await() && noexcept { return detail::flush_awaiter(qp_); }

  private:
    detail::queue_pair_core* qp_;
};

/// What `queue_pair::drain` and `close` give, and `mlx5::command_channel::close`.
struct drain_report {
    std::uint32_t missing = 0; ///< requests, or commands, of which the device never reported the end
};

/// @copydoc queue_pair::drain
class [[nodiscard]] drain_operation {
  public:
    using result_type = result<drain_report>;

    class awaiter : public detail::drain_state {
      public:
        using drain_state::drain_state;
        bool await_ready() const noexcept { return false; }
        bool await_suspend(std::coroutine_handle<> waiting) noexcept {
            continuation = waiting;
            return submit(*this);
        }
        result<drain_report> await_resume() const {
            if (!succeeded()) return failure();
            return drain_report{missing_};
        }
    };

    drain_operation(detail::queue_pair_core* qp, bool destroys) noexcept : qp_(qp), destroys_(destroys) {}
    awaiter operator co_await() && noexcept { return awaiter(qp_, destroys_); }

  private:
    detail::queue_pair_core* qp_;
    bool destroys_;
};

} // namespace verbena
