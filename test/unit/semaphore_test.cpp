// A permit is held by one at a time, goes to those who asked in their order, and is never lost.

#include "support/aborts.hpp"
#include "support/catch.hpp"
#include "support/pause.hpp"
#include "support/running_task.hpp"
#include "support/small_stack.hpp"

#include <verbena/semaphore.hpp>
#include <verbena/task.hpp>

#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

using support::running_task;
using verbena::semaphore;
using verbena::task;

namespace {

task<> take(semaphore& s, std::vector<int>& log, int name) {
    co_await s.acquire();
    log.push_back(name);
}

} // namespace

TEST_CASE("permits go out in the order of asking, and nobody overtakes") {
    semaphore s(1);
    std::vector<int> log;
    running_task<void> first(take(s, log, 1));
    CHECK(first.ended_at_once());
    CHECK_FALSE(s.try_acquire());
    running_task<void> second(take(s, log, 2));
    running_task<void> third(take(s, log, 3));
    CHECK_FALSE(s.try_acquire());
    s.release();
    CHECK(log == std::vector<int>{1, 2});
    CHECK_FALSE(s.try_acquire());
    s.release(3);
    CHECK(log == std::vector<int>{1, 2, 3});
    CHECK(s.try_acquire());
    CHECK(s.try_acquire());
    CHECK_FALSE(s.try_acquire());
}

TEST_CASE("a permit that was handed over cannot be taken before its owner runs") {
    semaphore s(0);
    std::vector<int> log;
    verbena::detail::ready_queue queue;
    verbena::detail::exchange_current_queue(&queue);
    {
        running_task<void> waits(take(s, log, 1));
        s.release();
        CHECK_FALSE(s.try_acquire());
        CHECK(queue.run(9) == 1);
    }
    verbena::detail::exchange_current_queue(nullptr);
    CHECK(log == std::vector<int>{1});
}

TEST_CASE("a coroutine that is destroyed takes no permit, and gives on the one it was handed") {
    semaphore s(0);
    std::vector<int> log;
    std::optional<running_task<void>> waiting(std::in_place, take(s, log, 1));
    std::optional<running_task<void>> handed;
    auto destroyer = [](semaphore& which, std::optional<running_task<void>>& victim) -> task<> {
        co_await which.acquire();
        victim.reset();
    };
    running_task<void> first(destroyer(s, handed));
    handed.emplace(take(s, log, 2));
    running_task<void> last(take(s, log, 3));
    waiting.reset();
    s.release(2);
    CHECK(log == std::vector<int>{3});
    CHECK_FALSE(s.try_acquire());
}

TEST_CASE("a cancelled acquire takes no permit; one that was handed it is not cancelled") {
    semaphore s(0);
    verbena::detail::list<verbena::detail::ready_node> woken;
    verbena::detail::ready_queue queue;
    verbena::detail::exchange_current_queue(&queue);
    {
        auto awaiter = s.acquire().operator co_await();
        awaiter.await_suspend(std::noop_coroutine());
        awaiter.cancel(verbena::errc::stopped, woken);
        CHECK(&woken.pop_front() == &awaiter);
        s.release();
        CHECK(queue.empty());
    }
    CHECK(s.try_acquire());
    CHECK_FALSE(s.try_acquire());
    {
        auto awaiter = s.acquire().operator co_await();
        awaiter.await_suspend(std::noop_coroutine());
        s.release();
        awaiter.cancel(verbena::errc::stopped, woken);
        CHECK(woken.empty());
    }
    CHECK(queue.empty());
    CHECK(s.try_acquire());
    verbena::detail::exchange_current_queue(nullptr);
}

TEST_CASE("a million handovers between two coroutines need no more stack than one") {
    auto worker = [](semaphore& s, int& turns) -> task<> {
        for (int i = 0; i != 500'000; ++i) {
            co_await s.acquire();
            ++turns;
            s.release();
        }
    };
    int turns = 0;
    support::on_small_stack([&] {
        semaphore s(0);
        running_task<void> first(worker(s, turns));
        running_task<void> second(worker(s, turns));
        s.release();
    });
    CHECK(turns == 1'000'000);
}

TEST_CASE("a queue of coroutines that hand one permit on needs no more stack than one") {
    auto pass_on = [](semaphore& s) -> task<> {
        co_await s.acquire();
        s.release();
    };
    bool back = false;
    support::on_small_stack([&] {
        semaphore s(0);
        std::deque<running_task<void>> line;
        for (int i = 0; i != 20'000; ++i) line.emplace_back(pass_on(s));
        s.release();
        back = s.try_acquire();
    });
    CHECK(back);
}

TEST_CASE("destroying a semaphore for which a coroutine waits ends the program") {
    const char* rule = "verbena: a semaphore must outlive those who wait for it\n";
    CHECK(support::aborts([] {
              std::vector<int> log;
              auto s = std::make_unique<semaphore>(0);
              running_task<void> first(take(*s, log, 1));
              s.reset();
          }) == rule);
    CHECK(support::aborts([] {
              std::vector<int> log;
              verbena::detail::ready_queue queue;
              verbena::detail::exchange_current_queue(&queue);
              auto s = std::make_unique<semaphore>(0);
              running_task<void> first(take(*s, log, 1));
              s->release();
              s.reset();
          }) == rule);
}
