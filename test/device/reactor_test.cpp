// A reactor runs what it is given to its end and no further: values and exceptions come out, stops end it, everything
// that is due gets its turn, and nothing that happens while it falls asleep is missed.

#include "by_hand.hpp"

#include "support/deadline.hpp"

#include <algorithm>
#include <chrono>
#include <coroutine>
#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <unistd.h>

namespace vb = verbena;
using namespace std::chrono_literals;

namespace {

constexpr std::uint32_t message_bytes = 64;

const auto policies = {vb::wait_policy::park_at_once(), vb::wait_policy::spin_then_park(50us),
                       vb::wait_policy::spin_forever(), vb::wait_policy::adaptive()};

struct pipe_ends {
    pipe_ends() {
        if (::pipe(fd) != 0) throw std::runtime_error("pipe");
    }
    ~pipe_ends() { close_both(); }
    void close_both() {
        for (int& f : fd)
            if (f >= 0) ::close(std::exchange(f, -1));
    }
    void put() {
        if (::write(fd[1], "x", 1) != 1) throw std::runtime_error("write");
    }
    void take() {
        char byte;
        if (::read(fd[0], &byte, 1) != 1) throw std::runtime_error("read");
    }
    int fd[2];
};

struct set_at_end {
    bool& flag;
    ~set_at_end() { flag = true; }
};

vb::task<> sleep_then_note(vb::reactor& reactor, std::chrono::nanoseconds time, int number, std::vector<int>& order) {
    co_await reactor.sleep_for(time);
    order.push_back(number);
}
vb::task<> join(vb::scope& scope) { co_await scope.join(); }

// A coroutine of somebody else, whose resume lets exceptions out.
struct thrower {
    struct promise_type {
        thrower get_return_object() { return {std::coroutine_handle<promise_type>::from_promise(*this)}; }
        std::suspend_never initial_suspend() noexcept { return {}; }
        std::suspend_always final_suspend() noexcept { return {}; }
        void return_void() {}
        void unhandled_exception() { throw; }
    };
    std::coroutine_handle<promise_type> handle;
    ~thrower() { handle.destroy(); }
};
thrower yield_and_throw(vb::reactor& reactor) {
    co_await reactor.yield();
    throw std::runtime_error("from a foreign coroutine");
}

} // namespace

TEST_CASE("run gives what its task gives, and throws what it throws") {
    for (const auto policy : policies) {
        vb::reactor reactor({.wait = policy});
        CHECK(reactor.run([](vb::reactor& r) -> vb::task<std::string> {
            co_await r.sleep_for(1ms);
            co_return "a value";
        }(reactor)) == "a value");
        CHECK(*reactor.run([]() -> vb::task<std::unique_ptr<int>> { co_return std::make_unique<int>(7); }()) == 7);
        CHECK_THROWS_WITH(reactor.run([](vb::reactor& r) -> vb::task<> {
            co_await r.yield();
            throw std::runtime_error("thrown");
        }(reactor)),
                          "thrown");
        reactor.run([]() -> vb::task<> { co_return; }());
    }
}

TEST_CASE("a reactor sleeps on what is expected of this run") {
    const char* wanted = std::getenv("VERBENA_BACKEND");
    vb::reactor reactor({.wait = vb::wait_policy::park_at_once()});
    CHECK(std::string_view(reactor.stats().backend) == "none");
    reactor.run([](vb::reactor& r) -> vb::task<> { co_await r.sleep_for(1ms); }(reactor));
    CHECK(std::string_view(reactor.stats().backend) == (wanted != nullptr ? wanted : "io_uring"));
}

TEST_CASE("stop ends the next run, and the one that goes on, from its thread or another") {
    for (const auto policy : policies) {
        vb::reactor reactor({.wait = policy});
        bool ran = false, destroyed = false;
        const auto main = [](vb::reactor& r, bool& started, bool& gone, bool stops) -> vb::task<> {
            const set_at_end end{gone};
            started = true;
            if (stops) r.stop();
            co_await r.sleep_for(1h);
        };
        const auto stopped = [&](bool stops) {
            ran = destroyed = false;
            try {
                reactor.run(main(reactor, ran, destroyed, stops));
            } catch (const std::system_error& e) {
                return e.code() == vb::errc::stopped && destroyed == ran;
            }
            return false;
        };
        reactor.stop();
        CHECK(stopped(false));
        CHECK(!ran);
        CHECK(stopped(true));
        CHECK(ran);
        reactor.post([&] { reactor.stop(); });
        CHECK(stopped(false));
        for (int i = 0; i < 20; ++i) {
            std::thread other([&] { reactor.stop(); });
            CHECK(stopped(false));
            other.join();
        }
        reactor.run([]() -> vb::task<> { co_return; }());
    }
}

