#pragma once

#include "operation_table.hpp"
#include "verbs/states.hpp"
#include "work_queue.hpp"

#include <verbena/receiver.hpp>

#include <cstdint>
#include <memory>
#include <vector>

namespace verbena::detail {

class queue_pair_core;
class reactor_core;
class receiver_core;

struct receiver_link : list_node {
    explicit receiver_link(receiver_core& r) noexcept : receiver(&r) {}
    receiver_core* receiver;
};

/// The buffers and messages behind `receiver`. Counted by hand: one reference for the handle, one for each message, and
/// one for the queue while the device may write into the buffers.
class receiver_core {
  public:
    /// With one reference, for the handle.
    static result<receiver_core*> create(queue_pair_core& pair, receiver_options options);
    static result<receiver_core*> create(reactor_core& reactor, std::shared_ptr<shared_receive_queue_state> srq,
                                         receiver_options options);
    receiver_core(const receiver_core&) = delete;
    receiver_core& operator=(const receiver_core&) = delete;

    void add_reference() noexcept { ++references_; }
    void drop_reference() noexcept {
        if (--references_ == 0) delete this;
    }

    // From the device, through the work queue,
    void completed(reactor_core& reactor, std::uint32_t slot, const ibv_wc* wc,
                   const completion_outcome* failure) noexcept;
    /// or through the table: a receive of the shared queue, whose entry is free then.
    void completed(reactor_core& reactor, table_entry& entry, const ibv_wc& wc) noexcept;
    /// No message will come any more.
    void fail(error cause) noexcept;
    /// The queue pair or the shared receive queue is gone: the device writes no more.
    void queue_gone() noexcept;
    void reactor_gone() noexcept;
    bool uses(const completion_queue_state& queue) const noexcept;
    /// Null on a queue pair.
    const shared_receive_queue_state* shared_queue() const noexcept { return srq_; }
    /// Batched queue pairs: posts the buffers that came back.
    void post_returned() noexcept;

    // From user code.
    void close() noexcept;
    void give_back(std::uint32_t slot) noexcept;
    bool take(next_state& next) noexcept;
    void wait(next_state& next) noexcept {
        next.queued = true;
        waiters_.push_back(next);
    }
    void abandon(std::uint32_t slot) noexcept;
    /// Takes the first of those that wait.
    next_state& first_waiter() noexcept {
        next_state& waiter = waiters_.pop_front();
        waiter.queued = false;
        return waiter;
    }
    message make_message(std::uint32_t slot) noexcept;
    const error& end() const noexcept { return end_; }
    const receiver_stats& stats() const noexcept { return stats_; }

    struct slot_state {
        std::uint32_t next = next_state::none;
        std::uint32_t byte_len = 0;
        std::uint32_t immediate = 0;
        std::uint32_t qp_num = 0;
        bool has_immediate = false;
        table_entry* entry = nullptr; ///< while it is posted to a shared receive queue
        ibv_wc datagram{};            ///< UD only
    };
    const slot_state& slot(std::uint32_t index) const noexcept { return slots_[index]; }
    memory_slice payload(std::uint32_t slot) const noexcept;
    std::span<const std::byte> header(std::uint32_t slot) const noexcept;
    const std::shared_ptr<protection_domain_state>& domain() const noexcept { return domain_; }
    std::uint8_t port() const noexcept { return port_; }

  private:
    receiver_core(memory_region region, std::shared_ptr<protection_domain_state> domain, std::uint32_t depth,
                  std::uint32_t message_bytes, bool datagram);
    ~receiver_core() = default;
    static result<receiver_core*> build(const std::shared_ptr<protection_domain_state>& domain, std::uint32_t depth,
                                        std::uint32_t message_bytes, bool datagram);
    result<void> post_all();
    bool post(std::uint32_t slot) noexcept;
    bool live() const noexcept { return reactor_ != nullptr && (pair_ != nullptr || srq_ != nullptr); }

    memory_region region_;
    std::shared_ptr<protection_domain_state> domain_;
    std::uint32_t message_bytes_;
    std::uint32_t stride_;
    std::uint32_t head_bytes_; ///< in front of each message: 40 for UD
    std::uint8_t port_ = 1;
    std::vector<slot_state> slots_;
    std::uint32_t first_ = next_state::none; ///< messages nobody has taken, in their order
    std::uint32_t last_ = next_state::none;
    std::vector<std::uint32_t> returned_; ///< batched: to be posted at the flush
    list<next_state> waiters_;
    queue_pair_core* pair_ = nullptr;
    shared_receive_queue_state* srq_ = nullptr;
    reactor_core* reactor_ = nullptr;
    std::size_t references_ = 1;
    bool closed_ = false;
    bool ended_ = false;
    error end_;
    receiver_stats stats_;

  public:
    receiver_link in_reactor{*this};
};

} // namespace verbena::detail
