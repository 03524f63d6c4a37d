#include "check.hpp"
#include "reactor_core.hpp"

#include <verbena/detail/broken_rule.hpp>
#include <verbena/reactor.hpp>

#include <cerrno>
#include <utility>

#include <poll.h>

namespace verbena {
namespace detail {

void sleep_state::expired() noexcept { reactor->ready.push(*this); }
void sleep_state::cancel(errc why, list<ready_node>& woken) noexcept {
    if (!timer::linked()) return;
    reactor->timers.remove(*this);
    cause = why;
    woken.push_back(*this);
}

void readable_watch::ready(unsigned events) noexcept {
    if ((events & POLLNVAL) != 0)
        end(error(system_code(EBADF), "reactor::wait_readable"));
    else
        end({});
}
void readable_watch::end(result<void> outcome) noexcept {
    if (waiting_ == nullptr) return;
    outcome_ = std::move(outcome);
    queue_.push(*std::exchange(waiting_, nullptr));
}

} // namespace detail

bool sleep_operation::awaiter::await_ready() const noexcept { return until_ <= reactor->clock().now(); }
void sleep_operation::awaiter::await_suspend(std::coroutine_handle<> waiting) noexcept {
    if (!reactor->on_thread())
        detail::broken_rule(reactor->process.forked() ? "sleep_for was awaited in a fork of its reactor's process"
                                                      : "sleep_for was awaited on another thread than its reactor's");
    continuation = waiting;
    reactor->timers.add(*this, until_);
}

void yield_operation::awaiter::await_suspend(std::coroutine_handle<> waiting) noexcept {
    if (!reactor->on_thread())
        detail::broken_rule(reactor->process.forked() ? "yield was awaited in a fork of its reactor's process"
                                                      : "yield was awaited on another thread than its reactor's");
    continuation = waiting;
    reactor->ready.push(*this);
}

readable_operation::awaiter::awaiter(detail::reactor_core* reactor, int fd) noexcept
    : reactor_(reactor), watch_(reactor->ready, fd) {}
readable_operation::awaiter::~awaiter() {
    if (watch_.linked()) (void)reactor_->unwatch(watch_).has_value();
}
bool readable_operation::awaiter::await_suspend(std::coroutine_handle<> waiting) {
    if (!reactor_->on_thread()) {
        if (!reactor_->process.forked())
            detail::broken_rule("wait_readable was awaited on another thread than its reactor's");
        watch_.refuse(detail::fork_error("reactor::wait_readable"));
        return false;
    }
    continuation = waiting;
    watch_.begin(*this);
    reactor_->watch_readable(watch_);
    return true;
}
void readable_operation::awaiter::cancel(errc cause, detail::list<detail::ready_node>&) noexcept {
    if (watch_.linked()) watch_.end(error(cause, "reactor::wait_readable")); // else the reactor is gone
}
result<void> readable_operation::awaiter::await_resume() {
    const auto removed = reactor_->unwatch(watch_);
    return watch_.outcome() ? removed : watch_.outcome();
}

reactor::reactor(const reactor_options& options) : core_(std::make_unique<detail::reactor_core>(options)) {}
reactor::reactor(std::unique_ptr<detail::reactor_core> core) noexcept : core_(std::move(core)) {}
reactor::~reactor() = default;

result<void> reactor::attach(const completion_queue& queue, std::span<poll_slot> slots, const attach_options& options) {
    return core_->attach(detail::access::state(queue), slots, options);
}
result<void> reactor::detach(const completion_queue& queue) {
    if (!queue) return error(errc::invalid_argument, "reactor::detach").with_note("an empty completion queue");
    return core_->detach(*detail::access::state(queue));
}
void reactor::run_until(detail::root_base& root) { core_->run_until(root); }
result<unsigned> reactor::poll(unsigned budget) { return core_->poll(budget); }
result<int> reactor::native_handle() { return core_->native_handle(); }
result<wait_state> reactor::prepare_wait() { return core_->prepare_wait(); }
void reactor::stop() noexcept { core_->stop(); }
void reactor::post(std::function<void()> function) { core_->post(std::move(function)); }
sleep_operation reactor::sleep_for(std::chrono::nanoseconds duration) noexcept {
    return {core_.get(), detail::after(core_->clock().now(), duration)};
}
result<event_stream> reactor::events(const context& context) {
    auto core = core_->events(detail::access::state(context));
    if (!core) return std::move(core).error();
    return event_stream(std::move(core).value());
}
reactor_stats reactor::stats() const noexcept { return core_->stats(); }

} // namespace verbena
