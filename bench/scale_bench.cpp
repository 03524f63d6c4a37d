// Many operations that wait while few complete, and many completion queues of which one is in use.

#include "benches.hpp"
#include "compare.hpp"
#include "coroutines.hpp"
#include "instructions.hpp"

#include <utility>
#include <vector>

namespace {

/// How often the instructions of the smallest row the others may take at most.
constexpr double most_pending = 1.2, most_woken = 1.2, most_parked = 8;

std::optional<double> over(std::optional<double> a, std::optional<double> b) {
    return a && b ? std::optional(*a / *b) : std::nullopt;
}

// Rows of one mode, in which a figure is compared with that of the first.
class growing {
  public:
    explicit growing(std::vector<bench::row>& rows) : rows_(rows), first_(rows.size()) {}

    bench::row& add(bench::row row, const char* what, double count, std::optional<double> instructions) {
        row.extra.clear();
        row.extra.emplace_back(what, count);
        rows_.push_back(std::move(row));
        bench::row& first = rows_[first_];
        bench::row& last = rows_.back();
        last.extra.emplace_back("instr", instructions);
        last.extra.emplace_back("ns_growth", *last.ns / *first.ns);
        last.extra.emplace_back("instr_growth", over(instructions, first.value("instr")));
        return last;
    }

  private:
    std::vector<bench::row>& rows_;
    std::size_t first_;
};

} // namespace

void bench::scale(const command_line& line, std::vector<row>& rows) {
    const auto options = [&](std::uint32_t in_flight, std::uint64_t rounds) {
        return plain::options{.device = line.device, .rounds = rounds, .in_flight = in_flight, .samples = {}};
    };
    using counts = std::vector<std::uint32_t>;
    growing operations(rows);
    for (const std::uint32_t pending : line.quick ? counts{100, 100'000} : counts{100, 1000, 10'000, 100'000}) {
        auto o = options(100, line.quick ? 200'000 : 1'000'000);
        o.pending = pending - o.in_flight;
        auto r = compare({"scale", "pending", coroutines::busy_writes, plain::busy_writes}, o, line);
        operations.add(std::move(r), "count", pending, instructions("awaited", o, 10'000))
            .bars.push_back({"instr_growth", most_pending});
    }
    growing queues(rows);
    const counts queue_counts = line.quick ? counts{1, 4096} : counts{1, 16, 256, 4096};
    for (const std::uint32_t count : queue_counts) {
        auto o = options(16, (line.quick ? 100'000 : 400'000) / (1 + count / 16));
        o.idle_queues = count - 1;
        auto r = compare({"scale", "queues, busy", coroutines::busy_writes, plain::busy_writes}, o, line);
        queues.add(std::move(r), "count", count, instructions("awaited", o, 320));
    }
    // With 100 ms the reactor also looks whether an event got lost.
    for (const auto& [mode, sleep_us] : {std::pair{"queues, woken", 200u}, std::pair{"queues, parked", 100'000u}}) {
        growing idle(rows);
        for (const std::uint32_t count : queue_counts) {
            auto o = options(1, sleep_us > 200 ? 2 : line.quick ? 100 : 1000);
            o.idle_queues = count - 1;
            o.sleep_us = sleep_us;
            auto r = compare({"scale", mode, coroutines::parked_idle, plain::parked_idle}, o, line);
            idle.add(std::move(r), "count", count, instructions("idle", o, sleep_us > 200 ? 5 : 50))
                .bars.push_back({"instr_growth", sleep_us > 200 ? most_parked : most_woken});
        }
    }
}
