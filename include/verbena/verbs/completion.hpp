#pragma once

#include <verbena/error.hpp>

#include <infiniband/verbs.h>

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>

namespace verbena {

/// Room for one completion, which the device's library writes. The layout is that of `ibv_wc`; default initialisation
/// costs nothing and leaves it indeterminate. What was polled into it is read through `polled_completions`.
/// A value.
class poll_slot {
  public:
    /// For ibv_poll_cq by hand.
    ibv_wc* native_handle() noexcept { return &native_; }
    /// What was polled into it.
    const ibv_wc* native_handle() const noexcept { return &native_; }

  private:
    ibv_wc native_;
};
static_assert(sizeof(poll_slot) == sizeof(ibv_wc) && alignof(poll_slot) == alignof(ibv_wc));
static_assert(std::is_trivially_default_constructible_v<poll_slot> && std::is_standard_layout_v<poll_slot>);

/// What a successful completion completed. Source: ibv_poll_cq(3).
enum class completion_opcode : unsigned {
    send = IBV_WC_SEND,                             ///< a send, with immediate data or without
    rdma_write = IBV_WC_RDMA_WRITE,                 ///< likewise
    rdma_read = IBV_WC_RDMA_READ,                   ///< the bytes are in the local slices
    compare_and_swap = IBV_WC_COMP_SWAP,            ///< the value before is in the local slice
    fetch_and_add = IBV_WC_FETCH_ADD,               ///< likewise
    bind_memory_window = IBV_WC_BIND_MW,            ///< posted without this library
    local_invalidate = IBV_WC_LOCAL_INV,            ///< likewise
    receive = IBV_WC_RECV,                          ///< a message is in the receive's slices
    receive_rdma_write = IBV_WC_RECV_RDMA_WITH_IMM, ///< the peer's RDMA write with immediate data
};

/// One completion, by value. What means nothing on a failed completion has no value there: only `wr_id`, the status,
/// `qp_num` and `vendor_error` do. A value. Source: ibv_poll_cq(3).
class work_completion {
  public:
    /// Of an entry that ibv_poll_cq gave.
    explicit work_completion(const ibv_wc& native) noexcept : native_(native) {}

    std::uint64_t wr_id() const noexcept { return native_.wr_id; }        ///< as it was posted
    bool ok() const noexcept { return native_.status == IBV_WC_SUCCESS; } ///< whether the request succeeded
    /// The status as a code of `completion_category()`; false as a condition if `ok()`.
    std::error_code status() const noexcept { return {static_cast<int>(native_.status), completion_category()}; }
    /// Precondition: `!ok()`. The verb it names is ibv_poll_cq, which reported it.
    verbena::error error() const noexcept {
        assert(!ok());
        return verbena::error(status(), "ibv_poll_cq").with_completion(native_.qp_num, native_.vendor_err);
    }
    std::uint32_t qp_num() const noexcept { return native_.qp_num; }           ///< the local queue pair
    std::uint32_t vendor_error() const noexcept { return native_.vendor_err; } ///< the device's own code

    /// What it completed.
    std::optional<completion_opcode> opcode() const noexcept {
        if (!ok()) return std::nullopt;
        return static_cast<completion_opcode>(native_.opcode);
    }
    /// Whether it is the successful end of a receive.
    bool is_receive() const noexcept { return ok() && (native_.opcode & IBV_WC_RECV) != 0; }
    /// The bytes that arrived, for receives (UD: the 40 of the GRH included), RDMA reads and atomics.
    std::optional<std::uint32_t> byte_len() const noexcept {
        const bool has =
            is_receive() || (ok() && (native_.opcode == IBV_WC_RDMA_READ || native_.opcode == IBV_WC_COMP_SWAP ||
                                      native_.opcode == IBV_WC_FETCH_ADD));
        if (!has) return std::nullopt;
        return native_.byte_len;
    }
    /// The peer's immediate data in host order, if it sent any.
    std::optional<std::uint32_t> immediate() const noexcept {
        if (!is_receive() || (native_.wc_flags & IBV_WC_WITH_IMM) == 0) return std::nullopt;
        return __builtin_bswap32(native_.imm_data);
    }
    /// The local key that the peer's send invalidated, if it did.
    std::optional<std::uint32_t> invalidated_rkey() const noexcept {
        if (!is_receive() || (native_.wc_flags & IBV_WC_WITH_INV) == 0) return std::nullopt;
        return native_.invalidated_rkey;
    }
    /// The sender's queue pair. Means something on UD only.
    std::optional<std::uint32_t> source_qp() const noexcept {
        if (!is_receive()) return std::nullopt;
        return native_.src_qp;
    }
    /// Whether the first 40 bytes of a UD receive are a global route header.
    bool has_grh() const noexcept { return is_receive() && (native_.wc_flags & IBV_WC_GRH) != 0; }

    /// For verbs that take one: of a failed completion most of it is indeterminate.
    const ibv_wc& native() const noexcept { return native_; }

  private:
    ibv_wc native_;
};

/// The completions of one poll: a view of the slots they were written to, which must outlive it and not be polled into
/// again meanwhile. Yields `work_completion` values in the order of the queue. A value.
class polled_completions {
  public:
    /// Forward, by value. A value.
    class iterator {
      public:
        using value_type = work_completion;                 ///< as of any iterator
        using difference_type = std::ptrdiff_t;             ///< likewise
        using iterator_category = std::input_iterator_tag;  ///< its reference is no reference
        using iterator_concept = std::forward_iterator_tag; ///< of C++20

        iterator() noexcept = default;
        /// At this slot.
        explicit iterator(const poll_slot* at) noexcept : at_(at) {}
        /// The completion there.
        work_completion operator*() const noexcept { return work_completion(*at_->native_handle()); }
        /// The next slot.
        iterator& operator++() noexcept {
            ++at_;
            return *this;
        }
        iterator operator++(int) noexcept { return iterator(at_++); } ///< the next slot
        friend bool operator==(iterator, iterator) noexcept = default;

      private:
        const poll_slot* at_ = nullptr;
    };

    polled_completions() noexcept = default;
    /// Of slots that were polled into, all of them.
    explicit polled_completions(std::span<const poll_slot> filled) noexcept : filled_(filled) {}

    iterator begin() const noexcept { return iterator(filled_.data()); }                ///< the oldest
    iterator end() const noexcept { return iterator(filled_.data() + filled_.size()); } ///< behind the newest
    std::size_t size() const noexcept { return filled_.size(); }                        ///< completions
    bool empty() const noexcept { return filled_.empty(); }                             ///< the queue was empty
    /// Precondition: `index < size()`.
    work_completion operator[](std::size_t index) const noexcept {
        return work_completion(*filled_[index].native_handle());
    }

  private:
    std::span<const poll_slot> filled_;
};

} // namespace verbena
