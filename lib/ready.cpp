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
    list<ready_node> present;
    present.splice(nodes_);
    while (!present.empty() || (count < budget && !nodes_.empty())) {
        const auto continuation = (present.empty() ? nodes_ : present).pop_front().continuation;
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