TEST_CASE("sleepers wake in the order of their deadlines, those of one deadline in the order they came") {
    for (const auto policy : policies) {
        vb::reactor reactor({.wait = policy});
        std::vector<int> order;
        vb::scope scope;
        const auto soon = std::chrono::steady_clock::now() + 20ms;
        for (int i = 0; i < 3; ++i)
            scope.spawn([](vb::reactor& r, auto deadline, int number, auto& out) -> vb::task<> {
                co_await r.sleep_until(deadline);
                out.push_back(number);
            }(reactor, soon, 10 + i, order));
        scope.spawn(sleep_then_note(reactor, 60ms, 20, order));
        scope.spawn(sleep_then_note(reactor, 1ms, 5, order));
        scope.spawn(sleep_then_note(reactor, 0ns, 0, order));
        scope.spawn(sleep_then_note(reactor, -1h, 1, order));
        CHECK(order == std::vector{0, 1}); // zero and past deadlines do not suspend
        const auto before = std::chrono::steady_clock::now();
        reactor.run(join(scope));
        CHECK(order == std::vector{0, 1, 5, 10, 11, 12, 20});
        CHECK(std::chrono::steady_clock::now() >= before);
        const auto start = std::chrono::steady_clock::now();
        reactor.run([](vb::reactor& r) -> vb::task<> { co_await r.sleep_for(5ms); }(reactor));
        CHECK(std::chrono::steady_clock::now() >= start + 5ms);
        if (!policy.parks()) CHECK(reactor.stats().parks == 0);
    }
}

TEST_CASE("a descriptor is waited for twice, by two, before and after it is readable") {
    for (const auto policy : policies) {
        vb::reactor reactor({.wait = policy});
        pipe_ends pipe;
        unsigned woken = 0;
        const auto wait = [](vb::reactor& r, int fd, unsigned& count) -> vb::task<> {
            const auto readable = co_await r.wait_readable(fd);
            if (readable) ++count;
        };
        vb::scope scope;
        for (int i = 0; i < 2; ++i) scope.spawn(wait(reactor, pipe.fd[0], woken));
        support::some_turns(reactor);
        CHECK(woken == 0);
        scope.spawn([](vb::reactor& r, pipe_ends& p) -> vb::task<> {
            co_await r.sleep_for(2ms);
            p.put();
        }(reactor, pipe));
        reactor.run(join(scope));
        CHECK(woken == 2);
        reactor.run(wait(reactor, pipe.fd[0], woken)); // still readable
        CHECK(woken == 3);
        pipe.take();
        for (int i = 0; i < 3; ++i) {
            scope.spawn(wait(reactor, pipe.fd[0], woken));
            support::some_turns(reactor);
            std::thread other([&] { pipe.put(); });
            reactor.run(join(scope));
            other.join();
            pipe.take();
        }
        CHECK(woken == 6);
        // The other end closes.
        scope.spawn(wait(reactor, pipe.fd[0], woken));
        ::close(std::exchange(pipe.fd[1], -1));
        reactor.run(join(scope));
        CHECK(woken == 7);
    }
}

