// Whatever is destroyed while work is outstanding, everybody else is resumed exactly once, nobody who was destroyed is,
// and when the destruction has returned the device touches no buffer of it any more and holds on to nothing.

#include "by_hand.hpp"

#include "support/deadline.hpp"

#include "verbs/states.hpp"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <optional>

#include <unistd.h>

namespace vb = verbena;
using namespace std::chrono_literals;
using support::ending_log;

namespace {

constexpr std::uint32_t message_bytes = 64;
constexpr std::byte pattern{0x5a};

// A queue pair with four receives and two sends that the peer, who posts no receive and never gives up, keeps waiting.
struct blocked {
    blocked(const vb::context& device, vb::post_mode mode)
        : domain(vb::protection_domain::create(device).value()), engine(device), peer(domain),
          qp(support::make_pair_end(domain, engine.cq, options(mode))),
          canary(vb::memory_region::allocate(domain, 4 * message_bytes).value()),
          source(vb::memory_region::allocate(domain, message_bytes).value()) {
        support::connect(*qp, peer.qp);
        std::ranges::fill(canary.bytes(), pattern);
    }
    static vb::queue_pair_options options(vb::post_mode mode) {
        auto o = support::pair_options();
        o.post_mode = mode;
        return o;
    }
    template <class Spawn>
    void start(Spawn spawn) {
        for (std::size_t i = 0; i < 4; ++i)
            spawn(support::receive(*qp, canary.slice(i * message_bytes, message_bytes), log));
        for (int i = 0; i < 2; ++i) spawn(support::transmit(*qp, source.slice(), log));
    }
    void check_quiet() {
        for (int i = 0; i < 4; ++i) peer.send();
        CHECK(std::ranges::all_of(canary.bytes(), [](std::byte b) { return b == pattern; }));
    }

    vb::protection_domain domain;
    support::engine engine;
    support::hand_end peer;
    std::optional<vb::queue_pair> qp;
    vb::memory_region canary;
    vb::memory_region source;
    ending_log log;
};

vb::task<> wait_readable(vb::reactor& reactor, int fd, unsigned& resumes) {
    auto waited = co_await reactor.wait_readable(fd);
    static_cast<void>(waited.has_value());
    ++resumes;
}
vb::task<> sleep(vb::reactor& reactor, std::chrono::nanoseconds time, unsigned& resumes) {
    co_await reactor.sleep_for(time);
    ++resumes;
}
vb::task<> take_one(vb::receiver& inbox, unsigned& resumes) {
    auto message = co_await inbox.next();
    static_cast<void>(message.has_value());
    ++resumes;
}

std::size_t resident_kib() {
    std::ifstream file("/proc/self/statm");
    std::size_t total = 0, resident = 0;
    file >> total >> resident;
    return resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) / 1024;
}

} // namespace

TEST_CASE("destroying a queue pair resumes all who wait on it, once each") {
    VERBENA_REQUIRE_DEVICE(device);
    for (const auto mode : {vb::post_mode::immediate, vb::post_mode::batched})
        for (const bool posted : {true, false}) {
            blocked b(device, mode);
            vb::scope scope;
            b.start([&](vb::task<> t) { scope.spawn(std::move(t)); });
            if (posted) support::some_turns(b.engine.reactor);
            CHECK(b.log.resumes() == 0);
            b.qp.reset();
            CHECK(b.engine.reactor.stats().outstanding == 0);
            CHECK(b.log.resumes() == 0);
            support::some_turns(b.engine.reactor);
            CHECK(b.log.successes == 0);
            REQUIRE(b.log.resumes() == 6);
            for (const auto& e : b.log.failures) {
                support::check_failure(e, vb::errc::connection_reset);
                CHECK(e.root_cause() == vb::errc::closed);
            }
            b.check_quiet();
            CHECK(b.engine.reactor.stats().stale == 0);
        }
}

