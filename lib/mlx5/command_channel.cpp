#include "../verbs/verb.hpp"
#include "channel.hpp"
#include "command.hpp"
#include "command_channel_core.hpp"
#include "devx_object.hpp"

#include <verbena/detail/broken_rule.hpp>
#include <verbena/reactor.hpp>

#include <fmt/format.h>
#include <infiniband/mlx5dv.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <poll.h>

namespace verbena {
namespace detail {
namespace {

using namespace std::chrono_literals;

constexpr auto create_verb = "mlx5dv_devx_create_cmd_comp";
constexpr auto query_verb = "command_channel::query";
constexpr auto issue_verb = "mlx5dv_devx_obj_query_async";
constexpr auto read_verb = "mlx5dv_devx_get_async_cmd_comp";
constexpr auto longest_retry = 100ms;
constexpr auto close_limit = 100ms;
constexpr unsigned most_reads = 16; // in a turn: each is a system call, and the queues are waiting

bool is_zero(std::span<const std::byte> bytes) noexcept {
    std::uint64_t word = 0;
    for (; bytes.size() >= sizeof word; bytes = bytes.subspan(sizeof word)) {
        std::memcpy(&word, bytes.data(), sizeof word);
        if (word != 0) return false;
    }
    return std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0}; });
}

/// EINVAL says little.
error explain(error e, const devx_object& object, std::span<const std::byte> command) {
    if (!is(e, EINVAL)) return e;
    // Nothing is wrong with it: older kernels execute synchronously only what they throttle.
    if (object.is_general_query(command))
        return error(errc::unsupported, issue_verb)
            .with_note("this kernel cannot query general objects asynchronously; object::query can, and blocks");
    return e.with_note(
        fmt::format("opcode {:#x} is no query, or not of this object", number_at<std::uint16_t>(command, 0)));
}

} // namespace

// ---- queries

void query_state::forget() noexcept { command_channel_core::forget(*this); }

void query_state::cancel(errc cause, list<ready_node>& woken) noexcept {
    if (waiting()) channel_->cancel(*this, cause, woken);
}

bool query_state::submit() noexcept {
    if (channel_ != nullptr) return channel_->submit(*this);
    outcome_ = empty_channel(query_verb);
    return false;
}

bool channel_close_state::submit() noexcept {
    if (channel_ != nullptr) return channel_->close(*this);
    outcome_ = empty_channel("command_channel::close");
    return false;
}

// ---- the channel

command_channel_core::command_channel_core(std::shared_ptr<context_state> context, std::size_t max_response)
    : context_(std::move(context)), max_response_(max_response),
      buffer_(std::make_unique<std::byte[]>(sizeof(mlx5dv_devx_async_cmd_hdr) + max_response)) {}

result<void> command_channel_core::open() {
    auto native = check_pointer(create_verb, [&] { return mlx5dv_devx_create_cmd_comp(context_->native); });
    if (!native) return native.error();
    native_ = *native;
    return set_non_blocking(native_->fd); // the kernel opens it blocking and close-on-exec
}

command_channel_core::~command_channel_core() {
    if (reactor_ != nullptr && !reactor_->on_thread_or_forked())
        broken_rule("a command channel was destroyed on another thread than the one that runs its reactor");
    shut();
}

mlx5::command_channel_stats command_channel_core::stats() const noexcept {
    auto stats = stats_;
    stats.outstanding = table_.used();
    return stats;
}

int command_channel_core::fd() const noexcept { return native_->fd; }

result<void> command_channel_core::attach(reactor_core& reactor) {
    if (closing_ || native_ == nullptr) return error(errc::closed, "reactor::attach");
    if (auto attached = attach_channel(*this, *context_, life_, reactor_, reactor); !attached) return attached;
    if (table_.used() > 0) reactor.readable.push_back(*this); // what another reactor left behind
    return {};
}

