// when_all ends once, when all of its elements have, with what each gave or the exception of the first that threw.

#include "support/catch.hpp"
#include "support/pause.hpp"
#include "support/running_task.hpp"
#include "support/small_stack.hpp"

#include <verbena/event.hpp>
#include <verbena/result.hpp>
#include <verbena/semaphore.hpp>
#include <verbena/task.hpp>
#include <verbena/when_all.hpp>

#include <coroutine>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

using support::running_task;
using support::tracker;
using verbena::task;
using verbena::when_all;

namespace {

task<int> give(int value) { co_return value; }
task<int> give_later(support::pause& here, int value) {
    co_await here.wait();
    co_return value;
}
task<int> fail(support::pause* here, std::string what) {
    if (here) co_await here->wait();
    throw std::runtime_error(what);
}
task<> hold(support::pause& here, int& alive) {
    const tracker local(alive);
    co_await here.wait();
}
task<std::unique_ptr<int>> give_moved(int value) { co_return std::make_unique<int>(value); }
task<int&> give_reference(int& value) { co_return value; }
task<verbena::result<int>> give_error() { co_return verbena::error(verbena::errc::closed, "test"); }

// An awaiter that is its own awaitable, and transfers to another coroutine.
struct transfer {
    std::coroutine_handle<> next;
    bool stay = false;
    explicit transfer(std::coroutine_handle<> n) : next(n) {}
    bool await_ready() const noexcept { return false; }
    std::coroutine_handle<> await_suspend(std::coroutine_handle<> self) const noexcept { return next ? next : self; }
    int await_resume() const noexcept { return 8; }
};

struct throws_at_once {
    explicit throws_at_once(int) {}
    bool await_ready() const noexcept { return false; }
    void await_suspend(std::coroutine_handle<>) const { throw std::runtime_error("at once"); }
    void await_resume() const noexcept {}
};

// An awaiter that is made by a free operator, cannot be moved, and knows where it was made.
struct fixed_awaiter {
    fixed_awaiter() noexcept : self(this) {}
    fixed_awaiter(const fixed_awaiter&) = delete;
    bool await_ready() const noexcept { return true; }
    void await_suspend(std::coroutine_handle<>) const noexcept {}
    bool await_resume() const noexcept { return self == this; }
    fixed_awaiter* self;
};
struct fixed {};
fixed_awaiter operator co_await(fixed&&) noexcept { return {}; }

} // namespace

TEST_CASE("when_all gives what each gave, of whatever kind") {
    auto body = [](int& n) -> task<> {
        auto all = co_await when_all(give(1), give_moved(2), give_reference(n), std::suspend_never{}, fixed{},
                                     give_error(), transfer(nullptr), when_all(give(3)));
        static_assert(std::is_same_v<decltype(all), std::tuple<int, std::unique_ptr<int>, int&, std::monostate, bool,
                                                               verbena::result<int>, int, std::tuple<int>>>);
        CHECK(std::get<0>(all) == 1);
        CHECK(*std::get<1>(all) == 2);
        CHECK(&std::get<2>(all) == &n);
        CHECK(std::get<4>(all));
        CHECK(std::get<5>(all).error() == verbena::errc::closed);
        CHECK(std::get<6>(all) == 8);
        CHECK(std::get<0>(std::get<7>(all)) == 3);
        CHECK(co_await when_all() == std::tuple<>());
    };
    int n = 0;
    running_task<void> running(body(n));
    CHECK(running.ended_at_once());
    running.get();
}

TEST_CASE("when_all goes on after the last, whatever the order") {
    support::pause first;
    support::pause second;
    auto body = [](support::pause& a, support::pause& b) -> task<int> {
        auto [x, y, z] = co_await when_all(give_later(a, 100), give_later(b, 20), give(3));
        co_return x + y + z;
    };
    for (const bool reversed : {false, true}) {
        running_task<int> running(body(first, second));
        (reversed ? second : first).resume();
        CHECK_FALSE(running.ended());
        (reversed ? first : second).resume();
        CHECK(running.ended());
        CHECK(running.get() == 123);
    }
}

TEST_CASE("an element may complete another, or transfer, while the elements are being started") {
    support::pause here;
    verbena::event e;
    auto setter = [](verbena::event& which) -> task<> {
        which.set();
        co_return;
    };
    auto body = [&]() -> task<> {
        co_await when_all(e.wait(), setter(e));
        co_await when_all(here.wait(), setter(e), e.wait());
    };
    running_task<void> running(body());
    CHECK_FALSE(running.ended());
    here.resume();
    CHECK(running.ended());
    running.get();
}

TEST_CASE("an exception waits for the others, and the first of them in order is thrown") {
    support::pause here;
    auto body = [](support::pause& p) -> task<> {
        co_await when_all(give_later(p, 1), fail(&p, "second"), fail(nullptr, "third"), throws_at_once(0));
    };
    running_task<void> running(body(here));
    CHECK_FALSE(running.ended());
    here.resume();
    CHECK_FALSE(running.ended());
    here.resume();
    CHECK(running.ended());
    CHECK_THROWS_WITH(running.get(), "second");

    auto thrown = []() -> task<> { co_await when_all(throws_at_once(0), give(1)); };
    running_task<void> at_once(thrown());
    CHECK_THROWS_WITH(at_once.get(), "at once");
}

TEST_CASE("destroying the one that waits destroys the elements") {
    support::pause here;
    verbena::event e;
    verbena::semaphore s(0);
    int alive = 0;
    auto body = [&]() -> task<> { co_await when_all(hold(here, alive), hold(here, alive), e.wait(), s.acquire()); };
    std::optional<running_task<void>> running(std::in_place, body());
    CHECK(alive == 2);
    here.resume();
    CHECK(alive == 1);
    s.release();
    running.reset();
    CHECK(alive == 0);
    CHECK(here.waiting() == 0);
    CHECK(s.try_acquire()); // completed, but its outcome was never taken
}

TEST_CASE("when_all of a vector gives a vector") {
    support::pause here;
    auto body = [](support::pause& p) -> task<int> {
        std::vector<task<int>> tasks;
        tasks.push_back(give(1));
        tasks.push_back(give_later(p, 2));
        tasks.push_back(give(3));
        const std::vector<int> values = co_await when_all(std::move(tasks));
        std::vector<task<>> nothing;
        co_await when_all(std::move(nothing));
        std::vector<task<int>> failing;
        failing.push_back(give_later(p, 1));
        failing.push_back(fail(nullptr, "one of many"));
        int sum = values.at(0) * 100 + values.at(1) * 10 + values.at(2);
        try {
            co_await when_all(std::move(failing));
        } catch (const std::runtime_error&) {
            sum += 1000;
        }
        co_return sum;
    };
    running_task<int> running(body(here));
    here.resume();
    CHECK_FALSE(running.ended());
    here.resume();
    CHECK(running.ended());
    CHECK(running.get() == 1123);
}

TEST_CASE("many when_all, one after the other, need no more stack than one") {
    auto loop = [](support::pause& here, int& n) -> task<> {
        for (; n != 200'000; ++n) {
            if (n % 2 == 0)
                co_await when_all(here.wait(), give(1), give_later(here, 1));
            else
                co_await when_all(give(1), std::suspend_never{});
        }
    };
    support::pause here;
    int n = 0;
    support::on_small_stack([&] {
        running_task<void> running(loop(here, n));
        while (here.waiting() != 0) here.resume();
    });
    CHECK(n == 200'000);
}
