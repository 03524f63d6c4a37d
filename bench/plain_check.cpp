// Runs the hand-written loops alone and shows what a round costs them. With --check it fails when the counted epoll
// loop is not the known one, so that no ratio is taken against a bad bar.

#include "harness.hpp"
#include "plain.hpp"

#include <exception>

namespace {

struct work {
    const char* bench;
    const char* mode;
    plain::figures (*run)(const plain::options&);
    std::uint32_t in_flight;
    std::uint32_t clients;
    bool one_way;
};

constexpr std::array works{
    work{"ping-pong", "busy", plain::busy_ping_pong, 1, 1, false},
    work{"ping-pong", "busy", plain::busy_ping_pong, 16, 1, false},
    work{"one-way", "busy", plain::busy_ping_pong, 1, 1, true},
    work{"one-way", "busy", plain::busy_ping_pong, 16, 1, true},
    work{"ping-pong", "parked", plain::parked_ping_pong, 1, 1, false},
    work{"ping-pong", "parked", plain::parked_ping_pong, 16, 1, false},
    work{"echo", "busy", plain::busy_echo, 4, 4, false},
};

struct measured {
    plain::figures figures;
    double median = 0;
    double p99 = 0;
};

bench::row measure(const work& work, const bench::command_line& line) {
    // Between two virtual processors that are not counted, a wake-up can take milliseconds.
    const bool short_run = line.quick || (work.run == plain::parked_ping_pong && !line.counted);
    plain::options options{.device = line.device,
                           .rounds = short_run ? 1000u : 10'000u,
                           .in_flight = work.in_flight,
                           .clients = work.clients,
                           .one_way = work.one_way,
                           .samples = {}};
    std::vector<std::uint64_t> samples(line.counted ? 0 : options.rounds);
    options.samples = samples;
    const auto once = [&] {
        measured m{.figures = work.run(options)};
        if (m.figures.errors != 0) throw std::runtime_error(fmt::format("{} wrong payloads", m.figures.errors));
        if (samples.empty()) return m;
        m.median = bench::percentile(samples, 0.5);
        m.p99 = bench::percentile(samples, 0.99);
        return m;
    };
    const measured m = bench::median_of_three(once, [](const measured& r) { return r.figures.total_ns; });
    const auto system_calls = bench::system_calls_per_round(1000, [&](std::uint64_t rounds) {
        plain::options counted = options;
        counted.rounds = rounds;
        counted.samples = {};
        work.run(counted);
    });
    const auto a_round = [&](std::uint64_t n) { return static_cast<double>(n) / static_cast<double>(options.rounds); };
    bench::row row{.bench = work.bench,
                   .device = line.device.empty() ? "first" : line.device,
                   .mode = work.mode,
                   .in_flight = work.in_flight,
                   .ns = std::nullopt,
                   .plain_ns = m.figures.ns_per_round(),
                   .counted = line.counted,
                   .extra = {}};
    if (!samples.empty()) row.extra = {{"median", m.median}, {"p99", m.p99}};
    row.extra.insert(row.extra.end(), {{"polls", a_round(m.figures.polls)},
                                       {"parks", a_round(m.figures.parks)},
                                       {"wakes", a_round(m.figures.wakes)},
                                       {"arms", a_round(m.figures.arms)},
                                       {"events", a_round(m.figures.events)},
                                       {"syscalls", system_calls}});
    return row;
}

} // namespace

int main(int argc, char** argv) try {
    const auto line = bench::parse({argv, static_cast<std::size_t>(argc)});
    fmt::print("kernel {}\n", bench::kernel_release());
    std::vector<bench::row> rows;
    for (const work& work : works) {
        bench::progress("{} {} with {} in flight", work.mode, work.bench, work.in_flight);
        rows.push_back(measure(work, line));
    }
    bench::print_table(rows);
    if (line.json) bench::print_json(rows);
    for (const bench::row& row : rows) {
        if (!line.check || !line.counted || row.mode != "parked" || row.in_flight != 1) continue;
        if (const auto fault = bench::epoll_loop_fault(row.plain_ns.value())) {
            fmt::print(stderr, "plain-check: {}\n", *fault);
            return 1;
        }
    }
} catch (const std::exception& e) {
    fmt::print(stderr, "plain-check: {}\n", e.what());
    return 2;
}
