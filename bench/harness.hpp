#pragma once

// What every bench needs: its command line, medians, the table, the JSON line, and a count of system calls.

#include <fmt/core.h>
#include <fmt/format.h>

#include <linux/perf_event.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <numeric>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace bench {

struct command_line {
    std::string device;   ///< empty: the first one found
    std::string devx;     ///< the device of the DEVX queries; empty: the same
    bool quick = false;   ///< fewer rounds
    bool counted = false; ///< the clock counts instructions: one run is enough, and no clock is read inside a loop
    bool check = false;   ///< fail if a row misses one of its bars
    bool json = false;    ///< the rows once more, as one line that begins with "JSON: "
    std::vector<std::string> only; ///< the benches to run; empty: all
};

inline command_line parse(std::span<char*> arguments) {
    command_line line;
    for (std::size_t i = 1; i < arguments.size(); ++i) {
        const std::string_view argument = arguments[i];
        const auto value = [&]() -> std::string_view {
            if (++i == arguments.size()) throw std::invalid_argument(fmt::format("{} needs a value", argument));
            return arguments[i];
        };
        if (argument == "--device") {
            line.device = value();
            if (line.device == "first") line.device.clear();
        } else if (argument == "--devx") {
            line.devx = value();
        } else if (argument == "--quick") {
            line.quick = true;
        } else if (argument == "--counted") {
            line.counted = true;
        } else if (argument == "--check") {
            line.check = true;
        } else if (argument == "--json") {
            if (value() != "-") throw std::invalid_argument("--json writes to standard output: --json -");
            line.json = true;
        } else if (argument == "--only") {
            line.only.emplace_back(value());
        } else {
            throw std::invalid_argument(fmt::format("unknown argument {}; known: --device NAME|first --devx NAME "
                                                    "--quick --counted --check --json - --only BENCH",
                                                    argument));
        }
    }
    return line;
}

template <class... Arguments>
void progress(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    fmt::print(stderr, "{}\n", fmt::format(format, std::forward<Arguments>(arguments)...));
    std::fflush(stderr);
}

/// Nearest rank; reorders the samples.
inline double percentile(std::span<std::uint64_t> samples, double fraction) {
    if (samples.empty()) throw std::invalid_argument("percentile of nothing");
    const auto rank = static_cast<std::size_t>(std::ceil(fraction * static_cast<double>(samples.size())));
    const std::size_t index = std::clamp<std::size_t>(rank, 1, samples.size()) - 1;
    std::ranges::nth_element(samples, samples.begin() + static_cast<std::ptrdiff_t>(index));
    return static_cast<double>(samples[index]);
}

/// Runs three times and answers the result whose `key(result)` is the middle one.
template <class Run, class Key>
auto median_of_three(Run&& run, Key&& key) {
    std::array results{run(), run(), run()};
    std::ranges::sort(results, {}, key);
    return std::move(results[1]);
}

/// Latencies by powers of two: how many were below 2^index nanoseconds, and not below half of that.
using histogram = std::array<std::uint64_t, 40>;

inline histogram histogram_of(std::span<const std::uint64_t> samples) {
    histogram counts{};
    for (const std::uint64_t sample : samples)
        ++counts[std::min<std::size_t>(static_cast<std::size_t>(std::bit_width(sample)), counts.size() - 1)];
    return counts;
}

/// What a row may show at most in one of its columns.
struct bar {
    std::string column; ///< "ratio" or one of `extra`
    double most;
};

/// Absent numbers print as "-" and are null in JSON.
struct row {
    std::string bench;
    std::string device;
    std::string mode;
    std::uint32_t in_flight = 1;
    std::optional<double> ns;       ///< a round; instructions when `counted`
    std::optional<double> plain_ns; ///< the same by the hand-written loop
    bool counted = false;
    std::vector<std::pair<std::string, std::optional<double>>> extra; ///< p99, parks, wakes, ...
    std::vector<bar> bars{};                                          ///< held by --check
    std::optional<histogram> latencies{};
    std::optional<histogram> plain_latencies{};
    std::optional<std::string> fault{}; ///< why its hand-written loop is no bar

    std::optional<double> ratio() const {
        if (!ns || !plain_ns || *plain_ns == 0) return std::nullopt;
        return *ns / *plain_ns;
    }
    std::optional<double> value(std::string_view column) const {
        if (column == "ratio") return ratio();
        for (const auto& [name, number] : extra)
            if (name == column) return number;
        return std::nullopt;
    }
};

namespace detail {

inline std::string text(std::optional<double> number, const char* absent) {
    if (!number || !std::isfinite(*number)) return absent;
    if (std::abs(*number) >= 1000 || *number == std::floor(*number)) return fmt::format("{:.0f}", *number);
    return fmt::format("{:.{}f}", *number, std::abs(*number) < 100 ? 3 : 1);
}

inline std::string quoted(std::string_view string) {
    std::string out = "\"";
    for (const char c : string) {
        if (c == '"' || c == '\\')
            out += '\\', out += c;
        else if (static_cast<unsigned char>(c) < 0x20)
            out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        else
            out += c;
    }
    return out + '"';
}

} // namespace detail

