#include "arguments.hpp"
#include "load.hpp"

#include <verbena/format.hpp>

#include <chrono>
#include <cstdio>
#include <vector>

namespace {

namespace vb = verbena;

constexpr const char* help = R"(Load for kv_server: clients that put, get, read and erase, and verify every value.

  --connect ADDRESS:PORT  where the server listens
  --transport tcp|cm      as the server's (tcp)
  --device NAME           the RDMA device (the first that has an active port)
  --clients N             connections (1)
  --requests N            in all (1000)
  --window N              requests of a client outstanding, at most 255 (8)

Exit status: 0 if every value was right and every request answered, else 1; 2 if it could not run.
)";

int load(int count, char** words) {
    kv::load_options options;
    std::string device;
    std::uint8_t window = 8; // the slot of a request is in eight bits of its number
    kv::arguments known;
    known.place("--connect", options.server).transport("--transport", options.transport).text("--device", device);
    known.number("--clients", options.clients).number("--requests", options.requests);
    known.number("--window", window);
    if (!known.parse_all(count, words, help)) return 0;
    options.client.window = window;
    options.requests = (options.requests + options.clients - 1) / options.clients;

    const auto context = kv::open_device(device);
    const auto domain = vb::protection_domain::create(context).value();
    const auto channel = vb::completion_channel::create(context).value();
    const auto queue = vb::completion_queue::create(context, 1024, {.channel = channel}).value();
    std::array<vb::poll_slot, 64> slots;
    vb::reactor reactor;
    reactor.attach(queue, slots).value();
    const auto begin = std::chrono::steady_clock::now();
    const auto report = reactor.run(kv::run_load(reactor, queue, domain, options));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    fmt::print("{}\nin {:.3f} s; reactor: {}\n", report.text(), took.count(), reactor.stats());
    return report.clean() && reactor.stats().rescued == 0 ? 0 : 1;
}

} // namespace

int main(int count, char** words) {
    return kv::guarded([&] { return load(count, words); });
}
