// A reactor that never sleeps serves what is no completion too: timers, descriptors, posted functions and stops
// (B22, B23).

#include "race_rig.hpp"

#include "epoll_backend.hpp"
#include "reactor_core.hpp"

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <system_error>
#include <thread>

#include <sys/eventfd.h>
#include <unistd.h>

using namespace races;

namespace {

/// A reactor that spins on an idle queue, on epoll(7) or on what it chooses by itself.
struct spinning {
    spinning(const std::string& name, bool by_epoll)
        : device(vb::context::open(name).value()), cq(vb::completion_queue::create(device, 4).value()),
          reactor(make(by_epoll)), fd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
        reactor.attach(cq, slots).value();
    }
    spinning(const spinning&) = delete;
    spinning& operator=(const spinning&) = delete;
    ~spinning() { ::close(fd); }

    void signal() const { CHECK(::eventfd_write(fd, 1) == 0); }

    vb::context device;
    vb::completion_queue cq;
    std::array<vb::poll_slot, 4> slots;
    vb::reactor reactor;
    int fd;

  private:
    static vb::reactor make(bool by_epoll) {
        const vb::reactor_options options{.wait = vb::wait_policy::spin_forever()};
        auto backend = by_epoll ? vb::detail::make_epoll_backend().value() : nullptr;
        return vb::detail::access::make_reactor<vb::reactor>(
            std::make_unique<vb::detail::reactor_core>(options, nullptr, std::move(backend)));
    }
};

vb::task<> sleep_a_little(vb::reactor& reactor) { co_await reactor.sleep_for(std::chrono::milliseconds{10}); }
vb::task<> wait_for(spinning& s, bool& readable) {
    const auto got = co_await s.reactor.wait_readable(s.fd);
    readable = got.has_value();
}
vb::task<> join_then_rest(vb::reactor& reactor, vb::scope& scope, std::atomic<bool>& joined) {
    co_await scope.join();
    joined = true;
    joined.notify_one();
    co_await reactor.sleep_for(std::chrono::hours{1});
}

} // namespace

TEST_CASE("the reactor sleeps on what is expected of this run") {
    const char* wanted = std::getenv("VERBENA_BACKEND");
    lab l(devices().front());
    ending_log log;
    l.reactor.run(exchange(l, log));
    CHECK(log.successes == 2);
    CHECK(std::string_view(l.reactor.stats().backend) == (wanted != nullptr ? wanted : "io_uring"));
}

TEST_CASE("spinning on an idle queue a reactor sees a timer, a descriptor, a posted function and a stop") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices())
        for (const bool by_epoll : {false, true}) {
            INFO(name << (by_epoll ? ", epoll(7)" : ""));
            spinning s(name, by_epoll);
            bool readable = false, stopped = false;
            std::atomic<bool> posted = false, joined = false;
            vb::scope scope;
            scope.spawn(sleep_a_little(s.reactor));
            scope.spawn(wait_for(s, readable));
            std::thread other([&] {
                s.reactor.post([&] {
                    posted = true;
                    posted.notify_one();
                });
                posted.wait(false);
                s.signal();
                joined.wait(false);
                s.reactor.stop();
            });
            try {
                s.reactor.run(join_then_rest(s.reactor, scope, joined));
            } catch (const std::system_error& e) {
                stopped = e.code() == vb::errc::stopped;
            }
            other.join();
            CHECK(readable);
            CHECK(stopped);
            CHECK(s.reactor.stats().parks == 0);
        }
}

TEST_CASE("single turns see a descriptor after so many of them") {
    for (const auto& name : devices())
        for (const bool by_epoll : {false, true}) {
            INFO(name << (by_epoll ? ", epoll(7)" : ""));
            spinning s(name, by_epoll);
            for (int round = 0; round < 3; ++round) {
                bool readable = false;
                vb::scope scope;
                scope.spawn(wait_for(s, readable));
                support::some_turns(s.reactor);
                CHECK_FALSE(readable);
                s.signal();
                const auto before = s.reactor.stats();
                for (unsigned turn = 0; turn <= vb::detail::epoll_look_every; ++turn) s.reactor.poll().value();
                CHECK(readable);
                const auto looks = s.reactor.stats().enters - before.enters;
                CHECK(looks <= 3); // not at every turn
                eventfd_t taken = 0;
                CHECK(::eventfd_read(s.fd, &taken) == 0);
            }
        }
}
