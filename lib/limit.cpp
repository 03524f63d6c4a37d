#include <verbena/detail/limit.hpp>

#include "reactor_core.hpp"
#include "stop_inbox.hpp"

namespace verbena::detail {
namespace {

void strike(limited& target, errc cause) noexcept {
    list<ready_node> woken;
    target.end(cause, woken);
    resume_soon(woken);
}

} // namespace

errc deadline::begin(limited& target) noexcept {
    reactor_core* const reactor = reactor_core::here();
    if (reactor == nullptr) return errc::not_attached;
    if (timeout_ <= std::chrono::nanoseconds::zero()) return cause;
    target_ = &target;
    reactor->timers.add(*this, after(reactor->clock().now(), timeout_));
    return {};
}

void deadline::expired() noexcept { strike(*target_, cause); }

stop_request::~stop_request() {
    callback_.reset();
    if (inbox_) inbox_->take_out(*this);
}

errc stop_request::begin(limited& target) noexcept {
    reactor_core* const reactor = reactor_core::here();
    if (reactor == nullptr) return errc::not_attached;
    if (token_.stop_requested()) return cause;
    if (!token_.stop_possible()) return {};
    target_ = &target;
    inbox_ = reactor->stops;
    callback_.emplace(token_, callback{*this});
    return {};
}

void stop_request::requested() noexcept { inbox_->put(*this); }
void stop_request::stopped() noexcept { strike(*target_, cause); }

} // namespace verbena::detail
