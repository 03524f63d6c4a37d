// Awaited DEVX queries.

#include "coroutines.hpp"
#include "devx_query.hpp"

#include <verbena/mlx5/command_channel.hpp>
#include <verbena/mlx5/object.hpp>
#include <verbena/mlx5/open_context.hpp>
#include <verbena/verbena.hpp>

#include <array>
#include <stdexcept>
#include <vector>

namespace coroutines {
namespace {

namespace vb = verbena;
using plain::now_ns;

struct counter {
    explicit counter(const vb::context& device)
        : object(vb::mlx5::object::create(device, devx_query::allocation(), allocated).value()) {}

    std::array<std::byte, 16> allocated{};
    vb::mlx5::object object;
};

class querying {
  public:
    querying(const vb::mlx5::command_channel& channel, const counter& counter, const plain::options& options)
        : channel_(channel), object_(counter.object), query_(devx_query::query(counter.allocated)), options_(options),
          measured_(options.in_flight + options.rounds), total_(measured_ + options.in_flight) {}

    vb::task<> run() {
        vb::scope scope;
        for (std::uint32_t i = 0; i < options_.in_flight; ++i) scope.spawn(ask());
        co_await scope.join();
    }
    std::uint64_t errors = 0;
    std::uint64_t total_ns = 0;

  private:
    vb::task<> ask() {
        devx_query::command command = query_;
        std::vector<std::byte> output(options_.message_bytes);
        while (issued_ < total_) {
            const std::uint64_t number = issued_++;
            if (options_.echoes) devx_query::stamp(command, number);
            const std::uint64_t issued_ns = options_.samples.empty() ? 0 : now_ns();
            const auto response = (co_await channel_.query(object_, command, output)).value();
            if (options_.echoes && !devx_query::carries(response.bytes(), number)) ++errors;
            if (!options_.samples.empty() && finished_ >= options_.in_flight && finished_ < measured_)
                options_.samples[finished_ - options_.in_flight] = now_ns() - issued_ns;
            ++finished_;
            if (finished_ == options_.in_flight) started_ns_ = now_ns();
            if (finished_ == measured_) total_ns = now_ns() - started_ns_;
        }
    }

    const vb::mlx5::command_channel& channel_;
    const vb::mlx5::object& object_;
    devx_query::command query_;
    const plain::options& options_;
    std::uint64_t measured_;
    std::uint64_t total_;
    std::uint64_t issued_ = 0;
    std::uint64_t finished_ = 0;
    std::uint64_t started_ns_ = 0;
};

plain::figures queries(const plain::options& options, vb::wait_policy wait) {
    const auto device = vb::mlx5::open_context(options.device).value();
    const counter counter(device);
    vb::reactor reactor({.wait = wait});
    const auto channel = vb::mlx5::command_channel::create(device, {.max_response = options.message_bytes}).value();
    reactor.attach(channel).value();
    querying all(channel, counter, options);
    reactor.run(all.run());
    const auto stats = reactor.stats();
    if (channel.stats().late != 0 || channel.stats().foreign != 0)
        throw std::runtime_error("the channel mistook a response");
    return {.rounds = options.rounds,
            .total_ns = all.total_ns,
            .parks = stats.parks,
            .wakes = stats.wakes,
            .enters = stats.enters,
            .errors = all.errors};
}

} // namespace

verbena::result<bool> queries_echo(const std::string& device) {
    const auto context = vb::mlx5::open_context(device);
    if (!context) return context.error();
    if (const auto channel = vb::mlx5::command_channel::create(*context, {.max_response = 64}); !channel)
        return channel.error();
    const counter counter(*context);
    auto command = devx_query::query(counter.allocated);
    std::array<std::byte, 64> output{};
    counter.object.query(command, output).value();
    constexpr std::uint64_t number = 0x0123456789abcdef;
    devx_query::stamp(command, number);
    return counter.object.query(command, output).has_value() && devx_query::carries(output, number);
}

plain::figures busy_queries(const plain::options& options) { return queries(options, vb::wait_policy::spin_forever()); }

plain::figures parked_queries(const plain::options& options) {
    return queries(options, vb::wait_policy::park_at_once());
}

} // namespace coroutines
