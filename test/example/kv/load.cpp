#include "load.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <random>
#include <utility>

namespace kv {

namespace {

using value_buffer = std::array<std::byte, max_value>;

/// The value of a key's generation: the generation, and what follows from both.
std::span<const std::byte> make_value(std::string_view key, std::uint64_t generation, std::size_t size,
                                      value_buffer& to) {
    std::uint64_t word = std::hash<std::string_view>{}(key) ^ generation * 0x9e3779b97f4a7c15;
    std::memcpy(to.data(), &generation, sizeof generation);
    for (std::size_t at = 8; at < size; at += 8) {
        word = (word ^ word >> 29) * 0xbf58476d1ce4e5b9 + at;
        std::memcpy(to.data() + at, &word, std::min<std::size_t>(8, size - at));
    }
    return std::span(to).first(size);
}

bool is_value(std::string_view key, std::span<const std::byte> value, std::uint64_t oldest) {
    std::uint64_t generation = 0;
    value_buffer wanted;
    if (value.size() < sizeof generation) return false;
    std::memcpy(&generation, value.data(), sizeof generation);
    return generation >= oldest && std::ranges::equal(value, make_value(key, generation, value.size(), wanted));
}

/// One sequence of requests; several share a client.
class lane {
  public:
    lane(client& c, load_report& report, std::string name) : client_(c), report_(report), name_(std::move(name)) {}

    vb::task<> run(std::uint64_t requests) {
        for (std::uint64_t i = 0; i < requests && !over_; ++i) co_await step(i);
    }

  private:
    vb::task<> step(std::uint64_t i) {
        const bool shared = i % 8 == 4 || i % 8 == 5;
        const auto key = shared ? fmt::format("all {}", i / 8 % 5) : fmt::format("{}/{}", name_, i / 8 % 2);
        const std::size_t small = 8 + i % 100, large = small_value + 1 + i * 37 % (max_value - small_value);
        const auto value = make_value(key, i, i % 8 == 2 ? small : large, value_);
        switch (i % 8) {
        case 0:
        case 2:
        case 4: check(co_await client_.put(key, value), status::ok); break;
        case 1: verify(co_await client_.read(key, value_), key, i - 1); break;
        case 3: verify(co_await client_.get(key, value_), key, i - 1); break;
        case 5: verify(co_await client_.read(key, value_), key, 0); break;
        case 6: check(co_await client_.erase(key), status::ok); break;
        case 7: check(co_await client_.get(key, value_), status::not_found); break;
        }
    }

    bool check(const client::outcome& got, status wanted) {
        if (got && got->state == wanted) return true;
        over_ = !got;
        if (got || !client_.told_to_finish()) fail(got ? name_of(got->state) : got.error().message());
        return false;
    }
    void verify(const client::outcome& got, const std::string& key, std::uint64_t oldest) {
        if (!check(got, status::ok)) return;
        ++(is_value(key, std::span(value_).first(got->size), oldest) ? report_.verified : report_.wrong);
    }
    void fail(const std::string& why) {
        if (report_.failed++ == 0) report_.first_failure = why;
    }

    client& client_;
    load_report& report_;
    std::string name_;
    bool over_ = false;
    value_buffer value_;
};

struct load {
    vb::protection_domain domain;
    vb::completion_queue queue;
    transport& way;
    const load_options& options;
    const unsigned name = std::random_device{}(); ///< no other load has its keys
    load_report report{};
};

void fail(load_report& report, const vb::error& why) {
    if (report.failed++ == 0) report.first_failure = why.message();
}

vb::task<> run_client(load& of, unsigned number) {
    client c(of.domain, of.queue, of.options.client);
    if (auto connected = co_await c.connect(of.way, of.options.server); !connected) {
        fail(of.report, connected.error());
        co_return;
    }
    {
        const std::uint64_t width = of.options.client.window;
        std::deque<lane> lanes;
        vb::scope running;
        for (std::uint64_t i = 0; i < width; ++i) {
            lanes.emplace_back(c, of.report, fmt::format("{:x}/{}/{}", of.name, number, i));
            running.spawn(lanes.back().run((of.options.requests + width - 1 - i) / width));
        }
        co_await running.join();
    }
    if (auto closed = co_await c.close(); !closed) fail(of.report, closed.error());
    of.report += {.requests = c.requests(), .replies = c.replies(), .reads = c.reads(), .torn = c.torn()};
}

} // namespace

load_report& load_report::operator+=(const load_report& o) {
    requests += o.requests, replies += o.replies, reads += o.reads, torn += o.torn;
    verified += o.verified, wrong += o.wrong, failed += o.failed;
    if (first_failure.empty()) first_failure = o.first_failure;
    return *this;
}

std::string load_report::text() const {
    return fmt::format("{} requests, {} replies, {} RDMA reads ({} torn), {} values verified, {} wrong, {} failed{}{}",
                       requests, replies, reads, torn, verified, wrong, failed, failed != 0 ? ", first: " : "",
                       first_failure);
}

vb::task<load_report> run_load(vb::reactor& reactor, const vb::completion_queue& queue,
                               const vb::protection_domain& domain, const load_options& options) {
    const auto way = make_transport(options.transport, reactor).value();
    load all{domain, queue, *way, options};
    vb::scope clients;
    for (unsigned i = 0; i < options.clients; ++i) clients.spawn(run_client(all, i));
    co_await clients.join();
    co_return all.report;
}

} // namespace kv
