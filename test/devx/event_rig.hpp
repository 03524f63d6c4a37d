#pragma once

// An event channel beside the rig's command channel, and coroutines that wait for events.

#include "devx_rig.hpp"

#include <verbena/mlx5/event_channel.hpp>

namespace devx {

inline constexpr std::uint16_t some_event = 0x21, other_event = 0x22;

struct event_rig : rig {
    explicit event_rig(mlx5::event_channel_options options = {})
        : events(mlx5::event_channel::create(device, options).value()) {
        reactor.attach(events).value();
        subscribe(&general, {some_event}, 7);
    }
    void subscribe(const thing* of, std::vector<std::uint16_t> types, std::uint64_t cookie) {
        (of != nullptr ? events.subscribe(of->handle, types, cookie) : events.subscribe(types, cookie)).value();
    }
    void raise(std::uint64_t number, std::uint16_t type = some_event) { CHECK(devx.raise(&general, type, number)); }

    mlx5::event_channel events;
};

inline std::uint64_t number_of(const mlx5::device_event& event) { return get(event.data->data() + 32, 8); }

using waits = support::event_waits<const mlx5::event_channel, number_of>;
using support::numbers_of;

inline vb::result<mlx5::device_event> next(vb::reactor& reactor, const mlx5::event_channel& events) {
    return reactor.run([](const mlx5::event_channel& from) -> vb::task<vb::result<mlx5::device_event>> {
        co_return co_await from.next();
    }(events));
}

} // namespace devx