TEST_CASE("a descriptor that is closed, and one that is closed and used again after its wait was destroyed") {
    vb::reactor reactor({.wait = vb::wait_policy::park_at_once()});
    std::optional<vb::result<void>> outcome;
    const auto wait = [](vb::reactor& r, int fd, std::optional<vb::result<void>>& out) -> vb::task<> {
        out = co_await r.wait_readable(fd);
    };
    int closed;
    reactor.poll().value(); // its own descriptors are made by now, and take no number that is free below
    {
        pipe_ends pipe;
        closed = pipe.fd[0];
    }
    for (const int fd : {closed, -1}) {
        outcome.reset();
        reactor.run(wait(reactor, fd, outcome));
        REQUIRE((outcome && !*outcome));
        CHECK(outcome->error().code() == std::error_code(EBADF, std::system_category()));
        CHECK(std::string_view(outcome->error().verb()) != "");
    }
    for (int round = 0; round < 50; ++round) {
        pipe_ends first;
        const int number = first.fd[0];
        {
            support::children children;
            for (int i = 0; i < 2; ++i) children.spawn(wait(reactor, number, outcome));
            if (round % 2 == 0) support::some_turns(reactor);
            if (round % 3 == 0) first.put(); // ready while it is destroyed
            outcome.reset();
        }
        first.close_both();
        pipe_ends second;
        CHECK(second.fd[0] == number);
        vb::scope scope;
        scope.spawn(wait(reactor, second.fd[0], outcome));
        support::some_turns(reactor);
        CHECK(!outcome);
        second.put();
        reactor.run(join(scope));
        CHECK((outcome && *outcome));
    }
}

TEST_CASE("yield lets everybody else go first") {
    vb::reactor reactor;
    std::vector<int> order;
    const auto turns = [](vb::reactor& r, int number, std::vector<int>& out) -> vb::task<> {
        for (int i = 0; i < 3; ++i) {
            out.push_back(number);
            co_await r.yield();
        }
    };
    vb::scope scope;
    for (int i = 0; i < 3; ++i) scope.spawn(turns(reactor, i, order));
    reactor.run(join(scope));
    CHECK(order == std::vector{0, 1, 2, 0, 1, 2, 0, 1, 2});
}

TEST_CASE("coroutines that never rest starve neither timers nor descriptors nor posted functions") {
    for (const auto policy : policies) {
        vb::reactor reactor({.wait = policy});
        pipe_ends pipe;
        bool slept = false, readable = false, called = false;
        vb::scope scope;
        for (int i = 0; i < 2; ++i)
            scope.spawn([](vb::reactor& r, bool& a, bool& b, bool& c) -> vb::task<> {
                while (!a || !b || !c) co_await r.yield();
            }(reactor, slept, readable, called));
        scope.spawn([](vb::reactor& r, bool& flag) -> vb::task<> {
            co_await r.sleep_for(3ms);
            flag = true;
        }(reactor, slept));
        scope.spawn([](vb::reactor& r, int fd, bool& flag) -> vb::task<> {
            const auto got = co_await r.wait_readable(fd);
            flag = got.has_value();
        }(reactor, pipe.fd[0], readable));
        std::thread other([&] {
            pipe.put();
            reactor.post([&] { called = true; });
        });
        reactor.run(join(scope));
        other.join();
        CHECK((slept && readable && called));
    }
}

TEST_CASE("poll is one turn, and never blocks") {
    vb::reactor reactor({.wait = vb::wait_policy::park_at_once()});
    std::vector<int> order;
    vb::scope scope;
    scope.spawn(sleep_then_note(reactor, 1h, 1, order));
    scope.spawn([](vb::reactor& r, std::vector<int>& out) -> vb::task<> {
        for (int i = 0;; ++i) {
            out.push_back(i);
            co_await r.yield();
        }
    }(reactor, order));
    CHECK(order.size() == 1);
    for (const unsigned budget : {0u, 1u, 5u}) {
        const auto before = order.size();
        const auto turns = reactor.stats().turns;
        // Who is ready is resumed; again in the same turn only within the budget.
        const unsigned resumed = std::max(budget, 1u);
        CHECK(reactor.poll(budget).value() == resumed);
        CHECK(order.size() == before + resumed);
        CHECK(reactor.stats().turns == turns + 1);
    }
    CHECK(reactor.stats().parks == 0);
}

TEST_CASE("what a foreign coroutine throws leaves run, after the others of its batch were resumed") {
    vb::reactor reactor;
    std::vector<int> order;
    vb::scope scope;
    const auto note = [](vb::reactor& r, int number, std::vector<int>& out) -> vb::task<> {
        co_await r.yield();
        out.push_back(number);
    };
    scope.spawn(note(reactor, 1, order));
    const thrower one = yield_and_throw(reactor), two = yield_and_throw(reactor);
    scope.spawn(note(reactor, 2, order));
    bool destroyed = false;
    CHECK_THROWS_WITH(reactor.run([](vb::reactor& r, bool& gone) -> vb::task<> {
        const set_at_end end{gone};
        co_await r.sleep_for(1h);
    }(reactor, destroyed)),
                      "from a foreign coroutine");
    CHECK(destroyed);
    CHECK(order == std::vector{1, 2});
    reactor.run(note(reactor, 3, order));
    const thrower three = yield_and_throw(reactor);
    CHECK_THROWS_WITH(reactor.poll(), "from a foreign coroutine");
    CHECK(reactor.poll());
}

