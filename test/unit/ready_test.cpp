// What is made ready is resumed in that order, exactly once, by whoever runs the thread, and never inside another.

#include "support/catch.hpp"

#include <verbena/detail/continuation.hpp>
#include <verbena/detail/ready.hpp>

#include <functional>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

using namespace verbena::detail;

namespace {

struct waiter : continuation {
    explicit waiter(std::function<void()> f)
        : continuation([](void* self) { static_cast<waiter*>(static_cast<continuation*>(self))->action(); }),
          action(std::move(f)) {
        node.continuation = handle();
    }
    std::function<void()> action;
    ready_node node;
};

} // namespace

TEST_CASE("without a running queue the outermost call resumes all, in order, one after the other") {
    std::vector<int> log;
    waiter third([&] { log.push_back(3); });
    waiter second([&] { log.push_back(2); });
    waiter first([&] {
        resume_soon(second.node);
        resume_soon(third.node);
        log.push_back(1);
    });
    resume_soon(first.node);
    CHECK(log == std::vector<int>{1, 2, 3});
}

TEST_CASE("a queue that runs takes what is made ready, within its budget") {
    std::vector<int> log;
    ready_queue queue;
    REQUIRE(exchange_current_queue(&queue) == nullptr);
    waiter second([&] { log.push_back(2); });
    waiter first([&] {
        log.push_back(1);
        resume_soon(second.node);
    });
    resume_soon(first.node);
    CHECK(log.empty());
    CHECK(queue.run(1) == 1);
    CHECK(log == std::vector<int>{1});
    CHECK(exchange_current_queue(nullptr) == &queue);
    CHECK(queue.run(5) == 1);
    CHECK(log == std::vector<int>{1, 2});
    CHECK(queue.empty());
}

TEST_CASE("a node that is destroyed while it is ready is not resumed") {
    int resumed = 0;
    auto second = std::make_unique<waiter>([&] { ++resumed; });
    waiter first([&] { second.reset(); });
    list<ready_node> both;
    both.push_back(first.node);
    both.push_back(second->node);
    resume_soon(both);
    CHECK(resumed == 0);
}

TEST_CASE("an exception that leaves resume() loses nobody and is thrown at the end") {
    int resumed = 0;
    waiter first([] { throw std::runtime_error("first"); });
    waiter second([&] { ++resumed; });
    waiter third([] { throw std::runtime_error("third"); });
    waiter fourth([&] { ++resumed; });
    auto line_up = [&](list<ready_node>& all) {
        for (waiter* w : {&first, &second, &third, &fourth}) all.push_back(w->node);
    };

    list<ready_node> all;
    line_up(all);
    CHECK_THROWS_WITH(resume_soon(all), "first");
    CHECK(resumed == 2);

    ready_queue queue;
    line_up(all);
    queue.splice(all);
    CHECK_THROWS_WITH(queue.run(3), "first"); // all who are there, whatever the budget
    CHECK(resumed == 4);
    CHECK(queue.empty());

    resume_soon(second.node);
    CHECK(resumed == 5);
}