/// One line a row, of one bench; columns of `extra` appear in the order in which the rows first name them.
inline void print_section(std::span<const row> rows) {
    std::vector<std::string> names{"bench", "device", "mode", "in_flight", "unit", "ns", "plain_ns", "ratio"};
    const std::size_t fixed = names.size();
    for (const row& r : rows)
        for (const auto& [name, number] : r.extra)
            if (std::ranges::find(names, name) == names.end()) names.push_back(name);

    std::vector<std::vector<std::string>> lines{names};
    for (const row& r : rows) {
        auto& line = lines.emplace_back(std::vector<std::string>{
            r.bench, r.device, r.mode, fmt::format("{}", r.in_flight), r.counted ? "instr" : "ns",
            detail::text(r.ns, "-"), detail::text(r.plain_ns, "-"), detail::text(r.ratio(), "-")});
        for (std::size_t i = fixed; i < names.size(); ++i) line.push_back(detail::text(r.value(names[i]), "-"));
    }
    std::vector<std::size_t> widths(names.size());
    for (const auto& line : lines)
        for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
    for (const auto& line : lines) {
        for (std::size_t i = 0; i < line.size(); ++i)
            i < 3 ? fmt::print("{:<{}}  ", line[i], widths[i]) : fmt::print("{:>{}}  ", line[i], widths[i]);
        fmt::print("\n");
    }
}

/// Below its section: the share of the rounds, in per cent, that took less than so many microseconds, and not less than
/// half of that.
inline void print_histograms(std::span<const row> rows) {
    struct line {
        std::string name;
        const histogram* counts;
    };
    std::vector<line> lines;
    for (const row& r : rows) {
        const std::string name = fmt::format("{} {}, {} in flight", r.bench, r.mode, r.in_flight);
        if (r.latencies) lines.push_back({name, &*r.latencies});
        if (r.plain_latencies) lines.push_back({name + ", by hand", &*r.plain_latencies});
    }
    const auto used = [&](std::size_t i) {
        return std::ranges::any_of(lines, [&](const line& l) { return (*l.counts)[i] != 0; });
    };
    if (lines.empty()) return;
    fmt::print("\n{:<44}", "% of the rounds took less than (µs)");
    for (std::size_t i = 0; i < histogram{}.size(); ++i)
        if (used(i)) fmt::print("{:>8}", detail::text(static_cast<double>(1ULL << i) / 1000, ""));
    for (const line& l : lines) {
        const auto all = static_cast<double>(std::accumulate(l.counts->begin(), l.counts->end(), std::uint64_t{0}));
        fmt::print("\n{:<44}", l.name);
        for (std::size_t i = 0; i < l.counts->size(); ++i)
            if (used(i)) fmt::print("{:>8.2f}", 100 * static_cast<double>((*l.counts)[i]) / all);
    }
    fmt::print("\n");
}

/// A section for each bench, with its own columns.
inline void print_table(std::span<const row> rows) {
    while (!rows.empty()) {
        const auto end = std::ranges::find_if(rows, [&](const row& r) { return r.bench != rows.front().bench; });
        const auto section = rows.first(static_cast<std::size_t>(end - rows.begin()));
        fmt::print("\n");
        print_section(section);
        print_histograms(section);
        rows = rows.subspan(section.size());
    }
    std::fflush(stdout);
}

/// Names every bar that is missed. What was not measured misses its bar.
inline bool hold_bars(std::span<const row> rows) {
    bool held = true;
    for (const row& r : rows) {
        for (const bar& b : r.bars) {
            const auto value = r.value(b.column);
            if (value && *value <= b.most) continue;
            fmt::print(stderr, "{} {}, {} in flight: {} is {}, the bar {}\n", r.bench, r.mode, r.in_flight, b.column,
                       detail::text(value, "not measured"), detail::text(b.most, "-"));
            held = false;
        }
    }
    return held;
}

