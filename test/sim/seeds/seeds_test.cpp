// Invariant: whatever the device delays, reorders, refuses or breaks, every operation resumes exactly once, every
// payload is that of its operation, no wakeup is lost, and device and program count the same. The adversarial load:
// whatever the program destroys, closes, stops or lets fail besides, at whatever moment, each operation ends exactly
// once or dies with its coroutine, and what was given back is written by nobody.
//
// usage: verbena-seeds [--adversary] [--seeds N] [--seed FIRST]

#include "adversary.hpp"
#include "load.hpp"

#include <verbena/log.hpp>

#include <cinttypes>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>
#include <unistd.h>

extern "C" void __sanitizer_set_death_callback(void (*)()) __attribute__((weak));
// Room for what a few seeds free, and short stacks: with more, most of the time goes into fresh pages and into those.
extern "C" const char* __asan_default_options() { return "quarantine_size_mb=4:malloc_context_size=5"; }

namespace {

constexpr std::uint64_t seeds_by_default = 2000;
constexpr std::uint64_t seeds_for_everything = 1000; ///< fewer need not exercise all there is
constexpr unsigned seconds_per_seed = 60;

bool hostile = false; ///< the adversarial load instead of the mixed one

void last_words() {
    hostile ? seeds::adversary::print_state() : seeds::print_state();
    std::fflush(stdout);
}

void on_signal(int number) {
    std::printf("the seed ended with signal %d (%s)\n", number,
                number == SIGALRM   ? "it does not end"
                : number == SIGABRT ? "abort"
                                    : "crash");
    last_words();
    std::signal(SIGABRT, SIG_DFL);
    std::signal(number, SIG_DFL);
    std::raise(number == SIGALRM ? SIGABRT : number);
}

std::string running; ///< the test
unsigned passed = 0;

void begin(std::string test) { running = std::move(test); }
void pass() {
    ++passed;
    std::printf("pass  %s\n", running.c_str());
    std::fflush(stdout);
}

std::uint64_t number(const char* text) {
    char* rest;
    const auto value = text != nullptr ? std::strtoull(text, &rest, 10) : 0;
    if (text == nullptr || *text == '\0' || *rest != '\0') {
        std::fprintf(stderr, "usage: verbena-seeds [--adversary] [--seeds N] [--seed FIRST]\n");
        std::exit(2);
    }
    return value;
}

template <class Totals, class Kinds, class Facts>
void print(const Totals& t, const Kinds& kind_names, const Facts& fact_names) {
    std::printf("operations:\n");
    for (std::size_t i = 0; i < t.operations.size(); ++i)
        std::printf("  %10" PRIu64 "  %s\n", t.operations[i], kind_names[i].data());
    std::printf("of a seed: %" PRIu64 " to %" PRIu64 " operations, at most %" PRIu64
                " requests outstanding\nand besides:\n",
                t.least_operations, t.most_operations, t.most_outstanding);
    for (std::size_t i = 0; i < t.facts.size(); ++i)
        std::printf("  %10" PRIu64 "  %s\n", t.facts[i], fact_names[i].data());
}

/// `count` seeds from `first` on.
template <class Worlds, class Totals, class Kinds, class Facts>
void run_load(const std::string& name, std::uint64_t first, std::uint64_t count, const Kinds& kind_names,
              const Facts& fact_names) {
    begin(name + ": " + std::to_string(count) + " from " + std::to_string(first) + " on");
    Worlds worlds;
    Totals sum;
    const auto run = [&](std::uint64_t seed) {
        alarm(seconds_per_seed);
        try {
            const auto hash = worlds.run(seed, sum);
            alarm(0);
            return hash;
        } catch (const std::exception& e) {
            seeds::failed(e.what());
        }
    };
    std::uint64_t hash = 0;
    for (std::uint64_t i = 0; i < count; ++i) hash ^= run(first + i) * (2 * i + 1);
    print(sum, kind_names, fact_names);
    std::printf("trace %016" PRIx64 "\n", hash);
    pass();

    begin(name + ": a seed run again gives the same trace");
    for (std::uint64_t i = 0; i < 20 && i < count; ++i)
        if (run(first + i) != run(first + i))
            seeds::failed("seed " + std::to_string(first + i) + " gives another trace each time");
    pass();

    if (count < seeds_for_everything) return;
    begin(name + ": together they exercise everything");
    for (std::size_t i = 0; i < sum.operations.size(); ++i)
        if (sum.operations[i] == 0) seeds::failed("never: " + std::string(kind_names[i]));
    for (std::size_t i = 0; i < sum.facts.size(); ++i)
        if (sum.facts[i] == 0) seeds::failed("never: " + std::string(fact_names[i]));
    pass();
}

} // namespace

void seeds::failed(const std::string& what) {
    std::printf("%s\n", what.c_str());
    last_words();
    std::printf("FAIL  %s\n%u passed, 1 failed, 0 skipped\n", running.c_str(), passed);
    std::fflush(stdout);
    std::_Exit(1); // what a failed seed holds cannot be taken down in order
}

int main(int count, char** arguments) {
    std::uint64_t seeds_wanted = 0, first = 1;
    for (int i = 1; i < count; ++i) {
        const auto value = [&] { return number(++i < count ? arguments[i] : nullptr); };
        if (std::strcmp(arguments[i], "--adversary") == 0) {
            hostile = true;
        } else if (std::strcmp(arguments[i], "--seeds") == 0) {
            seeds_wanted = value();
        } else if (std::strcmp(arguments[i], "--seed") == 0) {
            first = value();
            if (seeds_wanted == 0) seeds_wanted = 1;
        } else {
            number(nullptr);
        }
    }
    if (seeds_wanted == 0) seeds_wanted = seeds_by_default;

    std::signal(SIGALRM, on_signal);
    if (__sanitizer_set_death_callback != nullptr)
        __sanitizer_set_death_callback(last_words);
    else
        std::signal(SIGSEGV, on_signal);
    std::signal(SIGABRT, on_signal);

    if (hostile) {
        // What could not be destroyed is logged, a line each.
        verbena::set_log_sink([](verbena::log_level, std::string_view) {});
        namespace load = seeds::adversary;
        run_load<load::worlds, load::totals>("adversary", first, seeds_wanted, load::kind_names, load::fact_names);
    } else {
        run_load<seeds::worlds, seeds::totals>("seeds", first, seeds_wanted, seeds::kind_names, seeds::fact_names);
    }
    std::printf("%u passed, 0 failed, 0 skipped\n", passed);
    return 0;
}
