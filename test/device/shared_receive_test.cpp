// Queue pairs that draw from one shared receive queue lose nothing to each other: each message names the queue pair it
// came to, and the end of one leaves the receiver and all its buffers to the others.

#include "rig.hpp"
#include "too_long.hpp"

#include "support/deadline.hpp"

#include "verbs/states.hpp"

#include <algorithm>
#include <map>
#include <vector>

namespace vb = verbena;
using support::has_number;
using support::put_number;

namespace {

constexpr std::uint32_t depth = 8;

std::optional<vb::shared_receive_queue> make_srq(const vb::protection_domain& domain) {
    auto srq = vb::shared_receive_queue::create(domain, {.max_wr = depth});
    if (!srq && srq.error() == vb::errc::unsupported) return std::nullopt;
    return srq.value();
}

struct fixture {
    fixture(const vb::context& device, const vb::protection_domain& d, const vb::shared_receive_queue& srq)
        : domain(d), engine(device), here(vb::memory_region::allocate(domain, 1024).value()) {
        for (int i = 0; i < 2; ++i) {
            clients.push_back(support::make_pair_end(domain, engine.cq, support::pair_options()));
            servers.push_back(support::make_pair_end(domain, engine.cq, shared(srq)));
            support::connect(clients.back(), servers.back());
        }
    }
    static vb::queue_pair_options shared(const vb::shared_receive_queue& srq) {
        auto o = support::pair_options();
        o.srq = srq;
        return o;
    }

    vb::task<> send(std::size_t client, std::uint64_t number, std::uint32_t bytes = 64) {
        put_number(here.bytes().first(bytes), number);
        auto sent = co_await clients[client].send(here.slice(0, bytes));
        sent.value();
    }
    // Through both queue pairs in turn, or through one.
    vb::task<> exchange(vb::receiver& inbox, std::uint64_t count, std::size_t first, std::size_t last) {
        for (std::uint64_t i = 0; i < count; ++i)
            for (std::size_t client = first; client <= last; ++client) {
                co_await send(client, 10 * i + client);
                auto message = co_await inbox.next();
                REQUIRE(message.has_value());
                CHECK(has_number(message->bytes().bytes(), 10 * i + client));
                CHECK(message->qp_num() == servers[client].qp_num());
            }
    }

