#include <verbena/scope.hpp>

#include <verbena/detail/broken_rule.hpp>
#include <verbena/detail/ready.hpp>
#include <verbena/error.hpp>
#include <verbena/result.hpp>

#include <exception>
#include <utility>

namespace verbena {

namespace detail {

child_base::~child_base() = default;

void child_base::release() noexcept {
    if (--references_ == 0)
        delete this;
    else if (references_ == 1 && owner_ && state_ == state::finished)
        owner_->drop_unreachable_failures();
}

list<cancellable_wait>& child_base::waiters() noexcept {
    if (!waiters_.empty()) broken_rule("a child is waited for by one coroutine");
    return waiters_;
}

void child_base::take() {
    if (state_ == state::destroyed) throw_error(error(errc::closed, "child::wait"));
    if (state_ == state::taken) broken_rule("the outcome of a child is taken once");
    state_ = state::taken;
    if (std::exchange(owner_, nullptr)) { // it was among the failures
        unlink();
        --references_;
    }
}

void child_base::finished() {
    scope& owner = *owner_;
    state_ = state::finished;
    unlink();
    list<ready_node> ready;
    wake_all(waiters_, ready);
    if (owner.children_.empty()) wake_all(owner.joiners_, ready);
    if (exception()) {
        owner.failures_.push_back(*this);
        if (references_ == 1) owner.drop_unreachable_failures();
    } else {
        owner_ = nullptr;
        release();
    }
    resume_soon(ready); // last: it may destroy the scope
}

} // namespace detail

scope::~scope() {
    if (joining_ != 0) detail::broken_rule("a scope must outlive those who join it");
    detail::list<detail::ready_node> ready;
    stop_children(errc::stopped, ready);
    while (!children_.empty()) {
        detail::child_base& youngest = children_.back();
        youngest.unlink();
        youngest.owner_ = nullptr;
        youngest.state_ = detail::child_base::state::destroyed;
        youngest.drop_frame();
        detail::wake_all(youngest.waiters_, ready); // often a sibling, which is destroyed next
        youngest.release();
    }
    while (!failures_.empty()) {
        detail::child_base& failure = failures_.pop_front();
        failure.owner_ = nullptr;
        failure.release();
    }
    detail::resume_soon(ready);
}

void scope::stop_children(errc cause, detail::list<detail::ready_node>& woken) noexcept {
    if (stop_cause_ != errc{}) return;
    stop_cause_ = cause;
    children_.for_each([&](detail::child_base& child) { child.stop(cause, woken); });
}

void scope::stop_children(errc cause) {
    detail::list<detail::ready_node> woken;
    stop_children(cause, woken);
    detail::resume_soon(woken);
}

void scope::report() {
    if (failures_.empty()) return;
    const std::exception_ptr first = failures_.front().exception();
    while (!failures_.empty()) {
        detail::child_base& failure = failures_.pop_front();
        failure.owner_ = nullptr;
        failure.release();
    }
    std::rethrow_exception(first);
}

// `join` reports one failure, so of those whose handle is gone only the first has a chance: a scope that is never
// joined does not collect the others.
void scope::drop_unreachable_failures() noexcept {
    bool found = false;
    failures_.for_each([&](detail::child_base& failure) {
        if (failure.references_ > 1) return;
        if (std::exchange(found, true)) {
            failure.unlink();
            failure.owner_ = nullptr;
            failure.release();
        }
    });
}

} // namespace verbena
