#include "instructions.hpp"

#include "coroutines.hpp"

#include <fmt/core.h>

#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string_view>

namespace bench {
namespace {

std::string own_path() {
    std::array<char, 4096> path;
    const auto length = ::readlink("/proc/self/exe", path.data(), path.size());
    if (length < 0) throw std::runtime_error("cannot read /proc/self/exe");
    return {path.data(), static_cast<std::size_t>(length)};
}

std::optional<double> collected(std::string_view loop, const plain::options& o) {
    const std::string command = fmt::format(
        "valgrind --tool=callgrind --callgrind-out-file=/dev/null '{}' --loop {} '{}' {} {} {} {} {} {} 2>&1",
        own_path(), loop, o.device, o.in_flight, o.rounds, o.batched ? "batched" : "immediate", o.pending,
        o.idle_queues, o.sleep_us);
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> output(::popen(command.c_str(), "r"), ::pclose);
    if (!output) throw std::runtime_error("cannot run a shell");
    std::array<char, 512> line;
    while (std::fgets(line.data(), line.size(), output.get()) != nullptr) {
        constexpr std::string_view before = "Collected : ";
        const std::string_view text = line.data();
        if (const auto at = text.find(before); at != text.npos)
            return std::stod(std::string(text.substr(at + before.size())));
    }
    return std::nullopt;
}

std::uint32_t number(std::string_view text) {
    std::uint32_t value = 0;
    if (std::from_chars(text.data(), text.data() + text.size(), value).ptr != text.data() + text.size())
        throw std::invalid_argument(fmt::format("{} is no number", text));
    return value;
}

struct named_loop {
    std::string_view name;
    plain::figures (*run)(const plain::options&);
};

constexpr std::array loops{named_loop{"awaited", coroutines::busy_writes}, named_loop{"by-hand", plain::busy_writes},
                           named_loop{"idle", coroutines::parked_idle}};

} // namespace

std::optional<double> instructions(std::string_view loop, plain::options options, std::uint32_t rounds) {
    options.rounds = 2 * std::uint64_t{options.in_flight} + rounds / 10;
    const auto few = collected(loop, options);
    options.rounds += rounds;
    const auto many = collected(loop, options);
    if (!few || !many) return std::nullopt;
    return (*many - *few) / rounds;
}

int run_loop(std::span<char*> a) {
    if (a.size() != 8) throw std::invalid_argument("--loop is for the program itself");
    const plain::options options{.device = a[1],
                                 .rounds = number(a[3]),
                                 .in_flight = number(a[2]),
                                 .idle_queues = number(a[6]),
                                 .pending = number(a[5]),
                                 .sleep_us = number(a[7]),
                                 .batched = a[4] == std::string_view("batched"),
                                 .samples = {}};
    for (const named_loop& l : loops)
        if (l.name == a[0]) l.run(options);
    return 0;
}

} // namespace bench
