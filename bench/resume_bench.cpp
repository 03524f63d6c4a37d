// From the entry of a completion queue to the resumed coroutine: awaited RDMA writes of 64 bytes beside a loop that
// posts and polls.

#include "benches.hpp"
#include "compare.hpp"
#include "coroutines.hpp"
#include "instructions.hpp"

#include <vector>

namespace {

/// Instructions over the loop by hand.
std::optional<double> most_over(const plain::options& options) {
    if (options.batched) return std::nullopt;
    if (options.in_flight == 1) return 230;
    if (options.in_flight == 16) return 110;
    return std::nullopt;
}

double allocations_per_write(plain::options options) {
    const auto allocations = [&](std::uint64_t rounds) {
        options.rounds = rounds;
        return static_cast<double>(coroutines::busy_writes(options).allocations);
    };
    return (allocations(4000) - allocations(2000)) / 2000;
}

} // namespace

void bench::resume(const command_line& line, std::vector<row>& rows) {
    using counts = std::vector<std::uint32_t>;
    for (const std::uint32_t in_flight : line.quick ? counts{1, 16, 64} : counts{1, 16, 64, 1024}) {
        plain::options options{
            .device = line.device, .rounds = line.quick ? 200'000u : 1'000'000u, .in_flight = in_flight, .samples = {}};
        const auto by_hand = instructions("by-hand", options, 10'000);
        for (const bool batched : {false, true}) {
            options.batched = batched;
            row& row = rows.emplace_back(
                compare({"resume", batched ? "batched" : "immediate", coroutines::busy_writes, plain::busy_writes},
                        options, line));
            const auto awaited = instructions("awaited", options, 10'000);
            row.extra = {{"over_ns", *row.ns - *row.plain_ns},
                         {"instr", awaited},
                         {"plain_instr", by_hand},
                         {"over_instr", awaited && by_hand ? std::optional(*awaited - *by_hand) : std::nullopt},
                         {"allocations", allocations_per_write(options)}};
            row.bars = {{"allocations", 0}};
            if (const auto most = most_over(options)) row.bars.push_back({"over_instr", *most});
        }
    }
}