/// What is right is found without building an error. In a fork no thread is the reactor's.
bool command_channel_core::takes(const query_state& query) const noexcept {
    return !closing_ && native_ != nullptr && reactor_ != nullptr && reactor_->on_thread() && life_ &&
           query.object_ != nullptr && query.object_->context == context_ &&
           is_size(query.command_.size(), longest_command) && is_size(query.output_.size(), max_response_);
}

error command_channel_core::refusal_of(const query_state& query) const {
    if (context_->process.forked()) return fork_error(query_verb);
    if (closing_ || native_ == nullptr) return error(errc::closed, query_verb);
    if (reactor_ == nullptr) return error(errc::not_attached, query_verb).with_note("the command channel");
    if (!reactor_->on_thread()) return reactor_->refused(query_verb);
    if (!life_) return life_.error();
    if (query.object_ == nullptr) return error(errc::invalid_argument, query_verb).with_note("an empty object");
    if (query.object_->context != context_)
        return error(errc::invalid_argument, query_verb).with_note("object and channel are of two contexts");
    if (!is_size(query.command_.size(), longest_command))
        return wrong_size(query.command_.size(), longest_command, "a command", query_verb);
    return wrong_size(query.output_.size(), max_response_, "an output", query_verb);
}

/// All is noted before, since a command that is accepted may be answered at any moment.
command_channel_core::issuing command_channel_core::issue(query_state& query) noexcept {
    table_entry* const entry = table_.acquire();
    if (entry == nullptr) {
        query.outcome_ = error(errc::resource, query_verb);
        return issuing::failed;
    }
    entry->query = &query;
    query.entry_ = entry;
    query.stage_ = stage::issued;
    issued_.push_back(query);
    ++stats_.issue_calls;
    const int code = errno_value([&] {
        return mlx5dv_devx_obj_query_async(query.object_->native, query.command_.data(), query.command_.size(),
                                           query.output_.size(), entry->wr_id, native_);
    });
    if (code != 0) return not_issued(query, *entry, code);
    retry_delay_ = first_retry;
    if (!watching() && !linked()) reactor_->readable.push_back(*this);
    return issuing::accepted;
}

command_channel_core::issuing command_channel_core::not_issued(query_state& query, table_entry& entry,
                                                               int code) noexcept {
    take_out(query);
    table_.release(entry);
    query.stage_ = stage::idle;
    // The window of this channel; the device's commands.
    if (code == EAGAIN || code == EBUSY) return issuing::later;
    query.outcome_ = explain(system_error_of(code, issue_verb), *query.object_, query.command_);
    return issuing::failed;
}

bool command_channel_core::submit(query_state& query) noexcept {
    if (!takes(query)) {
        query.outcome_ = refusal_of(query);
        return false;
    }
    if (queued_.empty()) {
        const auto issued = issue(query);
        if (issued != issuing::later) return issued == issuing::accepted;
        if (table_.used() == 0) retry_later();
    }
    query.stage_ = stage::queued;
    queued_.push_back(query);
    query.object_->queued.push_back(query.of_object_);
    return true;
}

void command_channel_core::issue_waiting() noexcept {
    while (!queued_.empty() && native_ != nullptr) {
        auto& query = static_cast<query_state&>(queued_.front());
        take_out(query);
        switch (issue(query)) {
        case issuing::accepted: continue;
        case issuing::failed: finish(query); continue;
        case issuing::later: break;
        }
        list<ready_node> others;
        others.splice(queued_);
        queued_.push_back(query);
        queued_.splice(others);
        query.stage_ = stage::queued;
        query.object_->queued.push_back(query.of_object_);
        if (table_.used() == 0) retry_later();
        return;
    }
}

void command_channel_core::retry_later() noexcept {
    start(retry_, retry_delay_);
    retry_delay_ = std::min<std::chrono::milliseconds>(retry_delay_ * 2, longest_retry);
}

void command_channel_core::take_out(query_state& query) noexcept {
    query.unlink();
    query.of_object_.unlink();
    if (table_entry* entry = std::exchange(query.entry_, nullptr)) entry->query = nullptr;
}

