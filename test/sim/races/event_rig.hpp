#pragma once

// What the tests of asynchronous events share.

#include "race_rig.hpp"

#include <verbena/format.hpp>

#include <infiniband/verbs.h>

#include <ostream>
#include <vector>

namespace verbena {
inline std::ostream& operator<<(std::ostream& out, const async_event& event) { return out << fmt::format("{}", event); }
} // namespace verbena

namespace races {

using kind = vb::async_event_kind;
using element = vb::async_element;
using events = std::vector<vb::async_event>;

/// Takes up to `count` events; an error ends it and is added to `ends`.
inline vb::task<> take(vb::event_stream& stream, std::size_t count, events& into, std::vector<vb::error>& ends) {
    for (std::size_t i = 0; i < count; ++i) {
        const auto got = co_await stream.next();
        if (!got) {
            ends.push_back(got.error());
            co_return;
        }
        into.push_back(*got);
    }
}

inline events take_now(vb::reactor& reactor, vb::event_stream& stream, std::size_t count) {
    events taken;
    std::vector<vb::error> ends;
    reactor.run(take(stream, count, taken, ends));
    REQUIRE(ends.empty());
    return taken;
}

inline vb::async_event on_port(kind what, std::uint32_t port = 1) { return {what, element::port, port}; }
inline vb::async_event on_pair(kind what, const vb::queue_pair& qp) { return {what, element::queue_pair, qp.qp_num()}; }
inline vb::async_event on_queue(kind what, const vb::completion_queue& cq) {
    return {what, element::completion_queue, cq.native_handle()->handle};
}

/// The loop's turns while a coroutine sleeps.
inline std::uint64_t idle_turns(vb::reactor& reactor) {
    const auto before = reactor.stats().turns;
    reactor.run([](vb::reactor& r) -> vb::task<> { co_await r.sleep_for(std::chrono::milliseconds{50}); }(reactor));
    return reactor.stats().turns - before;
}

} // namespace races
