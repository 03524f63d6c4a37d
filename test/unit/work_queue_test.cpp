// Invariant: the completion of a send completes the unsignaled sends before it and no others, every request gives its
// place back once, and no run of unsignaled sends can use up the room.

#include "support/catch.hpp"

#include "reactor_core.hpp"
#include "work_queue.hpp"

#include <verbena/verbs/work_request.hpp>

#include <array>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

namespace vb = verbena;
using vb::detail::entry_kind;
using vb::detail::operation_phase;
using vb::detail::work_queue;

namespace {

struct operation : vb::detail::operation_state {
    explicit operation(std::uint16_t count = 1) : operation_state(nullptr, count) {
        describe(request_, vb::work_request{});
        for (auto* last = &request_; auto& other : others) {
            describe(other, vb::work_request{});
            last = last->link(other);
        }
    }
    std::array<vb::detail::device_request, 2> others; ///< of a chain of up to three
    using operation_state::outcome_;
    using operation_state::phase_;
    using operation_state::succeeded;
    using operation_state::take_failure;
};

struct fixture {
    vb::detail::reactor_core reactor{vb::reactor_options{}};
    work_queue queue{nullptr, true, 8};

    fixture() { REQUIRE(queue.enter(reactor)); }
    ~fixture() { queue.leave(reactor); }

    std::uint64_t post(bool signaled, entry_kind kind = entry_kind::quiet, operation* o = nullptr) {
        queue.append(reactor, {kind, signaled, o});
        queue.take(1);
        return queue.number();
    }
    bool complete(std::uint64_t number, ibv_wc_status status = IBV_WC_SUCCESS) {
        ibv_wc wc{};
        wc.wr_id = number;
        wc.status = status;
        work_queue& found = reactor.work_queues.find(number);
        if (!found.complete_next(reactor, wc)) return found.complete(reactor, wc);
        --reactor.outstanding; // which a batch does for all of these at once
        return true;
    }
};

} // namespace

TEST_CASE("work queue: a completion completes the unsignaled before it") {
    fixture f;
    f.post(false);
    f.post(false);
    const auto third = f.post(true);
    f.post(false);
    const auto fifth = f.post(true);
    const auto begin = f.queue.next() - 5;
    CHECK(f.queue.room() == 3);
    CHECK(!f.queue.done(begin + 1));
    CHECK(f.complete(third));
    CHECK(f.queue.room() == 6);
    CHECK(f.reactor.outstanding == 2);
    CHECK(f.queue.done(begin + 3));
    CHECK(!f.queue.done(begin + 4));
    CHECK(f.complete(fifth));
    CHECK(f.queue.empty());
    CHECK(f.queue.room() == 8);
    CHECK(f.queue.done(begin + 5));
    CHECK(f.reactor.outstanding == 0);
}

// A device does not do that, and nothing is lost if one does.
TEST_CASE("work queue: completions of signaled requests come each for itself") {
    fixture f;
    operation o, p;
    const auto first = f.post(true, GENERATE(entry_kind::quiet, entry_kind::awaited), &o);
    const auto second = f.post(true);
    const auto third = f.post(true, entry_kind::awaited, &p);
    CHECK(f.complete(second));
    CHECK(!f.complete(second));
    CHECK(f.queue.room() == 5); // its place is one of the ring, and comes back with the first's
    CHECK(f.queue.outstanding() == 2);
    CHECK(!f.queue.in_order());
    CHECK(!f.queue.done(f.queue.next() - 2));
    CHECK(f.complete(third));
    CHECK(f.queue.outstanding() == 1);
    CHECK(!f.queue.empty());
    CHECK(f.complete(first));
    CHECK(f.queue.in_order());
    CHECK(f.queue.empty());
    CHECK(f.queue.room() == 8);
    CHECK(f.reactor.outstanding == 0);
}

