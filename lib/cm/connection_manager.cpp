#include "../reactor_core.hpp"
#include "../verbs/verb.hpp"
#include "connection_core.hpp"
#include "listener_core.hpp"

#include <verbena/detail/broken_rule.hpp>
#include <verbena/log.hpp>
#include <verbena/reactor.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include <unistd.h>

namespace verbena {
namespace detail {
namespace {

constexpr auto create_verb = "rdma_create_event_channel";
constexpr auto read_verb = "rdma_get_cm_event";
constexpr auto resolve_verb = "connection_manager::resolve";
constexpr auto listen_verb = "connection_manager::listen";
constexpr unsigned most_at_once = 64; // each is a system call or several, and the completion queues are waiting

} // namespace

error local_address_error(const error& e) {
    if (!is(e, ENODEV) && !is(e, EADDRNOTAVAIL)) return e;
    return error(errc::not_found, e.verb()).with_note("no RDMA device here has the address");
}

// ---- waits

resolve_wait::resolve_wait(connection_manager_core* manager, const socket_address& to) noexcept
    : manager_(manager != nullptr ? manager->shared_from_this() : nullptr), to_(to) {}

resolve_wait::~resolve_wait() {
    if (connection_) connection_->close();
}

bool resolve_wait::wait(std::coroutine_handle<> waiting) {
    outcome_ = manager_ != nullptr ? manager_->check(resolve_verb) : empty_handle(resolve_verb);
    if (!outcome_) return false;
    connection_ = std::make_shared<connection_core>(manager_);
    outcome_ = connection_->resolve(to_);
    if (!outcome_) return false;
    wait_in(connection_->waiters(), waiting);
    return true;
}

result<connection> resolve_wait::finish() {
    if (!outcome_) return std::move(outcome_).error();
    if (cancelled() != errc{}) return error(cancelled(), resolve_verb);
    if (!connection_->resolved()) return connection_->why();
    return access::make<connection>(std::exchange(connection_, nullptr));
}

void resolve_wait::cancel(errc cause, list<ready_node>& woken) noexcept {
    if (!waiting()) return;
    cancellable_wait::cancel(cause, woken);
    connection_->close();
}

// ---- identifiers

identifier::identifier(std::shared_ptr<connection_manager_core> manager) noexcept : manager_(std::move(manager)) {}

result<void> identifier::open() {
    auto made = ask("rdma_create_id", rdma_create_id, manager_->native(), &native_, this, RDMA_PS_TCP);
    if (!made) return made;
    const std::lock_guard lock(manager_->mutex);
    manager_->identifiers.push_back(*this);
    return {};
}

void identifier::adopt(rdma_cm_id* native) noexcept {
    native_ = native;
    native_->context = this;
    manager_->identifiers.push_back(*this);
}

void identifier::destroy() noexcept {
    if (native_ == nullptr) return;
    rdma_cm_id* const native = std::exchange(native_, nullptr);
    if (manager_->process.forked()) return; // it is the parent's
    {
        const std::lock_guard lock(manager_->mutex);
        unlink();
    }
    // Cannot wait for acks: none is owed.
    const auto destroyed = ask("rdma_destroy_id", rdma_destroy_id, native);
    if (!destroyed) log(log_level::error, destroyed.error().message());
}

void identifier::close() noexcept {
    if (const auto* reactor = manager_->reactor(); reactor != nullptr && !reactor->on_thread_or_forked())
        broken_rule("a connection or its listener was destroyed on another thread than the one that runs its reactor");
    end(error(errc::closed, "await"));
    destroy();
}

void identifier::wake(list<cancellable_wait>& waiters) noexcept {
    if (waiters.empty()) return; // which it is without a reactor
    list<ready_node> woken;
    wake_all(waiters, woken);
    manager_->reactor()->ready.splice(woken);
}

// ---- the channel

connection_manager_core::~connection_manager_core() {
    if (native_ != nullptr && !process.forked()) rdma_destroy_event_channel(native_);
}

result<void> connection_manager_core::open() {
    // librdmacm looks at the devices first, and may then say anything.
    if (::access("/dev/infiniband/rdma_cm", F_OK) != 0)
        return error(errc::unsupported, create_verb).with_note("there is no /dev/infiniband/rdma_cm here");
    auto native = check_pointer(create_verb, [] { return rdma_create_event_channel(); });
    if (!native && is(native.error(), ENODEV))
        return error(errc::unsupported, create_verb).with_note("there is no RDMA device here");
    if (!native) return std::move(native).error();
    native_ = *native;
    return set_non_blocking(native_->fd);
}

/// In a fork another thread may have held it.
std::unique_lock<std::mutex> connection_manager_core::hold() noexcept {
    return process.forked() ? std::unique_lock<std::mutex>() : std::unique_lock(mutex);
}

void connection_manager_core::close() noexcept {
    if (reactor_ != nullptr && !reactor_->on_thread_or_forked())
        broken_rule("a connection manager was destroyed on another thread than the one that runs its reactor");
    const auto held = hold();
    end(error(errc::closed, "await"));
    if (reactor_ != nullptr) std::exchange(reactor_, nullptr)->detach(*this);
}

result<void> connection_manager_core::attach(reactor_core& reactor) {
    constexpr auto verb = "reactor::attach";
    if (!reactor.on_thread()) return reactor.refused(verb);
    if (auto checked = usable(verb); !checked) return checked;
    if (reactor_ != nullptr)
        return error(errc::attached, verb).with_note(reactor_ == &reactor ? "to this reactor" : "to another reactor");
    if (auto attached = reactor.attach(*this); !attached) return attached;
    const std::lock_guard lock(mutex);
    reactor_ = &reactor;
    ready(0); // what a connection brought along that was moved here meanwhile wakes nobody
    return {};
}

result<void> connection_manager_core::usable(const char* verb) const {
    if (process.forked()) return fork_error(verb);
    if (reactor_ != nullptr && !reactor_->on_thread()) return reactor_->refused(verb);
    if (!life_) return error(life_.error().code(), verb);
    return {};
}

result<void> connection_manager_core::check(const char* verb) const {
    if (auto checked = usable(verb); !checked) return checked;
    if (reactor_ == nullptr) return error(errc::not_attached, verb).with_note("attach the manager to a reactor first");
    return {};
}

void connection_manager_core::look_soon() {
    if (reactor_ == nullptr) return; // which will look when it is attached
    reactor_->post([self = weak_from_this()] {
        if (const auto core = self.lock(); core && core->reactor_ != nullptr) core->ready(0);
    });
}

void connection_manager_core::ready(unsigned events) noexcept {
    if ((events & terminal_events) != 0) over_ = true;
    if (!linked()) reactor_->readable.push_back(*this);
}

unsigned connection_manager_core::drain(unsigned budget) noexcept {
    budget = std::min(budget, most_at_once);
    const std::lock_guard lock(mutex);
    unsigned taken = 0;
    while (taken < budget && life_ && read()) ++taken;
    if (!life_) return taken;
    if (taken == budget)
        reactor_->readable.push_back(*this);
    else if (over_)
        end(error(errc::device_removed, read_verb));
    return taken;
}

/// False: there is none.
bool connection_manager_core::read() noexcept {
    rdma_cm_event* got = nullptr;
    result<int> answer = 0;
    do {
        answer = check_minus_one(read_verb, [&] { return rdma_get_cm_event(native_, &got); });
    } while (!answer && is(answer.error(), EINTR));
    if (!answer) {
        if (is(answer.error(), ENOMEM)) // the event stays there, and its report is spent
            ready(0);
        else if (!is(answer.error(), EAGAIN))
            end(answer.error());
        return false;
    }
    rdma_cm_event event = *got;
    std::array<std::byte, 256> data; // RDMA_MAX_PRIVATE_DATA
    if (event.param.conn.private_data != nullptr) {
        std::memcpy(data.data(), event.param.conn.private_data, event.param.conn.private_data_len);
        event.param.conn.private_data = data.data();
    }
    // At once: the destruction of the identifier waits for it.
    rdma_ack_cm_event(got);
    const rdma_cm_id* to = event.event == RDMA_CM_EVENT_CONNECT_REQUEST ? event.listen_id : event.id;
    static_cast<identifier*>(to->context)->heard(event);
    return true;
}

// ---- the end

void connection_manager_core::end(const error& why) noexcept {
    if (!life_) return;
    life_ = why;
    if (reactor_ != nullptr) reactor_->unwatch(*this);
    identifiers.for_each([&](identifier& each) { each.end(why); });
}

void connection_manager_core::reactor_gone() noexcept {
    const auto held = hold();
    reactor_ = nullptr;
    if (life_) life_ = error(errc::not_attached, "await");
    identifiers.for_each([](identifier& each) { each.reactor_gone(); });
}

} // namespace detail

result<connection_manager> connection_manager::create() {
    connection_manager manager(std::make_shared<detail::connection_manager_core>());
    if (auto opened = manager.core_->open(); !opened) return std::move(opened).error();
    return manager;
}

connection_manager::connection_manager() noexcept = default;
connection_manager::connection_manager(std::shared_ptr<detail::connection_manager_core> core) noexcept
    : core_(std::move(core)) {}
connection_manager::connection_manager(connection_manager&& other) noexcept = default;
connection_manager& connection_manager::operator=(connection_manager&& other) noexcept {
    core_.swap(other.core_);
    return *this;
}
connection_manager::~connection_manager() {
    if (core_) core_->close();
}

result<connection_listener> connection_manager::listen(const socket_address& at, const listen_options& options) const {
    if (!core_) return detail::empty_handle(detail::listen_verb);
    if (auto checked = core_->usable(detail::listen_verb); !checked) return std::move(checked).error();
    if (!at || options.backlog == 0)
        return error(errc::invalid_argument, detail::listen_verb).with_note(at ? "a backlog of 0" : "no address");
    auto made =
        detail::access::make<connection_listener>(std::make_shared<detail::listener_core>(core_, options.backlog));
    if (auto listening = detail::access::core(made)->listen(at); !listening) return std::move(listening).error();
    return made;
}

connection_manager_stats connection_manager::stats() const noexcept {
    return core_ ? core_->counters : connection_manager_stats{};
}

result<void> reactor::attach(const connection_manager& manager) {
    auto* const core = detail::access::core(manager);
    return core != nullptr ? core->attach(*core_) : detail::empty_handle("reactor::attach");
}

} // namespace verbena
