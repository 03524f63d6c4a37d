#include <verbena/semaphore.hpp>

#include <verbena/detail/broken_rule.hpp>

namespace verbena {

semaphore::~semaphore() {
    if (asking_ != 0) detail::broken_rule("a semaphore must outlive those who wait for it");
}

void semaphore::release(std::size_t permits) {
    count_ += permits;
    detail::list<detail::ready_node> ready;
    for (; count_ != 0 && !waiters_.empty(); --count_) detail::wake_first(waiters_, ready);
    detail::resume_soon(ready);
}

void semaphore::acquire_awaiter::give_on() noexcept {
    unlink();
    --semaphore_.asking_;
    if (woken()) semaphore_.release();
}

} // namespace verbena
