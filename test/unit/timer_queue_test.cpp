// Invariant: `expire` calls every due timer exactly once, in the order of (deadline, time of adding), whatever the
// calls add, remove or destroy; `earliest` is the first of those that remain.

#include "support/catch.hpp"
#include "support/manual_clock.hpp"

#include "timer_queue.hpp"

#include <cstddef>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

using namespace std::chrono_literals;
using verbena::detail::time_point;
using verbena::detail::timer_node;
using verbena::detail::timer_queue;

namespace {

struct timer : timer_node {
    int id = 0;
};

time_point at(int milliseconds) { return time_point{std::chrono::milliseconds{milliseconds}}; }

std::vector<int> expired(timer_queue& queue, time_point now, unsigned budget = 1000) {
    std::vector<int> ids;
    queue.expire(now, budget, [&](timer_node& node) { ids.push_back(static_cast<timer&>(node).id); });
    return ids;
}

std::vector<timer> numbered(std::size_t count) {
    std::vector<timer> timers(count);
    for (std::size_t i = 0; i < count; ++i) timers[i].id = static_cast<int>(i);
    return timers;
}

} // namespace

TEST_CASE("timers expire by deadline, and equal deadlines in the order of adding", "[timer]") {
    auto timers = numbered(6);
    timer_queue queue;
    CHECK(queue.empty());
    CHECK_FALSE(queue.earliest());
    const int deadlines[] = {30, 10, 20, 10, 30, 10};
    for (std::size_t i = 0; i < 6; ++i) queue.add(timers[i], at(deadlines[i]));
    CHECK(*queue.earliest() == at(10));
    CHECK(expired(queue, at(9)).empty());
    CHECK(expired(queue, at(10)) == std::vector{1, 3, 5});
    CHECK_FALSE(timers[1].linked());
    CHECK(*queue.earliest() == at(20));
    CHECK(expired(queue, at(30)) == std::vector{2, 0, 4});
    CHECK(queue.empty());
}

TEST_CASE("a thousand equal deadlines stay in order through removals", "[timer]") {
    auto timers = numbered(1000);
    timer_queue queue;
    for (auto& t : timers) queue.add(t, at(5));
    std::vector<int> wanted;
    for (auto& t : timers)
        if (t.id % 3 == 0)
            queue.remove(t);
        else
            wanted.push_back(t.id);
    CHECK(expired(queue, at(5), 100) == std::vector<int>(wanted.begin(), wanted.begin() + 100));
    CHECK(expired(queue, at(5)) == std::vector<int>(wanted.begin() + 100, wanted.end()));
}

TEST_CASE("a budget bounds one call and loses nothing", "[timer]") {
    auto timers = numbered(5);
    timer_queue queue;
    for (auto& t : timers) queue.add(t, at(t.id));
    CHECK(expired(queue, at(9), 2) == std::vector{0, 1});
    CHECK(*queue.earliest() == at(2));
    CHECK(expired(queue, at(9), 0).empty());
    CHECK(expired(queue, at(9), 2) == std::vector{2, 3});
    CHECK(expired(queue, at(9), 2) == std::vector{4});
}

TEST_CASE("adding a timer again moves it", "[timer]") {
    auto timers = numbered(2);
    timer_queue queue;
    queue.add(timers[0], at(1));
    queue.add(timers[1], at(2));
    queue.add(timers[0], at(3));
    CHECK(timers[0].deadline() == at(3));
    CHECK(expired(queue, at(2)) == std::vector{1});
    CHECK(expired(queue, at(3)) == std::vector{0});
    queue.remove(timers[0]);
    CHECK(queue.empty());
}

TEST_CASE("what an expiry removes is not called, due or not", "[timer]") {
    auto timers = numbered(4);
    timer_queue queue;
    for (auto& t : timers) queue.add(t, at(t.id));
    std::vector<int> ids;
    queue.expire(at(2), 10, [&](timer_node& node) {
        ids.push_back(static_cast<timer&>(node).id);
        queue.remove(timers[1]);
        queue.remove(timers[3]);
    });
    CHECK(ids == std::vector{0, 2});
    CHECK(queue.empty());
}

TEST_CASE("an expiry may destroy itself and others", "[timer]") {
    std::vector<std::unique_ptr<timer>> timers;
    timer_queue queue;
    for (int i = 0; i < 6; ++i) {
        timers.push_back(std::make_unique<timer>());
        timers.back()->id = i;
        queue.add(*timers.back(), at(i));
    }
    std::vector<int> ids;
    queue.expire(at(4), 10, [&](timer_node& node) {
        const int id = static_cast<timer&>(node).id;
        ids.push_back(id);
        timers[static_cast<std::size_t>(id)].reset();
        timers[static_cast<std::size_t>(id) + 1].reset(); // due, except the last
    });
    CHECK(ids == std::vector{0, 2, 4});
    CHECK(queue.empty());
}

