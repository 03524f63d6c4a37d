#pragma once

#include "../handout.hpp"
#include "../source.hpp"
#include "../verbs/states.hpp"

#include <verbena/mlx5/event_channel.hpp>

#include <cstdint>
#include <memory>
#include <span>

namespace verbena::detail {

class reactor_core;

/// Behind `mlx5::event_channel`. It reads an event only for somebody who waits, so that what nobody takes stays in the
/// kernel. While somebody waits the descriptor is watched, and was found empty since it was reported last.
class event_channel_core final : public readable_source, public std::enable_shared_from_this<event_channel_core> {
  public:
    explicit event_channel_core(std::shared_ptr<context_state> context) noexcept;
    result<void> open(const mlx5::event_channel_options& options);
    /// The handle is gone; waits may hold this longer.
    void close() noexcept;

    const std::shared_ptr<context_state>& context() const noexcept { return context_; }
    mlx5dv_devx_event_channel* native() const noexcept { return native_; }

    result<void> attach(reactor_core& reactor);
    /// Without an object: what belongs to none.
    result<void> subscribe(mlx5dv_devx_obj* object, std::span<const std::uint16_t> types, std::uint64_t cookie) const;

    // From the waits.
    using delivery = result<mlx5::device_event>; ///< or a loss
    handout<delivery>& events() noexcept { return events_; }
    result<void> check() const;
    /// Whether there is something that nobody was woken for; looks for it, unless others wait.
    bool has_one() noexcept;
    result<void> watch();
    void wake_next() noexcept;
    const result<void>& life() const noexcept { return life_; }

    // watch, readable_source
    void ready(unsigned events) noexcept override;
    int fd() const noexcept override;
    unsigned drain(unsigned budget) noexcept override;
    void reactor_gone() noexcept override;
    void device_lost(const context_state& context) noexcept override;

  private:
    /// False: there is none.
    bool read() noexcept;
    void end(const error& why) noexcept;

    std::shared_ptr<context_state> context_;
    mlx5dv_devx_event_channel* native_ = nullptr; ///< until it is closed
    bool with_data_ = true;
    reactor_core* reactor_ = nullptr;
    handout<delivery> events_;
    bool over_ = false; ///< the descriptor said that it has ended
    result<void> life_; ///< or why nothing comes any more
};

} // namespace verbena::detail
