#include "write_instructions.hpp"

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

std::optional<double> instructions(writes how, const plain::options& o) {
    const std::string command = fmt::format(
        "valgrind --tool=callgrind --callgrind-out-file=/dev/null '{}' --writes {} '{}' {} {} {} {} {} 2>&1",
        own_path(), how == writes::awaited ? "awaited" : "by-hand", o.device, o.in_flight, o.rounds,
        o.batched ? "batched" : "immediate", o.pending, o.idle_queues);
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

} // namespace

std::optional<double> instructions_per_write(writes how, plain::options options) {
    options.rounds = 2 * std::uint64_t{options.in_flight} + 1000;
    const auto few = instructions(how, options);
    options.rounds += 10'000;
    const auto many = instructions(how, options);
    if (!few || !many) return std::nullopt;
    return (*many - *few) / 10'000;
}

int run_writes(std::span<char*> a) {
    if (a.size() != 7) throw std::invalid_argument("--writes is for the program itself");
    const plain::options options{.device = a[1],
                                 .rounds = number(a[3]),
                                 .in_flight = number(a[2]),
                                 .idle_queues = number(a[6]),
                                 .pending = number(a[5]),
                                 .batched = a[4] == std::string_view("batched"),
                                 .samples = {}};
    a[0] == std::string_view("awaited") ? coroutines::busy_writes(options) : plain::busy_writes(options);
    return 0;
}

} // namespace bench
