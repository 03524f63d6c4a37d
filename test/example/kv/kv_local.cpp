#include "arguments.hpp"
#include "load.hpp"
#include "server.hpp"

#include <sys/eventfd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <vector>

namespace {

namespace vb = verbena;

constexpr const char* help =
    R"(kv_server and its load in one process, as a simulated device needs it; and what more threads are worth.

Each thread has one reactor, which serves and makes requests. The listener spreads the connections, so that with N
threads 1/N of them stay on their reactor. Requests per second, with one thread and with all, medians of three runs.

  --device NAME    the RDMA device (the first that has an active port)
  --threads N      (2)
  --clients N      of each thread (16)
  --requests N     of each thread (100000)

Exit status: 0 if no value was wrong and no reply lost, else 1; 2 if it could not run.
)";

/// A server, and what it serves to itself.
struct local {
    vb::context device;
    kv::load_options load;
    unsigned threads;
    exchange::descriptor stop{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    std::atomic<unsigned> running{threads};
    std::vector<kv::load_report> reports = std::vector<kv::load_report>(threads);
    std::chrono::steady_clock::time_point ended{};
};

vb::task<> load(local& of, vb::reactor& reactor, const vb::completion_queue& queue, unsigned thread) {
    const auto domain = vb::protection_domain::create(of.device).value();
    of.reports[thread] = co_await kv::run_load(reactor, queue, domain, of.load);
    if (--of.running != 0) co_return;
    of.ended = std::chrono::steady_clock::now();
    ::eventfd_write(of.stop.get(), 1);
}

/// Requests per second.
double measure(const vb::context& device, kv::load_options options, unsigned threads) {
    local all{device, options, threads};
    kv::server server(device, {.threads = threads}, [](const std::string& line) { fmt::print(stderr, "{}\n", line); });
    all.load.server = {"127.0.0.1", server.port()};
    const auto begin = std::chrono::steady_clock::now();
    const auto metrics = server.run(all.stop.get(), [&](auto& reactor, const auto& queue, unsigned thread) {
        return load(all, reactor, queue, thread);
    });
    kv::load_report report;
    for (const auto& r : all.reports) report += r;
    if (!report.clean() || !metrics.clean()) throw std::runtime_error(report.text() + "\n" + metrics.text());
    return static_cast<double>(report.requests) / std::chrono::duration<double>(all.ended - begin).count();
}

int run(int count, char** words) {
    kv::load_options options{.clients = 16, .requests = 100'000};
    std::string name;
    unsigned threads = 2;
    kv::arguments known;
    known.text("--device", name).number("--threads", threads).number("--clients", options.clients);
    known.number("--requests", options.requests);
    if (!known.parse_all(count, words, help)) return 0;
    options.requests = (options.requests + options.clients - 1) / options.clients;

    const auto device = kv::open_device(name);
    std::array<double, 3> one, all;
    for (std::size_t i = 0; i < one.size(); ++i) { // in turn, so that what else goes on here meets both
        one[i] = measure(device, options, 1);
        all[i] = measure(device, options, threads);
    }
    std::ranges::sort(one);
    std::ranges::sort(all);
    fmt::print("1 thread: {:.0f} requests/s; {} threads: {:.0f} requests/s; ratio {:.2f}\n", one[1], threads, all[1],
               all[1] / one[1]);
    return 0;
}

} // namespace

int main(int count, char** words) {
    return kv::guarded([&] { return run(count, words); });
}
