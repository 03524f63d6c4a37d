// DEVX queries, with 1 to 256 in flight.

#include "benches.hpp"
#include "compare.hpp"
#include "coroutines.hpp"

void bench::devx(const command_line& line, std::vector<row>& rows) {
    const std::string& device = line.devx.empty() ? line.device : line.devx;
    const auto echoes = coroutines::queries_echo(device);
    if (!echoes && echoes.error() == verbena::errc::unsupported) {
        fmt::print("no queries on {}, unsupported: {}\n", device, echoes.error().message());
        return;
    }
    constexpr std::array works{work{"query", "parked", coroutines::parked_queries, plain::parked_queries, true, true},
                               work{"query", "busy", coroutines::busy_queries, plain::busy_queries, false, true}};
    for (const work& work : works) {
        for (const std::uint32_t in_flight : {1, 16, 256}) {
            const plain::options options{.device = device,
                                         .rounds = line.quick ? 4000u : 40'000u,
                                         .in_flight = in_flight,
                                         .echoes = echoes.value(),
                                         .samples = {}};
            row& row = rows.emplace_back(compare(work, options, line));
            if (!line.counted) continue;
            row.bars.push_back({"ratio", work.parks && in_flight > 1 ? 1.05 : 1.15});
            if (work.parks && in_flight == 1) row.fault = query_loop_fault(*row.plain_ns);
        }
    }
}
