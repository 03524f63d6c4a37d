// Who waits for an event goes on exactly once after it is set, in order, and is never resumed inside set() of another.

#include "support/aborts.hpp"
#include "support/catch.hpp"
#include "support/running_task.hpp"
#include "support/small_stack.hpp"

#include <verbena/event.hpp>
#include <verbena/task.hpp>

#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

using support::running_task;
using verbena::event;
using verbena::task;

namespace {

task<> wait_for(event& e, std::vector<int>& log, int name) {
    co_await e.wait();
    log.push_back(name);
}

} // namespace

TEST_CASE("an event wakes all in order, and nobody waits while it is set") {
    event e;
    std::vector<int> log;
    CHECK_FALSE(e.is_set());
    running_task<void> first(wait_for(e, log, 1));
    running_task<void> second(wait_for(e, log, 2));
    CHECK(log.empty());
    e.set();
    CHECK(e.is_set());
    CHECK(log == std::vector<int>{1, 2});
    running_task<void> third(wait_for(e, log, 3));
    CHECK(third.ended_at_once());
    e.set();
    e.reset();
    running_task<void> fourth(wait_for(e, log, 4));
    CHECK_FALSE(fourth.ended());
    e.set();
    CHECK(log == std::vector<int>{1, 2, 3, 4});
}

TEST_CASE("who was woken goes on although the event is reset or destroyed before") {
    auto e = std::make_unique<event>();
    std::vector<int> log;
    auto destroyer = [](std::unique_ptr<event>& which) -> task<> {
        co_await which->wait();
        which->reset();
        which.reset();
    };
    running_task<void> first(destroyer(e));
    running_task<void> second(wait_for(*e, log, 2));
    e->set();
    CHECK(first.ended());
    CHECK(log == std::vector<int>{2});
}

TEST_CASE("a waiting or woken coroutine that is destroyed is not resumed") {
    event e;
    std::vector<int> log;
    std::optional<running_task<void>> waiting(std::in_place, wait_for(e, log, 1));
    std::optional<running_task<void>> woken;
    auto destroyer = [](event& which, std::optional<running_task<void>>& victim) -> task<> {
        co_await which.wait();
        victim.reset();
    };
    running_task<void> first(destroyer(e, woken));
    woken.emplace(wait_for(e, log, 2));
    running_task<void> last(wait_for(e, log, 3));
    waiting.reset();
    e.set();
    CHECK(log == std::vector<int>{3});
}

TEST_CASE("a wait is cancelled while it waits, not after it was woken") {
    using verbena::errc;
    event e;
    verbena::detail::list<verbena::detail::ready_node> woken;
    verbena::detail::ready_queue queue;
    verbena::detail::exchange_current_queue(&queue);
    auto awaiter = e.wait().operator co_await();
    awaiter.cancel(errc::stopped, woken);
    CHECK(woken.empty());
    awaiter.await_suspend(std::noop_coroutine());
    awaiter.cancel(errc::stopped, woken);
    CHECK(&woken.pop_front() == &awaiter);
    awaiter.cancel(errc::timed_out, woken);
    e.set();
    CHECK(woken.empty());
    CHECK(queue.empty());
    CHECK(awaiter.cancelled() == errc::stopped);
    CHECK_THROWS_AS(awaiter.await_resume(), std::system_error);

    event other;
    auto second = other.wait().operator co_await();
    second.await_suspend(std::noop_coroutine());
    other.set();
    second.cancel(errc::stopped, woken);
    CHECK(queue.run(9) == 1);
    second.cancel(errc::stopped, woken);
    CHECK(woken.empty());
    CHECK(second.cancelled() == errc{});
    second.await_resume();
    verbena::detail::exchange_current_queue(nullptr);
}

TEST_CASE("two coroutines that wake each other a million times need no more stack than once") {
    auto player = [](event& mine, event& other, int& turns) -> task<> {
        for (int i = 0; i != 500'000; ++i) {
            co_await mine.wait();
            mine.reset();
            ++turns;
            other.set();
        }
    };
    int turns = 0;
    support::on_small_stack([&] {
        event ping;
        event pong;
        running_task<void> first(player(ping, pong, turns));
        running_task<void> second(player(pong, ping, turns));
        ping.set();
    });
    CHECK(turns == 1'000'000);
}

TEST_CASE("a chain of coroutines of which each wakes the next needs no more stack than one") {
    auto link = [](event& mine, event& next) -> task<> {
        co_await mine.wait();
        next.set();
    };
    bool ended = false;
    support::on_small_stack([&] {
        std::deque<event> events(20'001);
        std::deque<running_task<void>> chain;
        for (std::size_t i = 0; i + 1 != events.size(); ++i) chain.emplace_back(link(events[i], events[i + 1]));
        events.front().set();
        ended = events.back().is_set();
    });
    CHECK(ended);
}

TEST_CASE("destroying an event for which a coroutine waits ends the program") {
    CHECK(support::aborts([] {
              std::vector<int> log;
              auto e = std::make_unique<event>();
              running_task<void> first(wait_for(*e, log, 1));
              e.reset();
          }) == "verbena: an event must outlive those who wait for it\n");
}
