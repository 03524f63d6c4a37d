#include <verbena/event.hpp>

#include <verbena/detail/broken_rule.hpp>

namespace verbena {

event::~event() {
    if (!waiters_.empty()) detail::broken_rule("an event must outlive those who wait for it");
}

void event::set() {
    set_ = true;
    detail::list<detail::ready_node> ready;
    detail::wake_all(waiters_, ready);
    detail::resume_soon(ready);
}

} // namespace verbena
