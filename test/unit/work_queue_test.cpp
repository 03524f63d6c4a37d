// Invariant: the completion of a send completes the unsignaled sends before it and no others, every request gives its
// place back once, and no run of unsignaled sends can use up the room.

#include "support/catch.hpp"

#include "reactor_core.hpp"
#include "work_queue.hpp"

#include <verbena/verbs/work_request.hpp>

#include <array>
#include <vector>

namespace vb = verbena;
using vb::detail::entry_kind;
using vb::detail::operation_phase;
using vb::detail::table_entry;
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
    using operation_state::failure;
    using operation_state::outcome_;
    using operation_state::phase_;
    using operation_state::succeeded;
};

struct fixture {
    vb::detail::reactor_core reactor{vb::reactor_options{}};
    work_queue queue{nullptr, true, 8};

    table_entry& post(bool signaled, entry_kind kind = entry_kind::quiet, operation* o = nullptr) {
        table_entry* entry = queue.append(reactor.table, signaled, kind);
        REQUIRE(entry != nullptr);
        queue.take(1);
        entry->operation = o;
        return *entry;
    }
    void complete(table_entry& entry, ibv_wc_status status = IBV_WC_SUCCESS) {
        ibv_wc wc{};
        wc.wr_id = entry.wr_id;
        wc.status = status;
        queue.complete(reactor, entry, wc);
    }
};

} // namespace

TEST_CASE("work queue: a completion completes the unsignaled before it") {
    fixture f;
    f.post(false);
    f.post(false);
    table_entry& third = f.post(true);
    f.post(false);
    table_entry& fifth = f.post(true);
    CHECK(f.queue.room() == 3);
    CHECK(!f.queue.done(1));
    f.complete(third);
    CHECK(f.queue.room() == 6);
    CHECK(f.reactor.table.used() == 2);
    CHECK(f.queue.done(3));
    CHECK(!f.queue.done(4));
    f.complete(fifth);
    CHECK(f.queue.empty());
    CHECK(f.queue.room() == 8);
    CHECK(f.queue.done(5));
    CHECK(f.queue.posted() == 5);
}

TEST_CASE("work queue: completions of signaled requests come each for itself") {
    fixture f;
    table_entry& first = f.post(true);
    table_entry& second = f.post(true);
    f.complete(second); // a device does not do that, and nothing is lost if one does
    CHECK(f.queue.room() == 7);
    CHECK(!f.queue.done(1));
    f.complete(first);
    CHECK(f.queue.room() == 8);
}

TEST_CASE("work queue: half of the places may go unsignaled, no more") {
    for (const auto& [capacity, run] : {std::pair{1u, 0u}, {2u, 0u}, {3u, 0u}, {4u, 1u}, {8u, 3u}, {16u, 7u}}) {
        fixture f;
        work_queue queue(nullptr, true, capacity);
        std::uint32_t unsignaled = 0;
        while (!queue.must_signal() && unsignaled <= capacity) {
            queue.append(f.reactor.table, false, entry_kind::quiet);
            ++unsignaled;
        }
        CHECK(unsignaled == run);
        table_entry* signaled = queue.append(f.reactor.table, true, entry_kind::quiet);
        CHECK(queue.must_signal() == (run == 0));
        // One that was refused tells nothing about those before it.
        queue.revoke(f.reactor, *signaled);
        CHECK(queue.must_signal());
    }
}

TEST_CASE("work queue: a request that was not posted leaves no trace") {
    fixture f;
    table_entry& first = f.post(true);
    table_entry* refused = f.queue.append(f.reactor.table, true, entry_kind::quiet);
    table_entry& last = f.post(true);
    const auto number = refused->wr_id;
    f.queue.revoke(f.reactor, *refused);
    CHECK(f.reactor.table.find(number) == nullptr);
    CHECK(first.next == &last);
    CHECK(last.previous == &first);
    CHECK(f.queue.last() == &last);
    f.complete(first);
    f.complete(last);
    CHECK(f.queue.room() == 8);
    CHECK(f.reactor.table.used() == 0);
}

TEST_CASE("work queue: an operation ends with its completion, through the ready list") {
    fixture f;
    operation o;
    o.phase_ = operation_phase::posted;
    table_entry& entry = f.post(true, entry_kind::awaited, &o);
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
    table_entry& first = f.post(false, entry_kind::member, &o);
    table_entry& second = f.post(false, entry_kind::member, &o);
    table_entry& third = f.post(true, entry_kind::chain, &o);
    f.complete(first, IBV_WC_REM_ACCESS_ERR);
    f.complete(second, IBV_WC_WR_FLUSH_ERR);
    CHECK(o.phase_ == operation_phase::posted);
    CHECK(f.reactor.ready.empty());
    f.complete(third, IBV_WC_WR_FLUSH_ERR);
    CHECK(o.phase_ == operation_phase::ended);
    CHECK(o.failure() == vb::errc::access_denied);
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
    for (const operation* o : {&posted, &batched, &waiting}) {
        CHECK(o->phase_ == operation_phase::ended);
        CHECK(o->failure() == vb::errc::connection_reset);
        CHECK(o->linked());
    }
    CHECK(f.queue.room() == 8);
    CHECK(f.reactor.table.used() == 0);
}
