#pragma once

#include <verbena/verbs/context.hpp>

namespace verbena {

namespace detail {
struct completion_channel_state;
}

/// Where completion queues announce their events. Several queues may share one, all of one reactor. Copies share it.
/// *Thread-safe*; who takes events from it by hand must be the only one.
class VERBENA_API completion_channel {
  public:
    /// The descriptor is made non-blocking. Errors: `invalid_argument`: the context is empty; `resource`. Source:
    /// ibv_create_comp_channel(3).
    static result<completion_channel> create(const verbena::context& context);

    completion_channel() noexcept = default;
    explicit operator bool() const noexcept { return state_ != nullptr; }

    verbena::context context() const noexcept;
    /// To wait for readability only: events are taken with ibv_get_cq_event, as providers keep arm state there.
    int fd() const noexcept;
    ibv_comp_channel* native_handle() const noexcept;
    friend bool operator==(const completion_channel&, const completion_channel&) noexcept = default;

  private:
    friend struct detail::access;
    explicit completion_channel(std::shared_ptr<detail::completion_channel_state> state) noexcept
        : state_(std::move(state)) {}

    std::shared_ptr<detail::completion_channel_state> state_;
};

} // namespace verbena
