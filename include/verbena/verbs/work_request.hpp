#pragma once

#include <verbena/detail/operation.hpp>
#include <verbena/verbs/memory_region.hpp>

#include <array>
#include <concepts>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <type_traits>

struct ibv_ah;

namespace verbena {

/// Bytes that the post copies: they need no registration, and are the caller's again as soon as they are posted.
/// At most `queue_pair_options::max_inline` bytes.
class inline_data {
  public:
    explicit inline_data(std::span<const std::byte> bytes) noexcept : bytes_(bytes) {}
    std::span<const std::byte> bytes() const noexcept { return bytes_; }

  private:
    std::span<const std::byte> bytes_;
};

/// What a work request gathers from or scatters to. Holds up to four slices; a longer list is a span that stays the
/// caller's until the operation has ended.
class slice_list {
  public:
    static constexpr std::size_t held = 4;

    slice_list() noexcept = default;
    slice_list(memory_slice slice) noexcept : held_{slice}, size_(1) {}
    template <std::size_t N>
        requires(N <= held)
    slice_list(const std::array<memory_slice, N>& slices) noexcept : size_(N) {
        for (std::size_t i = 0; i < N; ++i) held_[i] = slices[i];
    }
    slice_list(std::span<const memory_slice> slices) noexcept
        : far_(slices.data()), size_(static_cast<std::uint32_t>(slices.size())) {}
    slice_list(inline_data data) noexcept
        : held_{memory_slice{reinterpret_cast<std::uint64_t>(data.bytes().data()),
                             static_cast<std::uint32_t>(data.bytes().size()), 0}},
          size_(1), inlined_(true) {}

    const memory_slice* data() const noexcept { return far_ != nullptr ? far_ : held_.data(); }
    std::uint32_t size() const noexcept { return size_; }
    bool inlined() const noexcept { return inlined_; }
    std::uint64_t bytes() const noexcept {
        if (size_ == 1) [[likely]]
            return data()->length;
        std::uint64_t sum = 0;
        for (std::uint32_t i = 0; i < size_; ++i) sum += data()[i].length;
        return sum;
    }

  private:
    std::array<memory_slice, held> held_{};
    const memory_slice* far_ = nullptr;
    std::uint32_t size_ = 0;
    bool inlined_ = false;
};

/// Where a UD send goes. The handle is the caller's to keep until the send has completed.
class ud_destination {
  public:
    ud_destination() noexcept = default;
    /// `handle`: `address_handle::native_handle()`.
    ud_destination(ibv_ah* handle, std::uint32_t qp_num, std::uint32_t qkey) noexcept
        : handle_(handle), qp_num_(qp_num), qkey_(qkey) {}

    ibv_ah* native_handle() const noexcept { return handle_; }
    std::uint32_t qp_num() const noexcept { return qp_num_; }
    std::uint32_t qkey() const noexcept { return qkey_; }

  private:
    ibv_ah* handle_ = nullptr;
    std::uint32_t qp_num_ = 0;
    std::uint32_t qkey_ = 0;
};

enum class work_kind : std::uint8_t { send, recv, write, read, fetch_add, compare_swap };

/// Any work request, for `queue_pair::post` and `queue_pair::chain`: made from one of the request types below.
struct work_request {
    work_kind kind = work_kind::send;
    bool has_immediate = false;
    bool signaled = true;
    bool solicited = false;
    bool fence = false;
    std::uint32_t immediate = 0;
    slice_list local;
    remote_slice remote;
    std::uint64_t compare_add = 0;
    std::uint64_t swap = 0;
    ud_destination to;
};

struct send_request {
    slice_list local;
    std::optional<std::uint32_t> immediate{};
    bool signaled = true;
    bool solicited = false;
    bool fence = false;
    ud_destination to{};
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

struct recv_request {
    slice_list local;
    operator work_request() const noexcept { return {.kind = work_kind::recv, .local = local, .remote = {}, .to = {}}; }
};

struct write_request {
    slice_list local;
    remote_slice remote;
    std::optional<std::uint32_t> immediate{};
    bool signaled = true;
    bool solicited = false;
    bool fence = false;
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

struct read_request {
    slice_list local;
    remote_slice remote;
    bool signaled = true;
    bool fence = false;
    operator work_request() const noexcept {
        return {
            .kind = work_kind::read, .signaled = signaled, .fence = fence, .local = local, .remote = remote, .to = {}};
    }
};

struct fetch_add_request {
    memory_slice local; ///< 8 bytes, which receive the value before
    remote_slice remote;
    std::uint64_t add = 0;
    bool signaled = true;
    bool fence = false;
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

struct compare_swap_request {
    memory_slice local; ///< 8 bytes, which receive the value before
    remote_slice remote;
    std::uint64_t expected = 0;
    std::uint64_t desired = 0;
    bool signaled = true;
    bool fence = false;
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
    std::uint32_t byte_len = 0; ///< for UD without the 40-byte GRH
    std::optional<std::uint32_t> immediate{};
    std::uint32_t source_qp = 0; ///< UD only
};

/// @cond internal
namespace detail {

inline ibv_wr_opcode opcode_of(const work_request& request) noexcept {
    switch (request.kind) {
    case work_kind::write: return request.has_immediate ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
    case work_kind::read: return IBV_WR_RDMA_READ;
    case work_kind::fetch_add: return IBV_WR_ATOMIC_FETCH_AND_ADD;
    case work_kind::compare_swap: return IBV_WR_ATOMIC_CMP_AND_SWP;
    default: return request.has_immediate ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND;
    }
}

inline unsigned flags_of(const work_request& request, bool signaled) noexcept {
    return (signaled ? unsigned{IBV_SEND_SIGNALED} : 0) | (request.solicited ? unsigned{IBV_SEND_SOLICITED} : 0) |
           (request.fence ? unsigned{IBV_SEND_FENCE} : 0) | (request.local.inlined() ? unsigned{IBV_SEND_INLINE} : 0);
}

inline direct_post direct_post_of(const work_request& request) noexcept {
    const bool remote = request.kind == work_kind::write || request.kind == work_kind::read;
    return {.possible = (remote || request.kind == work_kind::send) && request.signaled && !request.local.inlined() &&
                        request.to.native_handle() == nullptr &&
                        (!remote || request.local.bytes() <= request.remote.length),
            .flags = static_cast<std::uint8_t>(flags_of(request, true)),
            .opcode = static_cast<std::uint16_t>(opcode_of(request))};
}

/// The awaiter of every work request: immovable, in the coroutine frame; the table entry names it, so that no
/// allocation is needed. Destroying it while the request is posted ends the connection (see queue_pair.hpp).
template <class Result>
class work_awaiter : public operation_state {
  public:
    work_awaiter(queue_pair_core* qp, const work_request& request, direct_post direct) noexcept
        : operation_state(qp, &request_, 1, direct), request_(request) {}

