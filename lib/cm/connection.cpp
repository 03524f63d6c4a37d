#include "connection_core.hpp"

#include "../completion_pump.hpp"
#include "../reactor_core.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

namespace verbena {
namespace detail {
namespace {

constexpr auto connect_verb = "connection::connect";
constexpr auto accept_verb = "connection::accept";
constexpr auto reject_verb = "connection::reject";
constexpr auto disconnect_verb = "connection::disconnect";
constexpr auto disconnected_verb = "connection::disconnected";
constexpr auto move_verb = "connection::move_to";

// Of RDMA_PS_TCP: rdma_connect(3), rdma_accept(3), and what the kernel leaves in a rejection.
constexpr std::size_t connect_bytes = 56;
constexpr std::size_t accept_bytes = 196;
constexpr std::size_t reject_bytes = 148;

constexpr int resolve_ms = 2000;
constexpr std::uint8_t most_retries = 7;
constexpr int attributes_of_verbs = (1 << 21) - 1; // old kernels set bits beyond
constexpr int rejected_by_program = 28;            // IB_CM_REJ_CONSUMER_DEFINED
constexpr int rejected_nobody_listens = 8;         // IB_CM_REJ_INVALID_SERVICE_ID

result<void> check_length(const char* verb, std::span<const std::byte> data, std::size_t most) {
    if (data.size() <= most) return {};
    return error(errc::message_too_long, verb)
        .with_note(fmt::format("private data of {} bytes, of which {} can be", data.size(), most));
}

/// The arguments are right, so what EINVAL means is that the peer has ended the handshake.
result<void> by_peer(result<void> asked) {
    if (asked || !is(asked.error(), EINVAL)) return asked;
    return error(errc::connection_refused, asked.error().verb()).with_note("the peer has given up");
}

/// What an event says of a failure: a negative errno, if anything.
error failure_of(const char* verb, int status) {
    const std::error_code code = system_code(status < 0 ? -status : ETIMEDOUT);
    switch (code.value()) {
    case ENODEV: return error(errc::not_found, verb).with_note("no RDMA device leads there");
    // The protocol's own time is over, not that of a caller.
    case ETIMEDOUT: return error(errc::peer_unreachable, verb).with_note("no answer");
    default: return error(code, verb);
    }
}

error rejection(const char* verb, int reason) {
    error e(errc::connection_refused, verb);
    e.with_completion(0, static_cast<std::uint32_t>(reason));
    if (reason == rejected_by_program) e.with_note("by the peer");
    if (reason == rejected_nobody_listens) e.with_note("nobody listens there");
    return e;
}

} // namespace

// ---- waits

handshake_wait::handshake_wait(connection_core* connection, queue_pair_core* pair, bool accepts,
                               std::span<const std::byte> private_data) noexcept
    : connection_(connection != nullptr ? connection->shared_from_this() : nullptr), pair_(pair), accepts_(accepts),
      private_data_(private_data) {}

handshake_wait::~handshake_wait() {
    if (waiting()) connection_->abandon(errc::stopped);
}

bool handshake_wait::wait(std::coroutine_handle<> waiting) {
    outcome_ = connection_ ? connection_->begin(accepts_, pair_, private_data_)
                           : empty_handle(accepts_ ? accept_verb : connect_verb);
    if (!outcome_) return false;
    wait_in(connection_->waiters(), waiting);
    return true;
}

result<void> handshake_wait::finish() {
    if (!outcome_) return std::move(outcome_);
    if (cancelled() != errc{}) return error(cancelled(), accepts_ ? accept_verb : connect_verb);
    // One that ended before its coroutine ran was made all the same.
    if (connection_->established() || connection_->ended()) return {};
    return connection_->why();
}

void handshake_wait::cancel(errc cause, list<ready_node>& woken) noexcept {
    if (!waiting()) return;
    cancellable_wait::cancel(cause, woken);
    connection_->abandon(cause);
}

disconnect_wait::disconnect_wait(connection_core* connection, bool asks) noexcept
    : connection_(connection != nullptr ? connection->shared_from_this() : nullptr), asks_(asks) {}

disconnect_wait::~disconnect_wait() = default;

bool disconnect_wait::wait(std::coroutine_handle<> waiting) {
    outcome_ = connection_ ? connection_->leave(asks_) : empty_handle(asks_ ? disconnect_verb : disconnected_verb);
    if (!outcome_ || connection_->ended()) return false;
    wait_in(connection_->waiters(), waiting);
    return true;
}

result<void> disconnect_wait::finish() {
    if (!outcome_) return std::move(outcome_);
    if (cancelled() != errc{}) return error(cancelled(), asks_ ? disconnect_verb : disconnected_verb);
    if (connection_->ended()) return {};
    return connection_->why();
}

// ---- from the program

result<void> connection_core::resolve(const socket_address& to) {
    constexpr auto verb = "rdma_resolve_addr";
    if (!to) return error(errc::invalid_argument, verb).with_note("no address");
    if (auto opened = open(); !opened) return opened;
    peer_ = to;
    auto asked = ask(verb, rdma_resolve_addr, native_, nullptr, const_cast<sockaddr*>(peer_.native()), resolve_ms);
    if (!asked) fail(failure_of(verb, -asked.error().code().value()));
    return asked ? asked : why_;
}

void connection_core::requested(const rdma_cm_event& event) {
    adopt(event.id);
    phase_ = phase::requested;
    note_place();
    note_data(event);
}

result<void> connection_core::check_pair(const char* verb, const queue_pair_core* pair) const {
    if (pair == nullptr) return empty_handle(verb);
    if (auto usable = pair->usable(verb); !usable) return usable;
    const queue_pair_setup& setup = pair->setup();
    const auto invalid = [verb](std::string note) {
        return error(errc::invalid_argument, verb).with_note(std::move(note));
    };
    if (setup.type != queue_pair_type::rc) return invalid("only an RC queue pair is connected");
    if (setup.domain->context->name != device_ || setup.port != port_)
        return invalid(fmt::format("a queue pair on port {} of {}, and a connection on port {} of {}", setup.port,
                                   setup.domain->context->name, port_, device_));
    if (pair->connected() || pair->failed() || pair->user() != nullptr)
        return error(errc::in_use, verb).with_note("a queue pair is connected once");
    const cq_attachment* const attachment = setup.send_cq->attachment.load();
    if (attachment != nullptr && &static_cast<const attached_queue*>(attachment)->reactor() != manager_->reactor())
        return invalid("the queue pair is another reactor's than the connection");
    return {};
}

result<void> connection_core::begin(bool accepts, queue_pair_core* pair, std::span<const std::byte> private_data) {
    const char* const verb = accepts ? accept_verb : connect_verb;
    if (auto checked = manager_->check(verb); !checked) return checked;
    if (phase_ == phase::failed || phase_ == phase::ended) return why_;
    if (phase_ == (accepts ? phase::resolved : phase::requested))
        return error(errc::invalid_argument, verb)
            .with_note(accepts ? "nobody asked for this connection" : "the peer has asked for this connection");
    if (phase_ != (accepts ? phase::requested : phase::resolved))
        return error(errc::in_use, verb).with_note("a connection is made once");
    if (auto fits = check_length(verb, private_data, accepts ? accept_bytes : connect_bytes); !fits) return fits;
    if (auto checked = check_pair(verb, pair); !checked) return checked;

    rdma_conn_param param{};
    param.private_data = private_data.data();
    param.private_data_len = static_cast<std::uint8_t>(private_data.size());
    param.responder_resources = RDMA_MAX_RESP_RES; // as many as the device has
    param.initiator_depth = RDMA_MAX_INIT_DEPTH;
    param.retry_count = most_retries;
    param.rnr_retry_count = most_retries;
    param.srq = pair->setup().srq ? 1 : 0;
    param.qp_num = pair->setup().local.qp_num;
    if (accepts) {
        auto accepted = ready_pair(*pair);
        if (!accepted && accepted.error() != errc::connection_refused) return accepted; // it can be rejected
        if (accepted) accepted = by_peer(ask("rdma_accept", rdma_accept, native_, &param));
        if (!accepted) {
            fail(accepted.error());
            return accepted;
        }
    } else if (auto asked = ask("rdma_connect", rdma_connect, native_, &param); !asked) {
        return asked;
    }
    pair_ = pair;
    pair_->set_user(this);
    pair_identity_ = pair_->native()->qp_context;
    phase_ = accepts ? phase::accepting : phase::connecting;
    return {};
}

void connection_core::abandon(errc cause) noexcept {
    if (phase_ != phase::failed) fail(error(cause, "await"));
    destroy();
}

result<void> connection_core::reject(std::span<const std::byte> private_data) {
    if (auto checked = manager_->check(reject_verb); !checked) return checked;
    if (phase_ == phase::failed) return why_;
    if (phase_ != phase::requested)
        return error(errc::invalid_argument, reject_verb).with_note("it is no request that waits for an answer");
    if (auto fits = check_length(reject_verb, private_data, reject_bytes); !fits) return fits;
    auto rejected =
        ask("rdma_reject", rdma_reject, native_, private_data.data(), static_cast<std::uint8_t>(private_data.size()));
    ++manager_->counters.rejected;
    finish(phase::failed, error(errc::closed, reject_verb).with_note("it was rejected"));
    return rejected;
}

result<void> connection_core::leave(bool asks) {
    const char* const verb = asks ? disconnect_verb : disconnected_verb;
    if (auto checked = manager_->check(verb); !checked) return checked;
    if (phase_ == phase::failed) return why_;
    if (phase_ == phase::ended) return {};
    if (phase_ != phase::established) return error(errc::not_connected, verb);
    if (!asks || asked_) return {};
    auto disconnected = ask("rdma_disconnect", rdma_disconnect, native_);
    asked_ = disconnected.has_value();
    return disconnected;
}

result<void> connection_core::move_to(const std::shared_ptr<connection_manager_core>& other) {
    if (auto checked = manager_->usable(move_verb); !checked) return checked;
    if (other->process.forked()) return fork_error(move_verb);
    if (phase_ == phase::failed || phase_ == phase::ended) return why_;
    if (other == manager_) return {};
    if (!waiters_.empty() || pair_ != nullptr)
        return error(errc::in_use, move_verb).with_note("somebody waits for the connection");
    const auto from = manager_;
    const auto join = [this](connection_manager_core& manager) { manager.identifiers.push_back(*this); };
    {
        const std::lock_guard lock(from->mutex);
        unlink();
    }
    result<void> moved;
    {
        const std::lock_guard lock(other->mutex);
        moved = other->life() ? ask("rdma_migrate_id", rdma_migrate_id, native_, other->native())
                              : error(other->life().error().code(), move_verb);
        if (moved) {
            manager_ = other;
            join(*other);
            other->look_soon(); // events that came along wake nobody
        }
    }
    if (moved) return moved;
    const std::lock_guard lock(from->mutex);
    join(*from);
    return moved;
}

// ---- the queue pair

result<void> connection_core::move_pair(const queue_pair_core& pair, ibv_qp_state state) const {
    ibv_qp_attr attr{};
    attr.qp_state = state;
    int mask = 0;
    if (auto asked = by_peer(ask("rdma_init_qp_attr", rdma_init_qp_attr, native_, &attr, &mask)); !asked) return asked;
    mask &= attributes_of_verbs & ~IBV_QP_ACCESS_FLAGS; // which are the user's
    const ibv_device_attr& limits = pair.setup().domain->context->attributes;
    attr.max_dest_rd_atomic = static_cast<std::uint8_t>(std::min<int>(attr.max_dest_rd_atomic, limits.max_qp_rd_atom));
    attr.max_rd_atomic = static_cast<std::uint8_t>(std::min<int>(attr.max_rd_atomic, limits.max_qp_init_rd_atom));
    // What it proposes is 655 ms.
    attr.min_rnr_timer = connection_options{}.min_rnr_timer;
    const char* const verb = state == IBV_QPS_INIT  ? "ibv_modify_qp (INIT)"
                             : state == IBV_QPS_RTR ? "ibv_modify_qp (RTR)"
                                                    : "ibv_modify_qp (RTS)";
    return check_errno_value(verb, [&] { return ibv_modify_qp(pair.native(), &attr, mask); });
}

result<void> connection_core::ready_pair(const queue_pair_core& pair) const {
    for (const ibv_qp_state state : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS}) // INIT: the partition
        if (auto moved = move_pair(pair, state); !moved) return moved;
    return {};
}

void connection_core::let_go() noexcept {
    if (pair_ != nullptr) std::exchange(pair_, nullptr)->set_user(nullptr);
}

void connection_core::queue_pair_gone() noexcept {
    pair_ = nullptr;
    fail(error(errc::closed, "await").with_note("the queue pair was closed"));
    destroy();
}

// ---- events

void connection_core::note_place() {
    device_ = ibv_get_device_name(native_->verbs->device);
    port_ = native_->port_num;
    local_ = socket_address(*rdma_get_local_addr(native_));
    peer_ = socket_address(*rdma_get_peer_addr(native_));
}

void connection_core::note_data(const rdma_cm_event& event) {
    const auto* const data = static_cast<const std::byte*>(event.param.conn.private_data);
    private_data_.assign(data, data + event.param.conn.private_data_len);
}

void connection_core::heard(const rdma_cm_event& event) noexcept {
    const bool making = phase_ == phase::connecting || phase_ == phase::accepting;
    const char* const verb = phase_ == phase::connecting ? "rdma_connect" : "rdma_accept";
    switch (event.event) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
        if (phase_ != phase::address) return;
        if (native_->verbs == nullptr) return fail(failure_of("rdma_resolve_addr", -ENODEV));
        step(ask("rdma_resolve_route", rdma_resolve_route, native_, resolve_ms), phase::route);
        return;
    case RDMA_CM_EVENT_ADDR_ERROR: return fail(failure_of("rdma_resolve_addr", event.status));
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
        if (phase_ != phase::route) return;
        note_place();
        phase_ = phase::resolved;
        return wake(waiters_);
    case RDMA_CM_EVENT_ROUTE_ERROR: return fail(failure_of("rdma_resolve_route", event.status));
    case RDMA_CM_EVENT_CONNECT_RESPONSE: {
        if (phase_ != phase::connecting) return;
        note_data(event);
        const bool gone = pair_->failed() || pair_->native() == nullptr; // by another operation on it
        auto ready =
            gone ? result<void>(error(errc::closed, verb).with_note("the queue pair failed")) : ready_pair(*pair_);
        if (ready) ready = ask("rdma_establish", rdma_establish, native_);
        if (ready) return establish();
        rdma_reject(native_, nullptr, 0); // as far as the peer can still be told
        return fail(ready.error());
    }
    case RDMA_CM_EVENT_ESTABLISHED:
        if (phase_ == phase::accepting) establish();
        return;
    case RDMA_CM_EVENT_REJECTED:
        if (phase_ == phase::established) return disconnected(); // the peer gave up before it heard that it was ready
        if (!making) return;
        note_data(event);
        return fail(rejection(verb, event.status));
    case RDMA_CM_EVENT_UNREACHABLE:
    case RDMA_CM_EVENT_CONNECT_ERROR:
        if (making) fail(failure_of(verb, event.status));
        return;
    case RDMA_CM_EVENT_DISCONNECTED: return disconnected();
    case RDMA_CM_EVENT_DEVICE_REMOVAL: return fail(error(errc::device_removed, "rdma_get_cm_event"));
    default: return; // a change of addresses, the end of the time that late packets have
    }
}

