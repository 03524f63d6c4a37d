#include "../reactor_core.hpp"
#include "listener_core.hpp"

#include <verbena/log.hpp>

#include <fmt/format.h>

#include <cerrno>
#include <utility>

namespace verbena {
namespace detail {
namespace {

constexpr auto next_verb = "connection_listener::next";

} // namespace

// ---- waits

request_wait::request_wait(listener_core* listener) noexcept
    : listener_(listener != nullptr ? listener->shared_from_this() : nullptr) {}

request_wait::~request_wait() {
    if (!woken() || finished_) return;
    listener_->requests().keep_promise();
    listener_->wake_next();
}

bool request_wait::take() {
    outcome_ = listener_ ? listener_->manager().check(next_verb) : empty_handle(next_verb);
    if (!outcome_) return true;
    entitled_ = listener_->requests().something_to_take();
    return entitled_ || !listener_->life();
}

void request_wait::wait(std::coroutine_handle<> waiting) noexcept { wait_in(listener_->requests().waiters(), waiting); }

result<connection> request_wait::finish() {
    finished_ = true;
    if (!outcome_) return std::move(outcome_).error();
    if (cancelled() != errc{}) return error(cancelled(), next_verb);
    if (woken()) listener_->requests().keep_promise();
    if (!listener_->life()) return listener_->life().error();
    return access::make<connection>(listener_->requests().take());
}

// ---- the listener

listener_core::listener_core(std::shared_ptr<connection_manager_core> manager, std::uint32_t backlog) noexcept
    : identifier(std::move(manager)), backlog_(backlog) {}

result<void> listener_core::listen(const socket_address& at) {
    if (auto opened = open(); !opened) return opened;
    auto made = ask("rdma_bind_addr", rdma_bind_addr, native_, const_cast<sockaddr*>(at.native()));
    // What the kernel has no room for is lost without an answer, so it gets as much as there is.
    if (made) made = ask("rdma_listen", rdma_listen, native_, 0);
    if (!made) return local_address_error(made.error());
    if (native_->verbs == nullptr && !at.is_wildcard()) // the loopback
        return local_address_error({system_code(ENODEV), "rdma_bind_addr"});
    local_ = socket_address(*rdma_get_local_addr(native_));
    return {};
}

void listener_core::close() noexcept {
    identifier::close();
    while (!requests_.empty()) requests_.take()->close();
}

void listener_core::wake_next() noexcept {
    list<ready_node> woken;
    requests_.wake_next(woken);
    if (!woken.empty()) manager_->reactor()->ready.splice(woken);
}

void listener_core::heard(const rdma_cm_event& event) noexcept {
    if (event.event == RDMA_CM_EVENT_DEVICE_REMOVAL) return end(error(errc::device_removed, next_verb));
    if (event.event != RDMA_CM_EVENT_CONNECT_REQUEST) return;
    ++manager_->counters.requests;
    if (!life_ || requests_.size() >= backlog_) return refuse(event.id);
    auto request = std::make_shared<connection_core>(manager_);
    request->requested(event);
    requests_.push(std::move(request));
    wake_next();
}

void listener_core::refuse(rdma_cm_id* request) noexcept {
    ++manager_->counters.refused;
    rdma_reject(request, nullptr, 0);
    rdma_destroy_id(request);
    if (life_ && !std::exchange(said_, true))
        log(log_level::warning,
            fmt::format("{} connection requests wait for connection_listener::next of {}: more are refused", backlog_,
                        local_.to_string()));
}

void listener_core::end(const error& why) noexcept {
    if (!life_) return;
    life_ = why;
    list<ready_node> woken;
    requests_.wake_all(woken);
    if (!woken.empty()) manager_->reactor()->ready.splice(woken);
}

void listener_core::reactor_gone() noexcept {
    while (!requests_.waiters().empty()) requests_.waiters().pop_front();
}

} // namespace detail

connection_listener::connection_listener() noexcept = default;
connection_listener::connection_listener(std::shared_ptr<detail::listener_core> core) noexcept
    : core_(std::move(core)) {}
connection_listener::connection_listener(connection_listener&& other) noexcept = default;
connection_listener& connection_listener::operator=(connection_listener&& other) noexcept {
    core_.swap(other.core_);
    return *this;
}
connection_listener::~connection_listener() {
    if (core_) core_->close();
}

socket_address connection_listener::local_address() const noexcept { return core_ ? core_->local() : socket_address(); }

} // namespace verbena
