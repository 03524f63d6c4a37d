// What the device still owes when a coroutine or a queue pair is destroyed reaches nobody else: the completion that
// lies there counts, the rest ends when the device has let go, and by then the buffers are quiet (B01, B02, B10).

#include "race_rig.hpp"

using namespace races;

namespace {

vb::task<> read_into(const vb::queue_pair& qp, vb::memory_slice into, vb::remote_slice from, ending_log& log) {
    const auto done = co_await qp.read(into, from);
    log.add(done);
}

bool quiet(std::span<const std::byte> bytes) {
    return std::ranges::all_of(bytes, [](std::byte b) { return b == pattern; });
}

} // namespace

TEST_CASE("a coroutine destroyed while its completion is held leaves its buffer quiet") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices())
        for (const auto& [receives, refused] :
             {std::pair(false, 0), {true, 0}, {false, ENOMEM}, {true, ENOMEM}, {false, EIO}, {true, EIO}}) {
            INFO(name << (receives ? ", a receive" : ", a read") << ", RESET answers " << refused);
            lab l(name);
            l.control.write_late(true);
            l.hold();
            ending_log gone, sibling, sent;
            support::children children;
            const auto spawn = [&](std::size_t into, ending_log& log) {
                children.spawn(receives
                                   ? support::receive(*l.right, l.slice(into), log)
                                   : read_into(*l.right, l.slice(into), l.memory.remote(4096, message_bytes), log));
                if (receives) children.spawn(support::transmit(*l.left, l.slice(8), sent));
            };
            spawn(0, gone);
            spawn(1, sibling);
            l.turns();
            const auto held = l.control.held();
            CHECK(held.size() == (receives ? 4 : 2));
            if (refused != 0) l.control.fail("ibv_modify_qp", {.value = refused, .times = 1000});
            children.destroy(0);
            l.control.forgive();
            std::ranges::fill(l.bytes(0), pattern);
            std::ranges::fill(l.bytes(1), pattern);
            for (const auto& one : held) l.control.release(one.id); // too late for those of the destroyed connection
            l.release();
            l.turns();
            CHECK(quiet(l.bytes(0)));
            CHECK(quiet(l.bytes(1)));
            CHECK(gone.resumes() == 0);
            REQUIRE(sibling.failures.size() == 1);
            CHECK(sibling.failures[0] == vb::errc::connection_reset);
            CHECK(l.reactor.stats().outstanding == 0);
            CHECK(l.reactor.stats().stale == 0);
        }
}

TEST_CASE("an entry is not used again before its completion was polled or its queue pair was reset") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name);
        auto other_left = l.make(), other_right = l.make();
        support::connect(other_left, other_right);
        l.hold();
        ending_log gone, alive;
        support::children children;
        children.spawn(support::receive(*l.right, l.slice(0), gone));
        children.spawn(support::transmit(*l.left, l.slice(1), gone));
        const auto before = l.control.held();
        REQUIRE(before.size() == 2);
        // The coroutines die; what comes for them comes when others have begun.
        children.destroy_oldest_first();
        children.spawn(support::receive(other_right, l.slice(0), alive));
        children.spawn(support::transmit(other_left, l.slice(1), alive));
        for (const auto& held : l.control.held())
            for (const auto& old : before)
                if (held.id != old.id) CHECK(held.wr_id != old.wr_id);
        for (const auto& old : before) l.control.release(old.id);
        l.turns();
        CHECK(alive.resumes() == 0);
        l.release();
        l.turns();
        CHECK(alive.successes == 2);
        CHECK(gone.resumes() == 0);
        CHECK(l.reactor.stats().stale == 0);
    }
}

TEST_CASE("destroying a coroutine whose completion lies unread leaves the connection alone") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name);
        ending_log gone, alive;
        support::children children;
        children.spawn(support::receive(*l.right, l.slice(0), gone));
        children.spawn(support::receive(*l.right, l.slice(1), alive));
        for (int i = 0; i < 2; ++i) children.spawn(support::transmit(*l.left, l.slice(2), alive));
        children.destroy(0); // all is in the queues, nothing was polled
        l.turns();
        CHECK(alive.successes == 3);
        l.reactor.run(exchange(l, alive));
        CHECK(alive.successes == 5);
        CHECK(gone.resumes() == 0);
    }
}

TEST_CASE("destroying a queue pair leaves no completion behind") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices())
        for (const bool unread : {false, true}) {
            INFO(name << (unread ? ", one lies unread" : ""));
            lab l(name);
            ending_log received, sent;
            vb::scope scope;
            for (int i = 0; i < 5; ++i) scope.spawn(support::receive(*l.right, l.slice(0), received));
            if (unread) scope.spawn(support::transmit(*l.left, l.slice(1), sent));
            l.right.reset();
            CHECK(l.reactor.stats().outstanding == 0);
            l.turns();
            CHECK(received.successes == (unread ? 1 : 0));
            CHECK(received.resumes() == 5);
            for (const auto& e : received.failures) {
                CHECK(e == vb::errc::connection_reset);
                CHECK(e.root_cause() == vb::errc::closed);
            }
            CHECK(sent.successes == (unread ? 1 : 0));
            CHECK(l.reactor.stats().stale == 0);
        }
}

TEST_CASE("a queue pair that cannot be reset is destroyed instead, and nobody is told twice") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name);
        ending_log log;
        vb::scope scope;
        for (int i = 0; i < 3; ++i) scope.spawn(support::receive(*l.right, l.slice(0), log));
        l.control.fail("ibv_modify_qp", {.value = ENOMEM, .times = 2}); // the error state and RESET
        l.right.reset();
        l.turns();
        CHECK(log.failures.size() == 3);
        CHECK(l.reactor.stats().stale == 0);
        CHECK(l.reactor.stats().outstanding == 0);
    }
}
