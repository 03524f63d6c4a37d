#pragma once

#include <verbena/detail/export.hpp>
#include <verbena/detail/list.hpp>

#include <coroutine>

namespace verbena::detail {

/// A coroutine that waits to be resumed. Lives in the awaiter, in that coroutine's frame; its destructor unlinks it.
struct ready_node : list_node {
    std::coroutine_handle<> continuation;
};

/// Coroutines to resume, in order. Whoever runs the thread runs it: the reactor, else the outermost `resume_soon`.
/// Resuming only from here bounds the stack: what a resumed coroutine wakes is queued behind it. Reactor-bound.
class ready_queue {
  public:
    void push(ready_node& node) noexcept { nodes_.push_back(node); }
    bool empty() const noexcept { return nodes_.empty(); }
    /// Also whom a `run` that goes on would have resumed.
    void forget_all() noexcept {
        while (!present_.empty()) present_.pop_front();
        while (!nodes_.empty()) nodes_.pop_front();
    }
    /// Puts all of `nodes`, in their order, behind what is here.
    void splice(list<ready_node>& nodes) noexcept { nodes_.splice(nodes); }

    /// Resumes all that are here now, and of those pushed meanwhile as many as make up to `budget` in all; returns how
    /// many. What a `resume()` throws (no coroutine of this library does) does not stop the others: the first exception
    /// is rethrown at the end.
    unsigned run(unsigned budget) {
        present_.splice(nodes_);
        unsigned count = 0;
        try {
            resume_all(budget, count);
        } catch (...) {
            run_on(budget, count);
        }
        return count;
    }

  private:
    void resume_all(unsigned budget, unsigned& count) {
        for (; !present_.empty(); ++count) present_.pop_front().continuation.resume();
        for (; count < budget && !nodes_.empty(); ++count) nodes_.pop_front().continuation.resume();
    }
    /// After the first exception, which is the one that is handled.
    [[noreturn]] VERBENA_API void run_on(unsigned budget, unsigned count);

    list<ready_node> nodes_;
    list<ready_node> present_; ///< of the `run` that goes on
};

/// Appends to the queue that this thread runs. If it runs none, resumes the node, and all that it makes ready, here;
/// then only does it throw what `ready_queue::run` throws. What is resumed here may destroy the caller's object.
VERBENA_API void resume_soon(ready_node& node);
VERBENA_API void resume_soon(list<ready_node>& nodes);

/// Makes `queue` the one that this thread runs, and returns the former one; null: none.
VERBENA_API ready_queue* exchange_current_queue(ready_queue* queue) noexcept;

} // namespace verbena::detail
