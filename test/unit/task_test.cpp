// A task runs its body once, when it is awaited, and gives its outcome to the one that awaits it, in a bounded stack.

#include "support/aborts.hpp"
#include "support/catch.hpp"
#include "support/pause.hpp"
#include "support/running_task.hpp"
#include "support/small_stack.hpp"

#include <verbena/result.hpp>
#include <verbena/task.hpp>

#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

using support::running_task;
using support::tracker;
using verbena::task;

static_assert(!std::is_copy_constructible_v<task<>>);
static_assert(std::is_nothrow_move_constructible_v<task<>>);

namespace {

struct only_moves {
    explicit only_moves(int v) : value(std::make_unique<int>(v)) {}
    std::unique_ptr<int> value;
};

task<> count(int& n) {
    ++n;
    co_return;
}
task<> stop_at(support::pause& here) { co_await here.wait(); }
template <class T>
task<T> give(T value) {
    co_return value;
}
task<only_moves> give_moved(support::pause& here) {
    co_await here.wait();
    co_return only_moves(7);
}
task<int&> give_reference(int& n) { co_return n; }
task<int&&> give_rvalue(int& n) { co_return std::move(n); }
task<> fail(std::string what) {
    throw std::runtime_error(what);
    co_return;
}
task<int> fail_later(support::pause& here) {
    co_await here.wait();
    throw std::runtime_error("later");
}
task<verbena::result<int>> give_error() { co_return verbena::error(verbena::errc::closed, "test"); }

} // namespace

TEST_CASE("a task does nothing before it is awaited, and ends its parameters if it never is") {
    int n = 0;
    int alive = 0;
    {
        auto body = [](int& ran, tracker) -> task<> {
            ++ran;
            co_return;
        };
        task<> t = body(n, tracker(alive));
        CHECK(alive == 1);
        task<> moved = std::move(t);
        CHECK(alive == 1);
        moved = count(n);
        CHECK(alive == 0);
    }
    CHECK(n == 0);
}

TEST_CASE("a task gives values of every kind") {
    int n = 3;
    auto all = [](int& variable) -> task<std::string> {
        co_await count(variable);
        int& same = co_await give_reference(variable);
        ++same;
        int&& moved = co_await give_rvalue(variable);
        ++moved;
        only_moves m = co_await give(only_moves(5));
        auto error = co_await give_error();
        if (error || !(error.error() == verbena::errc::closed)) co_return "no error";
        const bool truth = co_await give(true);
        co_return std::string(co_await give(std::string("a"))) + std::to_string(*m.value + truth);
    };
    running_task<std::string> running(all(n));
    CHECK(running.ended_at_once());
    CHECK(running.get() == "a6");
    CHECK(n == 6);

    support::pause here;
    running_task<only_moves> later(give_moved(here));
    CHECK_FALSE(later.ended());
    here.resume();
    CHECK(later.ended());
    CHECK(*later.get().value == 7);
}

TEST_CASE("an exception goes to the one that awaits, before or after a suspension") {
    running_task<void> now(fail("now"));
    CHECK(now.ended_at_once());
    CHECK_THROWS_WITH(now.get(), "now");

    support::pause here;
    std::string seen;
    auto parent = [](support::pause& p, std::string& text) -> task<> {
        try {
            co_await fail_later(p);
        } catch (const std::runtime_error& e) {
            text = e.what();
        }
        co_await fail("again");
    };
    running_task<void> later(parent(here, seen));
    here.resume();
    CHECK(seen == "later");
    CHECK(later.ended());
    CHECK_THROWS_WITH(later.get(), "again");
}

TEST_CASE("destroying a suspended task destroys its frame and all below it once, innermost first") {
    struct note {
        std::vector<int>* log;
        int level;
        note(std::vector<int>& l, int n) : log(&l), level(n) {}
        note(const note&) = delete;
        ~note() { log->push_back(level); }
    };
    struct nest {
        static task<> at(int level, std::vector<int>& log, support::pause& here) {
            const note n(log, level);
            if (level == 3)
                co_await here.wait();
            else
                co_await at(level + 1, log, here);
        }
    };
    support::pause here;
    std::vector<int> log;
    {
        running_task<void> running(nest::at(1, log, here));
        CHECK(here.waiting() == 1);
    }
    CHECK(log == std::vector<int>{3, 2, 1});
    CHECK(here.waiting() == 0);

    log.clear();
    running_task<void> running(nest::at(1, log, here));
    here.resume();
    CHECK(running.ended());
    CHECK(log == std::vector<int>{3, 2, 1});
}

TEST_CASE("the frame of an awaited task goes at the end of the expression, also when the task has a name") {
    int alive = 0;
    auto hold = [](tracker) -> task<> { co_return; };
    auto parent = [&]() -> task<> {
        task<> named = hold(tracker(alive));
        CHECK(alive == 1);
        co_await std::move(named);
        CHECK(alive == 0);
    };
    running_task<void> running(parent());
    CHECK(running.ended());
}

TEST_CASE("a million awaits of tasks that end at once need no more stack than one") {
    auto loop = [](int& n) -> task<> {
        for (int i = 0; i != 1'000'000; ++i) co_await count(n);
    };
    int n = 0;
    support::on_small_stack([&] { running_task<void> running(loop(n)); });
    CHECK(n == 1'000'000);
}

TEST_CASE("a million awaits of a task that suspends once need no more stack than one") {
    auto loop = [](support::pause& here, int& n) -> task<> {
        for (; n != 1'000'000; ++n) co_await stop_at(here);
    };
    support::pause here;
    int n = 0;
    bool ended = false;
    support::on_small_stack([&] {
        running_task<void> running(loop(here, n));
        while (here.waiting() != 0) here.resume();
        ended = running.ended();
    });
    CHECK(n == 1'000'000);
    CHECK(ended);
}

TEST_CASE("awaiting a task twice ends the program") {
    const std::string rule = "verbena: a task is awaited once, and not after it was moved from\n";
    CHECK(support::aborts([] {
              auto twice = [](int& n) -> task<> {
                  task<> t = count(n);
                  co_await std::move(t);
                  co_await std::move(t); // NOLINT(bugprone-use-after-move)
              };
              int n = 0;
              running_task<void> running(twice(n));
          }) == rule);
    CHECK(support::aborts([] {
              int n = 0;
              task<> t = count(n);
              task<> moved = std::move(t);
              running_task<void> running(std::move(t)); // NOLINT(bugprone-use-after-move)
          }) == rule);
}