TEST_CASE("what a posted function throws leaves run, after the other functions were called") {
    vb::reactor reactor({.wait = vb::wait_policy::park_at_once()});
    std::vector<int> order;
    reactor.post([&] { order.push_back(1); });
    reactor.post([] { throw std::runtime_error("posted"); });
    reactor.post([&] {
        order.push_back(2);
        reactor.post([&] { order.push_back(3); });
    });
    CHECK_THROWS_WITH(reactor.run([](vb::reactor& r) -> vb::task<> { co_await r.sleep_for(1h); }(reactor)), "posted");
    CHECK(order == std::vector{1, 2});
    support::some_turns(reactor);
    CHECK(order == std::vector{1, 2, 3});
}

TEST_CASE("a queue without a channel works under spin_forever") {
    VERBENA_REQUIRE_DEVICE(device);
    const auto domain = vb::protection_domain::create(device).value();
    std::array<vb::poll_slot, 1> slots;
    for (const auto policy : {vb::wait_policy::park_at_once(), vb::wait_policy::spin_then_park(20us)}) {
        const auto cq = vb::completion_queue::create(device, 64).value();
        vb::reactor reactor({.wait = policy});
        support::check_failure(reactor.attach(cq, slots).error(), vb::errc::invalid_argument);
    }
    const auto cq = vb::completion_queue::create(device, 64).value();
    vb::reactor reactor({.wait = vb::wait_policy::spin_forever()});
    reactor.attach(cq, slots).value();
    auto left = support::make_pair_end(domain, cq, support::pair_options());
    auto right = support::make_pair_end(domain, cq, support::pair_options());
    support::connect(left, right);
    const auto memory = vb::memory_region::allocate(domain, 4096).value();
    support::ending_log log;
    vb::scope scope;
    for (std::size_t i = 0; i < 10; ++i)
        scope.spawn(support::receive(right, memory.slice(i * message_bytes, message_bytes), log));
    for (int i = 0; i < 10; ++i) scope.spawn(support::transmit(left, memory.slice(2048, message_bytes), log));
    reactor.run(join(scope));
    CHECK(log.successes == 20);
}

TEST_CASE("several queues on one channel, with the events of all waiting at once") {
    VERBENA_REQUIRE_DEVICE(device);
    const auto domain = vb::protection_domain::create(device).value();
    constexpr std::size_t count = 3;
    std::array<vb::poll_slot, 1> slots; // one for all, and smaller than what is there
    vb::reactor reactor({.wait = vb::wait_policy::park_at_once(), .safety_repoll = 0ms});
    const auto channel = vb::completion_channel::create(device).value();
    const auto memory = vb::memory_region::allocate(domain, 4096).value();
    std::vector<vb::completion_queue> queues;
    std::vector<vb::queue_pair> pairs;
    std::vector<std::unique_ptr<support::hand_end>> peers;
    for (std::size_t i = 0; i < count; ++i) {
        queues.push_back(vb::completion_queue::create(device, 64, {.channel = channel}).value());
        reactor.attach(queues[i], slots).value();
        pairs.push_back(support::make_pair_end(domain, queues[i], support::pair_options()));
        peers.push_back(std::make_unique<support::hand_end>(domain));
        support::connect(pairs[i], peers[i]->qp);
    }
    for (int round = 0; round < 20; ++round) {
        support::ending_log log;
        vb::scope scope;
        for (std::size_t i = 0; i < count; ++i)
            for (std::size_t k = 0; k < 2; ++k)
                scope.spawn(support::receive(pairs[i], memory.slice((2 * i + k) * message_bytes, message_bytes), log));
        // The reactor sleeps while another thread fills all queues; then only the events can wake it.
        const auto parks = reactor.stats().parks;
        std::thread other([&] {
            for (std::size_t i = 0; i < count; ++i)
                for (int k = 0; k < 2; ++k)
                    if (!peers[i]->send(message_bytes).ok()) throw std::runtime_error("a send failed");
        });
        reactor.run(join(scope));
        other.join();
        CHECK(log.successes == 2 * count);
        CHECK(reactor.stats().parks >= parks);
    }
    CHECK(reactor.stats().rescued == 0);
    // One leaves; the others go on.
    reactor.detach(queues[0]).value();
    support::ending_log log;
    vb::scope scope;
    for (std::size_t i = 1; i < count; ++i) {
        scope.spawn(support::receive(pairs[i], memory.slice(i * message_bytes, message_bytes), log));
        peers[i]->qp.post(vb::send_request{peers[i]->buffer.slice(0, message_bytes)}, 1).value();
    }
    reactor.run(join(scope));
    CHECK(log.successes == count - 1);
}

