// The main job: an echo server with its clients, a ping-pong and DEVX queries, by coroutines and by hand-written
// loops, in one run.

#include "coroutines.hpp"
#include "harness.hpp"
#include "plain.hpp"

#include <verbena/verbs/context.hpp>

#include <exception>

namespace {

using loop = plain::figures (*)(const plain::options&);

struct work {
    const char* bench;
    const char* mode;
    loop coroutines;
    loop plain;
    std::uint32_t in_flight;
    std::uint32_t clients;
};

constexpr std::array works{
    work{"ping-pong", "busy", coroutines::busy_ping_pong, plain::busy_ping_pong, 1, 1},
    work{"ping-pong", "busy", coroutines::busy_ping_pong, plain::busy_ping_pong, 16, 1},
    work{"ping-pong", "parked", coroutines::parked_ping_pong, plain::parked_ping_pong, 1, 1},
    work{"echo", "busy", coroutines::busy_echo, plain::busy_echo, 4, 4},
};

#ifdef VERBENA_BENCH_DEVX
constexpr std::array queries{
    work{"query", "parked", coroutines::parked_queries, plain::parked_queries, 1, 1},
    work{"query", "parked", coroutines::parked_queries, plain::parked_queries, 16, 1},
    work{"query", "parked", coroutines::parked_queries, plain::parked_queries, 256, 1},
    work{"query", "busy", coroutines::busy_queries, plain::busy_queries, 1, 1},
    work{"query", "busy", coroutines::busy_queries, plain::busy_queries, 16, 1},
    work{"query", "busy", coroutines::busy_queries, plain::busy_queries, 256, 1},
};
#endif

struct measured {
    plain::figures figures;
    double median = 0;
    double p99 = 0;
};

measured measure(loop run, const plain::options& options, const bench::command_line& line) {
    plain::options wanted = options;
    std::vector<std::uint64_t> samples(line.counted ? 0 : options.rounds);
    wanted.samples = samples;
    const auto once = [&] {
        measured m{.figures = run(wanted)};
        if (m.figures.errors != 0) throw std::runtime_error(fmt::format("{} wrong payloads", m.figures.errors));
        if (samples.empty()) return m;
        m.median = bench::percentile(samples, 0.5);
        m.p99 = bench::percentile(samples, 0.99);
        return m;
    };
    if (line.counted && line.quick) return once(); // repeats within 0.5 %
    return bench::median_of_three(once, [](const measured& m) { return m.figures.total_ns; });
}

bench::row compare(const work& work, const bench::command_line& line, const std::string& device, bool echoes = true) {
    bench::progress("{} {} with {} in flight, {} client{}", work.mode, work.bench, work.in_flight, work.clients,
                    work.clients > 1 ? "s" : "");
    // Between two virtual processors that are not counted, a wake-up can take milliseconds.
    const bool slow = !line.counted && work.coroutines == coroutines::parked_ping_pong;
    // A query takes a fifth of a message's time, and its bar is nearer.
    const unsigned more = std::string_view(work.bench) == "query" ? 4 : 1;
    const plain::options options{.device = device,
                                 .rounds = more * (slow ? (line.quick ? 300u : 1000u) : (line.quick ? 1000u : 10'000u)),
                                 .in_flight = work.in_flight,
                                 .clients = work.clients,
                                 .echoes = echoes,
                                 .samples = {}};
    const measured by_hand = measure(work.plain, options, line);
    const measured ours = measure(work.coroutines, options, line);
    const auto calls = [&](loop run) {
        return bench::system_calls_per_round(line.quick ? 200 : 1000, [&](std::uint64_t rounds) {
            plain::options few = options;
            few.rounds = rounds;
            run(few);
        });
    };
    const auto a_round = [&](std::uint64_t n) { return static_cast<double>(n) / static_cast<double>(options.rounds); };
    bench::row row{.bench = work.bench,
                   .device = device,
                   .mode = work.mode,
                   .in_flight = work.in_flight,
                   .ns = ours.figures.ns_per_round(),
                   .plain_ns = by_hand.figures.ns_per_round(),
                   .counted = line.counted,
                   .extra = {}};
    if (!line.counted)
        row.extra = {
            {"median", ours.median}, {"p99", ours.p99}, {"plain_median", by_hand.median}, {"plain_p99", by_hand.p99}};
    const auto counts = [&](const std::string& prefix, const plain::figures& f, loop run) {
        row.extra.insert(row.extra.end(), {{prefix + "parks", a_round(f.parks)},
                                           {prefix + "wakes", a_round(f.wakes)},
                                           {prefix + "arms", a_round(f.arms)},
                                           {prefix + "events", a_round(f.events)},
                                           {prefix + "syscalls", calls(run)}});
    };
    counts("", ours.figures, work.coroutines);
    counts("plain_", by_hand.figures, work.plain);
    return row;
}

#ifdef VERBENA_BENCH_DEVX
void compare_queries(std::vector<bench::row>& rows, const bench::command_line& line, const std::string& device) {
    const auto echoes = coroutines::queries_echo(device);
    if (!echoes && echoes.error() == verbena::errc::unsupported) {
        fmt::print("no queries on {}, unsupported: {}\n", device, echoes.error().message());
        return;
    }
    for (const work& work : queries) rows.push_back(compare(work, line, device, echoes.value()));
}
#endif

/// What a counted row may cost at most, in hand-written loops.
std::optional<double> bar_of(const bench::row& row) {
    if (row.bench == "query") return row.mode == "parked" && row.in_flight > 1 ? 1.05 : 1.15;
    return row.in_flight == 1 ? std::optional(1.15) : std::nullopt;
}

/// Whether the hand-written loop is the known one.
std::optional<std::string> fault_of(const bench::row& row) {
    if (row.mode != "parked" || row.in_flight != 1) return std::nullopt;
    return row.bench == "query" ? bench::query_loop_fault(*row.plain_ns) : bench::epoll_loop_fault(*row.plain_ns);
}

} // namespace

int main(int argc, char** argv) try {
    bool check = false;
    const auto line = bench::parse({argv, static_cast<std::size_t>(argc)},
                                   [&](std::string_view argument) { return check = argument == "--check"; });
    const auto opened = line.device.empty() ? verbena::context::open_default() : verbena::context::open(line.device);
    const std::string device = opened.value().name();
    fmt::print("device {}, kernel {}; a round is {}\n", device, bench::kernel_release(),
               line.counted ? "counted in instructions" : "measured in nanoseconds");
    std::vector<bench::row> rows;
    for (const work& work : works) rows.push_back(compare(work, line, device));
#ifdef VERBENA_BENCH_DEVX
    compare_queries(rows, line, line.devx.empty() ? device : line.devx);
#endif
    bench::print_table(rows);
    if (line.json) bench::print_json(rows);
    bool sound = true;
    for (const bench::row& row : rows) {
        if (!line.counted) break;
        if (const auto fault = fault_of(row)) {
            fmt::print(stderr, "verbena-bench: {}\n", *fault);
            sound = false;
        }
        const auto bar = bar_of(row);
        if (check && bar && row.ratio().value_or(0) > *bar) {
            fmt::print(
                stderr,
                "verbena-bench: {} {} with {} in flight costs {:.3f} times the hand-written loop; the bar is {}\n",
                row.mode, row.bench, row.in_flight, *row.ratio(), *bar);
            sound = false;
        }
    }
    return sound ? 0 : 1;
} catch (const std::exception& e) {
    fmt::print(stderr, "verbena-bench: {}\n", e.what());
    return 2;
}
