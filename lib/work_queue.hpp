#pragma once

#include <verbena/detail/list.hpp>
#include <verbena/detail/operation.hpp>

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <system_error>
#include <vector>

namespace verbena::detail {

class queue_pair_core;
class reactor_core;
class receiver_core;
class work_queue;
struct buffer_pool_state;

/// Who learns of a completion.
enum class entry_kind : std::uint8_t {
    free,
    quiet,     ///< nobody: an unsignaled send, resumed when it was posted; a flush marker
    probe,     ///< nobody: a sign of life is wanted
    awaited,   ///< an operation: its only request, a send
    receiving, ///< an operation: its only request, a receive
    chain,     ///< an operation: the last request of its chain
    member,    ///< an operation: an earlier request of its chain
    pooled,    ///< nobody, but a pool buffer goes back
    receive,   ///< a receiver's slot
};

/// One posted work request.
struct queue_entry {
    union {
        operation_state* operation;
        receiver_core* receiver;
        buffer_pool_state* pool;
    };
    std::uint32_t slot = 0; ///< of the receiver or the pool
    entry_kind kind = entry_kind::free;
    bool signaled = true;

    queue_entry() noexcept : operation(nullptr) {}
    queue_entry(entry_kind k, bool s, operation_state* o = nullptr) noexcept : operation(o), kind(k), signaled(s) {}
    queue_entry(receiver_core& r, std::uint32_t index) noexcept
        : receiver(&r), slot(index), kind(entry_kind::receive), signaled(true) {}
    queue_entry(buffer_pool_state& p, std::uint32_t index) noexcept
        : pool(&p), slot(index), kind(entry_kind::pooled), signaled(true) {}
};

/// One direction of a queue pair: its room, what is outstanding, and who waits for room. A device completes the
/// requests of one in the order of posting, so that entries are a ring; what comes out of order leaves a hole until
/// those before it have completed.
class work_queue {
  public:
    work_queue(queue_pair_core* pair, bool sends, std::uint32_t capacity);
    work_queue(const work_queue&) = delete;
    work_queue& operator=(const work_queue&) = delete;

    /// Makes it the reactor's. False: no more can be.
    bool enter(reactor_core& reactor) noexcept;
    void leave(reactor_core& reactor) noexcept;

    std::uint32_t capacity() const noexcept { return capacity_; }
    std::uint32_t room() const noexcept { return static_cast<std::uint32_t>(limit_ - next_); }
    void take(std::uint32_t places) noexcept { limit_ -= places; }
    void give(std::uint32_t places) noexcept { limit_ += places; }
    bool empty() const noexcept { return first_ == next_; }
    std::uint32_t outstanding() const noexcept { return static_cast<std::uint32_t>(next_ - first_) - holes_; }
    bool in_order() const noexcept { return holes_ == 0; }
    /// The position of the request that is posted next.
    std::uint64_t next() const noexcept { return next_; }
    /// True when all before this position have completed.
    bool done(std::uint64_t position) const noexcept { return first_ >= position; }
    /// Of the request that was posted last; there must be one outstanding.
    bool ends_signaled() const noexcept { return at(next_ - 1).signaled; }

    /// Whether the next send must carry the signaled flag although nobody asked: so that room always comes back.
    bool must_signal() const noexcept { return run() + 1 >= (capacity_ / 2 > 1 ? capacity_ / 2 : 1); }
    /// True if there is something outstanding, of which the device will report nothing.
    bool silent() const noexcept;

    /// Appends an entry, for which room has been taken or is taken at once.
    void append(reactor_core& reactor, const queue_entry& entry) noexcept;
    /// The same for a signaled send that is awaited alone, and takes its room. Gives its `wr_id`.
    std::uint64_t append(reactor_core& reactor, operation_state& operation) noexcept;
    /// The `wr_id` of the one appended last.
    std::uint64_t number() const noexcept { return number_of(next_ - 1); }
    /// Undoes the last `append`: the request was not posted. Does not give room.
    void revoke(reactor_core& reactor) noexcept;
    /// The chain of the one appended last ends with it.
    void end_chain() noexcept { entries_[(next_ - 1) & mask_].kind = entry_kind::chain; }

    /// What most completions are: that of the send which is next in order, awaited alone, and succeeded. False: not
    /// one of those, and nothing has happened.
    bool complete_next(reactor_core& reactor, const ibv_wc& wc) noexcept;
    /// The completion of one request of this queue, and with it that of the unsignaled sends before it. False: nothing
    /// outstanding carries this number.
    bool complete(reactor_core& reactor, const ibv_wc& wc) noexcept;
    /// Ends everything outstanding, in order. The device must have let go of it.
    void end_all(reactor_core& reactor, const completion_outcome& failure) noexcept;
    /// Ends the operations that wait for room.
    void end_waiting(reactor_core& reactor, const completion_outcome& failure) noexcept;
    /// Ends one operation that the device does not have.
    static void end_operation(reactor_core& reactor, operation_state& operation,
                              const completion_outcome& failure) noexcept;

