// A thread sleeps and another wakes it: by a completion event, and by an eventfd.

#include "benches.hpp"
#include "compare.hpp"
#include "coroutines.hpp"

void bench::wakeup(const command_line& line, std::vector<row>& rows) {
    // Between two virtual processors that are not counted, a wake-up can take milliseconds.
    plain::options options{.device = line.device, .rounds = line.counted || !line.quick ? 1000u : 300u, .samples = {}};
    for (const bool polls : {false, true}) {
        options.polls = polls;
        row& events = rows.emplace_back(compare({"wakeup", polls ? "completions, poll" : "completions, epoll",
                                                 coroutines::parked_ping_pong, plain::parked_ping_pong, true},
                                                options, line));
        if (line.counted) {
            // The counts of a round contain the reactors' set-up.
            events.bars = {{"enters_per_park", 1.01}};
            if (!polls) events.bars.push_back({"syscalls", events.value("plain_syscalls").value_or(0)});
        }
        rows.push_back(compare({"wakeup", polls ? "eventfd, poll" : "eventfd, epoll", coroutines::parked_eventfds,
                                plain::parked_eventfds, true},
                               options, line));
    }
}
