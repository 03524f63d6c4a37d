#pragma once

#include <verbena/detail/ready.hpp>
#include <verbena/result.hpp>

#include <cstdint>
#include <system_error>

namespace verbena {

struct work_request;

namespace detail {

class queue_pair_core;
struct table_entry;

enum class operation_phase : std::uint8_t {
    idle,    ///< nothing has happened yet
    queued,  ///< waits for room in its queue; linked there
    batched, ///< has its room, and waits for the flush; linked at its queue
    posted,  ///< the device has it; table entries name it
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

/// What the program's compiler knows of a single request: whether it is a signaled send, write or read without fault,
/// inline data or destination, and how the device is told of it.
struct direct_post {
    bool possible = false;
    std::uint8_t flags = 0;
    std::uint16_t opcode = 0;
};

/// The part of an awaiter that the runtime knows.
class operation_state : public ready_node {
  public:
    operation_state(queue_pair_core* qp, const work_request* requests, std::uint32_t count, direct_post direct) noexcept
        : requests_(requests), qp_(qp), count_(count), direct_(direct) {}
    ~operation_state() {
        if (phase_ != operation_phase::ended && phase_ != operation_phase::idle) leave();
    }

    /// One that is posted takes its queue pair with it, and ends when that was flushed.
    VERBENA_API void cancel(errc cause, list<ready_node>& woken) noexcept;

  protected:
    VERBENA_API static bool submit(operation_state& operation) noexcept;
    bool succeeded() const noexcept { return !outcome_.failed; }
    VERBENA_API error failure() const;

    const work_request* requests_;
    queue_pair_core* qp_;
    table_entry* last_ = nullptr; ///< while posted: the entry of its last request
    std::uint32_t count_;
    operation_phase phase_ = operation_phase::idle;
    errc cancelled_{}; ///< why, if that is what ends it
    direct_post direct_;
    completion_outcome outcome_;

  private:
    friend class queue_pair_core;
    friend class work_queue;
    /// The coroutine is destroyed before the end: gives the room back, and ends the queue pair if the device has the
    /// request.
    VERBENA_API void leave() noexcept;
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
