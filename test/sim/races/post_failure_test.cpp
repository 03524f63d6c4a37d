// A post that fails resumes its coroutine at once with the verb's own error, gives back what it took, and spares those
// behind it; whatever convention the provider answers by (B17, B19, B43).

#include "race_rig.hpp"

#include <cerrno>
#include <cstdint>
#include <cstring>

using namespace races;

namespace {

using sim::convention;

vb::task<> send_chain(lab& l, ending_log& log) {
    const vb::send_request one{.local = l.slice(0)};
    const auto done = co_await l.left->chain(one, one, one);
    log.add(done);
}

vb::task<> send_of(lab& l, std::size_t index, int number, std::vector<int>& order) {
    const auto sent = co_await l.left->send(l.slice(index));
    order.push_back(sent ? number : -number);
}

/// What the bytes of one receive say.
vb::task<> take_number(lab& l, std::size_t index, std::vector<std::uint64_t>& numbers) {
    const auto got = co_await l.right->recv(l.slice(index));
    std::uint64_t number = 0;
    if (got) std::memcpy(&number, l.bytes(index).data(), sizeof number);
    numbers.push_back(number);
}

} // namespace

TEST_CASE("a failing post tells the verb's code, and its room comes back") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices())
        for (const int code : {ENOMEM, EINVAL, EIO})
            for (const auto answered :
                 {convention::positive_errno, convention::negative_errno, convention::minus_one_and_errno})
                for (const bool receives : {false, true}) {
                    INFO(name << ", errno " << code << ", convention " << static_cast<int>(answered));
                    constexpr std::uint32_t depth = 4;
                    lab l(name, {.depth = depth});
                    const char* verb = receives ? "ibv_post_recv" : "ibv_post_send";
                    constexpr unsigned failures = 3 * depth;
                    l.control.fail(verb, {.value = code, .convention = answered, .times = failures});
                    ending_log failed, sent, received;
                    vb::scope scope;
                    for (unsigned i = 0; i < failures; ++i) {
                        errno = 77;
                        scope.spawn(receives ? support::receive(*l.right, l.slice(0), failed)
                                             : support::transmit(*l.left, l.slice(0), failed));
                        CHECK(failed.failures.size() == i + 1); // without suspending
                    }
                    for (const auto& e : failed.failures) {
                        CHECK(e.code() == std::error_code(code, std::system_category()));
                        CHECK(std::string_view(e.verb()) == verb);
                    }
                    CHECK(l.reactor.stats().outstanding == 0);
                    l.hold();
                    for (std::uint32_t i = 0; i < depth; ++i) {
                        scope.spawn(support::receive(*l.right, l.slice(0), received));
                        scope.spawn(support::transmit(*l.left, l.slice(1), sent));
                    }
                    CHECK(l.control.held().size() == 2 * depth); // all at once
                    l.release();
                    l.finish(scope);
                    CHECK(sent.successes == depth);
                    CHECK(received.successes == depth);
                }
}

TEST_CASE("a chain of which nothing was posted leaves the connection alone") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name, {.depth = 3});
        ending_log chain, log;
        l.control.fail("ibv_post_send", {.value = ENOMEM, .times = 5});
        for (int i = 0; i < 5; ++i) l.reactor.run(send_chain(l, chain));
        REQUIRE(chain.failures.size() == 5);
        CHECK(chain.failures[0].code() == std::error_code(ENOMEM, std::system_category()));
        l.reactor.run(exchanges(l, 5, log));
        CHECK(log.successes == 10);
        vb::scope scope;
        for (int i = 0; i < 3; ++i) scope.spawn(support::receive(*l.right, l.slice(1), log));
        scope.spawn(send_chain(l, chain));
        l.finish(scope);
        CHECK(chain.successes == 1);
    }
}

TEST_CASE("half a chain ends when the queue pair was flushed, with the post's error") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices())
        for (const std::uint32_t accepted : {1, 2}) {
            INFO(name << ", " << accepted << " accepted");
            lab l(name);
            ending_log chain, sibling, later;
            vb::scope scope;
            scope.spawn(support::receive(*l.left, l.slice(3), sibling));
            l.control.fail("ibv_post_send", {.value = EINVAL, .accepted = accepted});
            scope.spawn(send_chain(l, chain));
            CHECK(chain.resumes() == 0); // the device has a part of it
            CHECK(l.reactor.stats().outstanding == 1 + accepted);
            l.finish(scope);
            REQUIRE(chain.failures.size() == 1);
            CHECK(chain.failures[0].code() == std::error_code(EINVAL, std::system_category()));
            REQUIRE(sibling.failures.size() == 1);
            CHECK(sibling.failures[0] == vb::errc::connection_reset);
            CHECK(l.reactor.stats().outstanding == 0);
            CHECK(l.reactor.stats().stale == 0);
            l.reactor.run(support::transmit(*l.left, l.slice(0), later));
            REQUIRE(later.failures.size() == 1);
            CHECK(later.failures[0] == vb::errc::connection_reset);
        }
}

