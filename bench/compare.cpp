#include "compare.hpp"

#include <stdexcept>

namespace bench {
namespace {

struct measured {
    plain::figures figures;
    double median = 0;
    double p99 = 0;
    histogram latencies{};
};

measured measure(loop run, const plain::options& options, const command_line& line, bool latencies) {
    plain::options wanted = options;
    std::vector<std::uint64_t> samples(latencies ? options.rounds : 0);
    wanted.samples = samples;
    const auto once = [&] {
        measured m{.figures = run(wanted)};
        if (m.figures.errors != 0) throw std::runtime_error(fmt::format("{} wrong payloads", m.figures.errors));
        if (samples.empty()) return m;
        m.median = percentile(samples, 0.5);
        m.p99 = percentile(samples, 0.99);
        m.latencies = histogram_of(samples);
        return m;
    };
    if (line.counted && line.quick) return once();
    return median_of_three(once, [](const measured& m) { return m.figures.total_ns; });
}

} // namespace

row compare(const work& work, const plain::options& options, const command_line& line) {
    progress("{} {}, {} in flight, {} queue pair{}", work.bench, work.mode, options.in_flight, options.clients,
             options.clients > 1 ? "s" : "");
    const bool latencies = work.latencies && !line.counted;
    const measured by_hand = measure(work.plain, options, line, latencies);
    const measured ours = measure(work.coroutines, options, line, latencies);
    row row{.bench = work.bench,
            .device = options.device,
            .mode = work.mode,
            .in_flight = options.in_flight,
            .ns = ours.figures.ns_per_round(),
            .plain_ns = by_hand.figures.ns_per_round(),
            .counted = line.counted,
            .extra = {}};
    if (latencies) {
        row.extra = {
            {"median", ours.median}, {"p99", ours.p99}, {"plain_median", by_hand.median}, {"plain_p99", by_hand.p99}};
        row.latencies = ours.latencies;
        row.plain_latencies = by_hand.latencies;
    }
    const auto counts = [&](const std::string& prefix, const plain::figures& f, loop run) {
        if (!work.parks && !line.counted) return;
        if (work.parks)
            row.extra.emplace_back(prefix + "parks", static_cast<double>(f.parks) / static_cast<double>(f.rounds));
        const auto calls = system_calls_per_round(line.quick ? 200 : 1000, [&](std::uint64_t rounds) {
            plain::options few = options;
            few.rounds = rounds;
            run(few);
        });
        if (calls) row.extra.emplace_back(prefix + "syscalls", calls);
    };
    counts("", ours.figures, work.coroutines);
    if (work.parks && ours.figures.parks != 0)
        row.extra.emplace_back("enters_per_park",
                               static_cast<double>(ours.figures.enters) / static_cast<double>(ours.figures.parks));
    counts("plain_", by_hand.figures, work.plain);
    return row;
}

} // namespace bench
