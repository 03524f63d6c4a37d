#include "queue_pair_core.hpp"

#include "check.hpp"
#include "reactor_core.hpp"
#include "receiver_core.hpp"

#include <verbena/detail/broken_rule.hpp>
#include <verbena/log.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <string>
#include <utility>

namespace verbena::detail {
namespace {

constexpr std::chrono::milliseconds drain_limit{100};

/// Null: no mistake.
const char* mistake_of(post_way way) noexcept {
    switch (way) {
    case post_way::inline_receives: return "inline data cannot receive";
    case post_way::remote_too_short: return "more local than remote bytes";
    case post_way::no_atomic: return "an atomic takes 8 local and 8 aligned remote bytes";
    default: return nullptr;
    }
}

[[noreturn]] void fatal(const std::string& rule) noexcept { broken_rule(rule.c_str()); }

[[noreturn]] void never_quiet(const error& destroyed) noexcept {
    fatal("a queue pair can neither be reset nor destroyed, so that its buffers cannot be given back: " +
          destroyed.message());
}

completion_outcome failed_with(errc condition, const char* verb, const char* note = nullptr) noexcept {
    return {make_code(condition), verb, note};
}

error error_of(const completion_outcome& o) {
    error e(o.code, o.verb);
    e.with_completion(o.qp_num, o.vendor_error).with_root_cause(o.root_cause);
    if (o.note != nullptr) e.with_note(o.note);
    return e;
}

// The verbs answer an errno value; how many of the chain were posted follows from where it stopped. One that names no
// request has taken them all, and could not tell the device, which may hear of them later (as of rxe's doorbell).
template <auto Verb, class Wr>
bool post_chain(ibv_qp* qp, Wr* first, Wr*& bad, late_code& why) noexcept {
    bad = nullptr;
    const int answer = Verb(qp, first, &bad);
    if (answer == 0) [[likely]]
        return true;
    why = errno_code(answer);
    return false;
}

} // namespace

queue_pair_core::queue_pair_core(queue_pair_setup setup, ibv_qp* native)
    : setup_(std::move(setup)), native_(native),
      most_direct_(direct_with(std::min<std::uint32_t>(setup_.max_send_slices, slice_list::held))),
      send_(this, true, setup_.max_send), recv_(this, false, setup_.max_recv) {}

queue_pair_core::~queue_pair_core() {
    if (reactor_ != nullptr) {
        if (!reactor_->on_thread_or_forked())
            fatal("a queue pair was destroyed on a thread that its reactor does not run on");
        quiesce(make_code(errc::closed));
        unbind();
    }
    destroy();
}

void queue_pair_core::sweep() noexcept {
    reactor_->sweep(*setup_.send_cq);
    reactor_->sweep(*setup_.recv_cq);
}

/// An error: refused, and not because the device is gone.
result<void> queue_pair_core::destroy_native() noexcept {
    const auto destroyed = check_errno_value("ibv_destroy_qp", [this] { return ibv_destroy_qp(native_); });
    if (!destroyed && destroyed.error().code() != system_code(EIO)) return destroyed;
    native_ = nullptr;
    return {};
}

void queue_pair_core::destroy() noexcept {
    if (std::exchange(destroyed_, true)) return;
    if (receiver_ != nullptr) std::exchange(receiver_, nullptr)->queue_gone();
    if (user_ != nullptr) std::exchange(user_, nullptr)->queue_pair_gone();
    if (process_.forked()) return; // with its room: another thread may have held the mutex of a completion queue
    if (native_ != nullptr) {
        // One that was reset is only lost: the device has let go of its buffers.
        if (const auto destroyed = destroy_native(); !destroyed) {
            if (!quiesced_) take_from_device();
            log(log_level::error, destroyed.error().message());
        }
        native_ = nullptr;
    }
    setup_.send_cq->release(setup_.max_send);
    setup_.recv_cq->release(setup_.max_recv);
    if (setup_.srq) setup_.srq->leave(*setup_.recv_cq);
}

bool queue_pair_core::post(ibv_send_wr* first, ibv_send_wr*& bad, late_code& why) noexcept {
    return post_chain<&ibv_post_send>(native_, first, bad, why) || (bad == nullptr && fail_unheard(why));
}
bool queue_pair_core::post(ibv_recv_wr* first, ibv_recv_wr*& bad, late_code& why) noexcept {
    return post_chain<&ibv_post_recv>(native_, first, bad, why) || (bad == nullptr && fail_unheard(why));
}

/// What was posted ends when the queue pair has been flushed.
bool queue_pair_core::fail_unheard(std::error_code code) noexcept {
    unheard_ = true;
    note_failure(code, 0);
    return true;
}

/// Posts a request that no operation made.
template <class Wr>
bool queue_pair_core::post_own(work_queue& queue, Wr& wr, late_code& why) noexcept {
    wr.wr_id = queue.number();
    Wr* bad;
    const bool posted = post(&wr, bad, why);
    if (posted) [[likely]]
        queue.take(1);
    else
        queue.revoke(*reactor_);
    return posted;
}

completion_outcome queue_pair_core::fallen() const noexcept {
    completion_outcome o = failed_with(errc::connection_reset, "queue pair");
    o.root_cause = root_cause_;
    o.qp_num = setup_.local.qp_num;
    o.vendor_error = root_vendor_error_;
    return o;
}

std::optional<completion_outcome> queue_pair_core::bind() noexcept {
    const auto* sends = static_cast<const attached_queue*>(setup_.send_cq->attachment.load());
    const auto* receives = static_cast<const attached_queue*>(setup_.recv_cq->attachment.load());
    if (sends == nullptr || receives == nullptr)
        return failed_with(errc::not_attached, "await", "attach the queue pair's completion queues to a reactor first");
    if (&sends->reactor() != &receives->reactor())
        return failed_with(errc::invalid_argument, "await",
                           "the queue pair's completion queues are attached to two reactors");
    if (setup_.srq && !setup_.srq->belongs_to(sends->reactor())) {
        if (setup_.srq->reactor == &sends->reactor())
            return failed_with(errc::not_attached, "await",
                               "another queue pair of the shared receive queue completes in a queue that is detached");
        return failed_with(errc::invalid_argument, "await",
                           "the shared receive queue belongs to another reactor than the receive completion queue");
    }
    if (!sends->reactor().on_thread()) return failed_with(errc::wrong_thread, "await", sends->reactor().refusal());
    if (setup_.send_cq->failed.load() || setup_.recv_cq->failed.load())
        return failed_with(errc::queue_failed, "await", "nothing is heard of the completion queue any more");
    if (!send_.enter(sends->reactor()) || !recv_.enter(sends->reactor())) {
        send_.leave(sends->reactor());
        return failed_with(errc::resource, "await", "the reactor has too many queue pairs, or memory has run out");
    }
    reactor_ = &sends->reactor();
    reactor_->pairs.push_back(in_reactor);
    if (setup_.keepalive.count() > 0)
        reactor_->timers.add(keepalive_, after(reactor_->clock().now(), setup_.keepalive));
    return std::nullopt;
}

void queue_pair_core::unbind() noexcept {
    if (reactor_ == nullptr) return;
    in_reactor.unlink();
    in_attention.unlink();
    in_batches.unlink();
    reactor_->timers.remove(drain_);
    reactor_->timers.remove(keepalive_);
    send_.leave(*reactor_);
    recv_.leave(*reactor_);
    reactor_ = nullptr;
    open_to_ = no_thread;
}

const char* queue_pair_core::mistake_in(const device_request& request) const noexcept {
    const bool receives = request.receives;
    if (receives && setup_.srq) return "this queue pair receives through its shared receive queue";
    const int slices = receives ? request.receive.num_sge : request.send.num_sge;
    if (static_cast<std::uint32_t>(slices) > (receives ? setup_.max_recv_slices : setup_.max_send_slices))
        return "more slices than the queue pair was created for";
    if (const char* mistake = mistake_of(request.way)) return mistake;
    if (receives) return nullptr;
    const ibv_send_wr& wr = request.send;
    if ((wr.send_flags & IBV_SEND_INLINE) != 0 && request.held[0].length > setup_.max_inline)
        return "more inline data than max_inline";
    const bool sends = wr.opcode == IBV_WR_SEND || wr.opcode == IBV_WR_SEND_WITH_IMM;
    if (setup_.type == queue_pair_type::ud) {
        if (!sends) return "a UD queue pair can only send and receive";
        if (wr.wr.ud.ah == nullptr) return "a UD send names its destination: send_to";
    } else if (sends && wr.wr.ud.ah != nullptr) {
        return "only a UD queue pair sends to a destination";
    }
    return nullptr;
}

bool queue_pair_core::admit(const device_request& first, std::uint32_t count, completion_outcome& why) noexcept {
    const auto refuse_with = [&why](const completion_outcome& refusal) {
        why = refusal;
        return false;
    };
    const auto refuse = [&](errc condition, const char* note) {
        return refuse_with(failed_with(condition, "await", note));
    };
    if (reactor_ == nullptr) [[unlikely]] {
        if (quiesced_ && setup_.send_cq->attachment.load() != nullptr) return refuse_with(fallen());
        if (const auto refused = bind()) return refuse_with(*refused);
    } else if (!reactor_->on_thread()) [[unlikely]] {
        return refuse(errc::wrong_thread, reactor_->refusal());
    }
    if (failed_ || noted_) [[unlikely]]
        return refuse_with(fallen());
    const bool receives = first.receives;
    if (usage_ == usage::by_hand) return refuse(errc::in_use, "the queue pair is posted to by hand");
    if (receives && receiver_ != nullptr)
        return refuse(errc::in_use, "the queue pair's receives belong to its receiver");
    if (!connected_ && !receives) return refuse(errc::not_connected, "connect the queue pair first");
    if (count > (receives ? recv_ : send_).capacity())
        return refuse(errc::invalid_argument, "more requests than the queue holds");
    const device_request* request = &first;
    for (std::uint32_t i = 0; i < count; ++i, request = request->next()) {
        if (const char* mistake = mistake_in(*request)) return refuse(errc::invalid_argument, mistake);
        if (count > 1 && request->receives) return refuse(errc::invalid_argument, "a receive in a chain");
    }
    usage_ = usage::awaited;
    if (connected_ && setup_.type == queue_pair_type::rc && setup_.post_mode == post_mode::immediate &&
        send_.waiting.empty() && send_.in_order() && reactor_->on_own_thread())
        open_to_ = thread_number();
    return true;
}

work_queue& queue_pair_core::queue_of(const operation_state& operation) noexcept {
    return operation.request_.receives ? recv_ : send_;
}

bool queue_pair_core::refused_directly(operation_state& operation, int answer) noexcept {
    queue_pair_core& pair = *operation.qp_;
    const auto code = errno_code(answer);
    return operation.refused_ == nullptr ? pair.fail_unheard(code) : pair.settle(operation, 0, code);
}

/// The short way of a post: what `post_one` does, where nothing else can be. 0: the operation will be resumed.
inline int queue_pair_core::submit(operation_state& operation) {
    device_request& request = operation.request_;
    if (request.way > most_direct_ || open_to_ != thread_number() || send_.room() == 0) [[unlikely]]
        return submit_slowly(operation) ? 0 : -1;
    request.send.wr_id = send_.append(*reactor_, operation);
    operation.phase_ = operation_phase::posted;
    operation.refused_ = nullptr;
    return ibv_post_send(native_, &request.send, &operation.refused_);
}

bool queue_pair_core::submit_slowly(operation_state& operation) noexcept {
    if (!admit(operation.request_, operation.count_, operation.outcome_)) [[unlikely]] {
        operation.phase_ = operation_phase::ended;
        return false;
    }
    work_queue& queue = queue_of(operation);
    if (queue.room() < operation.count_ || !queue.waiting.empty()) {
        operation.phase_ = operation_phase::queued;
        queue.waiting.push_back(operation);
        queue.watched = true;
        close_short_way();
        if (queue.silent()) want_attention();
        return true;
    }
    return dispose(operation);
}

/// There is room: posts, or lets the flush post. True: the operation will be resumed.
bool queue_pair_core::dispose(operation_state& operation) noexcept {
    work_queue& queue = queue_of(operation);
    queue.take(operation.count_);
    if (setup_.post_mode == post_mode::immediate) return post_one(operation);
    operation.phase_ = operation_phase::batched;
    queue.batch.push_back(operation);
    want_flush();
    return true;
}

/// Takes the entries and numbers the requests. The last request of a chain, and every UD send, is signaled; an
/// unsignaled one is resumed when it is posted, so that its entry names nobody.
void queue_pair_core::prepare(operation_state& operation) noexcept {
    const std::uint32_t count = operation.count_;
    work_queue& queue = queue_of(operation);
    device_request* request = &operation.request_;
    const entry_kind alone = request->receives ? entry_kind::receiving : entry_kind::awaited;
    for (std::uint32_t i = 0; i < count; ++i, request = request->next()) {
        const bool last = i + 1 == count;
        const bool wanted = request->receives || (last && (count > 1 || request->signaled));
        const bool signaled = wanted || setup_.type == queue_pair_type::ud || send_.must_signal();
        const entry_kind kind =
            wanted ? (count > 1 ? entry_kind::chain : alone) : (last ? entry_kind::quiet : entry_kind::member);
        queue.append(*reactor_, {kind, signaled, &operation});
        if (request->receives) {
            request->receive.wr_id = queue.number();
            request->receive.next = nullptr;
            break;
        }
        request->send.wr_id = queue.number();
        request->send.send_flags &= ~unsigned{IBV_SEND_SIGNALED};
        if (signaled) request->send.send_flags |= IBV_SEND_SIGNALED;
        if (last) request->send.next = nullptr;
    }
    operation.phase_ = operation_phase::posted;
}

/// After a post of which the device took the first `posted` requests of this operation, the last that is numbered, and
/// refused the next with `code`. True: it will be resumed by a completion.
bool queue_pair_core::settle(operation_state& operation, std::uint32_t posted, std::error_code code) noexcept {
    work_queue& queue = queue_of(operation);
    for (std::uint32_t i = posted; i < operation.count_; ++i) queue.revoke(*reactor_);
    queue.give(operation.count_ - posted);
    operation.outcome_ = {code, &queue == &recv_ ? "ibv_post_recv" : "ibv_post_send"};
    operation.outcome_.qp_num = setup_.local.qp_num;
    if (posted == 0) {
        operation.phase_ = operation_phase::ended;
        return false;
    }
    // Half a chain is with the device: it ends when the queue pair has been flushed.
    queue.end_chain();
    note_failure(code, 0);
    return true;
}

bool queue_pair_core::post_one(operation_state& operation) noexcept {
    prepare(operation);
    const bool quiet = is_quiet(operation);
    const auto posted = [&]<class Wr>(Wr device_request::* wr) {
        late_code why;
        Wr* bad;
        return post(&(operation.request_.*wr), bad, why) || settle(operation, taken_before(bad, operation, wr), why);
    };
    if (!(operation.request_.receives ? posted(&device_request::receive) : posted(&device_request::send))) return false;
    if (!quiet) return true;
    operation.phase_ = operation_phase::ended;
    return false;
}

/// Posts the batch by one call, each request from where its coroutine awaits it.
template <class Wr>
void queue_pair_core::flush_queue(work_queue& queue, Wr device_request::* wr) noexcept {
    while (!queue.batch.empty()) {
        list<operation_state> flight;
        Wr* last = nullptr;
        while (!queue.batch.empty()) {
            operation_state& operation = queue.batch.pop_front();
            prepare(operation);
            if (last != nullptr) last->next = &(operation.request_.*wr);
            last = &(operation.request_.*wr);
            for (std::uint32_t i = 1; i < operation.count_; ++i) last = last->next;
            flight.push_back(operation);
        }
        Wr* bad = nullptr;
        late_code why{};
        const bool all = post(&(flight.front().request_.*wr), bad, why);
        while (!flight.empty()) {
            operation_state& operation = flight.pop_front();
            const std::uint32_t taken = all ? operation.count_ : taken_before(bad, operation, wr);
            if (taken < operation.count_) {
                // The call did not get to what stands behind it: that is numbered and posted again.
                flight.for_each([&](operation_state& behind) {
                    for (std::uint32_t i = 0; i < behind.count_; ++i) queue.revoke(*reactor_);
                    behind.phase_ = operation_phase::batched;
                });
                queue.batch.splice(flight);
                if (!settle(operation, taken, why)) reactor_->ready.push(operation);
            } else if (is_quiet(operation)) {
                operation.phase_ = operation_phase::ended;
                reactor_->ready.push(operation);
            }
        }
    }
}

/// An unsignaled request, which ends when it was posted.
bool queue_pair_core::is_quiet(const operation_state& operation) noexcept {
    return operation.count_ == 1 && !operation.request_.receives && !operation.request_.signaled;
}

/// How many requests of an operation the device took before it refused `bad`: all, if that is not one of them.
template <class Wr>
std::uint32_t queue_pair_core::taken_before(const Wr* bad, const operation_state& operation,
                                            Wr device_request::* wr) noexcept {
    const Wr* request = &(operation.request_.*wr);
    std::uint32_t taken = 0;
    while (taken < operation.count_ && request != bad) {
        ++taken;
        request = request->next;
    }
    return taken;
}

void queue_pair_core::flush() noexcept {
    in_batches.unlink();
    if (receiver_ != nullptr) receiver_->post_returned();
    flush_queue(recv_, &device_request::receive);
    flush_queue(send_, &device_request::send);
    // What was refused gave its room back, and what was posted may be silent.
    if (!send_.waiting.empty() || !recv_.waiting.empty() || awaited()) want_attention();
}

/// Takes back what the device does not have. False: it has it, or the operation is over.
bool queue_pair_core::withdraw(operation_state& operation) noexcept {
    if (operation.phase_ == operation_phase::batched)
        queue_of(operation).give(operation.count_);
    else if (operation.phase_ != operation_phase::queued)
        return false;
    operation.phase_ = operation_phase::ended;
    operation.unlink();
    want_attention(); // those behind it may have waited for it alone
    return true;
}

void queue_pair_core::cancel(operation_state& operation, errc cause) noexcept {
    if (withdraw(operation)) {
        operation.outcome_ = failed_with(cause, "await");
        reactor_->ready.push(operation);
        return;
    }
    if (operation.phase_ != operation_phase::posted) return;
    if (process_.forked()) return quiesce(make_code(cause));
    sweep();
    if (operation.phase_ != operation_phase::posted) return; // its completion was there
    operation.cancelled_ = static_cast<std::uint8_t>(cause);
    if (failed_) return;
    if (!noted_) root_cause_ = make_code(cause);
    start_failing();
}

void queue_pair_core::leave(operation_state& operation) noexcept {
    if (!reactor_->on_thread_or_forked())
        fatal("a coroutine was destroyed, while its work request was outstanding, on a thread that its reactor does "
              "not run on");
    if (withdraw(operation)) return;
    sweep();
    if (operation.phase_ == operation_phase::ended) return; // its completion was there: the connection lives on
    // Ends the operation like all others: onto the ready list, from which its destructor takes it.
    quiesce(make_code(errc::stopped));
}

bool queue_pair_core::submit(flush_state& flush) noexcept {
    if (reactor_ == nullptr || !reactor_->on_thread()) {
        // Without a reactor nothing was ever awaited, so nothing is owed.
        if (reactor_ != nullptr)
            flush.outcome_ = failed_with(errc::wrong_thread, "flushed", reactor_->refusal());
        else if (quiesced_)
            flush.outcome_ = fallen();
        return false;
    }
    reactor_->flush_batches();
    if (send_.empty() || failed_) {
        if (failed_) flush.outcome_ = fallen();
        if (send_.empty()) return false;
    }
    flush.awaited_ = send_.next();
    flush.waiting_ = true;
    flushes_.push_back(flush);
    send_.watched = true;
    if (!send_.ends_signaled()) want_attention();
    return true;
}

void queue_pair_core::post_marker(entry_kind kind) noexcept {
    if (send_.room() == 0) return;
    send_.append(*reactor_, {kind, true});
    device_request marker;
    describe(marker, write_request{.local = {}, .remote = {}});
    // Nothing else would ever tell that those before it are done; the buffers are quiet after a failure.
    if (late_code why; !post_own(send_, marker.send, why)) note_failure(why, 0);
}

void queue_pair_core::end_flushes() noexcept {
    while (!flushes_.empty() && send_.done(flushes_.front().awaited_)) {
        flush_state& flush = flushes_.pop_front();
        flush.waiting_ = false;
        if (failed_) flush.outcome_ = fallen();
        reactor_->ready.push(flush);
    }
    if (failed_ || send_.empty()) return;
    // A chain may wait for more room than a run of unsignaled requests leaves.
    if ((!flushes_.empty() && !send_.ends_signaled()) || (!send_.waiting.empty() && send_.silent()))
        post_marker(entry_kind::quiet);
}

void queue_pair_core::keep_alive() noexcept {
    if (failed_ || noted_) return;
    reactor_->timers.add(keepalive_, after(reactor_->clock().now(), setup_.keepalive));
    // Of what is sent RC itself tells; and who hears from the peer posts its receives again.
    const bool heard = std::exchange(keepalive_.received, recv_.next()) != recv_.next();
    if (connected_ && !heard && send_.empty() && (!recv_.empty() || setup_.srq)) post_marker(entry_kind::probe);
}

result<void> queue_pair_core::send_detached(const work_request& request, pool_token token) noexcept {
    device_request prepared;
    describe(prepared, request);
    if (completion_outcome refusal; !admit(prepared, 1, refusal)) {
        refusal.verb = "send_detached";
        return error_of(refusal);
    }
    if (!send_.batch.empty()) reactor_->flush_batches();
    const bool signaled = token.pool != nullptr || send_.must_signal() || setup_.type == queue_pair_type::ud;
    const queue_entry entry =
        token.pool != nullptr ? queue_entry(*token.pool, token.index) : queue_entry(entry_kind::quiet, signaled);
    if (send_.room() == 0 || !send_.waiting.empty())
        return error(errc::resource, "send_detached").with_note("the send queue is full");
    send_.append(*reactor_, entry);
    if (!signaled) prepared.send.send_flags &= ~unsigned{IBV_SEND_SIGNALED};
    if (late_code why; !post_own(send_, prepared.send, why))
        return error(why, "ibv_post_send").with_completion(setup_.local.qp_num, 0);
    return {};
}

result<void> queue_pair_core::post_by_hand(const work_request& request, std::uint64_t wr_id) noexcept {
    if (auto checked = usable("post"); !checked) return checked;
    if (usage_ == usage::awaited || receiver_ != nullptr)
        return error(errc::in_use, "post").with_note("the queue pair's operations are awaited");
    device_request prepared;
    describe(prepared, request);
    if (const char* mistake = mistake_in(prepared)) return error(errc::invalid_argument, "post").with_note(mistake);
    if (!connected_ && !prepared.receives) return error(errc::not_connected, "post");
    usage_ = usage::by_hand;
    if (prepared.receives) {
        prepared.receive.wr_id = wr_id;
        ibv_recv_wr* bad;
        return check_errno_value("ibv_post_recv", [&] { return ibv_post_recv(native_, &prepared.receive, &bad); });
    }
    prepared.send.wr_id = wr_id;
    ibv_send_wr* bad;
    return check_errno_value("ibv_post_send", [&] { return ibv_post_send(native_, &prepared.send, &bad); });
}

result<void> queue_pair_core::adopt(receiver_core& receiver) {
    device_request probe;
    describe(probe, recv_request{.local = {}});
    if (setup_.srq)
        return error(errc::invalid_argument, "receiver::create")
            .with_note("the queue pair has a shared receive queue: make the receiver on that");
    if (receiver_ != nullptr || !recv_.empty() || !recv_.waiting.empty())
        return error(errc::in_use, "receiver::create").with_note("the queue pair's receives have a user already");
    if (completion_outcome refusal; !admit(probe, 1, refusal)) {
        refusal.verb = "receiver::create";
        return error_of(refusal);
    }
    receiver_ = &receiver;
    return {};
}

bool queue_pair_core::post_receive(receiver_core& receiver, std::uint32_t slot, memory_slice slice) noexcept {
    if (recv_.room() == 0) return false;
    recv_.append(*reactor_, {receiver, slot});
    auto* sge = reinterpret_cast<ibv_sge*>(&slice);
    ibv_recv_wr wr{.wr_id = 0, .next = nullptr, .sg_list = sge, .num_sge = 1};
    late_code why;
    return post_own(recv_, wr, why);
}

void queue_pair_core::look_for_cause(bool sends) noexcept {
    if (failed_ || noted_ || setup_.send_cq == setup_.recv_cq) return;
    // Only once deep: the queue that is being read must not be read on in the middle of its batch.
    if (std::exchange(reactor_->looking_for_cause, true)) return;
    reactor_->sweep(sends ? *setup_.recv_cq : *setup_.send_cq);
    reactor_->looking_for_cause = false;
}

void queue_pair_core::note_failure(std::error_code code, std::uint32_t vendor_error) noexcept {
    if (failed_ || noted_) return;
    open_to_ = no_thread;
    noted_ = true;
    root_cause_ = code;
    root_vendor_error_ = vendor_error;
    want_attention();
}

void queue_pair_core::want_flush() noexcept {
    if (!in_batches.linked()) reactor_->batches.push_back(in_batches);
}

void queue_pair_core::want_attention() noexcept {
    if (reactor_ != nullptr && !in_attention.linked()) reactor_->attention.push_back(in_attention);
}

void queue_pair_core::lose_queue(std::error_code cause) noexcept {
    note_failure(cause, 0);
    lost_ = true;
    want_attention();
}

void queue_pair_core::attend() noexcept {
    in_attention.unlink();
    if (lost_) {
        quiesce(root_cause_);
        return;
    }
    if (noted_) {
        if (setup_.type == queue_pair_type::ud && !unheard_) {
            // A failed send stops the send queue only (SQE); a receive that did not fit stops nothing at all.
            ibv_qp_attr attr{};
            ibv_qp_init_attr init{};
            if (ibv_query_qp(native_, &attr, IBV_QP_STATE, &init) == 0 && attr.qp_state != IBV_QPS_ERR) {
                noted_ = false;
                root_cause_ = {};
                if (attr.qp_state == IBV_QPS_SQE) {
                    attr = {};
                    attr.qp_state = IBV_QPS_RTS;
                    attr.cur_qp_state = IBV_QPS_SQE;
                    if (ibv_modify_qp(native_, &attr, IBV_QP_STATE | IBV_QP_CUR_STATE) != 0)
                        note_failure(make_code(errc::connection_reset), 0);
                }
            }
        }
        if (noted_) start_failing();
    }
    if (!failed_) {
        post_waiting(send_);
        post_waiting(recv_);
    }
    end_flushes();
    for (work_queue* queue : {&send_, &recv_})
        queue->watched = !queue->waiting.empty() || awaited() || !queue->in_order();
    if (!drains_.empty() && !outstanding()) quiesce(root_cause_);
}

void queue_pair_core::post_waiting(work_queue& queue) noexcept {
    while (!queue.waiting.empty() && queue.waiting.front().count_ <= queue.room()) {
        operation_state& operation = queue.waiting.pop_front();
        if (!dispose(operation)) reactor_->ready.push(operation);
    }
}

/// The device has put the queue pair into the error state, or is about to. Nothing is posted from here on; what is
/// outstanding is flushed, or ended when the time for that is over.
void queue_pair_core::start_failing() noexcept {
    open_to_ = no_thread;
    noted_ = false;
    failed_ = true;
    to_error_state();
    const completion_outcome failure = fallen();
    send_.end_waiting(*reactor_, failure);
    recv_.end_waiting(*reactor_, failure);
    in_batches.unlink();
    // With all its buffers out, or on UD, no flushed receive tells the receiver.
    if (receiver_ != nullptr && (recv_.empty() || setup_.type == queue_pair_type::ud))
        receiver_->fail(error_of(failure));
    if (!outstanding()) return;
    // rxe does not flush a receive that was posted after the queue pair had failed by itself, unless told once more.
    to_error_state();
    reactor_->timers.add(drain_, reactor_->clock().now() + drain_limit);
}

void queue_pair_core::to_error_state() noexcept {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_ERR;
    ibv_modify_qp(native_, &attr, IBV_QP_STATE);
}

/// EIO of RESET alone may be a refusal: when the device is gone the destruction says it too.
void queue_pair_core::take_from_device() noexcept {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_RESET;
    if (ibv_modify_qp(native_, &attr, IBV_QP_STATE) == 0) return;
    if (const auto destroyed = destroy_native(); !destroyed) never_quiet(destroyed.error());
}

void queue_pair_core::quiesce(std::error_code cause) noexcept {
    if (quiesced_) return;
    reactor_->timers.remove(drain_);
    reactor_->timers.remove(keepalive_);
    if (!send_.empty() || !recv_.empty()) sweep();
    if (!failed_ && !noted_) root_cause_ = cause;
    open_to_ = no_thread;
    noted_ = false;
    failed_ = true;
    quiesced_ = true;
    if (native_ != nullptr && !process_.forked()) {
        to_error_state();
        take_from_device();
    }
    if (!send_.empty() || !recv_.empty()) sweep();
    missing_ = send_.outstanding() + recv_.outstanding();
    const completion_outcome failure = fallen();
    send_.end_all(*reactor_, failure);
    recv_.end_all(*reactor_, failure);
    send_.end_waiting(*reactor_, failure);
    recv_.end_waiting(*reactor_, failure);
    in_batches.unlink();
    in_attention.unlink();
    if (receiver_ != nullptr) receiver_->fail(error_of(failure));
    end_flushes();
    end_drains();
}

/// What has still to be heard of before the drain is over.
bool queue_pair_core::outstanding() const noexcept {
    const bool takes_more = setup_.srq && setup_.type == queue_pair_type::rc && connected_ && !last_wqe_;
    return !send_.empty() || !recv_.empty() || (!drains_.empty() && takes_more);
}

void queue_pair_core::note_last_wqe() noexcept {
    last_wqe_ = true;
    want_attention();
}

bool queue_pair_core::submit(drain_state& drain) noexcept {
    if (process_.forked() || (reactor_ != nullptr && !reactor_->on_thread())) {
        drain.outcome_ = failed_with(errc::wrong_thread, "drain", process_.forked() ? fork_note : reactor_->refusal());
        return false;
    }
    if (reactor_ == nullptr && native_ != nullptr && !quiesced_) {
        // One that only receives, through a shared queue, has not met its reactor yet.
        std::optional<completion_outcome> refused;
        if (usage_ != usage::by_hand) refused = bind();
        if (refused && refused->code == make_code(errc::wrong_thread)) {
            drain.outcome_ = *refused;
            return false;
        }
        if (reactor_ == nullptr) {
            failed_ = quiesced_ = true;
            root_cause_ = make_code(errc::closed);
            to_error_state();
            take_from_device();
        }
    }
    if (!quiesced_) {
        drains_.push_back(drain);
        send_.watched = recv_.watched = true;
        if (!failed_) {
            if (!noted_) root_cause_ = make_code(errc::closed);
            start_failing();
        } else if (outstanding() && !drain_.linked()) {
            reactor_->timers.add(drain_, reactor_->clock().now() + drain_limit);
        }
        if (outstanding()) return true;
        drain.unlink();
        quiesce(root_cause_);
    }
    drain.missing_ = missing_;
    if (drain.destroys_) {
        unbind();
        destroy();
    }
    return false;
}

void queue_pair_core::end_drains() noexcept {
    bool destroys = false;
    while (!drains_.empty()) {
        drain_state& drain = drains_.pop_front();
        drain.missing_ = missing_;
        destroys = destroys || drain.destroys_;
        reactor_->ready.push(drain);
    }
    if (!destroys) return;
    unbind();
    destroy();
}

// The post is the last that is done here, so that it needs no frame.
int operation_state::submit(operation_state& operation) { return operation.qp_->submit(operation); }
bool operation_state::begun(int answer) noexcept {
    return phase_ == operation_phase::posted && queue_pair_core::refused_directly(*this, answer);
}
void operation_state::abandon() noexcept {
    if (phase_ != operation_phase::idle && phase_ != operation_phase::ended) qp_->leave(*this);
    unlink();
    phase_ = operation_phase::idle;
    outcome_.failed = outcome_.has_immediate = false;
}
void operation_state::cancel(errc cause, list<ready_node>&) noexcept {
    if (phase_ != operation_phase::idle && phase_ != operation_phase::ended) qp_->cancel(*this, cause);
}
error operation_state::take_failure() {
    outcome_.failed = false;
    return error_of(outcome_);
}

bool drain_state::submit(drain_state& drain) noexcept { return drain.qp_->submit(drain); }
error drain_state::failure() const { return error_of(outcome_); }

void flush_state::cancel(errc cause, list<ready_node>& woken) noexcept {
    if (!std::exchange(waiting_, false)) return;
    unlink();
    outcome_ = failed_with(cause, "flushed");
    woken.push_back(*this);
}
bool flush_state::submit(flush_state& flush) noexcept { return flush.qp_->submit(flush); }
error flush_state::failure() const { return error_of(outcome_); }

} // namespace verbena::detail