TEST_CASE("destroying the coroutines instead leaves the memory quiet and pins nothing") {
    VERBENA_REQUIRE_DEVICE(device);
    for (const auto mode : {vb::post_mode::immediate, vb::post_mode::batched})
        for (const int order : {0, 1, 2}) {
            const auto name = device.name();
            const auto own = vb::context::open(name).value();
            std::weak_ptr<const void> queue, domain, context = vb::detail::access::state(own);
            {
                blocked b(own, mode);
                queue = vb::detail::access::state(b.engine.cq);
                domain = vb::detail::access::state(b.domain);
                {
                    support::children children;
                    vb::scope scope;
                    b.start([&](vb::task<> t) {
                        if (order == 2)
                            scope.spawn(std::move(t));
                        else
                            children.spawn(std::move(t));
                    });
                    support::some_turns(b.engine.reactor);
                    if (order == 0) children.destroy_newest_first();
                    if (order == 1) children.destroy_oldest_first();
                }
                CHECK(b.engine.reactor.stats().outstanding == 0);
                b.check_quiet();
                support::some_turns(b.engine.reactor);
                CHECK(b.log.resumes() == 0);
                // Whoever was told to stop first has ended by its flush, and the queue pair needed no RESET.
                const auto state = b.qp->state().value();
                CHECK((state == vb::queue_pair_state::error || state == vb::queue_pair_state::reset));
                b.engine.reactor.run(support::receive(*b.qp, b.canary.slice(0, message_bytes), b.log));
                REQUIRE(b.log.failures.size() == 1);
                support::check_failure(b.log.failures[0], vb::errc::connection_reset);
                CHECK(b.log.failures[0].root_cause() == vb::errc::stopped);
            }
            CHECK(queue.expired());
            CHECK(domain.expired());
            CHECK(context.use_count() == 1);
        }
}

TEST_CASE("destroying one of them ends the others") {
    VERBENA_REQUIRE_DEVICE(device);
    blocked b(device, vb::post_mode::immediate);
    support::children children;
    b.start([&](vb::task<> t) { children.spawn(std::move(t)); });
    children.destroy(5);
    children.destroy(1);
    support::some_turns(b.engine.reactor);
    REQUIRE(b.log.resumes() == 4);
    for (const auto& e : b.log.failures) {
        support::check_failure(e, vb::errc::connection_reset);
        CHECK(e.root_cause() == vb::errc::stopped);
    }
    b.check_quiet();
}

TEST_CASE("batched operations that were not flushed cost no connection when they are destroyed") {
    VERBENA_REQUIRE_DEVICE(device);
    blocked b(device, vb::post_mode::batched);
    {
        support::children children;
        b.start([&](vb::task<> t) { children.spawn(std::move(t)); });
        children.destroy_oldest_first();
    }
    support::some_turns(b.engine.reactor);
    CHECK(b.engine.reactor.stats().outstanding == 0);
    CHECK(b.qp->state().value() == vb::queue_pair_state::ready_to_send);
    vb::scope scope;
    scope.spawn(support::receive(*b.qp, b.canary.slice(0, message_bytes), b.log));
    support::some_turns(b.engine.reactor);
    CHECK(b.peer.send().ok());
    support::turn_until(b.engine.reactor, [&] { return b.log.resumes() == 1; });
    CHECK(b.log.successes == 1);
}

TEST_CASE("an operation that waits for capacity is destroyed alone") {
    VERBENA_REQUIRE_DEVICE(device);
    const auto domain = vb::protection_domain::create(device).value();
    support::engine engine(device);
    support::hand_end peer(domain);
    auto qp = support::make_pair_end(domain, engine.cq, support::pair_options(2));
    support::connect(qp, peer.qp);
    const auto memory = vb::memory_region::allocate(domain, 8 * message_bytes).value();
    ending_log log;
    support::children children;
    for (std::size_t i = 0; i < 4; ++i)
        children.spawn(support::receive(qp, memory.slice(i * message_bytes, message_bytes), log));
    children.destroy(2);
    for (int i = 0; i < 3; ++i) {
        CHECK(peer.send().ok());
        support::turn_until(engine.reactor, [&] { return log.successes == static_cast<unsigned>(i) + 1; });
    }
    CHECK(log.failures.empty());
    CHECK(engine.reactor.stats().outstanding == 0);
}

