#include <verbena/detail/ready.hpp>

#include <exception>
#include <limits>
#include <utility>

namespace verbena::detail {

namespace {
// Only the functions of this file touch it, so that no other object needs to know its TLS model.
constinit thread_local ready_queue* current = nullptr;
} // namespace

unsigned ready_queue::run(unsigned budget) {
    std::exception_ptr first;
    unsigned count = 0;
    ready_node mark; // behind those who are here now; it has no coroutine
    nodes_.push_back(mark);
    while (mark.linked() || (count < budget && !nodes_.empty())) {
        const auto continuation = nodes_.pop_front().continuation;
        if (!continuation) continue;
        ++count;
        try {
            continuation.resume();
        } catch (...) {
            if (!first) first = std::current_exception();
        }
    }
    if (first) std::rethrow_exception(std::move(first));
    return count;
}

ready_queue* exchange_current_queue(ready_queue* queue) noexcept { return std::exchange(current, queue); }

void resume_soon(list<ready_node>& nodes) {
    if (nodes.empty()) return;
    if (current) {
        current->splice(nodes);
        return;
    }
    struct outermost : ready_queue {
        outermost() noexcept { current = this; }
        ~outermost() { current = nullptr; }
    } queue;
    queue.splice(nodes);
    while (!queue.empty()) queue.run(std::numeric_limits<unsigned>::max());
}

void resume_soon(ready_node& node) {
    if (current) {
        current->push(node);
        return;
    }
    list<ready_node> one;
    one.push_back(node);
    resume_soon(one);
}

} // namespace verbena::detail
