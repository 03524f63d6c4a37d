#include <verbena/verbs/completion_queue.hpp>

#include "states.hpp"
#include "verb.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <climits>

namespace verbena {
namespace {

/// The limits that every device shares; `what` names the argument.
result<void> check_capacity(const detail::context_state& context, std::size_t entries, const char* verb,
                            const char* what) {
    const auto limit = context.attributes.max_cqe;
    if (entries != 0 && entries <= INT_MAX && static_cast<int>(entries) <= limit) return {};
    return error(errc::invalid_argument, verb)
        .with_note(fmt::format("{} is {}, but {} takes 1 to {}", what, entries, context.name, limit));
}

} // namespace

namespace detail {

completion_queue_state::~completion_queue_state() {
    if (!native) return;
    // An event that was got and never acked would block the destruction for ever.
    if (unacked_events != 0 && !process.forked()) ibv_ack_cq_events(native, unacked_events);
    destroy(*context, "ibv_destroy_cq", [&] { return ibv_destroy_cq(native); });
}

result<void> completion_queue_state::check_thread() const {
    const auto* holder = attachment.load(std::memory_order_acquire);
    if (!holder || holder->on_reactor_thread()) return {};
    return error(errc::wrong_thread, "ibv_resize_cq")
        .with_note("the queue is attached to a reactor, which runs on another thread");
}

result<void> completion_queue_state::resize_locked(std::size_t entries) {
    if (auto checked = check_capacity(*context, entries, "ibv_resize_cq", "the capacity"); !checked) return checked;
    if (entries < reserved)
        return error(errc::in_use, "ibv_resize_cq")
            .with_note(
                fmt::format("{} entries are fewer than the {} that queue pairs and shared receive queues have reserved",
                            entries, reserved));
    auto* holder = attachment.load(std::memory_order_acquire);
    if (holder) holder->about_to_resize();
    auto resized = check_errno_value("ibv_resize_cq", [&] { return ibv_resize_cq(native, static_cast<int>(entries)); });
    capacity.store(static_cast<std::uint32_t>(native->cqe), std::memory_order_relaxed);
    if (holder) holder->resized();
    if (!resized && resized.error() == errc::invalid_argument) {
        return std::move(resized).error().with_note(fmt::format(
            "a resize from {} to {}: no queue shrinks below its unpolled entries", capacity.load(), entries));
    }
    return resized;
}

result<void> completion_queue_state::resize(std::size_t entries) {
    if (process.forked()) return fork_error("ibv_resize_cq"); // another thread may have held the mutex
    const std::lock_guard lock(mutex);
    if (auto checked = check_thread(); !checked) return checked;
    return resize_locked(entries);
}

result<void> completion_queue_state::reserve(std::uint32_t entries) {
    if (process.forked()) return fork_error("ibv_resize_cq");
    const std::lock_guard lock(mutex);
    if (auto checked = check_thread(); !checked) return checked;
    const auto wanted = std::size_t{reserved} + entries;
    if (wanted > capacity.load(std::memory_order_relaxed)) {
        if (auto grown = resize_locked(wanted); !grown)
            return error(errc::resource, "ibv_resize_cq")
                .with_note(fmt::format(
                    "the completion queue has {} entries, {} of them reserved, and cannot grow for {} more: {}",
                    capacity.load(), reserved, entries, grown.error().message()));
    }
    reserved += entries;
    return {};
}

void completion_queue_state::release(std::uint32_t entries) noexcept {
    const std::lock_guard lock(mutex);
    reserved -= std::min(entries, reserved);
}

} // namespace detail

result<completion_queue> completion_queue::create(const verbena::context& context, std::size_t min_capacity,
                                                  const completion_queue_options& options) {
    const auto* const verb = options.single_threaded ? "ibv_create_cq_ex" : "ibv_create_cq";
    if (auto checked = detail::check_parent(context, verb, "context"); !checked) return checked.error();
    auto state = std::make_shared<detail::completion_queue_state>();
    state->context = detail::access::state(context);
    state->channel = detail::access::state(options.channel);
    if (auto checked = check_capacity(*state->context, min_capacity, verb, "min_capacity"); !checked)
        return checked.error();
    if (state->channel && state->channel->context != state->context)
        return error(errc::invalid_argument, verb).with_note("the completion channel is of another context");
    auto* device = state->context->native;
    if (options.comp_vector < 0 || options.comp_vector >= device->num_comp_vectors)
        return error(errc::invalid_argument, verb)
            .with_note(fmt::format("comp_vector is {}, but num_comp_vectors of {} is {}", options.comp_vector,
                                   state->context->name, device->num_comp_vectors));
    const auto entries = static_cast<int>(min_capacity);
    auto* channel = state->channel ? state->channel->native : nullptr;
    auto native = detail::check_pointer(verb, [&] {
        if (!options.single_threaded) return ibv_create_cq(device, entries, state.get(), channel, options.comp_vector);
        ibv_cq_init_attr_ex wanted{};
        wanted.cqe = static_cast<std::uint32_t>(entries);
        wanted.cq_context = state.get();
        wanted.channel = channel;
        wanted.comp_vector = static_cast<std::uint32_t>(options.comp_vector);
        wanted.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
        wanted.flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
        return ibv_cq_ex_to_cq(ibv_create_cq_ex(device, &wanted));
    });
    if (!native) return native.error();
    state->native = *native;
    state->min_capacity = static_cast<std::uint32_t>(min_capacity);
    state->capacity = static_cast<std::uint32_t>(state->native->cqe);
    return completion_queue(std::move(state));
}

result<polled_completions> completion_queue::poll(std::span<poll_slot> slots) const {
    constexpr auto verb = "ibv_poll_cq";
    if (!state_) return detail::no_parent(verb, "completion queue");
    if (state_->process.forked()) return detail::fork_error(verb);
    if (attached()) return error(errc::attached, verb);
    // A negative answer is final: entries may have been consumed without being reported.
    if (state_->failed.load(std::memory_order_relaxed)) return error(errc::queue_failed, verb);
    if (slots.size() > INT32_MAX) {
        static std::atomic<bool> warned{false};
        if (!warned.exchange(true))
            detail::log(log_level::warning, "completion_queue::poll uses INT32_MAX slots of a longer buffer");
        slots = slots.first(INT32_MAX);
    }
    const auto count = detail::check_count(verb, [&] {
        return ibv_poll_cq(state_->native, static_cast<int>(slots.size()), detail::native(slots.data()));
    });
    if (!count) {
        state_->failed.store(true, std::memory_order_relaxed);
        return count.error();
    }
    return polled_completions(slots.first(static_cast<std::size_t>(*count)));
}

result<void> completion_queue::resize(std::size_t capacity) const {
    if (!state_) return detail::no_parent("ibv_resize_cq", "completion queue");
    return state_->resize(capacity);
}

result<void> completion_queue::moderate(std::uint16_t count, std::chrono::microseconds period) const {
    constexpr auto verb = "ibv_modify_cq";
    if (!state_) return detail::no_parent(verb, "completion queue");
    if (state_->process.forked()) return detail::fork_error(verb);
    if (period.count() < 0 || period.count() > UINT16_MAX)
        return error(errc::invalid_argument, verb)
            .with_note(
                fmt::format("the period is {} us, but no device takes more than {}", period.count(), UINT16_MAX));
    ibv_modify_cq_attr wanted{};
    wanted.attr_mask = IBV_CQ_ATTR_MODERATE;
    wanted.moderate = {.cq_count = count, .cq_period = static_cast<std::uint16_t>(period.count())};
    auto moderated = detail::check_errno_value(verb, [&] { return ibv_modify_cq(state_->native, &wanted); });
    if (!moderated && moderated.error() == errc::invalid_argument)
        return std::move(moderated).error().with_note(
            fmt::format("{} does not take {} completions and {} us", state_->context->name, count, period.count()));
    return moderated;
}

std::uint32_t completion_queue::min_capacity() const noexcept { return state_->min_capacity; }
std::uint32_t completion_queue::capacity() const noexcept { return state_->capacity.load(std::memory_order_relaxed); }
bool completion_queue::attached() const noexcept {
    return state_->attachment.load(std::memory_order_acquire) != nullptr;
}
verbena::context completion_queue::context() const noexcept {
    return detail::access::make<verbena::context>(state_ ? state_->context : nullptr);
}
completion_channel completion_queue::channel() const noexcept {
    return detail::access::make<completion_channel>(state_ ? state_->channel : nullptr);
}
ibv_cq* completion_queue::native_handle() const noexcept { return state_ ? state_->native : nullptr; }

} // namespace verbena