void command_channel_core::finish(query_state& query) noexcept {
    take_out(query);
    query.stage_ = stage::done;
    reactor_->ready.push(query);
}

void command_channel_core::fail(query_state& query, const error& why) noexcept {
    query.outcome_ = why;
    finish(query);
}

void command_channel_core::cancel(query_state& query, errc cause, list<ready_node>& woken) noexcept {
    take_out(query);
    query.stage_ = stage::done;
    query.outcome_ = error(cause, query_verb);
    woken.push_back(query);
}

void command_channel_core::forget(query_state& query) noexcept { take_out(query); }

void command_channel_core::withdraw(query_state& query) noexcept {
    reactor_core& reactor = *query.channel_->reactor_;
    if (!reactor.on_thread_or_forked())
        broken_rule("an object with queries that wait was destroyed on another thread than their reactor's");
    query.channel_->fail(query, error(errc::closed, query_verb).with_note("its object was destroyed"));
}

// ---- responses

void command_channel_core::ready(unsigned events) noexcept {
    if ((events & terminal_events) != 0) over_ = true;
    if (!linked()) reactor_->readable.push_back(*this);
}

void command_channel_core::deliver() noexcept {
    ++stats_.responses;
    std::uint64_t wr_id = 0;
    std::memcpy(&wr_id, buffer_.get(), sizeof wr_id);
    table_entry* const entry = table_.find(wr_id);
    if (entry == nullptr) {
        ++stats_.foreign;
        return;
    }
    if (entry->query == nullptr) {
        ++stats_.late;
    } else {
        query_state& query = *entry->query;
        std::memcpy(query.output_.data(), buffer_.get() + sizeof wr_id, query.output_.size());
        query.certain_ = !is_zero(query.output_);
        if (is_refusal(query.output_)) query.outcome_ = refusal(query.output_, query_verb);
        query.unlink(); // no `take_out`: its entry ends here
        query.entry_ = nullptr;
        query.stage_ = stage::done;
        reactor_->ready.push(query);
    }
    table_.release(*entry);
}

unsigned command_channel_core::drain(unsigned budget) noexcept {
    budget = std::min(budget, most_reads);
    unsigned taken = 0;
    bool empty = false;
    while (!empty && taken < budget && table_.used() > 0) {
        const int code = errno_value([&] {
            return mlx5dv_devx_get_async_cmd_comp(native_, reinterpret_cast<mlx5dv_devx_async_cmd_hdr*>(buffer_.get()),
                                                  sizeof(mlx5dv_devx_async_cmd_hdr) + max_response_);
        });
        if (code == 0) {
            deliver();
            ++taken;
        } else if (code == EAGAIN) {
            empty = true;
        } else if (code != EINTR) {
            end(code == EIO ? error(errc::device_removed, read_verb) : system_error_of(code, read_verb));
            return taken;
        }
    }
    if (taken == budget)
        reactor_->readable.push_back(*this);
    else if (over_)
        end(error(errc::device_removed, read_verb));
    else if (empty)
        watch();
    if (taken > 0) issue_waiting();
    if (closing_ && table_.used() == 0) shut();
    return taken;
}

void command_channel_core::watch() noexcept {
    if (auto watching = reactor_->watch(*this); !watching) end(watching.error());
}

// ---- the end

void command_channel_core::fail_queued(const error& why) noexcept {
    while (!queued_.empty()) fail(static_cast<query_state&>(queued_.front()), why);
}

void command_channel_core::fail_all(const error& why) noexcept {
    while (!issued_.empty()) fail(static_cast<query_state&>(issued_.front()), why);
    fail_queued(why);
}

void command_channel_core::end(const error& why) noexcept {
    life_ = why;
    reactor_->unwatch(*this);
    fail_all(why);
    stop(retry_);
    if (closing_) shut();
}

void command_channel_core::device_lost(const context_state& context) noexcept {
    if (life_ && context_.get() == &context) end(error(errc::device_removed, read_verb));
}

