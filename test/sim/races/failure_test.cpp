// Of a failed completion only wr_id, status, qp_num and vendor_err are believed, and a wr_id only if this reactor
// carries it now: the owner is told once, and nobody else is touched (B14, B15).

#include "race_rig.hpp"

#include <cstring>

using namespace races;

namespace {

void to_error(const vb::queue_pair& qp) {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_ERR;
    support::require_zero(ibv_modify_qp(qp.native_handle(), &attributes, IBV_QP_STATE), "ERR");
}

/// Two queue pairs posted to by hand whose completions come into the queues of the lab.
struct by_hand {
    explicit by_hand(lab& l) : left(l.make()), right(l.make()) { support::connect(left, right); }
    vb::queue_pair left;
    vb::queue_pair right;
};

} // namespace

TEST_CASE("a failed completion is its owner's, whatever its other fields say") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name);
        auto bystander = l.make(), peer = l.make();
        support::connect(bystander, peer);
        std::memset(static_cast<void*>(l.slots.data()), 0xa5, l.slots.size() * sizeof(vb::poll_slot));
        ending_log bad, waiting, fallen;
        vb::scope scope;
        scope.spawn(support::receive(bystander, l.slice(0), waiting));
        scope.spawn(support::receive(*l.left, l.slice(1), fallen));
        auto nowhere = l.memory.remote(0, message_bytes);
        nowhere.rkey ^= 0x5500;
        scope.spawn([](lab& own, vb::remote_slice to, ending_log& log) -> vb::task<> {
            const auto done = co_await own.left->write(own.slice(2), to);
            log.add(done);
        }(l, nowhere, bad));
        l.turns();
        REQUIRE(bad.failures.size() == 1);
        CHECK(bad.failures[0] == vb::errc::access_denied);
        CHECK(bad.failures[0].vendor_error() == 0x80U + IBV_WC_REM_ACCESS_ERR);
        CHECK(bad.failures[0].qp_num() == l.left->qp_num());
        CHECK(fallen.failures.size() == 1);
        CHECK(waiting.resumes() == 0);
        CHECK(l.reactor.stats().outstanding == 1);
        ending_log sent;
        scope.spawn(support::transmit(peer, l.slice(3), sent));
        l.finish(scope);
        CHECK(waiting.successes == 1);
        CHECK(sent.successes == 1);
    }
}

TEST_CASE("the failures of unsignaled sends resume nobody, and their room comes back") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name); // the right side posts no receive: nothing can complete
        ending_log quiet, awaited;
        vb::scope scope;
        for (int i = 0; i < 3; ++i)
            scope.spawn([](lab& own, ending_log& log) -> vb::task<> {
                const auto posted = co_await own.left->send(own.slice(0), {.signaled = false});
                log.add(posted);
            }(l, quiet));
        scope.spawn(support::transmit(*l.left, l.slice(1), awaited));
        CHECK(quiet.successes == 3);
        CHECK(l.reactor.stats().outstanding == 4);
        to_error(*l.left);
        l.finish(scope);
        CHECK(quiet.resumes() == 3);
        REQUIRE(awaited.failures.size() == 1);
        CHECK(awaited.failures[0] == vb::errc::connection_reset);
        const auto stats = l.reactor.stats();
        CHECK(stats.completions == 4);
        CHECK(stats.outstanding == 0);
        CHECK(stats.stale == 0);
        CHECK(stats.foreign == 0);
    }
}

TEST_CASE("completions that are nobody's are handed on or counted, never followed") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices())
        for (const bool hand_on : {false, true}) {
            INFO(name);
            lab l(name, {.attach = false});
            std::vector<std::uint64_t> seen;
            vb::attach_options with;
            if (hand_on) with.foreign = [&](const vb::work_completion& done) { seen.push_back(done.wr_id()); };
            l.attach(with);
            by_hand other(l);
            int local = 0;
            const std::vector<std::uint64_t> ids{0,
                                                 1,
                                                 ~std::uint64_t{0},
                                                 reinterpret_cast<std::uintptr_t>(&local),
                                                 reinterpret_cast<std::uintptr_t>(&l),
                                                 std::uint64_t{1} << 63};
            ending_log log;
            vb::scope scope;
            for (const auto id : ids) {
                other.left.post(vb::send_request{.local = l.slice(0), .signaled = false}, id).value();
                scope.spawn(support::receive(*l.right, l.slice(1), log));
                scope.spawn(support::transmit(*l.left, l.slice(2), log));
            }
            to_error(other.left);
            l.finish(scope);
            CHECK(log.successes == 2 * ids.size());
            CHECK(l.reactor.stats().foreign == ids.size());
            CHECK(l.reactor.stats().stale == 0);
            CHECK(seen == (hand_on ? ids : std::vector<std::uint64_t>{}));
        }
}

TEST_CASE("a completion of an operation that has ended is counted, and not the new owner's") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name);
        by_hand other(l);
        ending_log log;
        l.control.hold(l.sends());
        vb::scope scope;
        const auto send = [&] {
            scope.spawn(support::receive(*l.right, l.slice(0), log));
            scope.spawn(support::transmit(*l.left, l.slice(1), log));
            return l.control.held().back();
        };
        const auto first = send();
        l.control.release(first.id);
        l.turns();
        CHECK(log.successes == 2);
        const auto second = send(); // most likely in the same table entry
        CHECK(second.wr_id != first.wr_id);
        // A generation that is over, one that will come, and one of an entry that is free.
        for (const auto id : {first.wr_id, first.wr_id + (std::uint64_t{5} << 22), first.wr_id ^ 0x3ff})
            other.left.post(vb::send_request{.local = l.slice(2), .signaled = false}, id).value();
        to_error(other.left);
        for (const auto& held : l.control.held())
            if (held.id != second.id) l.control.release(held.id);
        l.turns();
        CHECK(log.successes == 3); // the receive of the second message
        CHECK(l.reactor.stats().stale == 3);
        l.control.release(second.id);
        l.turns();
        CHECK(log.successes == 4);
        CHECK(log.failures.empty());
        CHECK(l.reactor.stats().foreign == 0);
    }
}
