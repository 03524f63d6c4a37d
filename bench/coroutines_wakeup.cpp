// Descriptors that become readable.

#include "coroutines.hpp"
#include "plain_parts.hpp"

#include <verbena/verbena.hpp>

#include <future>

namespace coroutines {
namespace {

namespace vb = verbena;
using plain::event_descriptor;

vb::task<> ask(vb::reactor& reactor, const event_descriptor& own, const event_descriptor& other, std::uint64_t rounds) {
    for (std::uint64_t i = 0; i < rounds; ++i) {
        other.wake();
        (co_await reactor.wait_readable(own.get())).value();
        own.take();
    }
}

vb::task<> answer(vb::reactor& reactor, const event_descriptor& own, const event_descriptor& other,
                  std::uint64_t rounds) {
    for (std::uint64_t i = 0; i < rounds; ++i) {
        (co_await reactor.wait_readable(own.get())).value();
        own.take();
        other.wake();
    }
}

} // namespace

plain::figures parked_eventfds(const plain::options& options) {
    const event_descriptor here, there;
    auto other = std::async(std::launch::async, [&] {
        vb::reactor reactor({.wait = vb::wait_policy::park_at_once()});
        reactor.run(answer(reactor, there, here, options.rounds));
        return reactor.stats();
    });
    vb::reactor reactor({.wait = vb::wait_policy::park_at_once()});
    plain::figures figures{.rounds = options.rounds};
    const std::uint64_t started = plain::now_ns();
    reactor.run(ask(reactor, here, there, options.rounds));
    figures.total_ns = plain::now_ns() - started;
    for (const auto& stats : {reactor.stats(), other.get()}) {
        figures.parks += stats.parks;
        figures.enters += stats.enters;
    }
    return figures;
}

} // namespace coroutines
