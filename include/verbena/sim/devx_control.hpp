#pragma once

#include <verbena/sim/control.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

struct ibv_context;
struct mlx5dv_devx_event_channel;
struct mlx5dv_devx_obj;

namespace verbena::sim {

struct devx_device;

/// What became of the asynchronous queries. At any time accepted = completed + cancelled + those in flight, and
/// completed = read + dropped + those unread.
struct devx_ledger {
    std::uint64_t accepted = 0;  ///< mlx5dv_devx_obj_query_async answered 0
    std::uint64_t completed = 0; ///< their response became readable
    std::uint64_t cancelled = 0; ///< their device was removed first
    std::uint64_t read = 0;      ///< by mlx5dv_devx_get_async_cmd_comp
    std::uint64_t dropped = 0;   ///< their channel was destroyed, or its device removed, with the response unread
};

/// The remote control of a simulated device's DEVX commands. Thread-safe. Errors are std::invalid_argument.
///
/// Without it every command completes at once. Objects are general objects (0xa00 to 0xa03), flow counters (0x939,
/// 0x93a, 0x93b) and protection domains (0x800, 0x801). The outbox of a successful query, all in network order:
///
///     bytes 0..7    status and syndrome, 0
///     bytes 8..11   the object's id, as in the outbox of its creation
///     bytes 12..15  how often the object has been modified
///     bytes 16..23  a number, the bytes 16..23 of the command
///     byte i > 23   (number + i) mod 256
///
/// as far as it goes. Removing the device is `control::remove`. While the device is seeded the time that a command
/// takes comes from the seed, and the manual clock counts for commands as well.
class devx_control {
  public:
    /// By its name, "sim0"; not a device without DEVX.
    VERBENA_SIM_API explicit devx_control(std::string_view device);
    /// By a context that is open on it.
    VERBENA_SIM_API explicit devx_control(ibv_context* context);

    /// Asynchronous commands issued from now on take so long. They complete in the order in which their times end.
    VERBENA_SIM_API void delay(std::chrono::nanoseconds by);

    /// Asynchronous commands from now on are executed, but their responses wait until they are released. Destroying
    /// their channel waits as well, for another thread to release them.
    VERBENA_SIM_API void hold();
    /// The `wr_id`s, in the order of issue.
    VERBENA_SIM_API std::vector<std::uint64_t> held() const;
    /// Delivers the oldest one with this `wr_id`, whatever else is held. False: none is held.
    VERBENA_SIM_API bool release(std::uint64_t wr_id);
    /// Delivers all that are held, in order, and holds no more. Answers how many.
    VERBENA_SIM_API std::size_t release();

    /// The firmware refuses the next `count` commands, with a status other than 0. Synchronous ones fail with
    /// EREMOTEIO, of others only the outbox says so. Destroying an object is never refused.
    VERBENA_SIM_API void refuse(std::uint8_t status, std::uint32_t syndrome, std::uint32_t count = 1);
    /// The next `count` commands, after those that are to be refused already, get lost: the outbox is all zero.
    /// Synchronous ones fail with ETIMEDOUT.
    VERBENA_SIM_API void lose(std::uint32_t count = 1);

    /// How many asynchronous queries of general objects may be in flight on the device; another fails with EBUSY.
    /// 16 at first.
    VERBENA_SIM_API void throttle(std::uint32_t limit);
    /// As kernel 6.1: asynchronous queries of general objects fail with EINVAL.
    VERBENA_SIM_API void old_kernel(bool on);
    /// How many bytes of output may be in flight or unread on a channel; another byte fails with EAGAIN. 1 MiB at
    /// first.
    VERBENA_SIM_API void window(std::size_t bytes);

    /// Lets calls of a verb fail. `verb` by its name: "mlx5dv_devx_obj_query_async". `control::forgive` and
    /// `control::reset` end it.
    VERBENA_SIM_API void fail(std::string_view verb, const fault& how);

    /// An event of the object, or an unaffiliated one if it is null, for all who have subscribed. Answers how many.
    /// The event data: `event` in byte 1, the object's id in bytes 28..31 in network order, `data`, 28 bytes at most,
    /// from byte 32 on.
    VERBENA_SIM_API std::size_t raise(mlx5dv_devx_obj* object, std::uint16_t event,
                                      std::span<const std::byte> data = {});
    /// The next `count` events of a channel get lost for lack of memory; it reports EOVERFLOW once. Not of a channel
    /// that omits the data: it needs no memory.
    VERBENA_SIM_API void lose_events(mlx5dv_devx_event_channel* channel, std::uint32_t count);

    VERBENA_SIM_API devx_ledger ledger() const; ///< since the process began

    /// Ends everything above but the ledger, and delivers what is held or delayed.
    VERBENA_SIM_API void reset();

  private:
    devx_device* device_;
};

} // namespace verbena::sim