TEST_CASE("a completion that is there already wins over the destruction of its coroutine") {
    VERBENA_REQUIRE_DEVICE(device);
    blocked b(device, vb::post_mode::immediate);
    support::children children;
    children.spawn(support::receive(*b.qp, b.canary.slice(0, message_bytes), b.log));
    children.spawn(support::receive(*b.qp, b.canary.slice(message_bytes, message_bytes), b.log));
    CHECK(b.peer.send().ok());
    children.destroy(0);
    CHECK(b.engine.reactor.stats().outstanding == 1);
    CHECK(b.qp->state().value() == vb::queue_pair_state::ready_to_send);
    CHECK(b.peer.send().ok());
    support::turn_until(b.engine.reactor, [&] { return b.log.resumes() == 1; });
    CHECK(b.log.successes == 1);
    CHECK(b.engine.reactor.stats().stale == 0);
}

TEST_CASE("a queue pair, its queue and its channel destroyed by the coroutine that its own completion resumed") {
    VERBENA_REQUIRE_DEVICE(device);
    const auto domain = vb::protection_domain::create(device).value();
    vb::reactor reactor({.wait = vb::wait_policy::park_at_once(), .safety_repoll = 0ms});
    std::array<vb::poll_slot, 4> slots;
    std::optional channel(vb::completion_channel::create(device).value());
    std::optional cq(vb::completion_queue::create(device, 64, {.channel = *channel}).value());
    const std::weak_ptr<const void> queue = vb::detail::access::state(*cq);
    reactor.attach(*cq, slots).value();
    std::optional qp(support::make_pair_end(domain, *cq, support::pair_options()));
    support::hand_end peer(domain);
    support::connect(*qp, peer.qp);
    const auto memory = vb::memory_region::allocate(domain, 2 * message_bytes).value();
    ending_log log;
    vb::scope scope;
    scope.spawn([&]() -> vb::task<> {
        const auto got = co_await qp->recv(memory.slice(0, message_bytes));
        log.add(got);
        qp.reset();
        reactor.detach(*cq).value();
        cq.reset();
        channel.reset();
    });
    scope.spawn(support::receive(*qp, memory.slice(message_bytes, message_bytes), log));
    // From a sleep, so that an event was taken for the queue.
    peer.qp.post(vb::send_request{peer.buffer.slice(0, message_bytes)}, 1).value();
    reactor.run([](vb::scope& s) -> vb::task<> { co_await s.join(); }(scope));
    CHECK(log.successes == 1);
    REQUIRE(log.failures.size() == 1);
    CHECK(log.failures[0].root_cause() == vb::errc::closed);
    CHECK(queue.expired());
    support::some_turns(reactor);
}

TEST_CASE("a queue pair destroyed between two resumes of one ready list") {
    VERBENA_REQUIRE_DEVICE(device);
    blocked b(device, vb::post_mode::immediate);
    support::children children;
    const auto slice = [&](std::size_t i) { return b.canary.slice(i * message_bytes, message_bytes); };
    unsigned first = 0;
    children.spawn([](blocked& test, support::children& all, vb::memory_slice into, unsigned& resumes) -> vb::task<> {
        const auto got = co_await test.qp->recv(into);
        ++resumes;
        CHECK(got.has_value());
        test.qp.reset();
        all.destroy(1); // on the ready list, and so is the next one
    }(b, children, slice(0), first));
    for (std::size_t i = 1; i < 4; ++i) children.spawn(support::receive(*b.qp, slice(i), b.log));
    for (int i = 0; i < 3; ++i) CHECK(b.peer.send().ok());
    support::some_turns(b.engine.reactor);
    CHECK(first == 1);
    CHECK(b.log.successes == 1);
    REQUIRE(b.log.failures.size() == 1);
    CHECK(b.log.failures[0].root_cause() == vb::errc::closed);
    CHECK(b.engine.reactor.stats().outstanding == 0);
}

TEST_CASE("a queue pair moved while operations are outstanding") {
    VERBENA_REQUIRE_DEVICE(device);
    blocked b(device, vb::post_mode::immediate);
    vb::scope scope;
    b.start([&](vb::task<> t) { scope.spawn(std::move(t)); });
    vb::queue_pair moved = std::move(*b.qp);
    b.peer.post_receives(2);
    for (int i = 0; i < 2; ++i) CHECK(b.peer.finish().ok());
    CHECK(b.peer.send().ok());
    support::turn_until(b.engine.reactor, [&] { return b.log.resumes() == 3; });
    CHECK(b.log.successes == 3);
    // Assigned over, the rest end like those of a destroyed one.
    moved = support::make_pair_end(b.domain, b.engine.cq, support::pair_options());
    support::some_turns(b.engine.reactor);
    REQUIRE(b.log.failures.size() == 3);
    for (const auto& e : b.log.failures) CHECK(e.root_cause() == vb::errc::closed);
}

