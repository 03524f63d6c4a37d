#pragma once

#include <verbena/detail/timer_queue.hpp>

namespace verbena::detail {

/// A deadline of a reactor's timer queue.
struct timer : timer_node {
    /// It has passed, and the timer was taken out. Resumes nobody.
    virtual void expired() noexcept = 0;

  protected:
    ~timer() = default;
};

} // namespace verbena::detail
