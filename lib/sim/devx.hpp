#pragma once

// The DEVX side of an mlx5-like device, behind the types of mlx5dv.h. The device's lock guards it all. As everywhere,
// the destroyed rest in the device's graveyard with their magic number gone.

#include "device.hpp"
#include "packet_file.hpp"

#include <verbena/sim/devx_control.hpp>

#pragma GCC visibility push(default)
#include <infiniband/mlx5dv.h>
#pragma GCC visibility pop

#include <condition_variable>
#include <list>
#include <memory>
#include <vector>

namespace verbena::sim {

/// The opcodes of one kind of object; 0 is none.
struct object_kind {
    std::uint16_t create;
    std::uint16_t modify;
    std::uint16_t query;
    std::uint16_t destroy;
    std::size_t query_id_at; ///< where a query names the object
    bool has_type;           ///< bytes 6 and 7 of every command
    bool throttled;
};

} // namespace verbena::sim

struct mlx5dv_devx_obj {
    std::uint32_t magic;
    verbena::sim::devx_device* devx;
    verbena::sim::open_context* context;
    const verbena::sim::object_kind* kind;
    std::uint16_t type;
    std::uint32_t id;
    std::uint32_t modified;
};

namespace verbena::sim {

struct command_channel : mlx5dv_devx_cmd_comp {
    std::uint32_t magic;
    devx_device* devx;
    open_context* context; ///< null: closed
    packet_file file;
    std::size_t bytes_in_use = 0; ///< output in flight and unread
    std::uint32_t in_flight = 0;
    std::uint32_t unread = 0;
};

struct subscription {
    const mlx5dv_devx_obj* object; ///< null: unaffiliated events
    std::uint16_t event;
    std::uint64_t cookie;
    int eventfd = -1;     ///< where its events go instead of the channel
    bool pending = false; ///< without data: it has an unread event, which stands for all
    bool ended = false;   ///< its object is gone
};

struct event_channel : mlx5dv_devx_event_channel {
    std::uint32_t magic;
    devx_device* devx;
    open_context* context; ///< null: closed
    bool omit_data;
    packet_file file;
    std::list<subscription> subscriptions;
    std::deque<subscription*> unread; ///< without data
    std::uint32_t to_lose = 0;
    bool overflow = false;
};

/// What the firmware makes of a command.
struct outcome {
    bool lost = false;
    std::uint8_t status = 0;
    std::uint32_t syndrome = 0;
};

/// A query on its way. It outlives its object, as the kernel's do.
struct query {
    std::uint64_t wr_id;
    command_channel* channel;
    std::uint16_t outlen;
    outcome result;
    std::uint32_t id;
    std::uint32_t modified;
    std::uint64_t number;
    bool throttled;
    bool held;
    scheduler::id completion;
};

struct devx_device {
    explicit devx_device(device& d) : dev(d) {}

    device& dev;
    std::condition_variable_any changed; ///< fewer queries are in flight
    std::list<query> queries;
    std::vector<mlx5dv_devx_obj*> objects;
    std::vector<command_channel*> command_channels;
    std::vector<event_channel*> event_channels;
    std::vector<open_context*> contexts; ///< that have used DEVX
    std::uint32_t last_id = 0;
    std::uint32_t throttled = 0; ///< in flight
    devx_ledger counts;

    struct wishes {
        std::chrono::nanoseconds delay{};
        bool hold = false;
        std::deque<outcome> outcomes; ///< of the next commands
        std::uint32_t throttle = 16;
        bool old_kernel = false;
        std::size_t window = 1 << 20;
    } control;

    void use(open_context& c); ///< what there will be to clean up
    void complete(std::list<query>::iterator at);
    void cancel(const command_channel& channel);
    void wait_until_idle(const command_channel& channel);
    void end(open_context& c); ///< no command, response or event will come through it any more
    void close(open_context& c);
    outcome next_outcome();
    std::size_t raise(const mlx5dv_devx_obj* object, std::uint16_t event, std::span<const std::byte> eqe);
};

/// Null: the device has no DEVX.
devx_device* devx_of(device& d);

} // namespace verbena::sim
