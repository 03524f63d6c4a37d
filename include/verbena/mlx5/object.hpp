#pragma once

#include <verbena/verbs/context.hpp>

#include <cstddef>
#include <memory>
#include <span>

struct mlx5dv_devx_obj;

namespace verbena {

namespace detail {
struct devx_object;
}

/// DEVX: firmware commands and events of mlx5 devices.
namespace mlx5 {

/// A firmware object made by a command. Every call takes the inbox of the command and the outbox for its output, of 16
/// to 65,535 bytes each, in network order, and blocks for as long as the firmware takes; `command_channel::query`
/// does not.
///
/// Errors of all calls: the status of a refusal, in `devx_category()`, with the output written; `invalid_argument`: a
/// size, an empty object, an opcode that is none for this call or names another object; `timed_out`: the command got
/// lost; `device_removed`; `wrong_thread` in a fork.
///
/// Move-only; keeps its context open. One thread at a time; reactor-bound while a query of it waits in a channel.
/// Moving it is always safe. Destroying it ends the queries that wait with `closed`; those that the device has
/// complete. Source: mlx5dv_devx_obj_create(3).
class VERBENA_API object {
  public:
    /// Executes a command that creates an object. Errors: as of all calls; also `unsupported`: no DEVX; `resource`.
    static result<object> create(const verbena::context& context, std::span<const std::byte> command,
                                 std::span<std::byte> output);

    object() noexcept;
    object(object&& other) noexcept;
    object& operator=(object&& other) noexcept;
    ~object(); ///< a failure is logged; see `destroy`
    explicit operator bool() const noexcept { return state_ != nullptr; }

    /// The handle is empty afterwards; if the firmware refuses, since another object uses this one, it stays as it is.
    /// Errors: as of all calls; no sizes. Source: mlx5dv_devx_obj_destroy(3).
    result<void> destroy();
    /// Executes a QUERY command for this object, with the output written. Errors: as of all calls. Source:
    /// mlx5dv_devx_obj_query(3).
    result<void> query(std::span<const std::byte> command, std::span<std::byte> output) const;
    /// Executes a MODIFY command for this object. Errors: as of all calls. Source: mlx5dv_devx_obj_modify(3).
    result<void> modify(std::span<const std::byte> command, std::span<std::byte> output) const;

    verbena::context context() const noexcept;
    mlx5dv_devx_obj* native_handle() const noexcept;

  private:
    friend struct detail::access;
    friend class command_channel;
    explicit object(std::unique_ptr<detail::devx_object> state) noexcept;

    std::unique_ptr<detail::devx_object> state_;
};

} // namespace mlx5
} // namespace verbena
