// The first program of README.md, as it stands there: it is built in each way in which Verbena is used.

// README: consumer
#include <verbena/verbena.hpp>

#include <cstdio>

namespace vb = verbena;

vb::task<> serve(vb::queue_pair& qp, vb::receiver& inbox) {
    while (auto message = co_await inbox.next()) (co_await qp.send(message->bytes())).value();
}

vb::task<> ask(vb::queue_pair& qp, vb::memory_slice question, vb::memory_slice answer) {
    question.bytes()[0] = std::byte{42};
    auto [received, sent] = co_await vb::when_all(qp.recv(answer), qp.send(question)); // posted in this order
    std::printf("%u byte came back: %d\n", received.value().byte_len, std::to_integer<int>(answer.bytes()[0]));
}

int main() {
    auto device = vb::context::open_default().value();
    auto domain = vb::protection_domain::create(device).value();
    auto channel = vb::completion_channel::create(device).value();
    auto cq = vb::completion_queue::create(device, 64, {.channel = channel}).value();
    vb::poll_slot slots[16];
    vb::reactor reactor;
    reactor.attach(cq, slots).value();

    auto client = vb::queue_pair::create(domain, {.send_cq = cq, .recv_cq = cq}).value();
    auto server = vb::queue_pair::create(domain, {.send_cq = cq, .recv_cq = cq}).value();
    auto inbox = vb::receiver::create(server, {.depth = 4, .message_bytes = 64}).value(); // posts receives
    client.connect(server.endpoint()).value();
    server.connect(client.endpoint()).value();

    auto memory = vb::memory_region::allocate(domain, 2).value();
    vb::scope scope; // owns what it spawns: the server ends with it
    scope.spawn(serve(server, inbox));
    reactor.run(ask(client, memory.slice(0, 1), memory.slice(1, 1)));
}
// README: end
