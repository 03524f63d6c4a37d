// Messages without an answer: how many a second, and how many doorbells they take.

#include "benches.hpp"
#include "compare.hpp"
#include "coroutines.hpp"

void bench::throughput(const command_line& line, std::vector<row>& rows) {
    struct load {
        std::uint32_t in_flight;
        std::uint32_t queue_pairs;
    };
    std::vector<load> loads{{1, 1}, {64, 1}};
    if (!line.counted) loads = {{1, 1}, {4, 1}, {16, 1}, {64, 1}, {1, 16}, {1, 256}};
    for (const auto [in_flight, queue_pairs] : loads) {
        for (const bool batched : {false, true}) {
            plain::options options{.device = line.device,
                                   .rounds = line.counted ? 10'000u
                                             : line.quick ? 50'000u
                                                          : 500'000u,
                                   .in_flight = in_flight,
                                   .clients = queue_pairs,
                                   .depth = std::max(2 * in_flight, 16u),
                                   .batched = batched,
                                   .one_way = true,
                                   .samples = {}};
            row& row = rows.emplace_back(compare(
                {"throughput", batched ? "batched" : "immediate", coroutines::busy_one_way, plain::busy_ping_pong},
                options, line));
            options.count_doorbells = true;
            const auto counted = coroutines::busy_one_way(options);
            const double doorbells = static_cast<double>(counted.doorbells) / static_cast<double>(counted.rounds);
            row.extra.emplace_back("queue_pairs", queue_pairs);
            row.extra.emplace_back("doorbells", doorbells);
            if (!line.counted) {
                row.extra.emplace_back("k_messages/s", 1e6 / *row.ns);
                row.extra.emplace_back("k_doorbells/s", 1e6 / *row.ns * doorbells);
                row.extra.emplace_back("plain_k_messages/s", 1e6 / *row.plain_ns);
            }
            if (!batched || in_flight != 64) continue;
            row.bars.push_back({"doorbells", 1. / 16});
            if (line.counted) row.bars.push_back({"ratio", 1});
        }
    }
}
