// Every message of a ping-pong arrives once, whole and in its order, whatever the reactor does between two of them:
// spin, spin and then park, or park at once. Both ends on one reactor, and on two reactors on two threads.

#include "rig.hpp"

#include "support/deadline.hpp"

#include <atomic>
#include <chrono>
#include <thread>

namespace vb = verbena;
using namespace std::chrono_literals;

namespace {

constexpr std::uint32_t message_bytes = 64;
constexpr std::uint32_t depth = 16;

std::uint64_t rounds(std::uint64_t wanted) {
    const char* divisor = std::getenv("VERBENA_TEST_DIVISOR");
    return divisor != nullptr ? wanted / std::strtoull(divisor, nullptr, 10) : wanted;
}

vb::task<> echo(vb::queue_pair& qp, vb::receiver& inbox, std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i) {
        auto message = co_await inbox.next();
        if (!message || !support::has_number(message->bytes().bytes(), i))
            throw std::runtime_error("echo: wrong message");
        auto sent = co_await qp.send(message->bytes());
        if (!sent) throw std::runtime_error(sent.error().message());
    }
}

vb::task<> ask(vb::queue_pair& qp, vb::receiver& inbox, const vb::memory_region& buffer, std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i) {
        support::put_number(buffer.bytes(), i);
        auto sent = co_await qp.send(buffer.slice());
        if (!sent) throw std::runtime_error(sent.error().message());
        auto answer = co_await inbox.next();
        if (!answer || !support::has_number(answer->bytes().bytes(), i)) throw std::runtime_error("ask: wrong answer");
    }
}

// One end, made before its thread exists and taken down on it: a reactor belongs to the thread that runs it.
struct end {
    end(const vb::context& device, const vb::protection_domain& domain, vb::wait_policy policy)
        : engine(device, policy), qp(support::make_pair_end(domain, engine.cq, support::pair_options(depth))),
          inbox(vb::receiver::create(qp, {.depth = depth, .message_bytes = message_bytes}).value()),
          buffer(vb::memory_region::allocate(domain, message_bytes).value()) {}

    support::engine engine;
    vb::queue_pair qp;
    vb::receiver inbox;
    vb::memory_region buffer;
};

// Returns the parks of both reactors together.
std::uint64_t two_reactors(const vb::context& device, vb::wait_policy policy, std::uint64_t count) {
    const auto domain = vb::protection_domain::create(device).value();
    auto left = std::make_unique<end>(device, domain, policy);
    auto right = std::make_unique<end>(device, domain, policy);
    support::connect(left->qp, right->qp);
    const support::state_printer state([&left = *left] { return support::describe(left.engine.reactor.stats()); });
    vb::reactor_stats right_stats;
    std::exception_ptr failure;
    std::thread server([&, mine = std::move(right)]() mutable {
        try {
            mine->engine.reactor.run(echo(mine->qp, mine->inbox, count));
            right_stats = mine->engine.reactor.stats();
        } catch (...) {
            failure = std::current_exception();
        }
        mine.reset();
    });
    left->engine.reactor.run(ask(left->qp, left->inbox, left->buffer, count));
    server.join();
    if (failure) std::rethrow_exception(failure);
    const auto left_stats = left->engine.reactor.stats();
    CHECK(left_stats.stale + right_stats.stale == 0);
    CHECK(left_stats.rescued + right_stats.rescued == 0);
    return left_stats.parks + right_stats.parks;
}

std::uint64_t one_reactor(const vb::context& device, vb::wait_policy policy, std::uint64_t count) {
    const auto domain = vb::protection_domain::create(device).value();
    support::engine engine(device, policy);
    support::wire wire(domain, engine, engine, support::pair_options(depth));
    const auto buffer = vb::memory_region::allocate(domain, message_bytes).value();
    auto left_inbox = vb::receiver::create(wire.left, {.depth = depth, .message_bytes = message_bytes}).value();
    auto right_inbox = vb::receiver::create(wire.right, {.depth = depth, .message_bytes = message_bytes}).value();
    wire.connect();
    const support::state_printer state([&] { return support::describe(engine.reactor.stats()); });
    engine.reactor.run([](auto& w, auto& left, auto& right, auto& bytes, auto n) -> vb::task<> {
        vb::scope scope;
        scope.spawn(echo(w.right, right, n));
        scope.spawn(ask(w.left, left, bytes, n));
        co_await scope.join();
    }(wire, left_inbox, right_inbox, buffer, count));
    CHECK(engine.reactor.stats().stale == 0);
    return engine.reactor.stats().parks;
}

} // namespace

TEST_CASE("ping-pong: spin_forever on one reactor") {
    VERBENA_REQUIRE_DEVICE(device);
    const support::deadline allow(600s);
    CHECK(one_reactor(device, vb::wait_policy::spin_forever(), rounds(100'000)) == 0);
}

TEST_CASE("ping-pong: spin_forever on two reactors") {
    VERBENA_REQUIRE_DEVICE(device);
    const support::deadline allow(300s);
    CHECK(two_reactors(device, vb::wait_policy::spin_forever(), rounds(1'000)) == 0);
}

TEST_CASE("ping-pong: park_at_once on two reactors") {
    VERBENA_REQUIRE_DEVICE(device);
    const support::deadline allow(900s);
    const auto count = rounds(100'000);
    const auto parks = two_reactors(device, vb::wait_policy::park_at_once(), count);
    CHECK(static_cast<double>(parks) >= 0.9 * static_cast<double>(count));
}

TEST_CASE("ping-pong: spin_then_park on two reactors") {
    VERBENA_REQUIRE_DEVICE(device);
    const support::deadline allow(900s);
    two_reactors(device, vb::wait_policy::spin_then_park(20us), rounds(100'000));
}
