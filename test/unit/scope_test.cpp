// No child outlives its scope, none is forgotten by join, and every outcome is given once; a scope does not grow.

#include "support/aborts.hpp"
#include "support/catch.hpp"
#include "support/pause.hpp"
#include "support/running_task.hpp"
#include "support/small_stack.hpp"

#include <verbena/error.hpp>
#include <verbena/event.hpp>
#include <verbena/scope.hpp>
#include <verbena/task.hpp>

#include <coroutine>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

using support::running_task;
using support::tracker;
using verbena::child;
using verbena::event;
using verbena::scope;
using verbena::task;

namespace {

task<int> give(support::pause& here, int value) {
    co_await here.wait();
    co_return value;
}
task<> hold(support::pause& here, tracker) { co_await here.wait(); }
task<> fail(support::pause* here, std::string what) {
    if (here) co_await here->wait();
    throw std::runtime_error(what);
}
task<> join(scope& s) { co_await s.join(); }
template <class T>
task<T> wait(child<T> c) {
    co_return co_await c.wait();
}

struct counted_failure {
    explicit counted_failure(int& alive) : t(alive) {}
    tracker t;
};
task<> fail_counted(int& alive) {
    throw counted_failure(alive);
    co_return;
}

} // namespace

TEST_CASE("a child starts at once and gives its outcome, waited for before or after its end") {
    support::pause here;
    scope s;
    auto early = s.spawn(give(here, 1));
    CHECK(here.waiting() == 1);
    running_task<int> waiting(wait(std::move(early)));
    CHECK_FALSE(waiting.ended());
    here.resume();
    CHECK(waiting.ended());
    CHECK(waiting.get() == 1);

    auto late = s.spawn(give(here, 2));
    here.resume();
    running_task<int> at_once(wait(std::move(late)));
    CHECK(at_once.ended_at_once());
    CHECK(at_once.get() == 2);

    int n = 0;
    auto reference = s.spawn([&n]() -> task<int&> { co_return n; });
    auto moved = s.spawn([]() -> task<std::unique_ptr<int>> { co_return std::make_unique<int>(3); });
    running_task<int&> same(wait(std::move(reference)));
    running_task<std::unique_ptr<int>> three(wait(std::move(moved)));
    CHECK(&same.get() == &n);
    CHECK(*three.get() == 3);
}

TEST_CASE("a callable lives as long as the task that it makes, and no longer") {
    support::pause here;
    int alive = 0;
    std::string seen;
    scope s;
    {
        auto text = std::make_unique<std::string>("long enough not to be in place");
        s.spawn([&seen, &here, text = std::move(text), t = tracker(alive)]() -> task<> {
            co_await here.wait();
            seen = *text;
        });
    }
    CHECK(alive == 1);
    here.resume();
    CHECK(seen == "long enough not to be in place");
    CHECK(alive == 0);
}

TEST_CASE("the frame of a child goes when it ends, its outcome when nobody can ask for it") {
    support::pause here;
    int frames = 0;
    int outcomes = 0;
    scope s;
    auto handle = s.spawn([&]() -> task<std::shared_ptr<tracker>> {
        const tracker frame(frames);
        co_await here.wait();
        co_return std::make_shared<tracker>(outcomes);
    });
    s.spawn([&]() -> task<std::shared_ptr<tracker>> { co_return std::make_shared<tracker>(outcomes); });
    CHECK(outcomes == 0);
    here.resume();
    CHECK(frames == 0);
    CHECK(outcomes == 1);
    handle = {};
    CHECK(outcomes == 0);
}

TEST_CASE("join waits for all children, those spawned meanwhile included") {
    support::pause here;
    support::pause there;
    scope s;
    running_task<void> empty(join(s));
    CHECK(empty.ended_at_once());
    s.spawn([&]() -> task<> {
        co_await here.wait();
        s.spawn(give(there, 1));
    });
    running_task<void> joined(join(s));
    running_task<void> joined_too(join(s));
    here.resume();
    CHECK_FALSE(joined.ended());
    there.resume();
    CHECK(joined.ended());
    CHECK(joined_too.ended());
    joined.get();
    joined_too.get();
}

TEST_CASE("join throws the first exception that no wait has taken") {
    support::pause here;
    scope s;
    auto first = s.spawn(fail(nullptr, "first"));
    auto second = s.spawn(fail(&here, "second"));
    s.spawn(fail(nullptr, "third"));
    s.spawn(fail(nullptr, "fourth"));
    running_task<void> taken(wait(std::move(first)));
    CHECK_THROWS_WITH(taken.get(), "first");
    running_task<void> joined(join(s));
    CHECK_FALSE(joined.ended());
    here.resume();
    CHECK(joined.ended());
    CHECK_THROWS_WITH(joined.get(), "third");
    running_task<void> again(join(s));
    CHECK_NOTHROW(again.get());
    running_task<void> late(wait(std::move(second))); // it was reported by none
    CHECK_THROWS_WITH(late.get(), "second");

    auto kept = s.spawn(fail(nullptr, "kept"));
    s.spawn(fail(nullptr, "dropped"));
    kept = {};
    running_task<void> order(join(s));
    CHECK_THROWS_WITH(order.get(), "kept");
}

