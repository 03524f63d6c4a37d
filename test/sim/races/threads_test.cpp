// Whatever threads do around a reactor that is about to sleep, nothing gets lost; reactors that share a context share
// no more than that; and a reactor whose thread is gone says so (B24). The thread sanitizer runs what is tagged
// [threads].

#include "race_rig.hpp"

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include <unistd.h>

using namespace races;
using namespace std::chrono_literals;

namespace {

// Stopped, it is destroyed.
vb::task<> for_ever() {
    vb::event never;
    co_await never.wait();
}

/// One end of a connection on a reactor, a channel and a queue of its own.
struct peer {
    peer(const vb::context& device, const vb::protection_domain& domain, bool asks)
        : engine(device), qp(support::make_pair_end(domain, engine.cq, support::pair_options(4))), asker(asks) {}

    vb::task<> talk(const vb::protection_domain& domain, std::uint64_t rounds) {
        for (std::uint64_t i = 0; i < rounds; ++i) {
            // The context is shared, also by what is made meanwhile.
            const auto region = vb::memory_region::allocate(domain, 2 * message_bytes).value();
            support::put_number(region.bytes().first(message_bytes), i);
            if (asker) {
                auto [sent, answer] = co_await vb::when_all(qp.send(region.slice(0, message_bytes)),
                                                            qp.recv(region.slice(message_bytes, message_bytes)));
                log.add(sent);
                log.add(answer);
            } else {
                const auto question = co_await qp.recv(region.slice(message_bytes, message_bytes));
                log.add(question);
                const auto sent = co_await qp.send(region.slice(0, message_bytes));
                log.add(sent);
            }
            if (!support::has_number(region.bytes().last(message_bytes), i)) ++wrong;
            if (!log.failures.empty()) co_return;
        }
    }

    support::engine engine;
    vb::queue_pair qp;
    bool asker;
    std::uint64_t wrong = 0;
    ending_log log;
};

} // namespace

TEST_CASE("posts and stops from another thread are never lost around parking", "[threads]") {
    const support::deadline limit(900s);
    const auto rounds = support::rounds(100'000) / 2;
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name);
        std::atomic<std::uint64_t> posts_seen{0}, stops_seen{0};
        const auto wait_for = [](std::atomic<std::uint64_t>& seen, std::uint64_t number) {
            for (auto at = seen.load(); at != number; at = seen.load()) seen.wait(at);
        };
        std::uint64_t called = 0;
        std::thread other([&] {
            for (std::uint64_t i = 1; i <= rounds; ++i) {
                l.reactor.post([&, i] {
                    if (++called != i) return;
                    posts_seen.store(i);
                    posts_seen.notify_one();
                });
                if (i % 8 != 0) wait_for(posts_seen, i); // else the stop may outrun it
                l.reactor.stop();
                wait_for(stops_seen, i);
            }
        });
        for (std::uint64_t stops = 0; stops < rounds;) {
            try {
                l.reactor.run(for_ever());
            } catch (const std::system_error& e) {
                if (e.code() == vb::errc::stopped) ++stops;
                stops_seen.store(stops);
                stops_seen.notify_one();
            }
        }
        other.join();
        l.turns();
        CHECK(called == rounds);
        CHECK(l.reactor.stats().parks > 0);
    }
}

TEST_CASE("two reactors on two threads, with queues of their own, share a context", "[threads]") {
    const support::deadline limit(600s);
    const auto rounds = support::rounds(4'000);
    for (const auto& name : devices()) {
        INFO(name);
        sim::control(name).reset();
        const auto device = vb::context::open(name).value();
        const auto domain = vb::protection_domain::create(device).value();
        std::array<std::unique_ptr<peer>, 2> peers{std::make_unique<peer>(device, domain, true),
                                                   std::make_unique<peer>(device, domain, false)};
        support::connect(peers[0]->qp, peers[1]->qp);
        std::array<std::uint64_t, 2> successes{}, wrong{};
        std::vector<std::thread> threads;
        for (std::size_t i = 0; i < 2; ++i)
            threads.emplace_back([&, i] {
                auto& own = peers[i];
                own->engine.reactor.run(own->talk(domain, rounds));
                successes[i] = own->log.successes;
                wrong[i] = own->wrong;
                own.reset(); // a reactor ends where it ran
            });
        for (auto& thread : threads) thread.join();
        for (const auto number : successes) CHECK(number == 2 * rounds);
        for (const auto number : wrong) CHECK(number == 0);
    }
}

TEST_CASE("a reactor whose thread has ended, with waits pending, is refused to every other", "[threads]") {
    struct abandoned {
        vb::reactor reactor{{.wait = vb::wait_policy::park_at_once(), .safety_repoll = 0ms}};
        std::array<int, 2> ends{-1, -1};
        bool resumed = false;
        vb::scope scope;
    };
    // Nobody may destroy it any more: reachable, and never destroyed.
    static abandoned* kept = nullptr;
    kept = new abandoned;
    REQUIRE(pipe(kept->ends.data()) == 0);
    std::thread([] {
        kept->scope.spawn([](abandoned& a) -> vb::task<> {
            const auto readable = co_await a.reactor.wait_readable(a.ends[0]);
            a.resumed = readable.has_value();
        }(*kept));
        kept->reactor.post([] { kept->reactor.stop(); });
        try {
            kept->reactor.run(for_ever());
        } catch (const std::system_error&) {}
    }).join();
    REQUIRE(write(kept->ends[1], "x", 1) == 1);
    // More than one, since a new thread may get the memory of the one that has ended.
    for (int i = 0; i < 4; ++i)
        std::thread([&] {
            std::string said;
            try {
                kept->reactor.run(for_ever());
            } catch (const std::system_error& e) {
                if (e.code() == vb::errc::wrong_thread) said = e.what();
            }
            CHECK(said.find("another thread runs this reactor") != std::string::npos);
            const auto polled = kept->reactor.poll();
            CHECK((!polled && polled.error() == vb::errc::wrong_thread));
        }).join();
    CHECK_FALSE(kept->resumed);
}
