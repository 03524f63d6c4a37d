#pragma once

// Work queues and completion queues as the device sees them: rings with free-running indices.

#include "abi.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <vector>

namespace verbena::sim {

struct queue_pair;
struct receive_queue;

/// Indices run freely: `done <= executed <= posted`, and `posted - done` requests occupy the ring.
struct ring_index {
    std::uint32_t posted = 0;
    std::uint32_t executed = 0; ///< the device has finished with all before
    std::uint32_t done = 0;     ///< the slots of all before may be used again

    std::uint32_t outstanding() const noexcept { return posted - executed; }
    std::uint32_t used() const noexcept { return posted - done; }
};

struct send_request {
    std::uint64_t wr_id;
    std::uint32_t length; ///< of all slices, or of the inline data
    std::uint32_t num_sge;
    ibv_wr_opcode opcode;
    unsigned flags;
    std::uint32_t imm_data;
    std::uint32_t rkey; ///< UD: the remote queue pair's number
    std::uint64_t remote_addr;
    std::uint64_t compare_add;
    std::uint64_t swap;
    std::uint32_t qkey;
    ibv_ah_attr route; ///< UD only

    bool is(unsigned flag) const noexcept { return (flags & flag) != 0; }
};

struct receive_request {
    std::uint64_t wr_id;
    std::uint32_t length;
    std::uint32_t num_sge;
};

/// The receive queue of a queue pair, or a shared one.
struct receive_queue {
    ring_index index;
    std::uint32_t size = 0;
    std::uint32_t max_sge = 0;
    std::uint32_t mask = 0;
    std::uint32_t waiting_senders = 0; ///< queue pairs that wait for a receive to be posted here
    std::vector<receive_request> requests;
    std::vector<ibv_sge> slices; ///< `max_sge` for every slot

    void make(std::uint32_t size_wanted, std::uint32_t sge_wanted);
    receive_request& request(std::uint32_t at) noexcept { return requests[at & mask]; }
    ibv_sge* slices_of(std::uint32_t at) noexcept { return &slices[std::size_t{at & mask} * max_sge]; }
};

struct send_queue {
    ring_index index;
    std::uint32_t size = 0;
    std::uint32_t max_sge = 0;
    std::uint32_t max_inline = 0;
    std::uint32_t mask = 0;
    std::vector<send_request> requests;
    std::vector<ibv_sge> slices;
    std::vector<std::byte> inline_data;

    void make(std::uint32_t size_wanted, std::uint32_t sge_wanted, std::uint32_t inline_wanted);
    send_request& request(std::uint32_t at) noexcept { return requests[at & mask]; }
    ibv_sge* slices_of(std::uint32_t at) noexcept { return &slices[std::size_t{at & mask} * max_sge]; }
    std::byte* inline_of(std::uint32_t at) noexcept { return inline_data.data() + std::size_t{at & mask} * max_inline; }
};

/// A completion on its way: what ibv_poll_cq will answer, and what must not be forgotten about it.
struct completion {
    ibv_wc wc;
    queue_pair* pair;      ///< valid while the pair lives; entries of the dead are not looked into
    std::uint32_t retires; ///< the ring's `done` when this has been polled
    bool is_receive;
    bool solicited;
};

/// The entries of one completion queue. The array is allocated zeroed by the system, so that a large queue costs
/// nothing until it is used.
class completion_ring {
  public:
    /// False: no memory. `capacity` is 2^k - 1.
    bool make(std::uint32_t capacity);

    std::uint32_t capacity() const noexcept { return mask_; }
    std::uint32_t count() const noexcept { return tail_ - head_; }
    bool full() const noexcept { return count() == mask_; }
    /// Where the next entry will be; there is always one spare. An entry is best built here.
    completion& next() noexcept { return entries_[tail_ & mask_]; }
    void push(const completion& c) noexcept {
        if (&c != &next()) next() = c;
        ++tail_;
    }
    completion& front() noexcept { return entries_[head_ & mask_]; }
    void pop() noexcept { ++head_; }

    /// Keeps the order of the others.
    template <class F>
    std::uint32_t remove_if(F&& f) {
        std::uint32_t to = head_;
        for (std::uint32_t from = head_; from != tail_; ++from)
            if (!f(entries_[from & mask_])) entries_[to++ & mask_] = entries_[from & mask_];
        const std::uint32_t removed = tail_ - to;
        tail_ = to;
        return removed;
    }

  private:
    struct freer {
        void operator()(completion* p) const noexcept { std::free(p); }
    };
    std::unique_ptr<completion[], freer> entries_;
    std::uint32_t mask_ = 0;
    std::uint32_t head_ = 0;
    std::uint32_t tail_ = 0;
};

} // namespace verbena::sim