void command_channel_core::reactor_gone() noexcept {
    for (auto* waiting : {&issued_, &queued_})
        while (!waiting->empty()) {
            auto& query = static_cast<query_state&>(waiting->front());
            take_out(query);
            query.stage_ = stage::idle;
        }
    while (!closers_.empty()) closers_.pop_front();
    stop(retry_);
    stop(last_moment_);
    reactor_ = nullptr;
}

bool command_channel_core::close(channel_close_state& waiting) noexcept {
    constexpr auto verb = "command_channel::close";
    if (context_->process.forked())
        waiting.outcome_ = fork_error(verb);
    else if (reactor_ != nullptr && !reactor_->on_thread())
        waiting.outcome_ = reactor_->refused(verb);
    if (!waiting.outcome_ || native_ == nullptr) return false;
    closing_ = true;
    if (reactor_ == nullptr || !life_ || table_.used() == 0) {
        waiting.missing_ = static_cast<std::uint32_t>(table_.used());
        shut();
        return false;
    }
    fail_queued(error(errc::closed, query_verb));
    closers_.push_back(waiting);
    if (!last_moment_.linked()) start(last_moment_, close_limit);
    return true;
}

/// A close of the descriptor waits, uninterruptibly, for what the device still has, and must be the last reference to
/// it: a poll that is left in a ring would put the waiting off to wherever that ends.
void command_channel_core::shut() noexcept {
    auto* const native = std::exchange(native_, nullptr);
    if (native == nullptr) return;
    const auto missing = static_cast<std::uint32_t>(table_.used());
    if (reactor_ != nullptr) {
        fail_all(error(errc::closed, query_verb));
        while (!closers_.empty()) {
            auto& waiting = static_cast<channel_close_state&>(closers_.pop_front());
            waiting.missing_ = missing;
            reactor_->ready.push(waiting);
        }
        stop(retry_);
        stop(last_moment_);
        std::exchange(reactor_, nullptr)->detach(*this);
    }
    if (context_->process.forked()) return;
    if (missing == 0)
        mlx5dv_devx_destroy_cmd_comp(native);
    else
        context_->run_aside([native] { mlx5dv_devx_destroy_cmd_comp(native); });
}

void command_channel_core::start(alarm& one, std::chrono::nanoseconds from_now) noexcept {
    if (!one.linked()) reactor_->timers.add(one, after(reactor_->clock().now(), from_now));
}

void command_channel_core::stop(alarm& one) noexcept {
    if (one.linked()) reactor_->timers.remove(one);
}

} // namespace detail

namespace mlx5 {

result<command_channel> command_channel::create(const verbena::context& context,
                                                const command_channel_options& options) {
    if (auto checked = detail::check_parent(context, detail::create_verb, "context"); !checked) return checked.error();
    if (auto sized =
            detail::check_size(options.max_response, detail::longest_command, "a response", detail::create_verb);
        !sized)
        return sized.error();
    auto core = std::make_unique<detail::command_channel_core>(detail::access::state(context), options.max_response);
    if (auto opened = core->open(); !opened) return opened.error();
    return command_channel(std::move(core));
}

command_channel::command_channel() noexcept = default;
command_channel::command_channel(std::unique_ptr<detail::command_channel_core> core) noexcept
    : core_(std::move(core)) {}
command_channel::command_channel(command_channel&& other) noexcept = default;
command_channel& command_channel::operator=(command_channel&& other) noexcept = default;
command_channel::~command_channel() = default;

command_channel_stats command_channel::stats() const noexcept {
    return core_ ? core_->stats() : command_channel_stats{};
}
verbena::context command_channel::context() const noexcept {
    return detail::access::make<verbena::context>(core_ ? core_->context() : nullptr);
}
mlx5dv_devx_cmd_comp* command_channel::native_handle() const noexcept { return core_ ? core_->native() : nullptr; }

} // namespace mlx5

result<void> reactor::attach(const mlx5::command_channel& channel) {
    auto* const core = detail::access::core(channel);
    return core != nullptr ? core->attach(*core_) : detail::empty_channel("reactor::attach");
}

} // namespace verbena