TEST_CASE("work queue: one whose completion is held back keeps the places behind it") {
    for (const std::uint32_t capacity : {1u, 3u, 8u}) {
        fixture f;
        work_queue queue(nullptr, true, capacity);
        REQUIRE(queue.enter(f.reactor));
        const auto post = [&] {
            queue.append(f.reactor, {entry_kind::quiet, true});
            queue.take(1);
            return queue.number();
        };
        for (int round = 0; round < 10; ++round) {
            const auto held = post();
            while (queue.room() > 0) CHECK(f.complete(post()));
            CHECK(queue.outstanding() == 1);
            CHECK(f.complete(held));
            CHECK(queue.empty());
            CHECK(queue.room() == capacity);
        }
        queue.leave(f.reactor);
    }
}

TEST_CASE("work queue: what has completed out of order is not ended once more with the rest") {
    fixture f;
    operation first, second, third;
    f.post(true, entry_kind::awaited, &first);
    const auto early = f.post(true, entry_kind::awaited, &second);
    f.post(true, entry_kind::awaited, &third);
    CHECK(f.complete(early));
    second.unlink();
    f.queue.end_all(f.reactor, vb::detail::completion_outcome(vb::make_code(vb::errc::connection_reset), ""));
    CHECK(first.linked());
    CHECK_FALSE(second.linked());
    CHECK(third.linked());
    CHECK(f.queue.empty());
    CHECK(f.queue.in_order());
    CHECK(f.queue.room() == 8);
    CHECK(f.reactor.outstanding == 0);
}

TEST_CASE("work queue: half of the places may go unsignaled, no more") {
    for (const auto& [capacity, run] : {std::pair{1u, 0u}, {2u, 0u}, {3u, 0u}, {4u, 1u}, {8u, 3u}, {16u, 7u}}) {
        fixture f;
        work_queue queue(nullptr, true, capacity);
        REQUIRE(queue.enter(f.reactor));
        std::uint32_t unsignaled = 0;
        while (!queue.must_signal() && unsignaled <= capacity) {
            queue.append(f.reactor, {entry_kind::quiet, false});
            ++unsignaled;
        }
        CHECK(unsignaled == run);
        queue.append(f.reactor, {entry_kind::quiet, true});
        CHECK(queue.must_signal() == (run == 0));
        // One that was refused tells nothing about those before it.
        queue.revoke(f.reactor);
        CHECK(queue.must_signal());
        // One that is awaited alone is signaled.
        queue.take(unsignaled);
        operation o;
        queue.append(f.reactor, o);
        CHECK(queue.must_signal() == (run == 0));
        queue.leave(f.reactor);
    }
}

TEST_CASE("work queue: a request that was not posted leaves no trace") {
    fixture f;
    operation o;
    const auto first = f.post(true);
    const entry_kind kind = GENERATE(entry_kind::quiet, entry_kind::awaited);
    f.queue.append(f.reactor, {kind, true, &o});
    const auto refused = f.queue.number();
    f.queue.revoke(f.reactor);
    CHECK(!f.complete(refused));
    CHECK(f.queue.outstanding() == 1);
    CHECK(f.queue.room() == 7);
    const auto last = f.post(true);
    CHECK(last == refused); // the device has not heard of that one
    CHECK(f.complete(first));
    CHECK(f.complete(last));
    CHECK(f.reactor.ready.empty());
    CHECK(f.queue.room() == 8);
    CHECK(f.reactor.outstanding == 0);
}

TEST_CASE("work queue: a number is found while it is carried, and is nobody else's before or after") {
    fixture f;
    work_queue other(nullptr, true, 3);
    REQUIRE(other.enter(f.reactor));
    std::set<std::uint64_t> numbers;
    for (int i = 0; i < 100; ++i) {
        const auto number = f.post(true);
        CHECK(numbers.insert(number).second);
        CHECK(!f.complete(number + 1));
        CHECK(f.complete(number));
        CHECK(!f.complete(number));
    }
    operation o;
    const auto theirs = other.append(f.reactor, o);
    CHECK(numbers.insert(theirs).second);
    CHECK(f.reactor.work_queues.ours(theirs));
    CHECK(&f.reactor.work_queues.find(theirs) == &other);
    for (const auto number : numbers)
        if (number != theirs) CHECK(!f.complete(number));
    CHECK(f.complete(theirs));
    CHECK(o.phase_ == operation_phase::ended);

    int anything = 0;
    for (const std::uint64_t number :
         {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 47, ~std::uint64_t{0}, ~std::uint64_t{0} << 48,
          static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(&anything)), theirs ^ std::uint64_t{1} << 48,
          theirs + (std::uint64_t{1} << 33)}) {
        CHECK(!f.reactor.work_queues.ours(number));
        CHECK(!f.complete(number));
    }

    // The next of the same index goes on with the positions, so that what comes late of the last is not taken for its.
    other.leave(f.reactor);
    CHECK(!f.complete(theirs));
    CHECK(!f.complete(theirs + 1));
    work_queue next(nullptr, true, 3);
    REQUIRE(next.enter(f.reactor));
    operation p;
    CHECK(next.append(f.reactor, p) == theirs + 1);
    CHECK(!f.complete(theirs));
    CHECK(f.complete(theirs + 1));
    next.leave(f.reactor);
}

