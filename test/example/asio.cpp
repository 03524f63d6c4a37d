// Verbs awaited in coroutines of Asio, beside a timer and a socket of Asio's, on one thread.

#include "asio_reactor.hpp"
#include "far_end.hpp"

#include <array>
#include <chrono>
#include <string>

namespace vb = verbena;
using example::ask;
using example::near_end;

namespace {

// README: asio
/// A connection of a client by TCP, answered with what comes back by RDMA.
asio::awaitable<void> relay(asio::ip::tcp::socket client, asio_reactor& verbs, near_end& far) {
    std::array<char, example::message_bytes> line;
    for (;;) {
        const auto size = co_await client.async_read_some(asio::buffer(line), asio::use_awaitable);
        const auto answer = co_await verbs.run(ask(far, std::string(line.data(), size)));
        co_await asio::async_write(client, asio::buffer(answer), asio::use_awaitable);
        if (size == 1) co_return; // the last
    }
}
// README: end

asio::awaitable<void> talk(asio::ip::tcp::endpoint to, std::vector<std::string> words, std::vector<std::string>& got) {
    asio::ip::tcp::socket server(co_await asio::this_coro::executor);
    co_await server.async_connect(to, asio::use_awaitable);
    std::array<char, example::message_bytes> line;
    for (const auto& word : words) {
        co_await asio::async_write(server, asio::buffer(word), asio::use_awaitable);
        const auto size = co_await asio::async_read(server, asio::buffer(line, word.size()), asio::use_awaitable);
        got.emplace_back(line.data(), size);
    }
}

vb::task<int> seven(vb::reactor& reactor) {
    co_await reactor.sleep_for(std::chrono::milliseconds{1});
    co_return 7;
}
vb::task<> fail(vb::reactor& reactor) {
    co_await reactor.yield();
    throw std::runtime_error("on purpose");
}
vb::task<> never_at_rest(vb::reactor& reactor, bool& destroyed) {
    struct at_end {
        bool& flag;
        ~at_end() { flag = true; }
    } const note{destroyed};
    for (;;) co_await reactor.yield();
}
vb::task<bool> sleep_long(vb::reactor& reactor) {
    try {
        co_await reactor.sleep_for(std::chrono::hours{1});
    } catch (const std::system_error& e) {
        co_return e.code() == vb::make_code(vb::errc::stopped);
    }
    co_return false;
}

} // namespace

TEST_CASE("a coroutine of Asio relays from TCP to RDMA") {
    const auto device = support::open_device().value();
    asio::io_context io(1);
    vb::reactor reactor({.safety_repoll = std::chrono::milliseconds{0}});
    asio_reactor verbs(io, reactor);
    near_end end(device, reactor);
    asio::ip::tcp::acceptor acceptor(io, {asio::ip::make_address("127.0.0.1"), 0});
    std::vector<std::string> words;
    for (int i = 0; i < 200; ++i) words.push_back("word number " + std::to_string(i));
    words.push_back(".");
    std::vector<std::string> got;
    std::exception_ptr failure;
    unsigned ended = 0;
    const auto note = [&](std::exception_ptr e) {
        if (e) failure = e;
        if (e || ++ended == 2) io.stop();
    };
    asio::co_spawn(io, talk(acceptor.local_endpoint(), words, got), note);
    asio::co_spawn(
        io,
        [&]() -> asio::awaitable<void> {
            auto client = co_await acceptor.async_accept(asio::use_awaitable);
            co_await relay(std::move(client), verbs, end);
        },
        note);
    io.run();
    CHECK(!failure);
    CHECK((got == words));
    CHECK(reactor.stats().rescued == 0);
}

TEST_CASE("values, exceptions, cancellation and destruction pass between Asio and the reactor") {
    asio::io_context io(1);
    vb::reactor reactor;
    int value = 0;
    bool stopped = false, thrown = false;
    std::optional<asio_reactor> verbs(std::in_place, io, reactor);
    asio::cancellation_signal cancel;
    unsigned ended = 0;
    const auto note = [&](std::exception_ptr) {
        if (++ended == 3) io.stop();
    };
    asio::co_spawn(io, [&]() -> asio::awaitable<void> { value = co_await verbs->run(seven(reactor)); }, note);
    asio::co_spawn(
        io,
        [&]() -> asio::awaitable<void> {
            try {
                co_await verbs->run(fail(reactor));
            } catch (const std::runtime_error&) {
                thrown = true;
            }
            cancel.emit(asio::cancellation_type::all);
        },
        note);
    asio::co_spawn(
        io, [&]() -> asio::awaitable<void> { stopped = co_await verbs->run(sleep_long(reactor)); },
        asio::bind_cancellation_slot(cancel.slot(), note));
    io.run();
    CHECK(value == 7);
    CHECK(thrown);
    CHECK(stopped);
}

TEST_CASE("what an io_context destroys ends the tasks that it waited for, and other coroutines get their turns") {
    vb::reactor reactor;
    bool destroyed = false;
    unsigned ticks = 0;
    {
        asio::io_context io(1);
        asio_reactor verbs(io, reactor);
        reactor.post([] { throw std::runtime_error("of a posted function"); });
        asio::co_spawn(
            io, [&]() -> asio::awaitable<void> { co_await verbs.run(never_at_rest(reactor, destroyed)); },
            asio::detached);
        asio::co_spawn(
            io,
            [&]() -> asio::awaitable<void> {
                asio::steady_timer timer(co_await asio::this_coro::executor);
                for (; ticks < 3; ++ticks) {
                    timer.expires_after(std::chrono::milliseconds{1});
                    co_await timer.async_wait(asio::use_awaitable);
                }
                io.stop();
            },
            asio::detached);
        CHECK_THROWS_AS(io.run(), std::runtime_error);
        io.run(); // it goes on
        CHECK(ticks == 3);
        CHECK_FALSE(destroyed);
    }
    CHECK(destroyed);
    reactor.run([](vb::reactor& r) -> vb::task<> { co_await r.yield(); }(reactor));
}
