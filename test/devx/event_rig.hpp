#pragma once

// An event channel beside the rig's command channel, and coroutines that wait for events.

#include "devx_rig.hpp"

#include <verbena/mlx5/event_channel.hpp>

#include <functional>
#include <stop_token>

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

struct waits {
    explicit waits(const mlx5::event_channel& of) : channel(of) {}
    void add(std::stop_token token = {}) {
        logs.emplace_back();
        children.spawn(wait(*this, logs.size() - 1, std::move(token)));
    }
    static vb::task<> wait(waits& own, std::size_t index, std::stop_token token) {
        vb::result<mlx5::device_event> got = vb::error();
        if (token.stop_possible())
            got = co_await vb::with_stop(own.channel.next(), token);
        else
            got = co_await own.channel.next();
        if (got)
            own.logs[index].push_back(number_of(*got));
        else
            own.ends.push_back(got.error());
        if (own.on_first) std::exchange(own.on_first, {})();
    }

    const mlx5::event_channel& channel;
    std::vector<std::vector<std::uint64_t>> logs; ///< the numbers that each wait got
    std::vector<vb::error> ends;
    std::function<void()> on_first; ///< called by the first that is resumed
    support::children children;
};

using numbers_of = std::vector<std::vector<std::uint64_t>>;

inline vb::result<mlx5::device_event> next(vb::reactor& reactor, const mlx5::event_channel& events) {
    return reactor.run([](const mlx5::event_channel& from) -> vb::task<vb::result<mlx5::device_event>> {
        co_return co_await from.next();
    }(events));
}

} // namespace devx
