#pragma once

#include "check.hpp"
#include "wait_backend.hpp"

#include <verbena/detail/list.hpp>
#include <verbena/reactor.hpp>

#include <cerrno>
#include <utility>

#include <poll.h>

namespace verbena::detail {

/// One wait for a descriptor: the first report ends it. Linked in its reactor's list as long as that lives.
class readable_watch final : public watch, public list_node {
  public:
    readable_watch(ready_node& waiting, ready_queue& queue, int fd) noexcept
        : waiting_(&waiting), queue_(queue), fd_(fd) {}

    int fd() const noexcept { return fd_; }
    const result<void>& outcome() const noexcept { return outcome_; }

    void ready(unsigned events) noexcept override {
        if ((events & POLLNVAL) != 0)
            end(error(system_code(EBADF), "reactor::wait_readable"));
        else
            end({});
    }
    void end(result<void> outcome) noexcept {
        if (waiting_ == nullptr) return;
        outcome_ = std::move(outcome);
        queue_.push(*std::exchange(waiting_, nullptr));
    }

  private:
    ready_node* waiting_; ///< null once it is on the ready list
    ready_queue& queue_;
    int fd_;
    result<void> outcome_;
};

} // namespace verbena::detail
