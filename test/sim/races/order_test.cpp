// Coroutines go on in the order of their completions, across polls and queues, after the batch was read; what one of
// them does, throws or destroys costs nobody else a completion (B12, B41).

#include "race_rig.hpp"

#include <coroutine>
#include <stdexcept>

using namespace races;

namespace {

/// A coroutine type that is not of this library: what it throws leaves through `resume`.
struct foreign {
    struct promise_type {
        foreign get_return_object() { return foreign{std::coroutine_handle<promise_type>::from_promise(*this)}; }
        std::suspend_never initial_suspend() noexcept { return {}; }
        std::suspend_always final_suspend() noexcept { return {}; }
        void return_void() {}
        void unhandled_exception() { throw; }
    };
    explicit foreign(std::coroutine_handle<promise_type> h) : frame(h) {}
    foreign(const foreign&) = delete;
    foreign& operator=(const foreign&) = delete;
    ~foreign() { frame.destroy(); }

    std::coroutine_handle<promise_type> frame;
};

foreign throw_after_receive(const vb::queue_pair& qp, vb::memory_slice into, bool& got) {
    const auto received = co_await qp.recv(into);
    got = received.has_value();
    throw std::runtime_error("thrown by a foreign coroutine");
}

vb::task<> look_after_receive(lab& l, vb::memory_slice into, std::vector<std::uint64_t>& completions) {
    const auto got = co_await l.right->recv(into);
    completions.push_back(got ? l.reactor.stats().completions : 0);
}

vb::task<> chain_on_each(const vb::queue_pair& first, const vb::queue_pair& second, vb::memory_slice from,
                         ending_log& log) {
    const vb::send_request part{from};
    for (const vb::queue_pair* qp : {&first, &second}) { // both awaiters stand in the same place of the frame
        const auto ended = co_await qp->chain(part, part, part);
        log.add(ended);
    }
}

} // namespace

TEST_CASE("coroutines are resumed in the order of the completions, across polls and queues") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices())
        for (const bool asleep : {false, true})
            for (const std::size_t slots : {1, 3, 32}) {
                INFO(name << ", " << slots << " slots");
                lab l(name, {.slots = slots});
                asleep ? l.complete_asleep() : l.hold();
                std::vector<int> right, left, sends;
                vb::scope scope;
                for (int i = 1; i <= 5; ++i) {
                    scope.spawn(receive_numbered(*l.right, l.slice(0), i, right));
                    scope.spawn(receive_numbered(*l.left, l.slice(1), i, left));
                }
                for (int i = 1; i <= 10; ++i)
                    scope.spawn(send_numbered(i % 2 == 0 ? *l.left : *l.right, l.slice(2), i, sends));
                l.turns();
                CHECK(right.empty());
                if (!asleep) l.release();
                l.finish(scope);
                CHECK(right == numbers(1, 5));
                CHECK(left == numbers(1, 5));
                CHECK(sends == numbers(1, 10));
            }
}

TEST_CASE("queue pairs of one queue are resumed in the order in which it was filled") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name, {.slots = 2});
        l.control.hold(l.receives());
        std::vector<int> order;
        vb::scope scope;
        for (int i = 1; i <= 3; ++i) {
            scope.spawn(receive_numbered(*l.right, l.slice(0), 10 + i, order));
            scope.spawn(receive_numbered(*l.left, l.slice(1), 20 + i, order));
        }
        ending_log log;
        for (int i = 0; i < 3; ++i) {
            scope.spawn(support::transmit(*l.left, l.slice(2), log));
            scope.spawn(support::transmit(*l.right, l.slice(2), log));
        }
        std::vector<std::uint64_t> at_left, at_right;
        for (const auto& held : l.control.held())
            (held.qp_num == l.left->qp_num() ? at_left : at_right).push_back(held.id);
        REQUIRE(at_left.size() == 3);
        REQUIRE(at_right.size() == 3);
        for (const auto id : {at_left[0], at_left[1], at_right[0], at_left[2], at_right[1], at_right[2]})
            CHECK(l.control.release(id));
        l.finish(scope);
        CHECK(order == std::vector{21, 22, 11, 23, 12, 13});
    }
}

