// The five steps of the tutorial in README.md of this folder, as they stand there.

#include "support/catch.hpp"

#include <cstdlib>
#include <exception>
#include <future>
#include <string>
#include <thread>

// TUTORIAL: 1
#include <verbena/format.hpp> // printing, with fmt
#include <verbena/verbena.hpp>

#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <span>
#include <string_view>

namespace vb = verbena;
using namespace std::chrono_literals;

// What a thread of a server has once, however many connections it serves.
struct engine {
    explicit engine(const char* device_name)
        : device(vb::context::open(device_name).value()), domain(vb::protection_domain::create(device).value()),
          channel(vb::completion_channel::create(device).value()),
          cq(vb::completion_queue::create(device, 256, {.channel = channel}).value()) {
        reactor.attach(cq, slots).value();
    }

    vb::context device;
    vb::protection_domain domain;
    std::array<vb::poll_slot, 64> slots; // completions are polled into these
    vb::reactor reactor;
    vb::completion_channel channel;
    vb::completion_queue cq;
};
// TUTORIAL: end

// TUTORIAL: 2
// What each connection has.
struct connection {
    explicit connection(engine& of)
        : qp(vb::queue_pair::create(of.domain, {.send_cq = of.cq, .recv_cq = of.cq, .keepalive = 500ms}).value()),
          inbox(vb::receiver::create(qp, {.depth = 16, .message_bytes = 256}).value()) {}

    // Who only receives hears nothing of a peer that is gone: hence `keepalive`, and an end to the retries.
    void connect(const vb::endpoint& peer) { qp.connect(peer, {.retry_cnt = 3, .timeout = 12}).value(); }

    vb::queue_pair qp;
    vb::receiver inbox; // its receives are posted: from now on the peer may send
};

// The peer's end of it comes by any other way: a TCP connection, a file, a pair of promises.
using exchange = std::function<vb::endpoint(vb::endpoint)>;
// TUTORIAL: end

// TUTORIAL: 3
// A server: answers until the inbox ends, and says why it did.
vb::task<vb::error> answer(connection& peer) {
    while (auto message = co_await peer.inbox.next()) {
        auto sent = co_await peer.qp.send(message->bytes());
        if (!sent) co_return sent.error();
    } // here the message dies, and its buffer is posted again
    co_return peer.inbox.error(); // with this server: `peer_lost`
}

void run_server(const char* device_name, const exchange& exchange_endpoints) {
    engine mine(device_name);
    connection peer(mine);
    peer.connect(exchange_endpoints(peer.qp.endpoint()));
    const vb::error why = mine.reactor.run(answer(peer));
    fmt::print("the server's connection ended: {}\n", why);
}
// TUTORIAL: end

// TUTORIAL: 4
// A client: memory of its own that the device may read and write, and a deadline for the answer.
vb::task<std::string> ask(connection& peer, std::string_view question) {
    auto memory = vb::memory_region::allocate(peer.qp.domain(), question.size()).value();
    std::memcpy(memory.bytes().data(), question.data(), question.size());
    auto sent = co_await peer.qp.send(memory.slice());
    if (!sent) co_return "not sent: " + sent.error().message();
    auto message = co_await vb::with_timeout(peer.inbox.next(), 5s); // a wait: it ends alone
    if (!message) co_return "no answer: " + message.error().message();
    const auto bytes = message->bytes().bytes();
    co_return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}
// TUTORIAL: end

// TUTORIAL: 5
// Many things at once: each question is a child of a scope. Then an orderly end.
vb::task<unsigned> ask_all(connection& peer, std::span<const std::string> questions) {
    vb::scope scope;
    unsigned answered = 0;
    for (const auto& question : questions)
        scope.spawn([&]() -> vb::task<> { answered += (co_await ask(peer, question)).size() == question.size(); });
    co_await scope.join();
    (co_await peer.qp.close()).value(); // waits for what the device still has, 100 ms at most
    co_return answered;
}

unsigned run_client(const char* device_name, const exchange& exchange_endpoints,
                    std::span<const std::string> questions) {
    engine mine(device_name);
    connection peer(mine);
    peer.connect(exchange_endpoints(peer.qp.endpoint()));
    return mine.reactor.run(ask_all(peer, questions));
}
// TUTORIAL: end

TEST_CASE("the tutorial's client asks its server") {
    const char* wanted = std::getenv("VERBENA_DEVICE");
    const auto opened = wanted != nullptr ? vb::context::open(wanted) : vb::context::open_default();
    if (!opened) VERBENA_SKIP(opened.error().message());
    const std::string name = opened->name();
    std::promise<vb::endpoint> to_client, to_server;
    std::exception_ptr failure;
    std::jthread server([&] {
        try {
            run_server(name.c_str(), [&](vb::endpoint mine) {
                to_client.set_value(mine);
                return to_server.get_future().get();
            });
        } catch (...) {
            failure = std::current_exception();
        }
    });
    std::vector<std::string> questions;
    for (int i = 0; i < 8; ++i) questions.push_back("question " + std::to_string(i));
    const unsigned answered = run_client(
        name.c_str(),
        [&](vb::endpoint mine) {
            to_server.set_value(mine);
            return to_client.get_future().get();
        },
        questions);
    CHECK(answered == questions.size());
    server.join();
    CHECK(!failure);
}
