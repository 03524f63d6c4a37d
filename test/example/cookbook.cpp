// Recipes of README.md in this folder, as they stand there.

#include "device/rig.hpp"

#include <verbena/verbena.hpp>

#include <array>
#include <chrono>
#include <deque>
#include <map>
#include <stop_token>
#include <thread>
#include <vector>

namespace vb = verbena;
using namespace std::chrono_literals;

namespace {

constexpr auto message_bytes = 64u;

// COOKBOOK: many connections
// One set of buffers for all connections: receives that are posted to a shared queue, whoever they will be for.
struct shared_inbox {
    shared_inbox(const vb::protection_domain& domain, vb::reactor& reactor, unsigned depth)
        : queue(vb::shared_receive_queue::create(domain, {.max_wr = depth}).value()),
          inbox(vb::receiver::create(reactor, queue, {.depth = depth, .message_bytes = message_bytes}).value()) {}

    vb::shared_receive_queue queue;
    vb::receiver inbox;
};

struct server {
    server(const vb::protection_domain& domain, vb::reactor& reactor, const vb::completion_queue& cq)
        : domain(domain), cq(cq), shared(domain, reactor, 256) {}

    vb::queue_pair& accept() {
        auto qp = vb::queue_pair::create(domain, {.send_cq = cq, .recv_cq = cq, .max_recv = 0, .srq = shared.queue});
        const auto number = qp.value().qp_num();
        return connections.emplace(number, std::move(qp).value()).first->second;
    }

    // One coroutine takes what comes; each answer is a child, of which at most 64 are on their way.
    vb::task<> serve() {
        vb::scope answers;
        vb::semaphore room(64);
        while (auto message = co_await shared.inbox.next()) {
            co_await room.acquire();
            answers.spawn(answer(*std::move(message), room));
        }
        co_await answers.join();
    }
    vb::task<> answer(vb::message request, vb::semaphore& room) {
        const auto of = connections.find(request.qp_num());
        if (of != connections.end()) {
            auto sent = co_await of->second.send(request.bytes());
            if (!sent) ++failures; // that connection alone: the shared queue and the others go on
        }
        room.release();
    }

    vb::protection_domain domain;
    vb::completion_queue cq;
    shared_inbox shared;
    std::map<std::uint32_t, vb::queue_pair> connections;
    unsigned failures = 0;
};
// COOKBOOK: end

// COOKBOOK: shutdown
// Ends when a stop is requested, from any thread: takes no more requests, finishes those that it has, closes.
vb::task<unsigned> serve_until(std::stop_token shutdown, vb::queue_pair& qp, vb::receiver& inbox) {
    unsigned served = 0;
    for (;;) {
        auto request = co_await vb::with_stop(inbox.next(), shutdown); // a wait that posted nothing ends alone
        if (!request) break;                                           // `stopped`, or why the connection ended
        auto sent = co_await qp.send(request->bytes());                // not under the stop: the reply goes out
        if (!sent) break;
        ++served;
    }
    auto closed = co_await qp.close(); // at most 100 ms
    if (closed && closed->missing > 0) fmt::print("{} completions never came\n", closed->missing);
    co_return served;
}
// COOKBOOK: end

vb::task<unsigned> ask(vb::queue_pair& qp, vb::receiver& inbox, vb::memory_slice text, unsigned count) {
    unsigned answers = 0;
    for (unsigned i = 0; i < count; ++i) {
        support::put_number(text.bytes(), i);
        (co_await qp.send(text)).value();
        const auto answer = (co_await vb::with_timeout(inbox.next(), 20s)).value();
        answers += support::has_number(answer.bytes().bytes(), i) ? 1 : 0;
    }
    co_return answers;
}

vb::task<unsigned> both(std::stop_source& shutdown, std::jthread& other, support::wire& wire, vb::receiver& left,
                        vb::receiver& right, vb::memory_region& memory) {
    vb::scope scope;
    auto serving = scope.spawn(serve_until(shutdown.get_token(), wire.right, right));
    const unsigned answers = co_await ask(wire.left, left, memory.slice(), 20);
    other = std::jthread([&] { shutdown.request_stop(); });
    const unsigned served = co_await serving.wait();
    co_return answers == served ? served : 0;
}

} // namespace

TEST_CASE("the cookbook's server with a shared receive queue answers many") {
    auto device = support::open_device().value();
    auto domain = vb::protection_domain::create(device).value();
    support::engine engine(device, vb::wait_policy::adaptive(), 1024);
    server s(domain, engine.reactor, engine.cq);
    struct client {
        vb::queue_pair qp;
        vb::receiver inbox;
        vb::memory_region memory;
    };
    std::deque<client> clients;
    for (int i = 0; i < 8; ++i) {
        auto qp = vb::queue_pair::create(domain, {.send_cq = engine.cq, .recv_cq = engine.cq}).value();
        auto inbox = vb::receiver::create(qp, {.depth = 4, .message_bytes = message_bytes}).value();
        vb::queue_pair& far = s.accept();
        far.connect(qp.endpoint()).value();
        qp.connect(far.endpoint()).value();
        clients.push_back(
            {std::move(qp), std::move(inbox), vb::memory_region::allocate(domain, message_bytes).value()});
    }
    vb::scope serving;
    serving.spawn(s.serve());
    const auto answers = engine.reactor.run([](auto& all) -> vb::task<unsigned> {
        vb::scope asking;
        std::vector<vb::child<unsigned>> children;
        for (auto& c : all) children.push_back(asking.spawn(ask(c.qp, c.inbox, c.memory.slice(), 50)));
        unsigned sum = 0;
        for (auto& child : children) sum += co_await child.wait();
        co_return sum;
    }(clients));
    CHECK(answers == 400);
    CHECK(s.failures == 0);
}

TEST_CASE("the cookbook's server stops in order") {
    auto device = support::open_device().value();
    auto domain = vb::protection_domain::create(device).value();
    support::engine engine(device, vb::wait_policy::adaptive());
    support::wire wire(domain, engine, engine, support::pair_options());
    auto left = vb::receiver::create(wire.left, {.depth = 4, .message_bytes = message_bytes}).value();
    auto right = vb::receiver::create(wire.right, {.depth = 4, .message_bytes = message_bytes}).value();
    wire.connect();
    auto memory = vb::memory_region::allocate(domain, message_bytes).value();
    std::stop_source shutdown;
    std::jthread other;
    const auto served = engine.reactor.run(both(shutdown, other, wire, left, right, memory));
    CHECK(served == 20);
}
