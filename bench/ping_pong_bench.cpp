// A ping-pong, busy and parked, and an echo server with its clients.

#include "benches.hpp"
#include "compare.hpp"
#include "coroutines.hpp"

void bench::ping_pong(const command_line& line, std::vector<row>& rows) {
    constexpr work busy{"ping-pong", "busy", coroutines::busy_ping_pong, plain::busy_ping_pong, false, true};
    constexpr work parked{"ping-pong", "parked", coroutines::parked_ping_pong, plain::parked_ping_pong, true, true};
    constexpr work echo{"echo", "busy", coroutines::busy_echo, plain::busy_echo, false, true};

    plain::options options{.device = line.device, .rounds = line.quick ? 1000u : 10'000u, .samples = {}};
    const auto held = [&](row row, double most) {
        if (line.counted) row.bars.push_back({"ratio", most});
        rows.push_back(std::move(row));
    };
    held(compare(busy, options, line), 1.08);
    options.in_flight = 16;
    held(compare(busy, options, line), 1.07);
    plain::options alternating = options;
    alternating.in_flight = 1;
    // Between two virtual processors that are not counted, a wake-up can take milliseconds.
    if (!line.counted) alternating.rounds = line.quick ? 300 : 1000;
    held(compare(parked, alternating, line), 1.14);
    if (line.counted) rows.back().fault = epoll_loop_fault(*rows.back().plain_ns);
    options.in_flight = options.clients = 4;
    rows.push_back(compare(echo, options, line));
}
