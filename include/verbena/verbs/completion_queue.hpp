#pragma once

#include <verbena/verbs/completion.hpp>
#include <verbena/verbs/completion_channel.hpp>

#include <chrono>
#include <cstdint>
#include <span>

namespace verbena {

namespace detail {
struct completion_queue_state;
}

/// How a completion queue is made. Source: ibv_create_cq_ex(3).
struct completion_queue_options {
    completion_channel channel{}; ///< where its events go; empty: it can only be polled
    int comp_vector = 0;          ///< which interrupt vector signals them; below `ibv_context::num_comp_vectors`
    /// The device's library may leave out the lock of the queue (IBV_CREATE_CQ_ATTR_SINGLE_THREADED). Whether it does
    /// is its own affair: those of mlx4, mlx5 and rxe lock in ibv_poll_cq all the same. `poll`, `resize`, and making
    /// and destroying queue pairs on it are then for one thread at a time; attached, they are the reactor's anyway.
    bool single_threaded = false;
};

/// A queue of completions. Copies share it; it keeps its context and channel open. *Thread-safe* while it is attached
/// to no reactor and not `single_threaded`: any thread may poll and resize it. Attached, `poll` fails and `resize` is
/// *reactor-bound*.
class VERBENA_API completion_queue {
  public:
    /// With room for at least `min_capacity` completions. Errors: `invalid_argument`: a capacity of 0, beyond the
    /// device's limit or no `int`, a comp_vector the device does not have, a channel of another context; `resource`:
    /// the system cannot allocate it; `unsupported`: the device does not know `single_threaded` queues. Sources:
    /// ibv_create_cq(3), ibv_create_cq_ex(3).
    static result<completion_queue> create(const verbena::context& context, std::size_t min_capacity,
                                           const completion_queue_options& options = {});

    completion_queue() noexcept = default;
    explicit operator bool() const noexcept { return state_ != nullptr; }

    /// Takes what is there, oldest first, writing straight into `slots`; never waits, never allocates. An empty queue
    /// gives an empty view. At most INT32_MAX slots are used in one call; a warning is logged, once per process.
    /// Errors: `attached`: a reactor polls it; `queue_failed`: it cannot be polled any more, and stays so. Source:
    /// ibv_poll_cq(3).
    result<polled_completions> poll(std::span<poll_slot> slots) const;

    /// Grows or shrinks to at least `capacity` entries; what is there stays, in its order. The device may grant more,
    /// and shrinking may do nothing. Errors: `invalid_argument`: 0, beyond the device's limit, or fewer than there are
    /// unpolled entries; `in_use`: fewer than queue pairs and shared receive queues have reserved; `unsupported`: the
    /// device cannot; `wrong_thread`: attached, and this is not the reactor's thread. Source: ibv_resize_cq(3).
    result<void> resize(std::size_t capacity) const;

    /// Asks the device to hold an event back until `count` completions are there or `period` has passed: fewer wakes of
    /// a reactor that sleeps, and later ones: it polls no queue that it found empty before it slept until that event
    /// comes. Any thread may call it, attached or not.
    /// Errors: `invalid_argument`: a period below 0 or above 65535 us, or more than the device takes (mlx5: 4095 us);
    /// `unsupported`: the device cannot, as rxe. Source: ibv_modify_cq(3), IBV_CQ_ATTR_MODERATE.
    result<void> moderate(std::uint16_t count, std::chrono::microseconds period) const;

    /// The capacity asked for at creation, in entries.
    std::uint32_t min_capacity() const noexcept;
    /// The capacity now, in entries.
    std::uint32_t capacity() const noexcept;
    bool attached() const noexcept; ///< whether a reactor polls it
    verbena::context context() const noexcept;
    /// Empty if it was created without.
    completion_channel channel() const noexcept;
    ibv_cq* native_handle() const noexcept;
    friend bool operator==(const completion_queue&, const completion_queue&) noexcept = default;

  private:
    friend struct detail::access;
    explicit completion_queue(std::shared_ptr<detail::completion_queue_state> state) noexcept
        : state_(std::move(state)) {}

    std::shared_ptr<detail::completion_queue_state> state_;
};

} // namespace verbena