TEST_CASE("a timer that sets itself anew waits for the next call, behind the others", "[timer]") {
    auto timers = numbered(3);
    timer_queue queue;
    for (auto& t : timers) queue.add(t, at(1));
    std::vector<int> ids;
    auto again = [&](timer_node& node) {
        ids.push_back(static_cast<timer&>(node).id);
        if (ids.back() == 0) queue.add(node, at(0));
    };
    CHECK(queue.expire(at(1), 10, again) == 3);
    CHECK(ids == std::vector{0, 1, 2});
    CHECK(*queue.earliest() == at(0));
    CHECK(queue.expire(at(1), 10, again) == 1);
}

TEST_CASE("an expiry that throws loses only its own timer", "[timer]") {
    auto timers = numbered(3);
    timer_queue queue;
    for (auto& t : timers) queue.add(t, at(1));
    CHECK_THROWS_AS(queue.expire(at(1), 10, [](timer_node&) { throw std::runtime_error("planted"); }),
                    std::runtime_error);
    CHECK(*queue.earliest() == at(1));
    CHECK(expired(queue, at(1)) == std::vector{1, 2});
}

TEST_CASE("a queue may die before its timers, and timers before their queue", "[timer]") {
    auto timers = numbered(100);
    auto first = std::make_unique<timer_queue>();
    for (auto& t : timers) first->add(t, at(t.id * 7 % 31));
    CHECK(expired(*first, at(3), 2).size() == 2); // a heap with depth
    first.reset();
    for (auto& t : timers) CHECK_FALSE(t.linked());

    timer_queue second;
    for (auto& t : timers) second.add(t, at(t.id));
    timers.clear();
    CHECK(second.empty());
}

TEST_CASE("random operations agree with a multimap", "[timer]") {
    constexpr int nodes = 300;
    std::mt19937 random{20240229};
    std::vector<std::unique_ptr<timer>> timers(nodes);
    for (int i = 0; i < nodes; ++i) {
        timers[static_cast<std::size_t>(i)] = std::make_unique<timer>();
        timers[static_cast<std::size_t>(i)]->id = i;
    }
    using model = std::multimap<time_point, int>; // equal keys keep the order of insertion
    model expected;
    std::vector<model::iterator> places(nodes, expected.end());
    timer_queue queue;
    manual_clock clock;
    auto forget = [&](std::size_t i) {
        if (places[i] != expected.end()) expected.erase(std::exchange(places[i], expected.end()));
    };

    bool same = true;
    for (int step = 0; step < 100'000 && same; ++step) {
        const std::size_t i = random() % nodes;
        switch (random() % 8) {
        default: {
            const auto deadline = clock.now() + std::chrono::milliseconds{random() % 50};
            queue.add(*timers[i], deadline);
            forget(i);
            places[i] = expected.emplace(deadline, static_cast<int>(i));
            break;
        }
        case 0:
        case 1:
            queue.remove(*timers[i]);
            forget(i);
            break;
        case 2:
            timers[i] = std::make_unique<timer>();
            timers[i]->id = static_cast<int>(i);
            forget(i);
            break;
        case 3: {
            clock.advance(std::chrono::milliseconds{random() % 4});
            const unsigned budget = random() % 20;
            const auto ids = expired(queue, clock.now(), budget);
            for (const int id : ids) {
                same = same && !expected.empty() && expected.begin()->second == id;
                forget(static_cast<std::size_t>(id));
            }
            same = same && (ids.size() == budget || expected.empty() || expected.begin()->first > clock.now());
            break;
        }
        }
        same = same && queue.empty() == expected.empty();
        if (!expected.empty()) same = same && queue.earliest() == expected.begin()->first;
    }
    CHECK(same);
}

TEST_CASE("a manual clock answers a wait by jumping, and never goes back", "[timer]") {
    manual_clock clock;
    const auto start = clock.now();
    clock.wait_until(start + 5s);
    CHECK(clock.now() == start + 5s);
    clock.wait_until(start);
    CHECK(clock.now() == start + 5s);
    clock.advance(1ms);
    CHECK(clock.now() == start + 5s + 1ms);
}

TEST_CASE("the real clock does not return early", "[timer]") {
    verbena::detail::real_clock clock;
    const auto until = clock.now() + 2ms;
    clock.wait_until(until);
    CHECK(clock.now() >= until);
}