inline void print_json(std::span<const row> rows) {
    fmt::print("JSON: [");
    for (const row& r : rows) {
        fmt::print("{}{{\"bench\": {}, \"device\": {}, \"mode\": {}, \"in_flight\": {}, \"ns\": {}, \"plain_ns\": {}, "
                   "\"ratio\": {}, \"counted\": {}",
                   &r == rows.data() ? "" : ", ", detail::quoted(r.bench), detail::quoted(r.device),
                   detail::quoted(r.mode), r.in_flight, detail::text(r.ns, "null"), detail::text(r.plain_ns, "null"),
                   detail::text(r.ratio(), "null"), r.counted);
        for (const auto& [name, number] : r.extra)
            fmt::print(", {}: {}", detail::quoted(name), detail::text(number, "null"));
        const auto list = [](const char* name, const histogram& counts) {
            fmt::print(", \"{}\": [", name);
            for (std::size_t i = 0; i < counts.size(); ++i) fmt::print("{}{}", i == 0 ? "" : ", ", counts[i]);
            fmt::print("]");
        };
        if (r.latencies) list("latencies", *r.latencies);
        if (r.plain_latencies) list("plain_latencies", *r.plain_latencies);
        fmt::print("}}");
    }
    fmt::print("]\n");
    std::fflush(stdout);
}

inline std::string kernel_release() {
    utsname name{};
    return ::uname(&name) == 0 ? name.release : "unknown";
}

/// A hand-written loop is a bar, so it must itself be known good. Answers what is wrong, if anything; other kernels
/// than 6.1 have no reference.
inline std::optional<std::string> loop_fault(const char* loop, double counted_ns_per_round, double expected) {
    constexpr double tolerance = 0.10;
    const std::string kernel = kernel_release();
    if (!kernel.starts_with("6.1.")) return std::nullopt;
    if (std::abs(counted_ns_per_round - expected) <= expected * tolerance) return std::nullopt;
    return fmt::format("the {} takes {:.0f} instructions a round on kernel {}, not {:.0f} within {:.0f} %", loop,
                       counted_ns_per_round, kernel, expected, tolerance * 100);
}

/// A parked 64-byte ping-pong on Soft-RoCE, with one message in flight.
inline std::optional<std::string> epoll_loop_fault(double counted_ns_per_round) {
    return loop_fault("epoll loop", counted_ns_per_round, 46'000);
}

/// A parked 64-byte query of the guest's DEVX device, with one in flight.
inline std::optional<std::string> query_loop_fault(double counted_ns_per_round) {
    return loop_fault("loop of queries", counted_ns_per_round, 5'870);
}

/// Counts the system calls of the calling thread and of the threads it starts, through the kernel's sys_enter
/// tracepoint (root, tracefs). The tracepoint slows every system call down: count in a run that is not timed.
class system_call_counter {
  public:
    system_call_counter() {
        const auto id = tracepoint();
        if (!id) return;
        perf_event_attr attr{};
        attr.size = sizeof attr;
        attr.type = PERF_TYPE_TRACEPOINT;
        attr.config = *id;
        attr.inherit = 1;
        attr.disabled = 1;
        fd_ = static_cast<int>(::syscall(SYS_perf_event_open, &attr, 0, -1, -1, PERF_FLAG_FD_CLOEXEC));
    }
    system_call_counter(const system_call_counter&) = delete;
    system_call_counter& operator=(const system_call_counter&) = delete;
    ~system_call_counter() {
        if (fd_ >= 0) ::close(fd_);
    }

    bool available() const noexcept { return fd_ >= 0; }

    /// Threads that `phase` starts must have ended when it returns.
    template <class Phase>
    std::optional<std::uint64_t> count(Phase&& phase) {
        if (!available()) return std::nullopt;
        const std::uint64_t before = value();
        ::ioctl(fd_, PERF_EVENT_IOC_ENABLE, 0);
        phase();
        ::ioctl(fd_, PERF_EVENT_IOC_DISABLE, 0);
        return value() - before;
    }

  private:
    std::uint64_t value() const {
        std::uint64_t value = 0;
        if (::read(fd_, &value, sizeof value) != sizeof value) throw std::runtime_error("cannot read the perf event");
        return value;
    }

    static std::optional<std::uint64_t> tracepoint() {
        const auto read_id = []() -> std::optional<std::uint64_t> {
            std::ifstream file("/sys/kernel/tracing/events/raw_syscalls/sys_enter/id");
            std::uint64_t id = 0;
            if (file >> id) return id;
            return std::nullopt;
        };
        if (const auto id = read_id()) return id;
        if (::mount("tracefs", "/sys/kernel/tracing", "tracefs", 0, nullptr) != 0) return std::nullopt;
        const auto id = read_id();
        ::umount2("/sys/kernel/tracing", MNT_DETACH);
        return id;
    }

    int fd_ = -1;
};

/// System calls of one round: the difference between `run(2 * rounds)` and `run(rounds)`, so that set-up and tear-down
/// cancel out. Absent where they cannot be counted.
template <class Run>
std::optional<double> system_calls_per_round(std::uint64_t rounds, Run&& run) {
    system_call_counter counter;
    const auto once = counter.count([&] { run(rounds); });
    if (!once) return std::nullopt;
    const auto twice = counter.count([&] { run(2 * rounds); });
    return (static_cast<double>(*twice) - static_cast<double>(*once)) / static_cast<double>(rounds);
}

} // namespace bench