TEST_CASE("a queue detached with work outstanding, and attached to another reactor") {
    VERBENA_REQUIRE_DEVICE(device);
    blocked b(device, vb::post_mode::immediate);
    vb::scope scope;
    b.start([&](vb::task<> t) { scope.spawn(std::move(t)); });
    auto inert = support::make_pair_end(b.domain, b.engine.cq, support::pair_options(4));
    support::some_turns(b.engine.reactor);
    b.engine.reactor.detach(b.engine.cq).value();
    CHECK(b.engine.reactor.stats().outstanding == 0);
    support::some_turns(b.engine.reactor);
    REQUIRE(b.log.resumes() == 6);
    for (const auto& e : b.log.failures) {
        support::check_failure(e, vb::errc::connection_reset);
        CHECK(e.root_cause() == vb::errc::not_attached);
    }
    b.check_quiet();
    CHECK(!b.engine.cq.attached());
    CHECK(b.engine.cq.poll(b.engine.slots).has_value());
    support::check_failure(b.engine.reactor.detach(b.engine.cq).error(), vb::errc::not_attached);

    ending_log later;
    vb::reactor other({.wait = vb::wait_policy::park_at_once(), .safety_repoll = 0ms});
    other.run(support::receive(*b.qp, b.canary.slice(0, message_bytes), later));
    other.attach(b.engine.cq, b.engine.slots).value();
    other.run(support::receive(*b.qp, b.canary.slice(0, message_bytes), later));
    REQUIRE(later.failures.size() == 2);
    support::check_failure(later.failures[0], vb::errc::not_attached);
    support::check_failure(later.failures[1], vb::errc::connection_reset);
    // One that had awaited nothing goes with its queue.
    support::hand_end peer(b.domain);
    support::connect(inert, peer.qp);
    vb::scope second;
    second.spawn(support::receive(inert, b.canary.slice(0, message_bytes), later));
    peer.qp.post(vb::send_request{peer.buffer.slice(0, message_bytes)}, 1).value();
    other.run([](vb::scope& s) -> vb::task<> { co_await s.join(); }(second));
    CHECK(later.successes == 1);
    support::some_turns(b.engine.reactor);
}

TEST_CASE("a reactor destroyed before the frames that wait in it") {
    VERBENA_REQUIRE_DEVICE(device);
    const auto domain = vb::protection_domain::create(device).value();
    for (const bool started : {true, false}) {
        int ends[2];
        REQUIRE(pipe(ends) == 0);
        unsigned resumes = 0;
        ending_log log;
        std::optional<support::engine> engine(std::in_place, device);
        support::hand_end peer(domain);
        auto options = support::pair_options(2);
        auto qp = support::make_pair_end(domain, engine->cq, options);
        options.post_mode = vb::post_mode::batched;
        auto batched = support::make_pair_end(domain, engine->cq, options);
        auto with_inbox = support::make_pair_end(domain, engine->cq, options);
        support::connect(qp, peer.qp);
        std::optional inbox(vb::receiver::create(with_inbox, {.depth = 2, .message_bytes = message_bytes}).value());
        const auto memory = vb::memory_region::allocate(domain, 8 * message_bytes).value();
        support::children children;
        for (std::size_t i = 0; i < 4; ++i) // two of them posted
            children.spawn(support::receive(qp, memory.slice(i * message_bytes, message_bytes), log));
        children.spawn(support::receive(batched, memory.slice(0, message_bytes), log));
        children.spawn(take_one(*inbox, resumes));
        children.spawn(wait_readable(engine->reactor, ends[0], resumes));
        children.spawn(sleep(engine->reactor, 1h, resumes));
        if (started) support::some_turns(engine->reactor);
        children.spawn(sleep(engine->reactor, 1h, resumes));
        children.spawn(support::receive(batched, memory.slice(0, message_bytes), log));
        children.spawn([](vb::reactor& r, unsigned& n) -> vb::task<> {
            co_await r.yield();
            ++n;
        }(engine->reactor, resumes));
        // One whose completion is on its way, and one on the ready list.
        CHECK(peer.send().ok());
        REQUIRE(write(ends[1], "x", 1) == 1);
        engine.reset();
        CHECK(resumes == 0);
        CHECK(log.resumes() == 0);
        // What is awaited afterwards fails, and says why.
        ending_log later;
        vb::error ended;
        vb::reactor other;
        other.run(support::receive(qp, memory.slice(0, message_bytes), later));
        other.run(support::transmit(qp, memory.slice(0, message_bytes), later));
        other.run([](vb::receiver& r, vb::error& e) -> vb::task<> {
            auto message = co_await r.next();
            e = message.error();
        }(*inbox, ended));
        REQUIRE(later.failures.size() == 2);
        for (const auto& e : later.failures) support::check_failure(e, vb::errc::not_attached);
        support::check_failure(ended, vb::errc::not_attached);
        if (started)
            children.destroy_newest_first();
        else
            children.destroy_oldest_first();
        CHECK(resumes == 0);
        CHECK(log.resumes() == 0);
        close(ends[0]);
        close(ends[1]);
    }
}