TEST_CASE("completions that came before their queue was attached go to the foreign function") {
    VERBENA_REQUIRE_DEVICE(device);
    const auto domain = vb::protection_domain::create(device).value();
    vb::reactor reactor({.wait = vb::wait_policy::park_at_once(), .safety_repoll = 0ms});
    const auto channel = vb::completion_channel::create(device).value();
    const auto cq = vb::completion_queue::create(device, 64, {.channel = channel}).value();
    auto qp = support::make_pair_end(domain, cq, support::pair_options());
    support::hand_end peer(domain);
    support::connect(qp, peer.qp);
    const auto memory = vb::memory_region::allocate(domain, message_bytes).value();
    for (std::uint64_t i = 0; i < 3; ++i) qp.post(vb::recv_request{memory.slice()}, 100 + i).value();
    for (int i = 0; i < 2; ++i) CHECK(peer.send().ok());
    std::array<vb::poll_slot, 1> slots;
    std::vector<std::uint64_t> seen;
    reactor.attach(cq, slots, {.foreign = [&](const vb::work_completion& done) { seen.push_back(done.wr_id()); }})
        .value();
    peer.qp.post(vb::send_request{peer.buffer.slice(0, message_bytes)}, 1).value();
    reactor.run([](vb::reactor& r, std::vector<std::uint64_t>& ids) -> vb::task<> {
        while (ids.size() < 3) co_await r.sleep_for(1ms);
    }(reactor, seen));
    CHECK(seen == std::vector<std::uint64_t>{100, 101, 102});
    CHECK(reactor.stats().foreign == 3);
}

TEST_CASE("a queue that is never empty starves neither timers nor descriptors") {
    VERBENA_REQUIRE_DEVICE(device);
    const support::deadline allow(300s);
    const auto domain = vb::protection_domain::create(device).value();
    for (const auto policy : {vb::wait_policy::park_at_once(), vb::wait_policy::spin_forever()}) {
        support::engine engine(device, policy);
        support::wire wire(domain, engine);
        const auto memory =
            vb::memory_region::allocate(domain, 4096, vb::access_flags::local_write | vb::access_flags::remote_write)
                .value();
        pipe_ends pipe;
        bool slept = false, readable = false;
        std::uint64_t writes = 0;
        vb::scope scope;
        for (std::size_t i = 0; i < 16; ++i)
            scope.spawn([](vb::queue_pair& qp, const vb::memory_region& m, std::size_t at, bool& a, bool& b,
                           std::uint64_t& count) -> vb::task<> {
                while (!a || !b) {
                    const auto done = co_await qp.write(m.slice(at, 64), m.remote(2048 + at, 64));
                    if (!done) throw std::runtime_error(done.error().message());
                    ++count;
                }
            }(i % 2 == 0 ? wire.left : wire.right, memory, i * 64, slept, readable, writes));
        scope.spawn([](vb::reactor& r, bool& flag) -> vb::task<> {
            for (int i = 0; i < 10; ++i) co_await r.sleep_for(2ms);
            flag = true;
        }(engine.reactor, slept));
        scope.spawn([](vb::reactor& r, int fd, bool& flag) -> vb::task<> {
            const auto got = co_await r.wait_readable(fd);
            flag = got.has_value();
        }(engine.reactor, pipe.fd[0], readable));
        std::thread other([&] { pipe.put(); });
        engine.reactor.run(join(scope));
        other.join();
        CHECK((slept && readable && writes > 0));
        CHECK(engine.reactor.stats().outstanding == 0);
    }
}