TEST_CASE("a scope that is never joined does not collect failures") {
    int alive = 0;
    {
        scope s;
        std::vector<child<>> handles;
        for (int i = 0; i != 5; ++i) s.spawn(fail_counted(alive));
        CHECK(alive == 1);
        for (int i = 0; i != 5; ++i) handles.push_back(s.spawn(fail_counted(alive)));
        CHECK(alive == 6);
        handles.clear();
        CHECK(alive == 1);
    }
    CHECK(alive == 0);
}

TEST_CASE("destroying a scope destroys its children, newest first") {
    struct note {
        std::vector<int>* log;
        int name;
        note(std::vector<int>& l, int n) : log(&l), name(n) {}
        note(const note&) = delete;
        ~note() { log->push_back(name); }
    };
    support::pause here;
    std::vector<int> log;
    auto body = [](support::pause& p, std::vector<int>& l, int name) -> task<> {
        const note n(l, name);
        co_await p.wait();
    };
    {
        scope s;
        for (int i = 1; i != 5; ++i) s.spawn(body(here, log, i));
        here.resume();
        CHECK(log == std::vector<int>{1});
    }
    CHECK(log == std::vector<int>{1, 4, 3, 2});
    CHECK(here.waiting() == 0);
}

TEST_CASE("who waits for a child of a destroyed scope gets errc::closed, a sibling is just destroyed") {
    support::pause here;
    auto s = std::make_unique<scope>();
    auto handle = s->spawn(give(here, 1));
    auto other = s->spawn(give(here, 2));
    auto third = s->spawn(give(here, 3));
    bool sibling_resumed = false;
    s->spawn([&, o = std::move(other)]() -> task<> {
        try {
            co_await o.wait();
        } catch (...) {}
        sibling_resumed = true;
    });
    auto is_closed = [](child<int> c) -> task<bool> {
        try {
            co_await c.wait();
        } catch (const std::system_error& e) {
            co_return e.code() == make_error_condition(verbena::errc::closed);
        }
        co_return false;
    };
    running_task<bool> outside(is_closed(std::move(handle)));
    s.reset();
    CHECK_FALSE(sibling_resumed);
    CHECK(outside.ended());
    CHECK(outside.get());
    running_task<bool> later(is_closed(std::move(third)));
    CHECK(later.ended_at_once());
    CHECK(later.get());
}

TEST_CASE("a sibling that waits for a newer child is destroyed, not resumed") {
    support::pause here;
    bool resumed = false;
    std::optional<child<int>> newer;
    {
        scope s;
        event started;
        s.spawn([&]() -> task<> {
            co_await started.wait();
            try {
                co_await newer->wait();
            } catch (...) {}
            resumed = true;
        });
        newer = s.spawn(give(here, 1));
        started.set();
    }
    CHECK_FALSE(resumed);
}

TEST_CASE("an outcome outlives the scope with its handle") {
    child<std::string> handle;
    {
        scope s;
        handle = s.spawn([]() -> task<std::string> { co_return "kept"; });
    }
    running_task<std::string> kept(wait(std::move(handle)));
    CHECK(kept.get() == "kept");
}

TEST_CASE("the one that is woken by the last child may destroy the scope") {
    support::pause here;
    auto s = std::make_unique<scope>();
    auto handle = s->spawn(give(here, 4));
    auto destroyer = [](std::unique_ptr<scope>& which, child<int> c) -> task<int> {
        const int value = co_await c.wait();
        which.reset();
        co_return value;
    };
    running_task<int> running(destroyer(s, std::move(handle)));
    here.resume();
    CHECK(running.get() == 4);
    CHECK(!s);
}

