// Offered load from idle to saturation: latency and CPU time of each wait policy and of loops by hand.

#include "benches.hpp"
#include "coroutines.hpp"
#include "plain.hpp"

#include <verbena/wait_policy.hpp>

#include <chrono>
#include <stdexcept>
#include <vector>

namespace {

struct measured {
    double median;
    double p99;
    double cpu_ns;
    double per_second;
};

template <class Run>
measured measure(plain::options options, Run&& run) {
    std::vector<std::uint64_t> samples(options.rounds);
    options.samples = samples;
    const auto once = [&]() -> measured {
        const plain::figures f = run(options);
        if (f.errors != 0) throw std::runtime_error(fmt::format("{} wrong payloads", f.errors));
        return {.median = bench::percentile(samples, 0.5),
                .p99 = bench::percentile(samples, 0.99),
                .cpu_ns = static_cast<double>(f.cpu_ns) / static_cast<double>(f.rounds),
                .per_second = 1e9 / f.ns_per_round()};
    };
    return bench::median_of_three(once, &measured::median);
}

} // namespace

void bench::policy(const command_line& line, std::vector<row>& rows) {
    struct named_policy {
        const char* name;
        verbena::wait_policy wait;
    };
    const std::array policies{
        named_policy{"spin_forever", verbena::wait_policy::spin_forever()},
        named_policy{"adaptive", verbena::wait_policy::adaptive()},
        named_policy{"spin_then_park", verbena::wait_policy::spin_then_park(std::chrono::microseconds{20})},
        named_policy{"park_at_once", verbena::wait_policy::park_at_once()},
    };
    const std::vector<double> rates = line.quick ? std::vector<double>{1e3, 16e3, 256e3, 0}
                                                 : std::vector<double>{1e3, 4e3, 16e3, 64e3, 256e3, 1e6, 0};
    // Few enough that a run which falls behind, as on a busy machine, ends soon.
    const double seconds = line.quick ? 0.05 : 0.2, most_rounds = 20'000;
    for (const double rate : rates) {
        progress("policy, {}", rate > 0 ? fmt::format("{} messages/s", rate) : "saturated");
        const plain::options options{
            .device = line.device,
            .rounds = static_cast<std::uint64_t>(rate > 0 ? std::min(rate * seconds, most_rounds) : most_rounds),
            .depth = 256,
            .rate = rate,
            .samples = {}};
        const measured busy = measure(options, plain::busy_load), parked = measure(options, plain::parked_load);
        for (const named_policy& p : policies) {
            const measured ours =
                measure(options, [&](const plain::options& o) { return coroutines::load(o, p.wait); });
            const measured& by_hand = p.wait.parks() ? parked : busy;
            rows.push_back({.bench = "policy",
                            .device = line.device,
                            .mode = p.name,
                            .in_flight = options.depth,
                            .ns = ours.median,
                            .plain_ns = by_hand.median,
                            .extra = {{"offered/s", rate > 0 ? std::optional(rate) : std::nullopt},
                                      {"taken/s", ours.per_second},
                                      {"p99", ours.p99},
                                      {"cpu_ns", ours.cpu_ns},
                                      {"plain_taken/s", by_hand.per_second},
                                      {"plain_p99", by_hand.p99},
                                      {"plain_cpu_ns", by_hand.cpu_ns}}});
        }
    }
}