void connection_core::establish() noexcept {
    ++manager_->counters.established;
    pair_->set_connected();
    let_go();
    phase_ = phase::established;
    wake(waiters_);
}

void connection_core::disconnected() noexcept {
    const error why(errc::disconnected, "rdma_get_cm_event");
    if (phase_ == phase::established || phase_ == phase::accepting)
        rdma_disconnect(native_); // the peer may wait for an answer, also if it was asked
    if (phase_ != phase::established) return fail(why);
    ++manager_->counters.disconnected;
    if (queue_pair_core* const pair = manager_->reactor()->find_pair(pair_identity_)) {
        pair->sweep(); // what was done before, or has failed for another reason
        pair->note_failure(why.code(), 0);
    }
    finish(phase::ended, why);
}

void connection_core::step(const result<void>& done, phase next) noexcept {
    if (!done) return fail(failure_of(done.error().verb(), -done.error().code().value()));
    phase_ = next;
}

// ---- the end

void connection_core::finish(phase last, const error& why) noexcept {
    let_go();
    phase_ = last;
    why_ = why;
    wake(waiters_);
}

void connection_core::fail(const error& why) noexcept {
    if (phase_ == phase::failed || phase_ == phase::ended) return;
    if (phase_ != phase::established) ++manager_->counters.failed;
    finish(phase::failed, why);
}

