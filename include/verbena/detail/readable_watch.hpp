#pragma once

#include <verbena/detail/list.hpp>
#include <verbena/detail/ready.hpp>
#include <verbena/detail/watch.hpp>
#include <verbena/result.hpp>

#include <utility>

namespace verbena::detail {

/// One wait for a descriptor: the first report ends it. Linked in its reactor's list as long as that lives.
class readable_watch final : public watch, public list_node {
  public:
    readable_watch(ready_queue& queue, int fd) noexcept : queue_(queue), fd_(fd) {}

    int fd() const noexcept { return fd_; }
    const result<void>& outcome() const noexcept { return outcome_; }

    void begin(ready_node& waiting) noexcept { waiting_ = &waiting; }
    /// There is nobody to resume.
    void refuse(error why) noexcept { outcome_ = std::move(why); }
    void ready(unsigned events) noexcept override;
    void end(result<void> outcome) noexcept;

  private:
    ready_node* waiting_ = nullptr; ///< null before the wait, and once it is on the ready list
    ready_queue& queue_;
    int fd_;
    result<void> outcome_;
};

} // namespace verbena::detail