    list<operation_state> waiting; ///< for room
    list<operation_state> batch;   ///< have room, wait for the flush
    /// A completion may be what somebody waits for who is not its operation: for room, a flush or a drain.
    bool watched = false;

  private:
    friend class reactor_core;
    friend class work_queue_index;

    queue_entry at(std::uint64_t position) const noexcept {
        operation_state* const alone = alone_[position & mask_];
        return alone != nullptr ? queue_entry(entry_kind::awaited, true, alone) : entries_[position & mask_];
    }
    bool is_free(std::uint64_t position) const noexcept { return at(position).kind == entry_kind::free; }
    void set_free(std::uint64_t position) noexcept {
        alone_[position & mask_] = nullptr;
        entries_[position & mask_].kind = entry_kind::free;
    }
    std::uint64_t number_of(std::uint64_t position) const noexcept {
        return base_ | static_cast<std::uint32_t>(position);
    }
    /// Of unsignaled requests, at the end.
    std::uint32_t run() const noexcept { return run_end_ == next_ ? run_ : 0; }
    void pass_holes() noexcept {
        for (; holes_ != 0 && is_free(first_); --holes_) {
            ++first_;
            ++limit_;
        }
    }
    void tell_watchers() noexcept;
    void forget_members(std::uint64_t last) noexcept;
    void free_entry(reactor_core& reactor, std::uint64_t position) noexcept;
    void end_unsignaled_before(reactor_core& reactor, std::uint64_t position) noexcept;
    [[gnu::noinline]] void fail(reactor_core& reactor, std::uint64_t position, const ibv_wc& wc) noexcept;
    void succeed(reactor_core& reactor, std::uint64_t position, const ibv_wc& wc) noexcept;
    [[gnu::noinline]] void end_entry(reactor_core& reactor, std::uint64_t position, const ibv_wc* wc,
                                     const completion_outcome* failure) noexcept;

    std::uint64_t first_ = 0; ///< position of the oldest that is outstanding
    std::uint64_t next_ = 0;
    std::uint64_t limit_; ///< there is room up to here
    std::uint64_t mask_;
    std::unique_ptr<operation_state*[]> alone_; ///< a ring: who awaits a send alone; else null, and then there is
    std::unique_ptr<queue_entry[]> entries_;    ///< an entry in this ring
    std::uint64_t base_ = 0;                    ///< of its numbers; 0: it is no reactor's
    std::uint64_t run_end_ = 0;
    queue_pair_core* pair_;
    std::uint32_t capacity_;
    std::uint32_t run_ = 0; ///< of unsignaled requests before `run_end_`
    std::uint32_t holes_ = 0;
    bool sends_;
};

/// Maps a `wr_id` to its work queue. The upper half: 16 bits of a magic drawn anew for every reactor, 16 bits of the
/// queue's index here. The lower half: the request's position in that queue. A queue goes on where the last one of the
/// same index ended, so that no completion of that one can be taken for one of this.
class work_queue_index {
  public:
    static constexpr std::size_t max_queues = std::size_t{1} << 16;

    work_queue_index();

    /// False: there are as many as there can be, or memory has run out.
    bool add(work_queue& queue) noexcept;
    void remove(const work_queue& queue) noexcept;
    /// That or, if the number is of none here, one with nothing outstanding.
    work_queue& find(std::uint64_t wr_id) noexcept {
        const std::uint64_t i = (wr_id >> 32) - first_;
        return i < size_ ? *queues_[i] : nobody_;
    }
    work_queue& nobody() noexcept { return nobody_; }
    /// True if some request carried the number once.
    bool ours(std::uint64_t wr_id) const noexcept { return (wr_id >> 32) - first_ < size_; }

  private:
    work_queue nobody_{nullptr, true, 0};
    std::uint64_t first_; ///< upper half of the first queue's numbers
    std::uint64_t size_ = 0;
    std::vector<work_queue*> queues_;
    std::vector<std::uint32_t> positions_; ///< where the one that comes next begins
    std::vector<std::uint16_t> free_;
};

inline std::error_code code_of(const ibv_wc& wc) noexcept {
    return {static_cast<int>(wc.status), completion_category()};
}

/// What a completion says that failed with `code`; its queue pair, if one is known, learns of it.
completion_outcome failure_of(const ibv_wc& wc, std::error_code code, queue_pair_core* pair, bool sends) noexcept;

} // namespace verbena::detail