void connection_core::end(const error& why) noexcept {
    if (phase_ != phase::failed && phase_ != phase::ended) finish(phase::failed, why);
}

void connection_core::reactor_gone() noexcept {
    let_go();
    while (!waiters_.empty()) waiters_.pop_front();
}

} // namespace detail

connection::connection() noexcept = default;
connection::connection(std::shared_ptr<detail::connection_core> core) noexcept : core_(std::move(core)) {}
connection::connection(connection&& other) noexcept = default;
connection& connection::operator=(connection&& other) noexcept {
    core_.swap(other.core_);
    return *this;
}
connection::~connection() {
    if (core_) core_->close();
}

std::string connection::device_name() const { return core_ ? core_->device() : std::string(); }
std::uint8_t connection::port() const noexcept { return core_ ? core_->port() : 0; }
socket_address connection::local_address() const noexcept { return core_ ? core_->local() : socket_address(); }
socket_address connection::peer_address() const noexcept { return core_ ? core_->peer() : socket_address(); }
std::span<const std::byte> connection::private_data() const noexcept {
    return core_ ? core_->private_data() : std::span<const std::byte>();
}

connect_operation connection::connect(queue_pair& qp, const connect_options& options) const noexcept {
    return {core_.get(), detail::access::core(qp), false, options.private_data};
}
accept_operation connection::accept(queue_pair& qp, const connect_options& options) const noexcept {
    return {core_.get(), detail::access::core(qp), true, options.private_data};
}
result<void> connection::reject(std::span<const std::byte> private_data) const {
    return core_ ? core_->reject(private_data) : detail::empty_handle(detail::reject_verb);
}
result<void> connection::move_to(const connection_manager& other) const {
    const auto* const to = detail::access::core(other);
    if (!core_ || to == nullptr) return detail::empty_handle(detail::move_verb);
    return core_->move_to(std::const_pointer_cast<detail::connection_manager_core>(to->shared_from_this()));
}

} // namespace verbena