TEST_CASE("a task destroyed in the middle, with all that it awaits") {
    VERBENA_REQUIRE_DEVICE(device);
    blocked b(device, vb::post_mode::immediate);
    unsigned unwound = 0;
    struct counter {
        unsigned& count;
        ~counter() { ++count; }
    };
    {
        vb::scope scope;
        scope.spawn([](blocked& test, unsigned& count) -> vb::task<> {
            const counter outer{count};
            co_await [](blocked& inner_test, unsigned& inner_count) -> vb::task<> {
                const counter inner{inner_count};
                co_await support::receive(*inner_test.qp, inner_test.canary.slice(0, message_bytes), inner_test.log);
            }(test, count);
        }(b, unwound));
        // A child of a child, and one who waits for a sibling.
        scope.spawn([](blocked& test) -> vb::task<> {
            vb::scope own;
            auto child = own.spawn(support::transmit(*test.qp, test.source.slice(), test.log));
            co_await child.wait();
        }(b));
        support::some_turns(b.engine.reactor);
    }
    CHECK(unwound == 2);
    CHECK(b.engine.reactor.stats().outstanding == 0);
    b.check_quiet();
    support::some_turns(b.engine.reactor);
    CHECK(b.log.resumes() == 0);
}

TEST_CASE("run that is stopped destroys its task, with what that has outstanding") {
    VERBENA_REQUIRE_DEVICE(device);
    blocked b(device, vb::post_mode::immediate);
    b.engine.reactor.post([&] { b.engine.reactor.stop(); });
    CHECK_THROWS_AS(b.engine.reactor.run([](blocked& test) -> vb::task<> {
        vb::scope scope;
        test.start([&](vb::task<> t) { scope.spawn(std::move(t)); });
        co_await scope.join();
    }(b)),
                    std::system_error);
    CHECK(b.engine.reactor.stats().outstanding == 0);
    CHECK(b.log.resumes() == 0);
    b.check_quiet();
}

TEST_CASE("messages and pool buffers outlive everything they came from") {
    VERBENA_REQUIRE_DEVICE(device);
    std::vector<vb::message> messages;
    std::vector<vb::pool_buffer> buffers;
    std::weak_ptr<const void> domain_state;
    for (const auto mode : {vb::post_mode::immediate, vb::post_mode::batched}) {
        const auto domain = vb::protection_domain::create(device).value();
        domain_state = vb::detail::access::state(domain);
        support::engine engine(device);
        support::hand_end peer(domain);
        auto options = support::pair_options();
        options.post_mode = mode;
        auto qp = support::make_pair_end(domain, engine.cq, options);
        auto inbox = vb::receiver::create(qp, {.depth = 4, .message_bytes = message_bytes}).value();
        support::connect(qp, peer.qp);
        auto pool = vb::buffer_pool::create(domain, 4, message_bytes).value();
        for (int i = 0; i < 2; ++i) buffers.push_back(pool.try_acquire().value());
        peer.post_receives(1);
        qp.send_detached(pool.try_acquire().value()).value();
        for (std::uint64_t i = 0; i < 3; ++i) {
            support::put_number(peer.buffer.bytes().first(message_bytes), i);
            peer.qp.post(vb::send_request{peer.buffer.slice(0, message_bytes)}, 1).value();
            engine.reactor.run([](auto& in, auto& taken) -> vb::task<> {
                auto message = co_await in.next();
                taken.push_back(std::move(message).value());
            }(inbox, messages));
        }
        if (mode == vb::post_mode::batched) engine.reactor.detach(engine.cq).value();
    }
    REQUIRE(messages.size() == 6);
    for (std::size_t i = 0; i < messages.size(); ++i) CHECK(support::has_number(messages[i].bytes().bytes(), i % 3));
    for (auto& buffer : buffers) support::put_number(buffer.bytes(), 7);
    CHECK(!domain_state.expired());
    messages.clear();
    buffers.clear();
    CHECK(domain_state.expired());
}

