#pragma once

#include <verbena/detail/cancellable_wait.hpp>
#include <verbena/mlx5/object.hpp>
#include <verbena/verbs/context.hpp>

#include <array>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

struct mlx5dv_devx_event_channel;

namespace verbena {

namespace mlx5 {

/// What a device tells of one of its objects, or of itself.
struct device_event {
    std::uint64_t cookie = 0; ///< of the subscription
    /// The event queue entry of the device's manual, in network order: the type in byte 1, the subtype in byte 3, what
    /// belongs to the type from byte 32 on. Only of a channel with data.
    std::optional<std::array<std::byte, 64>> data;
};

} // namespace mlx5

namespace detail {
class event_channel_core;

/// The part of an awaiter of `mlx5::event_channel::next` that the channel knows.
class device_event_wait : public cancellable_wait {
  public:
    VERBENA_API explicit device_event_wait(event_channel_core* channel) noexcept;
    VERBENA_API ~device_event_wait();
    /// True: an event, or a reason why none will come, is there already.
    VERBENA_API bool take() noexcept;
    /// False: it cannot wait.
    VERBENA_API bool wait(std::coroutine_handle<> waiting) noexcept;
    VERBENA_API result<mlx5::device_event> finish();

  private:
    std::shared_ptr<event_channel_core> channel_;
    result<void> outcome_;
    bool entitled_ = false; ///< the front of what came is its own
    bool finished_ = false;
};
} // namespace detail

namespace mlx5 {

/// The next event.
///
/// Completes when   an event is there that no earlier wait gets, or none will come.
/// In flight        any number of waits, served in their order.
/// Errors           `resource`: events were lost for lack of kernel memory. It is told once, however many were lost,
///                  and the channel goes on; a loss wakes nobody, so that who waits learns of it when the next event
///                  comes. `device_removed`; `closed`: the channel was destroyed; `invalid_argument`: an empty
///                  channel; `not_attached`; `wrong_thread`.
/// Cancel safety    class 2; nothing is lost: an event that woke a wait which is then destroyed goes to the next one.
/// Thread           reactor-bound.
///
///     while (auto event = co_await events.next()) fmt::print("{:#x}\n", event->cookie);
class [[nodiscard]] next_device_event_operation {
  public:
    using result_type = result<device_event>;

    class awaiter : public detail::device_event_wait {
      public:
        using device_event_wait::device_event_wait;
        bool await_ready() noexcept { return take(); }
        bool await_suspend(std::coroutine_handle<> waiting) noexcept { return wait(waiting); }
        result<device_event> await_resume() { return finish(); }
    };

    explicit next_device_event_operation(detail::event_channel_core* channel) noexcept : channel_(channel) {}
    awaiter operator co_await() && noexcept { return awaiter(channel_); }

  private:
    detail::event_channel_core* channel_;
};

/// How an event channel is made.
struct event_channel_options {
    /// Without, an event that was not read yet stands for all later ones of its subscription, and the kernel needs no
    /// memory for it. With, it keeps each until it is read.
    bool with_data = true;
};

/// Where the events of objects, and of the device itself, arrive. A reactor watches it from `reactor::attach` on; an
/// event is read when somebody waits for it, until then the kernel keeps it.
///
/// Move-only, keeps its context open. Reactor-bound once it is attached, before that one thread at a time. Destroying
/// it ends its waits with `closed`, and its subscriptions.
/// Source: mlx5dv_devx_create_event_channel(3), mlx5dv_devx_subscribe_devx_event(3), mlx5dv_devx_get_event(3).
class VERBENA_API event_channel {
  public:
    /// The descriptor is made non-blocking. Errors: `unsupported`: no DEVX; `invalid_argument`: an empty context;
    /// `resource`; `device_removed`.
    static result<event_channel> create(const verbena::context& context, const event_channel_options& options = {});

    event_channel() noexcept;
    event_channel(event_channel&& other) noexcept;
    event_channel& operator=(event_channel&& other) noexcept;
    ~event_channel();
    explicit operator bool() const noexcept { return core_ != nullptr; }

    /// Events of these types, 1 to 16 of them, of this object. An event of two subscriptions comes twice. It ends with
    /// the object or the channel, and cannot be ended otherwise.
    /// Errors: `invalid_argument`: none or too many, an event that the device has not or not for this object, an empty
    /// object or channel, or one of another context; `resource`; `device_removed`; `wrong_thread`.
    result<void> subscribe(const object& object, std::span<const std::uint16_t> types, std::uint64_t cookie) const;
    /// Events that belong to no object. Errors as above.
    result<void> subscribe(std::span<const std::uint16_t> types, std::uint64_t cookie) const;

    /// See `next_device_event_operation`.
    next_device_event_operation next() const noexcept { return next_device_event_operation(core_.get()); }

    verbena::context context() const noexcept;
    mlx5dv_devx_event_channel* native_handle() const noexcept;

  private:
    friend struct detail::access;
    explicit event_channel(std::shared_ptr<detail::event_channel_core> core) noexcept;

    std::shared_ptr<detail::event_channel_core> core_;
};

} // namespace mlx5
} // namespace verbena