TEST_CASE("nobody is resumed while a batch is read") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices())
        for (const std::size_t slots : {1, 32}) {
            INFO(name << ", " << slots << " slots");
            lab l(name, {.slots = slots});
            l.hold();
            std::vector<std::uint64_t> completions;
            ending_log log;
            vb::scope scope;
            for (int i = 0; i < 3; ++i) {
                scope.spawn(look_after_receive(l, l.slice(0), completions));
                scope.spawn(support::transmit(*l.left, l.slice(1), log));
            }
            l.turns();
            l.release();
            l.finish(scope);
            CHECK(completions == std::vector<std::uint64_t>{6, 6, 6});
        }
}

TEST_CASE("an exception of a foreign coroutine costs nobody else of the batch its completion") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices())
        for (const bool fails : {false, true}) {
            INFO(name << (fails ? ", the receive fails" : ""));
            lab l(name);
            auto other_left = l.make();
            auto other_right = l.make();
            support::connect(other_left, other_right);
            l.hold();
            bool got = fails;
            ending_log first, others;
            vb::scope scope;
            const auto thrower =
                throw_after_receive(*l.right, fails ? l.memory.slice(0, 8) : l.slice(0), got); // the message is longer
            scope.spawn(support::transmit(*l.left, l.slice(1), first));
            for (int i = 0; i < 2; ++i) {
                scope.spawn(support::receive(other_right, l.slice(2), others));
                scope.spawn(support::transmit(other_left, l.slice(3), others));
            }
            l.turns();
            l.release();
            CHECK_THROWS_AS(l.reactor.poll(), std::runtime_error);
            CHECK(thrower.frame.done());
            CHECK(got == !fails);
            CHECK(first.resumes() == 1);
            CHECK(first.successes == (fails ? 0 : 1));
            CHECK(others.successes == 4); // in the same turn
            scope.spawn(support::receive(other_right, l.slice(2), others));
            scope.spawn(support::transmit(other_left, l.slice(3), others));
            l.finish(scope);
            CHECK(others.successes == 6);
            CHECK(l.reactor.stats().outstanding == 0);
        }
}

TEST_CASE("a coroutine that is destroyed on the ready list is not resumed, and its connection lives") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices())
        for (const bool next : {true, false}) {
            INFO(name);
            lab l(name);
            l.hold();
            ending_log log, sends;
            support::children children;
            children.spawn([](lab& own, support::children& all, std::size_t victim) -> vb::task<> {
                const auto got = co_await own.right->recv(own.slice(0));
                if (got) all.destroy(victim);
            }(l, children, next ? 1 : 2));
            for (int i = 0; i < 2; ++i) children.spawn(support::receive(*l.right, l.slice(1), log));
            for (int i = 0; i < 3; ++i) children.spawn(support::transmit(*l.left, l.slice(2), sends));
            l.turns();
            l.release();
            l.turns();
            CHECK(log.successes == 1);
            CHECK(log.failures.empty());
            CHECK(sends.successes == 3);
            l.reactor.run(exchange(l, log));
            CHECK(log.successes == 3);
        }
}

TEST_CASE("a chain whose last completion comes first has ended, whatever becomes of the others") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name, {.depth = 4}); // of three requests the second is signaled too
        auto left = l.make(), right = l.make();
        support::connect(left, right);
        ending_log received, chains;
        vb::scope scope;
        for (int i = 0; i < 3; ++i) {
            scope.spawn(support::receive(*l.right, l.slice(0), received));
            scope.spawn(support::receive(right, l.slice(0), received));
        }
        l.control.hold(l.sends());
        scope.spawn(chain_on_each(*l.left, left, l.slice(1), chains));
        const auto held = l.control.held();
        REQUIRE(held.size() == 2);
        l.control.release(held[1].id);
        l.turns();
        CHECK(chains.successes == 1);
        l.left.reset(); // ends what is left of the first chain while the second is under way
        l.release();
        l.finish(scope);
        CHECK(chains.successes == 2);
        CHECK(received.successes == 6);
        CHECK(l.reactor.stats().outstanding == 0);
    }
}