    bool await_ready() const noexcept { return false; }
    bool await_suspend(std::coroutine_handle<> waiting) noexcept {
        continuation = waiting;
        return submit(*this);
    }
    result<Result> await_resume() const {
        if (!succeeded()) return failure();
        if constexpr (std::is_void_v<Result>)
            return {};
        else if constexpr (std::same_as<Result, received>)
            return received{.byte_len = outcome_.byte_len,
                            .immediate = outcome_.has_immediate ? std::optional(outcome_.immediate) : std::nullopt,
                            .source_qp = outcome_.source_qp};
        else {
            std::uint64_t before; // the caller's memory need not be aligned
            std::memcpy(&before, request_.local.data()->bytes().data(), sizeof before);
            return before;
        }
    }

  private:
    work_request request_;
};

template <class Result>
class work_operation {
  public:
    using result_type = result<Result>;
    work_operation(queue_pair_core* qp, const work_request& request) noexcept
        : qp_(qp), request_(request), direct_(direct_post_of(request)) {}
    work_awaiter<Result> operator co_await() && noexcept { return {qp_, request_, direct_}; }

  private:
    queue_pair_core* qp_;
    work_request request_;
    direct_post direct_; // of what the compiler still sees here
};

template <std::size_t N>
class chain_awaiter : public operation_state {
  public:
    chain_awaiter(queue_pair_core* qp, const std::array<work_request, N>& requests) noexcept
        : operation_state(qp, nullptr, N, {}), requests_(requests) {
        operation_state::requests_ = requests_.data();
    }

    bool await_ready() const noexcept { return false; }
    bool await_suspend(std::coroutine_handle<> waiting) noexcept {
        continuation = waiting;
        return submit(*this);
    }
    result<void> await_resume() const {
        if (!succeeded()) return failure();
        return {};
    }

  private:
    std::array<work_request, N> requests_;
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

// An operation describes what to post; awaiting it posts. Operations are trivially copyable and may be passed around.
//
// Completes when   the request's completion was polled; an unsignaled one when it was posted.
// In flight        any number; beyond the queue's capacity they wait in the order they were awaited.
// Buffers          the device's from the post to the completion.
// Errors           the completion's status (category `completion_category()`), the post's errno, `not_connected`,
//                  `not_attached`, `in_use`, `invalid_argument`, `connection_reset` with the root cause.
// Cancel safety    a request that waits for capacity is taken out alone; a posted one cannot be recalled: destroying
//                  its coroutine, or ending it early (with_timeout.hpp), ends the queue pair, after which buffers are
//                  quiet. An unsignaled send that was posted has ended, and destroying its coroutine recalls nothing:
//                  `flushed` tells when its buffer is the caller's.
// Thread           reactor-bound.

class [[nodiscard]] send_operation : public detail::work_operation<void> {
    using work_operation::work_operation;
};
class [[nodiscard]] recv_operation : public detail::work_operation<received> {
    using work_operation::work_operation;
};
class [[nodiscard]] write_operation : public detail::work_operation<void> {
    using work_operation::work_operation;
};
class [[nodiscard]] read_operation : public detail::work_operation<void> {
    using work_operation::work_operation;
};
/// Gives the value before.
class [[nodiscard]] fetch_add_operation : public detail::work_operation<std::uint64_t> {
    using work_operation::work_operation;
};
/// Gives the value before: it was swapped if that equals `expected`.
class [[nodiscard]] compare_swap_operation : public detail::work_operation<std::uint64_t> {
    using work_operation::work_operation;
};

/// N requests of the send queue, posted by one call in this order, of which the last is signaled and awaited. Takes N
/// places of the queue at once. Fails with the first failure among them.
template <std::size_t N>
class [[nodiscard]] chain_operation {
  public:
    using result_type = result<void>;
    chain_operation(detail::queue_pair_core* qp, const std::array<work_request, N>& requests) noexcept
        : qp_(qp), requests_(requests) {}
    detail::chain_awaiter<N> operator co_await() && noexcept { return {qp_, requests_}; }

  private:
    detail::queue_pair_core* qp_;
    std::array<work_request, N> requests_;
};

/// Ends when the buffers of all sends posted before it are the caller's again.
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

static_assert(std::is_trivially_copyable_v<send_operation> && std::is_trivially_copyable_v<recv_operation> &&
              std::is_trivially_copyable_v<fetch_add_operation> && std::is_trivially_copyable_v<chain_operation<2>> &&
              std::is_trivially_copyable_v<flush_operation>);

} // namespace verbena
