#pragma once

#include <verbena/detail/ready.hpp>
#include <verbena/result.hpp>
#include <verbena/verbs/memory_region.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <system_error>

namespace verbena {
namespace detail {

class queue_pair_core;

enum class operation_phase : std::uint8_t {
    idle,    ///< nothing has happened yet
    queued,  ///< waits for room in its queue; linked there
    batched, ///< has its room, and waits for the flush; linked at its queue
    posted,  ///< the device has it; entries of its queue name it
    ended,   ///< its outcome is final; on a ready list until it is resumed
};

/// A `std::error_code` that is not made before it is needed.
struct late_code {
    int value;
    const std::error_category* category;

    late_code& operator=(const std::error_code& code) noexcept {
        value = code.value();
        category = &code.category();
        return *this;
    }
    operator std::error_code() const noexcept { return {value, *category}; }
};

/// What ended an operation. Every operation has one, and few fail: only what a success says is written before.
struct completion_outcome {
    completion_outcome() noexcept {}
    completion_outcome(const std::error_code& why, const char* failed_verb, const char* more = nullptr) noexcept
        : failed(true), qp_num(0), vendor_error(0), verb(failed_verb), note(more) {
        code = why;
        root_cause = std::error_code();
    }

    bool failed = false;
    bool has_immediate = false;
    std::uint32_t byte_len;  // of a receive, as are
    std::uint32_t immediate; // with `has_immediate`
    std::uint32_t source_qp;
    std::uint32_t qp_num; // of a failure, as are
    std::uint32_t vendor_error;
    late_code code;
    late_code root_cause;
    const char* verb;
    const char* note;
};

/// How a request is posted, as far as its queue pair has no say.
enum class post_way : std::uint8_t {
    direct, ///< see `direct_with`: a signaled send, write or read, without inline data or destination
    checked = 100,
    inline_receives, ///< from here on: mistakes
    remote_too_short,
    no_atomic,
};
/// The short way, with so many slices.
constexpr post_way direct_with(std::uint32_t slices) noexcept { return static_cast<post_way>(slices); }

/// How many slices a request can hold itself.
inline constexpr std::size_t held_slices = 4;

/// A work request as the device reads it, made where its operation is, so that a post only gives it its number.
struct device_request {
    device_request() noexcept {}
    device_request(const device_request& other) noexcept {
        std::memcpy(static_cast<void*>(this), &other, sizeof *this);
        if (receives) {
            receive.next = nullptr;
            if (receive.sg_list == other.own()) receive.sg_list = own();
        } else {
            send.next = nullptr;
            if (send.sg_list == other.own()) send.sg_list = own();
        }
    }
    device_request& operator=(const device_request&) = delete;

    /// The next of its chain.
    device_request* next() const noexcept { return reinterpret_cast<device_request*>(send.next); }
    device_request* link(device_request& following) noexcept {
        send.next = &following.send;
        return &following;
    }

    union {
        ibv_send_wr send;
        ibv_recv_wr receive; ///< with `receives`
    };
    union {
        memory_slice held[held_slices];
    };
    post_way way;
    bool receives;
    bool signaled; ///< as asked for

  private:
    ibv_sge* own() const noexcept { return reinterpret_cast<ibv_sge*>(const_cast<memory_slice*>(held)); }
};
static_assert(offsetof(device_request, send) == 0);

/// The part of the awaiter of a work request that the runtime knows.
class operation_state : public ready_node {
  public:
    operation_state& operator=(const operation_state&) = delete;

    /// One that is posted takes its queue pair with it, and ends when that was flushed.
    VERBENA_API void cancel(errc cause, list<ready_node>& woken) noexcept;

  protected:
    operation_state(queue_pair_core* qp, std::uint16_t count) noexcept : qp_(qp), count_(count) {}
    /// The description alone: a copy has not been awaited.
    operation_state(const operation_state& other) noexcept
        : ready_node(), qp_(other.qp_), count_(other.count_), request_(other.request_) {}

    template <class>
    friend class work_awaiter;
    bool begin(std::coroutine_handle<> waiting) noexcept {
        continuation = waiting;
        const int answer = submit(*this);
        return answer == 0 || begun(answer);
    }
    /// Its coroutine is going, and has not been resumed.
    VERBENA_API void abandon() noexcept;
    /// 0: it will be resumed. Else ask `begun`.
    VERBENA_API static int submit(operation_state& operation);
    VERBENA_API bool begun(int answer) noexcept;
    bool succeeded() const noexcept { return !outcome_.failed; }
    /// Why it failed; after that it may begin anew.
    VERBENA_API error take_failure();

    queue_pair_core* qp_;
    std::uint16_t count_;                           ///< of requests, linked by `next`
    operation_phase phase_ = operation_phase::idle; ///< or `ended`, from the last time
    std::uint8_t cancelled_ = 0;                    ///< an `errc`: why, if that is what ends it
    ibv_send_wr* refused_;                          ///< by the post
    completion_outcome outcome_;                    ///< a success when it begins
    device_request request_;                        ///< the first

  private:
    friend class queue_pair_core;
    friend class work_queue;
};

/// Waits for an entry of the send queue that somebody else posted.
class flush_state : public ready_node {
  public:
    static constexpr bool ends_singly = true;

    explicit flush_state(queue_pair_core* qp) noexcept : qp_(qp) {}
    VERBENA_API void cancel(errc cause, list<ready_node>& woken) noexcept;

  protected:
    VERBENA_API static bool submit(flush_state& flush) noexcept;
    bool succeeded() const noexcept { return !outcome_.failed; }
    VERBENA_API error failure() const;

    queue_pair_core* qp_;
    completion_outcome outcome_;

  private:
    friend class queue_pair_core;
    friend class work_queue;
    bool waiting_ = false;
    std::uint64_t awaited_ = 0; ///< ends when all requests up to this number of the send queue have completed
};

/// Waits until nothing of a queue pair is outstanding.
class drain_state : public ready_node {
  public:
    drain_state(queue_pair_core* qp, bool destroys) noexcept : qp_(qp), destroys_(destroys) {}

  protected:
    VERBENA_API static bool submit(drain_state& drain) noexcept;
    bool succeeded() const noexcept { return !outcome_.failed; }
    VERBENA_API error failure() const;

    queue_pair_core* qp_;
    completion_outcome outcome_;
    std::uint32_t missing_ = 0;

  private:
    friend class queue_pair_core;
    bool destroys_;
};

} // namespace detail
} // namespace verbena