    vb::protection_domain domain;
    support::engine engine;
    vb::memory_region here;
    std::vector<vb::queue_pair> clients;
    std::vector<vb::queue_pair> servers;
    support::state_printer state{[this] { return support::describe(engine.reactor.stats()); }};
};

#define VERBENA_REQUIRE_SRQ(device, domain, srq)                                                                       \
    const auto domain = vb::protection_domain::create(device).value();                                                 \
    const auto srq##_made = make_srq(domain);                                                                          \
    if (!srq##_made) VERBENA_SKIP("the device has no shared receive queues");                                          \
    vb::shared_receive_queue srq = *srq##_made

} // namespace

TEST_CASE("shared receive: messages of two queue pairs, more than the queue holds") {
    VERBENA_REQUIRE_DEVICE(device);
    VERBENA_REQUIRE_SRQ(device, domain, srq);
    fixture f(device, domain, srq);
    f.engine.reactor.run([&]() -> vb::task<> {
        auto inbox = vb::receiver::create(f.engine.reactor, srq, {.message_bytes = 64}).value();
        co_await f.exchange(inbox, 5 * depth, 0, 1);
        CHECK(inbox.stats().messages == 10 * depth);

        CHECK(vb::receiver::create(f.engine.reactor, srq, {.message_bytes = 64}).error() == vb::errc::in_use);
        CHECK(vb::receiver::create(f.servers[0], {.message_bytes = 64}).error() == vb::errc::invalid_argument);
        auto received = co_await f.servers[0].recv(f.here.slice(0, 64));
        REQUIRE(!received.has_value());
        CHECK(received.error() == vb::errc::invalid_argument);

        // The servers answer through their own send queues.
        auto answers = vb::receiver::create(f.clients[1], {.message_bytes = 64}).value();
        co_await f.send(1, 77);
        auto request = co_await inbox.next();
        auto replied = co_await f.servers[1].send(request.value().bytes());
        replied.value();
        auto answer = co_await answers.next();
        CHECK(has_number(answer.value().bytes().bytes(), 77));
    }());
    CHECK(f.engine.reactor.stats().stale == 0);
}

TEST_CASE("shared receive: concurrent senders lose nothing") {
    VERBENA_REQUIRE_DEVICE(device);
    VERBENA_REQUIRE_SRQ(device, domain, srq);
    fixture f(device, domain, srq);
    f.engine.reactor.run([&]() -> vb::task<> {
        auto inbox = vb::receiver::create(f.engine.reactor, srq, {.message_bytes = 64}).value();
        constexpr std::uint64_t each = 200;
        vb::scope scope;
        for (std::size_t client = 0; client < 2; ++client)
            scope.spawn([&, client]() -> vb::task<> {
                for (std::uint64_t i = 0; i < each; ++i) {
                    std::array<std::byte, 8> bytes;
                    put_number(bytes, i);
                    auto sent = co_await f.clients[client].send(vb::inline_data(bytes));
                    sent.value();
                }
            });
        std::map<std::uint32_t, std::uint64_t> next;
        for (std::uint64_t i = 0; i < 2 * each; ++i) {
            auto message = co_await inbox.next();
            REQUIRE(message.has_value());
            CHECK(has_number(message->bytes().bytes(), next[message->qp_num()]++)); // each sender's own order
        }
        co_await scope.join();
        CHECK(next.size() == 2);
        CHECK(next[f.servers[0].qp_num()] == each);
    }());
}

TEST_CASE("shared receive: a message too long fails its queue pair, and no other") {
    VERBENA_REQUIRE_DEVICE(device);
    VERBENA_REQUIRE_SRQ(device, domain, srq);
    fixture f(device, domain, srq);
    f.engine.reactor.run([&]() -> vb::task<> {
        auto inbox = vb::receiver::create(f.engine.reactor, srq, {.message_bytes = 64}).value();
        co_await f.exchange(inbox, 2, 0, 1);
        put_number(f.here.bytes(), 5);
        auto sent = co_await f.clients[0].send(f.here.slice(0, 128));
        REQUIRE(!sent.has_value());
        INFO(sent.error().message());
        CHECK(support::says_too_long(sent.error().code()));
        co_await f.exchange(inbox, 3 * depth, 1, 1);
        CHECK(!inbox.error().code());
        auto dead = co_await f.clients[0].send(f.here.slice(0, 64));
        CHECK(!dead.has_value());
    }());
}

TEST_CASE("shared receive: destroying a peer or a queue pair takes no buffers along") {
    VERBENA_REQUIRE_DEVICE(device);
    VERBENA_REQUIRE_SRQ(device, domain, srq);
    for (const bool peer : {true, false}) {
        srq = make_srq(domain).value(); // the one before belongs to its reactor for life
        fixture f(device, domain, srq);
        f.engine.reactor.run([&]() -> vb::task<> {
            auto inbox = vb::receiver::create(f.engine.reactor, srq, {.message_bytes = 64}).value();
            co_await f.exchange(inbox, 2, 0, 1);
            { auto gone = std::move(peer ? f.clients[0] : f.servers[0]); }
            co_await f.exchange(inbox, 3 * depth, 1, 1);
            CHECK(!inbox.error().code());
        }());
    }
}

TEST_CASE("shared receive: a new queue pair draws from the buffers of one that failed") {
    VERBENA_REQUIRE_DEVICE(device);
    VERBENA_REQUIRE_SRQ(device, domain, srq);
    fixture f(device, domain, srq);
    f.engine.reactor.run([&]() -> vb::task<> {
        auto inbox = vb::receiver::create(f.engine.reactor, srq, {.message_bytes = 64}).value();
        // More failures than there are buffers.
        for (std::uint32_t i = 0; i < 2 * depth; ++i) {
            auto sent = co_await f.clients[0].send(f.here.slice(0, 128));
            REQUIRE(!sent.has_value());
            INFO(sent.error().message());
            CHECK(support::says_too_long(sent.error().code()));
            f.clients[0] = support::make_pair_end(domain, f.engine.cq, support::pair_options());
            f.servers[0] = support::make_pair_end(domain, f.engine.cq, fixture::shared(srq));
            support::connect(f.clients[0], f.servers[0]);
        }
        co_await f.exchange(inbox, 2 * depth, 0, 1);
        CHECK(inbox.stats().failed == 2 * depth);
    }());
}

TEST_CASE("shared receive: its depth is reserved once in every receive queue") {
    VERBENA_REQUIRE_DEVICE(device);
    VERBENA_REQUIRE_SRQ(device, domain, srq);
    const auto make_queue = [&] { return vb::completion_queue::create(device, 64).value(); };
    const auto one = make_queue(), two = make_queue(), sends = make_queue();
    const auto reserved = [](const vb::completion_queue& cq) { return vb::detail::access::state(cq)->reserved; };
    const auto make_pair = [&](const vb::completion_queue& receives) {
        return vb::queue_pair::create(
                   domain, {.send_cq = sends, .recv_cq = receives, .max_send = 4, .max_recv = 100, .srq = srq})
            .value();
    };
    {
        const auto a = make_pair(one);
        CHECK(reserved(one) == depth);
        CHECK(reserved(sends) == 4);
        {
            const auto b = make_pair(one), c = make_pair(two);
            CHECK(reserved(one) == depth);
            CHECK(reserved(two) == depth);
            CHECK(reserved(sends) == 12);
        }
        CHECK(reserved(one) == depth);
        CHECK(reserved(two) == 0);
    }
    CHECK(reserved(one) == 0);
    CHECK(reserved(sends) == 0);
}

TEST_CASE("shared receive: queue pairs whose receive queue is elsewhere are refused") {
    VERBENA_REQUIRE_DEVICE(device);
    VERBENA_REQUIRE_SRQ(device, domain, srq);
    support::engine other(device);
    fixture f(device, domain, srq);
    auto inbox = vb::receiver::create(f.engine.reactor, srq, {.message_bytes = 64}).value();
    auto options = fixture::shared(srq);
    options.send_cq = options.recv_cq = other.cq;
    CHECK(vb::queue_pair::create(domain, options).error() == vb::errc::not_attached);
    CHECK(vb::receiver::create(other.reactor, make_srq(domain).value(), {.depth = depth + 1, .message_bytes = 64})
              .error() == vb::errc::invalid_argument);
}

// What is in a message stays readable, whatever went before it.
TEST_CASE("shared receive: reactor, queue pairs, queue, receiver and message die in every order") {
    VERBENA_REQUIRE_DEVICE(device);
    VERBENA_REQUIRE_SRQ(device, domain, first);
    std::array order{0, 1, 2, 3};
    do {
        auto srq = std::optional(make_srq(domain).value());
        auto f = std::make_unique<fixture>(device, domain, *srq);
        std::optional<vb::receiver> inbox;
        std::optional<vb::message> message;
        inbox.emplace(vb::receiver::create(f->engine.reactor, *srq, {.message_bytes = 64}).value());
        f->engine.reactor.run([&]() -> vb::task<> {
            co_await f->send(1, 123);
            auto got = co_await inbox->next();
            message.emplace(std::move(got).value());
            co_await f->send(0, 124); // nobody takes this one
        }());
        std::vector<vb::queue_pair> pairs;
        for (auto* ends : {&f->clients, &f->servers})
            for (auto& qp : *ends) pairs.push_back(std::move(qp));
        for (const int which : order) {
            switch (which) {
            case 0: f.reset(); break;
            case 1: pairs.clear(); break;
            case 2: inbox.reset(); break;
            case 3: srq.reset(); break;
            }
            CHECK(has_number(message->bytes().bytes(), 123));
        }
        message.reset();
    } while (std::ranges::next_permutation(order).found);
}
