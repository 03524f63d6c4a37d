#include <verbena/detail/ready.hpp>

#include <exception>
#include <limits>
#include <utility>

namespace verbena::detail {

namespace {
// Only the functions of this file touch it, so that no other object needs to know its TLS model.
constinit thread_local ready_queue* current = nullptr;
} // namespace

void ready_queue::run_on(unsigned budget, unsigned count) {
    const std::exception_ptr first = std::current_exception();
    for (bool over = false; !over;) {
        ++count; // the one that threw
        try {
            resume_all(budget, count);
            over = true;
        } catch (...) {}
    }
    std::rethrow_exception(first);
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