// rxe's answer when its doorbell fails: the requests are in its queue, and the next doorbell sends them.
TEST_CASE("a post that fails and names no request has posted all, and ends the connection") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices())
        for (const auto mode : {vb::post_mode::immediate, vb::post_mode::batched})
            for (const bool receives : {false, true})
                for (const unsigned before : {0u, 2u}) { // the first posts of a queue pair take the long way
                    INFO(name << (receives ? ", receive" : ", send") << ", after " << before);
                    lab l(name, {.mode = mode});
                    ending_log log, failed, later;
                    vb::scope scope;
                    l.reactor.run(exchanges(l, before, log));
                    CHECK(log.successes == 2 * before);
                    l.hold();
                    l.control.fail(receives ? "ibv_post_recv" : "ibv_post_send",
                                   {.value = EAGAIN, .accepted = sim::fault::all});
                    scope.spawn(receives ? support::receive(*l.right, l.slice(2), failed)
                                         : support::transmit(*l.left, l.slice(2), failed));
                    l.turns();
                    CHECK(failed.resumes() == 0); // its buffer is the device's
                    CHECK(l.reactor.stats().outstanding == 1);
                    l.release();
                    l.finish(scope);
                    CHECK(failed.resumes() == 1);
                    for (const auto& e : failed.failures) {
                        CHECK(e == vb::errc::connection_reset);
                        CHECK(e.root_cause() == std::error_code(EAGAIN, std::system_category()));
                    }
                    CHECK(l.reactor.stats().outstanding + l.reactor.stats().stale == 0);
                    l.reactor.run(receives ? support::receive(*l.right, l.slice(0), later)
                                           : support::transmit(*l.left, l.slice(0), later));
                    REQUIRE(later.failures.size() == 1);
                    CHECK(later.failures[0].root_cause() == std::error_code(EAGAIN, std::system_category()));
                }
}

TEST_CASE("a post that fails and names no request ends a UD queue pair too, of which the device knows no failure") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name);
        auto qp = vb::queue_pair::create(l.domain,
                                         {.send_cq = l.send_cq, .recv_cq = l.recv_cq, .type = vb::queue_pair_type::ud})
                      .value();
        qp.activate(1).value();
        ending_log log;
        vb::scope scope;
        l.control.fail("ibv_post_recv", {.value = EAGAIN, .accepted = sim::fault::all});
        scope.spawn(support::receive(qp, l.slice(0), log));
        CHECK(log.resumes() == 0);
        l.finish(scope);
        REQUIRE(log.failures.size() == 1);
        CHECK(log.failures[0].root_cause() == std::error_code(EAGAIN, std::system_category()));
    }
}

TEST_CASE("of a batch only the refused request fails, and those behind it are posted in order") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices())
        for (const std::uint32_t refused : {0, 1, 2}) {
            INFO(name << ", request " << refused);
            lab l(name, {.mode = vb::post_mode::batched});
            std::vector<int> sends;
            std::vector<std::uint64_t> got;
            vb::scope scope;
            for (std::size_t i = 0; i < 2; ++i) scope.spawn(take_number(l, i, got));
            for (std::size_t i = 0; i < 3; ++i) {
                support::put_number(l.bytes(8 + i), 100 + i);
                scope.spawn(send_of(l, 8 + i, static_cast<int>(i) + 1, sends));
            }
            l.control.fail("ibv_post_send", {.value = ENOMEM, .accepted = refused});
            l.finish(scope);
            std::vector<std::uint64_t> expected;
            for (std::uint64_t i = 0; i < 3; ++i)
                if (i != refused) expected.push_back(100 + i);
            CHECK(got == expected);
            std::ranges::sort(sends, {}, [](int n) { return n < 0 ? -n : n; });
            for (std::uint32_t i = 0; i < 3; ++i)
                CHECK(sends.at(i) == (i == refused ? -1 : 1) * (static_cast<int>(i) + 1));
            ending_log log;
            l.reactor.run(exchange(l, log));
            CHECK(log.successes == 2);
            CHECK(l.reactor.stats().outstanding == 0);
        }
}

TEST_CASE("a completion that is there before the post returns resumes its coroutine once, from the loop") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name);
        ending_log log;
        unsigned inside = 0;
        l.control.at(point::post_send_ends, [&](const auto&) {
            CHECK(l.control.ledger().unpolled == 2);
            CHECK(log.resumes() == 2 * inside++);
        });
        l.reactor.run(exchanges(l, 10, log));
        CHECK(inside == 10);
        CHECK(log.successes == 20);
        CHECK(l.control.ledger().completed == 20);

        l.control.at(point::post_send_ends, {});
        vb::scope scope;
        ending_log received, sent;
        scope.spawn(support::receive(*l.right, l.slice(0), received));
        scope.spawn(support::transmit(*l.left, l.slice(1), sent));
        CHECK(l.control.ledger().unpolled == 2);
        CHECK(sent.resumes() == 0);
        l.finish(scope);
        CHECK(sent.successes == 1);
        CHECK(received.successes == 1);
    }
}

TEST_CASE("a single send does not overtake a chain that waits for room") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices())
        for (const auto mode : {vb::post_mode::immediate, vb::post_mode::batched}) {
            INFO(name);
            lab l(name, {.depth = 4, .mode = mode});
            l.turns(); // from now on the reactor has its thread
            std::vector<int> order;
            std::vector<std::uint64_t> got;
            vb::scope scope;
            for (std::size_t i = 0; i < 4; ++i) support::put_number(l.bytes(8 + i), 100 + i);
            for (std::size_t i = 0; i < 2; ++i) scope.spawn(send_of(l, 8 + i, static_cast<int>(i), order));
            scope.spawn([](lab& own, std::vector<int>& ends) -> vb::task<> {
                const vb::send_request one{.local = own.slice(10)};
                const auto done = co_await own.left->chain(one, one, one); // there is room for two
                ends.push_back(done ? 2 : -2);
            }(l, order));
            scope.spawn(send_of(l, 11, 3, order));
            for (std::size_t i = 0; i < 6; ++i) scope.spawn(take_number(l, 20 + i, got));
            l.finish(scope);
            CHECK(order == std::vector{0, 1, 2, 3});
            CHECK(got == std::vector<std::uint64_t>{100, 101, 102, 102, 102, 103});
        }
}