TEST_CASE("work queue: positions pass the 32 bits that a number has for them") {
    fixture f;
    std::set<std::uint64_t> numbers;
    const auto first = f.post(true);
    REQUIRE(f.complete(first));
    std::uint64_t last = first;
    for (int i = 0; i < 200; ++i) {
        const auto held = f.post(true);
        last = f.post(false);
        CHECK(numbers.insert(held).second);
        CHECK(numbers.insert(last).second);
        CHECK(f.complete(held));
        CHECK(!f.complete(held));
        CHECK(f.queue.outstanding() == 1);
        CHECK(f.complete(f.post(true)));
    }
    CHECK(first >> 32 == last >> 32);
    CHECK(last < first);
    CHECK(f.queue.empty());
    CHECK(f.queue.room() == 8);
}

TEST_CASE("work queue: an operation ends with its completion, through the ready list") {
    fixture f;
    operation o;
    o.phase_ = operation_phase::posted;
    const auto entry = f.post(true, entry_kind::awaited, &o);
    CHECK(f.reactor.ready.empty());
    f.complete(entry);
    CHECK(o.phase_ == operation_phase::ended);
    CHECK(o.succeeded());
    CHECK(o.linked());
    CHECK(!f.reactor.ready.empty());
}

TEST_CASE("work queue: a chain ends with its last request, and with the first failure") {
    fixture f;
    operation o(3);
    o.phase_ = operation_phase::posted;
    const auto first = f.post(false, entry_kind::member, &o);
    const auto second = f.post(false, entry_kind::member, &o);
    const auto third = f.post(true, entry_kind::chain, &o);
    f.complete(first, IBV_WC_REM_ACCESS_ERR);
    f.complete(second, IBV_WC_WR_FLUSH_ERR);
    CHECK(o.phase_ == operation_phase::posted);
    CHECK(f.reactor.ready.empty());
    f.complete(third, IBV_WC_WR_FLUSH_ERR);
    CHECK(o.phase_ == operation_phase::ended);
    CHECK(o.take_failure() == vb::errc::access_denied);
    CHECK(f.queue.room() == 8);
}

TEST_CASE("work queue: what is outstanding ends in order, what waits after it") {
    fixture f;
    operation posted, batched, waiting;
    posted.phase_ = operation_phase::posted;
    f.post(true, entry_kind::awaited, &posted);
    f.post(false);
    f.queue.take(1);
    batched.phase_ = operation_phase::batched;
    f.queue.batch.push_back(batched);
    waiting.phase_ = operation_phase::queued;
    f.queue.waiting.push_back(waiting);
    const vb::detail::completion_outcome failure(vb::make_code(vb::errc::connection_reset), "");
    f.queue.end_all(f.reactor, failure);
    CHECK(f.queue.empty());
    CHECK(posted.phase_ == operation_phase::ended);
    CHECK(batched.phase_ == operation_phase::batched);
    f.queue.end_waiting(f.reactor, failure);
    for (operation* o : {&posted, &batched, &waiting}) {
        CHECK(o->phase_ == operation_phase::ended);
        CHECK(o->take_failure() == vb::errc::connection_reset);
        CHECK(o->linked());
    }
    CHECK(f.queue.room() == 8);
    CHECK(f.reactor.outstanding == 0);
}