TEST_CASE("a cancelled or destroyed wait leaves the child running, and it may be waited for again") {
    support::pause here;
    scope s;
    verbena::detail::list<verbena::detail::ready_node> woken;
    auto handle = s.spawn(give(here, 5));
    {
        auto awaiter = handle.wait().operator co_await();
        CHECK_FALSE(awaiter.await_ready());
        awaiter.await_suspend(std::noop_coroutine());
        awaiter.cancel(verbena::errc::stopped, woken);
        CHECK(&woken.pop_front() == &awaiter);
        awaiter.cancel(verbena::errc::stopped, woken);
        CHECK(woken.empty());
    }
    {
        auto joining = s.join().operator co_await();
        joining.await_suspend(std::noop_coroutine());
        joining.cancel(verbena::errc::stopped, woken);
        CHECK(&woken.pop_front() == &joining);
    }
    {
        auto dropped = handle.wait().operator co_await();
        dropped.await_suspend(std::noop_coroutine());
    }
    running_task<int> waiting(wait(std::move(handle)));
    CHECK_FALSE(waiting.ended());
    here.resume();
    CHECK(waiting.get() == 5);
}

TEST_CASE("the exception of a child stays for join if the one that waited is destroyed before it runs") {
    support::pause here;
    scope s;
    verbena::detail::ready_queue queue;
    verbena::detail::exchange_current_queue(&queue);
    {
        running_task<void> waiting(wait(s.spawn(fail(&here, "unseen"))));
        here.resume();
        CHECK_FALSE(queue.empty());
    }
    CHECK(queue.empty());
    verbena::detail::exchange_current_queue(nullptr);
    running_task<void> joined(join(s));
    CHECK_THROWS_WITH(joined.get(), "unseen");
}

TEST_CASE("many children of one scope, at once or one after the other, need no more stack than one") {
    int ended = 0;
    int frames = 0;
    support::on_small_stack([&] {
        auto body = [](scope& s, support::pause& here, int& n, int& f) -> task<> {
            for (; n != 200'000; ++n) {
                if (n % 2 == 0)
                    s.spawn(hold(here, tracker(f)));
                else
                    co_await s.spawn(hold(here, tracker(f))).wait();
            }
        };
        support::pause here;
        scope s;
        running_task<void> running(body(s, here, ended, frames));
        while (here.waiting() != 0) here.resume();
    });
    CHECK(ended == 200'000);
    CHECK(frames == 0);
}

TEST_CASE("breaking the rules of a scope ends the program") {
    CHECK(support::aborts([] {
              scope s;
              auto twice = [](scope& which) -> task<> {
                  auto c = which.spawn([]() -> task<int> { co_return 1; });
                  co_await c.wait();
                  co_await c.wait();
              };
              running_task<void> running(twice(s));
          }) == "verbena: the outcome of a child is taken once\n");
    CHECK(support::aborts([] {
              support::pause here;
              scope s;
              auto c = s.spawn(give(here, 1));
              auto both = [](child<int>& which) -> task<> { co_await which.wait(); };
              running_task<void> first(both(c));
              running_task<void> second(both(c));
          }) == "verbena: a child is waited for by one coroutine\n");
    CHECK(support::aborts([] {
              support::pause here;
              auto s = std::make_unique<scope>();
              s->spawn(give(here, 1));
              running_task<void> joined(join(*s));
              s.reset();
          }) == "verbena: a scope must outlive those who join it\n");
    CHECK(support::aborts([] { (void)child<>().wait(); }) ==
          "verbena: there is no child to wait for: its handle is empty or was moved from\n");
}

// The first one's awaiter lives until the end of the expression.
TEST_CASE("of two waits in one expression the second does not begin when a stop came as the first was over") {
    event first, second;
    scope s;
    verbena::detail::ready_queue queue;
    verbena::detail::exchange_current_queue(&queue);
    std::string ended;
    s.spawn([](event& a, event& b, std::string& how) -> task<> {
        try {
            (co_await a.wait(), co_await b.wait());
            how = "went on";
        } catch (const std::system_error& e) {
            how = e.code() == verbena::errc::stopped ? "stopped" : "failed";
        }
    }(first, second, ended));
    first.set();
    s.request_stop();
    CHECK(ended.empty());
    queue.run(9);
    verbena::detail::exchange_current_queue(nullptr);
    CHECK(ended == "stopped");
}

TEST_CASE("a stop reaches no scope whose join was over before, though its awaiter is still there") {
    const bool at_once = GENERATE(true, false);
    support::pause child, after;
    event never;
    scope outer, over;
    if (!at_once) over.spawn(give(child, 1));
    outer.spawn([](scope& done, support::pause& here) -> task<> {
        (co_await done.join(), co_await here.wait()); // which no stop ends
    }(over, after));
    if (!at_once) child.resume();
    REQUIRE(after.waiting() == 1);
    outer.request_stop();
    bool stopped = false;
    over.spawn([](event& e, bool& told) -> task<> {
        try {
            co_await e.wait();
        } catch (const std::system_error&) {
            told = true;
        }
    }(never, stopped));
    CHECK_FALSE(stopped);
    never.set();
    after.resume();
    running_task<void> joined(join(over));
    joined.get();
    CHECK_FALSE(stopped);
}
