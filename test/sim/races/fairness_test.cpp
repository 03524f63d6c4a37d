// A queue that never runs empty delays everything else by a stated number of turns, however long it goes on (B22).

#include "race_rig.hpp"

#include <functional>
#include <memory>
#include <unistd.h>

#include <sys/eventfd.h>

using namespace races;
using namespace std::chrono_literals;

namespace {

/// The turn after that in which something became ready serves it, and resumes its coroutine, or the next does.
constexpr std::uint64_t most_turns = 2;

// Writes are posted anew as soon as they complete, so that the queue is never empty.
vb::task<> write_always(lab& l, const vb::queue_pair& qp, const bool& over, ending_log& log) {
    while (!over) {
        auto sent = co_await qp.write(l.slice(0), l.memory.remote(4096, message_bytes));
        log.add(sent);
    }
}

} // namespace

TEST_CASE("queues that are always busy delay another one, a timer, a function and a descriptor by two turns") {
    const support::deadline limit(60s);
    constexpr unsigned budget = 8; // less than two busy queues bring in a turn
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name, {.depth = 64, .slots = 8});
        auto third_cq = vb::completion_queue::create(l.device, 64, {.channel = l.channel}).value();
        l.reactor.attach(third_cq, l.slots).value();
        beside other(l, third_cq);
        auto second = support::make_pair_end(l.domain, l.recv_cq, support::pair_options(64));
        auto second_end = support::make_pair_end(l.domain, l.recv_cq, support::pair_options(64));
        support::connect(second, second_end);
        bool over = false;
        ending_log busy;
        vb::scope scope;
        for (int i = 0; i < 64; ++i) {
            scope.spawn(write_always(l, *l.left, over, busy));
            scope.spawn(write_always(l, second, over, busy));
        }
        l.turns();
        const auto turns_until = [&](auto condition) {
            while (!condition()) l.reactor.poll(budget).value();
        };
        for (int i = 0; i < 64; ++i) l.reactor.poll(budget).value(); // what could pile up has
        const auto now = [&] { return l.reactor.stats().turns; };
        const auto waited_by = [&](auto trigger, auto wait, std::uint64_t most = most_turns) {
            std::uint64_t since = 0, until = 0;
            vb::scope one;
            one.spawn([&]() -> vb::task<> {
                co_await wait();
                until = now();
            });
            for (int i = 0; i < 8; ++i) l.reactor.poll(budget).value();
            CHECK(until == 0);
            since = now();
            trigger();
            turns_until([&] { return until != 0; });
            CHECK(until - since <= most);
        };

        l.control.hold(third_cq.native_handle());
        waited_by([&] { l.control.release(third_cq.native_handle()); },
                  [&]() -> vb::task<> {
                      auto both = co_await vb::when_all(other.right.recv(l.slice(1)), other.left.send(l.slice(2)));
                      CHECK(std::get<0>(both).has_value());
                      CHECK(std::get<1>(both).has_value());
                  });

        vb::event posted;
        waited_by([&] { l.reactor.post([&] { posted.set(); }); }, [&]() -> vb::task<> { co_await posted.wait(); });

        std::stop_source stop;
        waited_by([&] { stop.request_stop(); },
                  [&]() -> vb::task<> {
                      vb::event never;
                      auto ended = co_await vb::with_stop(never.wait(), stop.get_token());
                      CHECK_FALSE(ended.has_value());
                  });

        const int descriptor = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        waited_by([&] { CHECK(eventfd_write(descriptor, 1) == 0); },
                  [&]() -> vb::task<> {
                      auto readable = co_await l.reactor.wait_readable(descriptor);
                      CHECK(readable.has_value());
                  },
                  l.reactor.stats().backend == std::string_view("epoll") ? 64 + most_turns : most_turns);
        close(descriptor);

        // A timer is due by the clock; from then on it takes two turns.
        std::uint64_t woken = 0;
        const auto due = std::chrono::steady_clock::now() + 1ms;
        scope.spawn([&]() -> vb::task<> {
            co_await l.reactor.sleep_until(due);
            woken = now();
        });
        std::uint64_t last_before = 0;
        while (woken == 0) {
            if (std::chrono::steady_clock::now() < due) last_before = now();
            l.reactor.poll(budget).value();
        }
        CHECK(woken - last_before <= most_turns + 1);

        CHECK(busy.failures.empty());
        CHECK(busy.successes > 64 * 8);
        over = true;
        l.finish(scope);
    }
}

TEST_CASE("coroutines that never stop being ready keep nobody from their turn") {
    const support::deadline limit(60s);
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name);
        bool over = false;
        vb::scope scope;
        for (int i = 0; i < 1000; ++i)
            scope.spawn([&]() -> vb::task<> {
                while (!over) co_await l.reactor.yield();
            });
        ending_log log;
        vb::scope exchanging;
        exchanging.spawn(exchanges(l, 20, log));
        support::turn_until(l.reactor, [&] { return log.resumes() == 40; });
        over = true;
        l.finish(scope);
        CHECK(log.successes == 40);
    }
}