TEST_CASE("a message handed to a wait that is destroyed goes to the next; a destroyed receiver ends its waits") {
    VERBENA_REQUIRE_DEVICE(device);
    blocked b(device, vb::post_mode::immediate);
    std::optional inbox(vb::receiver::create(*b.qp, {.depth = 4, .message_bytes = message_bytes}).value());
    ending_log log;
    support::children children;
    const auto wait = [](vb::receiver& r, ending_log& l) -> vb::task<> {
        const auto message = co_await r.next();
        l.add(message);
    };
    children.spawn(wait(*inbox, log));
    children.spawn([](vb::reactor& r, support::children& all) -> vb::task<> {
        co_await r.yield(); // stands on the ready list in front of the message
        all.destroy(0);
    }(b.engine.reactor, children));
    children.spawn(wait(*inbox, log));
    CHECK(b.peer.send().ok());
    support::some_turns(b.engine.reactor);
    CHECK(log.successes == 1);

    for (int i = 0; i < 3; ++i) CHECK(b.peer.send().ok()); // two of them stay queued
    support::some_turns(b.engine.reactor);
    children.spawn(wait(*inbox, log));
    CHECK(log.successes == 2);
    inbox.reset();
    CHECK(b.peer.send().ok());
    support::some_turns(b.engine.reactor);
    CHECK(b.qp->state().value() == vb::queue_pair_state::ready_to_send);

    // Its receives are still there, so a second one is refused.
    support::check_failure(vb::receiver::create(*b.qp, {.depth = 1, .message_bytes = 8}).error(), vb::errc::in_use);

    auto second = support::make_pair_end(b.domain, b.engine.cq, support::pair_options());
    inbox.emplace(vb::receiver::create(second, {.depth = 4, .message_bytes = message_bytes}).value());
    for (int i = 0; i < 3; ++i) children.spawn(wait(*inbox, log));
    inbox.reset();
    support::some_turns(b.engine.reactor);
    REQUIRE(log.failures.size() == 3);
    for (const auto& e : log.failures) support::check_failure(e, vb::errc::closed);
}

TEST_CASE("ten thousand queue pairs made, posted to and destroyed") {
    VERBENA_REQUIRE_DEVICE(device);
    const support::deadline allow(900s);
    const auto domain = vb::protection_domain::create(device).value();
    support::engine engine(device);
    const auto memory = vb::memory_region::allocate(domain, message_bytes).value();
    const auto count = support::rounds(support::sanitized ? 1'000 : 10'000);
    std::size_t before = 0;
    ending_log log;
    for (std::uint64_t i = 0; i < count; ++i) {
        auto options = support::pair_options(4);
        options.post_mode = i % 2 == 0 ? vb::post_mode::immediate : vb::post_mode::batched;
        std::optional qp(support::make_pair_end(domain, engine.cq, options));
        {
            vb::scope scope;
            for (int k = 0; k < 5; ++k) scope.spawn(support::receive(*qp, memory.slice(), log));
            if (i % 4 < 2) engine.reactor.poll().value();
            if (i % 3 == 0) qp.reset();
            if (i % 3 == 1) engine.reactor.poll().value();
        }
        qp.reset();
        log.failures.clear();
        if (i == count / 2) before = resident_kib(); // a simulated device keeps the last few thousand dead
    }
    CHECK(log.successes == 0);
    CHECK(engine.reactor.stats().outstanding == 0);
    if (!support::sanitized) CHECK(resident_kib() <= before + 512);
}
