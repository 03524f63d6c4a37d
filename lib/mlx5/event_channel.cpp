#include "../verbs/verb.hpp"
#include "channel.hpp"
#include "devx_object.hpp"
#include "event_channel_core.hpp"

#include <verbena/detail/broken_rule.hpp>
#include <verbena/reactor.hpp>

#include <infiniband/mlx5dv.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include <poll.h>

namespace verbena {
namespace detail {
namespace {

constexpr auto create_verb = "mlx5dv_devx_create_event_channel";
constexpr auto subscribe_verb = "mlx5dv_devx_subscribe_devx_event";
constexpr auto next_verb = "event_channel::next";
constexpr auto read_verb = "mlx5dv_devx_get_event";
constexpr std::size_t most_types = 16; // MAX_NUM_EVENTS of the kernel

} // namespace

// ---- waits

device_event_wait::device_event_wait(event_channel_core* channel) noexcept
    : channel_(channel != nullptr ? channel->shared_from_this() : nullptr) {}

device_event_wait::~device_event_wait() {
    if (!woken() || finished_) return;
    channel_->events().keep_promise();
    channel_->wake_next();
}

bool device_event_wait::take() noexcept {
    outcome_ = channel_ != nullptr ? channel_->check() : empty_channel(next_verb);
    if (!outcome_) return true;
    entitled_ = channel_->has_one();
    return entitled_ || !channel_->life();
}

bool device_event_wait::wait(std::coroutine_handle<> waiting) noexcept {
    if (outcome_ = channel_->watch(); !outcome_) return false;
    wait_in(channel_->events().waiters(), waiting);
    return true;
}

result<mlx5::device_event> device_event_wait::finish() {
    finished_ = true;
    if (!outcome_) return outcome_.error();
    if (cancelled() != errc{}) return error(cancelled(), next_verb);
    if (woken()) channel_->events().keep_promise();
    if ((woken() || entitled_) && !channel_->events().empty()) return channel_->events().take();
    return channel_->life().error();
}

// ---- the channel

event_channel_core::event_channel_core(std::shared_ptr<context_state> context) noexcept
    : context_(std::move(context)) {}

result<void> event_channel_core::open(const mlx5::event_channel_options& options) {
    with_data_ = options.with_data;
    const auto flags =
        with_data_ ? mlx5dv_devx_create_event_channel_flags{} : MLX5DV_DEVX_CREATE_EVENT_CHANNEL_FLAGS_OMIT_EV_DATA;
    auto native = check_pointer(create_verb, [&] { return mlx5dv_devx_create_event_channel(context_->native, flags); });
    if (!native) return native.error();
    native_ = *native;
    return set_non_blocking(native_->fd);
}

void event_channel_core::close() noexcept {
    if (native_ == nullptr) return;
    if (reactor_ != nullptr) {
        if (!reactor_->on_thread_or_forked())
            broken_rule("an event channel was destroyed on another thread than the one that runs its reactor");
        if (life_) end(error(errc::closed, next_verb));
        std::exchange(reactor_, nullptr)->detach(*this);
    }
    auto* const native = std::exchange(native_, nullptr);
    if (!context_->process.forked()) mlx5dv_devx_destroy_event_channel(native);
}

int event_channel_core::fd() const noexcept { return native_->fd; }

result<void> event_channel_core::attach(reactor_core& reactor) {
    return attach_channel(*this, *context_, life_, reactor_, reactor);
}

result<void> event_channel_core::subscribe(mlx5dv_devx_obj* object, std::span<const std::uint16_t> types,
                                           std::uint64_t cookie) const {
    if (context_->process.forked()) return fork_error(subscribe_verb);
    if (reactor_ != nullptr && !reactor_->on_thread()) return reactor_->refused(subscribe_verb);
    if (types.empty() || types.size() > most_types)
        return error(errc::invalid_argument, subscribe_verb).with_note("1 to 16 types can be");
    std::array<std::uint16_t, most_types> mutable_types{};
    std::ranges::copy(types, mutable_types.begin());
    return check_errno_value(subscribe_verb, [&] {
        return mlx5dv_devx_subscribe_devx_event(native_, object, static_cast<std::uint16_t>(types.size_bytes()),
                                                mutable_types.data(), cookie);
    });
}

result<void> event_channel_core::check() const {
    if (context_->process.forked()) return fork_error(next_verb);
    if (reactor_ == nullptr) return error(errc::not_attached, next_verb);
    if (!reactor_->on_thread()) return reactor_->refused(next_verb);
    return {};
}

bool event_channel_core::has_one() noexcept {
    return events_.something_to_take() || (life_ && events_.waiters().empty() && read());
}

result<void> event_channel_core::watch() { return reactor_->watch(*this); }

void event_channel_core::wake_next() noexcept {
    list<ready_node> woken;
    events_.wake_next(woken);
    if (!woken.empty()) reactor_->ready.splice(woken);
}

void event_channel_core::ready(unsigned events) noexcept {
    if ((events & terminal_events) != 0) over_ = true;
    if (!linked()) reactor_->readable.push_back(*this);
}

unsigned event_channel_core::drain(unsigned budget) noexcept {
    unsigned taken = 0;
    for (; taken < budget && !events_.waiters().empty() && read(); ++taken) wake_next();
    if (!life_) return taken;
    if (taken == budget)
        reactor_->readable.push_back(*this);
    else if (over_)
        end(error(errc::device_removed, read_verb));
    else if (taken == 0 && events_.waiters().empty())
        reactor_->unwatch(*this); // where it would be reported for ever
    return taken;
}

bool event_channel_core::read() noexcept {
    struct {
        std::uint64_t cookie;
        std::array<std::byte, 64> data;
    } packet{};
    result<int> got = 0;
    do {
        got = check_minus_one(read_verb, [&] {
            return static_cast<int>(
                mlx5dv_devx_get_event(native_, reinterpret_cast<mlx5dv_devx_async_event_hdr*>(&packet), sizeof packet));
        });
    } while (!got && is(got.error(), EINTR));
    if (got) {
        mlx5::device_event event{.cookie = packet.cookie, .data = {}};
        if (with_data_) event.data = packet.data;
        events_.push(event);
        return true;
    }
    if (is(got.error(), EAGAIN)) return false;
    if (is(got.error(), EOVERFLOW)) {
        events_.push(error(errc::resource, read_verb).with_note("events were lost for lack of kernel memory"));
        return true;
    }
    end(is(got.error(), EIO) ? error(errc::device_removed, read_verb) : got.error());
    return false;
}

// ---- the end

void event_channel_core::end(const error& why) noexcept {
    life_ = why;
    reactor_->unwatch(*this);
    list<ready_node> woken;
    events_.wake_all(woken);
    reactor_->ready.splice(woken);
}

void event_channel_core::device_lost(const context_state& context) noexcept {
    if (life_ && context_.get() == &context) end(error(errc::device_removed, read_verb));
}

void event_channel_core::reactor_gone() noexcept {
    while (!events_.waiters().empty()) events_.waiters().pop_front();
    reactor_ = nullptr;
}

} // namespace detail

namespace mlx5 {

result<event_channel> event_channel::create(const verbena::context& context, const event_channel_options& options) {
    if (auto checked = detail::check_parent(context, detail::create_verb, "context"); !checked) return checked.error();
    event_channel channel(std::make_shared<detail::event_channel_core>(detail::access::state(context)));
    if (auto opened = channel.core_->open(options); !opened) return opened.error();
    return channel;
}

event_channel::event_channel() noexcept = default;
event_channel::event_channel(std::shared_ptr<detail::event_channel_core> core) noexcept : core_(std::move(core)) {}
event_channel::event_channel(event_channel&& other) noexcept = default;
event_channel& event_channel::operator=(event_channel&& other) noexcept {
    core_.swap(other.core_);
    return *this;
}
event_channel::~event_channel() {
    if (core_) core_->close();
}

result<void> event_channel::subscribe(const object& object, std::span<const std::uint16_t> types,
                                      std::uint64_t cookie) const {
    if (!core_) return detail::empty_channel(detail::subscribe_verb);
    if (!object || object.context().native_handle() != core_->context()->native)
        return error(errc::invalid_argument, detail::subscribe_verb)
            .with_note(object ? "object and channel are of two contexts" : "an empty object");
    return core_->subscribe(object.native_handle(), types, cookie);
}

result<void> event_channel::subscribe(std::span<const std::uint16_t> types, std::uint64_t cookie) const {
    return core_ ? core_->subscribe(nullptr, types, cookie) : detail::empty_channel(detail::subscribe_verb);
}

verbena::context event_channel::context() const noexcept {
    return detail::access::make<verbena::context>(core_ ? core_->context() : nullptr);
}
mlx5dv_devx_event_channel* event_channel::native_handle() const noexcept { return core_ ? core_->native() : nullptr; }

} // namespace mlx5

result<void> reactor::attach(const mlx5::event_channel& channel) {
    auto* const core = detail::access::core(channel);
    return core != nullptr ? core->attach(*core_) : detail::empty_channel("reactor::attach");
}

} // namespace verbena
