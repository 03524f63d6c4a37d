// The main job: all benches in one run, or those that --only names.

#include "benches.hpp"
#include "instructions.hpp"

#include <verbena/verbs/context.hpp>

#include <exception>

namespace {

struct named_bench {
    std::string_view name;
    void (*run)(const bench::command_line&, std::vector<bench::row>&);
};

constexpr std::array benches{
    named_bench{"resume", bench::resume},
    named_bench{"ping-pong", bench::ping_pong},
    named_bench{"throughput", bench::throughput},
    named_bench{"wakeup", bench::wakeup},
    named_bench{"scale", bench::scale},
    named_bench{"policy", bench::policy},
#ifdef VERBENA_BENCH_DEVX
    named_bench{"devx", bench::devx},
#endif
};

} // namespace

int main(int argc, char** argv) try {
    if (argc > 1 && argv[1] == std::string_view("--loop"))
        return bench::run_loop({argv + 2, static_cast<std::size_t>(argc - 2)});
    auto line = bench::parse({argv, static_cast<std::size_t>(argc)});
    for (const std::string& name : line.only)
        if (std::ranges::find(benches, name, &named_bench::name) == benches.end())
            throw std::invalid_argument("no bench " + name);
    const auto opened = line.device.empty() ? verbena::context::open_default() : verbena::context::open(line.device);
    line.device = opened.value().name();
    fmt::print("device {}, kernel {}; a round is {}\n", line.device, bench::kernel_release(),
               line.counted ? "counted in instructions" : "measured in nanoseconds");
    std::vector<bench::row> rows;
    for (const named_bench& b : benches)
        if (line.only.empty() || std::ranges::find(line.only, b.name) != line.only.end()) b.run(line, rows);
    bench::print_table(rows);
    if (line.json) bench::print_json(rows);
    bool sound = !line.check || bench::hold_bars(rows);
    for (const bench::row& row : rows) {
        if (!row.fault) continue;
        fmt::print(stderr, "verbena-bench: {}\n", *row.fault);
        sound = false;
    }
    return sound ? 0 : 1;
} catch (const std::exception& e) {
    fmt::print(stderr, "verbena-bench: {}\n", e.what());
    return 2;
}
