// The first example of README.md, as it stands there, with a client on a second reactor to talk to.

#include "support/catch.hpp"

#include <cstdlib>
#include <cstring>
#include <future>
#include <string>
#include <thread>

// README: echo
#include <verbena/verbena.hpp>

#include <array>
#include <functional>

namespace vb = verbena;

// One connection of an echo server. `inbox` keeps receives posted; a message gives its buffer back when it dies.
vb::task<> serve(vb::queue_pair& qp, vb::receiver& inbox) {
    while (auto message = co_await inbox.next()) {      // result<message>; the error that ended it: inbox.error()
        auto sent = co_await qp.send(message->bytes()); // memory_slice: address, length, lkey
        if (!sent) co_return;                           // sent.error(): code, vendor_error, the verb that failed
    }
}

// `exchange_endpoints` gives ours to the peer, gets its own, by whatever way there is: a TCP connection, a file.
void run_server(const char* device_name, std::function<vb::endpoint(vb::endpoint)> exchange_endpoints) {
    auto device = vb::context::open(device_name).value(); // value() throws std::system_error naming the verb
    auto domain = vb::protection_domain::create(device).value();

    std::array<vb::poll_slot, 64> slots; // the busy-poll fast path drains into these
    vb::reactor reactor{{.wait = vb::wait_policy::spin_then_park(std::chrono::microseconds{20})}};
    auto channel = vb::completion_channel::create(device).value();
    auto cq = vb::completion_queue::create(device, 256, {.channel = channel}).value();
    reactor.attach(cq, slots).value();

    auto qp = vb::queue_pair::create(domain, {.send_cq = cq, .recv_cq = cq, .max_send = 64, .max_recv = 64}).value();
    // Its receives are posted before the peer can send.
    auto inbox = vb::receiver::create(qp, {.depth = 64, .message_bytes = 4096}).value();
    qp.connect(exchange_endpoints(qp.endpoint())).value();
    reactor.run(serve(qp, inbox));
}
// README: end

namespace {

vb::task<std::string> talk(vb::queue_pair& qp, vb::receiver& inbox, std::string text) {
    auto buffer = vb::memory_region::allocate(qp.domain(), text.size()).value();
    std::memcpy(buffer.bytes().data(), text.data(), text.size());
    (co_await qp.send(buffer.slice())).value();
    const auto answer = (co_await inbox.next()).value();
    const auto bytes = answer.bytes().bytes();
    co_return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

} // namespace

TEST_CASE("README's echo server answers") {
    const char* wanted = std::getenv("VERBENA_DEVICE");
    const auto opened = wanted != nullptr ? vb::context::open(wanted) : vb::context::open_default();
    if (!opened) VERBENA_SKIP(opened.error().message());
    const auto device = opened.value();

    std::promise<vb::endpoint> to_client, to_server;
    std::exception_ptr failure;
    std::thread server([&] {
        try {
            run_server(device.name().c_str(), [&](vb::endpoint mine) {
                to_client.set_value(mine);
                return to_server.get_future().get();
            });
        } catch (...) {
            failure = std::current_exception();
        }
    });
    {
        auto domain = vb::protection_domain::create(device).value();
        std::array<vb::poll_slot, 16> slots;
        vb::reactor reactor;
        auto channel = vb::completion_channel::create(device).value();
        auto cq = vb::completion_queue::create(device, 64, {.channel = channel}).value();
        reactor.attach(cq, slots).value();
        auto qp = vb::queue_pair::create(domain, {.send_cq = cq, .recv_cq = cq}).value();
        auto inbox = vb::receiver::create(qp, {.depth = 8, .message_bytes = 4096}).value();
        to_server.set_value(qp.endpoint());
        qp.connect(to_client.get_future().get()).value();
        CHECK(reactor.run(talk(qp, inbox, "verbena")) == "verbena");

        // The server ends when its inbox does: here by a message that does not fit.
        CHECK_THROWS_AS(reactor.run(talk(qp, inbox, std::string(5000, '.'))), std::system_error);
    }
    server.join();
    CHECK(!failure);
}
