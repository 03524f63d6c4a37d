// Invariant: a loop of somebody else's that waits for a reactor's handle after `prepare_wait` misses nothing, whatever
// comes between the two, and by whatever it waits: epoll(7), poll(2) or an io_uring of its own.

#include "ring_support.hpp"
#include "support/refused_call.hpp"

#include <verbena/reactor.hpp>
#include <verbena/scope.hpp>
#include <verbena/with_timeout.hpp>

#include <atomic>
#include <stdexcept>
#include <stop_token>
#include <string_view>
#include <thread>
#include <vector>

#include <liburing.h>
#include <sys/epoll.h>
#include <sys/syscall.h>

namespace vb = verbena;

namespace {

enum class outside { epoll, poll, io_uring, io_uring_deferred };
#define EVERY_OUTSIDE GENERATE(outside::epoll, outside::poll, outside::io_uring, outside::io_uring_deferred)

/// What the foreign loop waits with.
class foreign_wait {
  public:
    foreign_wait(outside kind, int fd) : kind_(kind), fd_(fd), epoll_(epoll_create1(EPOLL_CLOEXEC)) {
        epoll_event wanted{.events = EPOLLIN, .data = {}};
        if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &wanted) != 0) throw std::runtime_error("epoll_ctl");
        const unsigned flags =
            kind == outside::io_uring_deferred ? IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_SINGLE_ISSUER : 0;
        if (kind >= outside::io_uring) made_ = io_uring_queue_init(4, &ring_, flags) == 0;
    }
    ~foreign_wait() {
        if (made_) io_uring_queue_exit(&ring_);
    }
    foreign_wait(const foreign_wait&) = delete;
    foreign_wait& operator=(const foreign_wait&) = delete;

    bool possible() const { return kind_ < outside::io_uring || made_; }
    /// Whether the handle was readable within so many milliseconds.
    bool operator()(int milliseconds) {
        const auto until = now() + std::chrono::milliseconds(milliseconds);
        if (kind_ >= outside::io_uring) {
            if (!armed_) io_uring_prep_poll_add(io_uring_get_sqe(&ring_), fd_, POLLIN);
            armed_ = true;
        }
        for (;;) { // what interrupts one of them is no answer
            const bool over = now() >= until;
            if (look(over ? 0 : milliseconds)) return true;
            if (over) return false;
        }
    }

  private:
    bool look(int milliseconds) {
        switch (kind_) {
        case outside::epoll: {
            epoll_event found;
            return epoll_wait(epoll_.get(), &found, 1, milliseconds) == 1;
        }
        case outside::poll: {
            pollfd p{fd_, POLLIN, 0};
            return ::poll(&p, 1, milliseconds) == 1;
        }
        default: {
            __kernel_timespec time{.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1'000'000};
            io_uring_cqe* cqe = nullptr;
            if (io_uring_submit_and_wait_timeout(&ring_, &cqe, 1, &time, nullptr) < 0 || cqe == nullptr) return false;
            io_uring_cqe_seen(&ring_, cqe);
            armed_ = false;
            return true;
        }
        }
    }

    outside kind_;
    int fd_;
    descriptor epoll_;
    io_uring ring_{};
    bool made_ = false;
    bool armed_ = false;
};

/// Turns and waits until `done`; answers how often it waited.
template <class Condition>
unsigned embed(vb::reactor& reactor, foreign_wait& wait, Condition done) {
    unsigned waits = 0;
    while (!done()) {
        while (reactor.poll().value() > 0) {}
        if (done()) break;
        if (reactor.prepare_wait().value() == vb::wait_state::ready) continue;
        if (!wait(20'000)) throw std::runtime_error("the handle was not readable in time");
        ++waits;
    }
    return waits;
}

vb::task<> take(vb::reactor& reactor, event_fd& fd, unsigned count, unsigned& taken) {
    while (taken < count) {
        (co_await reactor.wait_readable(fd.get())).value();
        taken += static_cast<unsigned>(fd.take());
    }
}
vb::task<> naps(vb::reactor& reactor, unsigned count, unsigned& slept) {
    for (; slept < count; ++slept) co_await reactor.sleep_for(200us);
}

} // namespace

#define EMBEDDED_OR_SKIP(reactor, wait)                                                                                \
    vb::reactor reactor({.safety_repoll = 0ms});                                                                       \
    foreign_wait wait(EVERY_OUTSIDE, reactor.native_handle().value());                                                 \
    if (!wait.possible()) VERBENA_SKIP("no such io_uring here")

TEST_CASE("a handle is readable for a descriptor, a timer, a posted function and a stop, each alone", "[backend]") {
    EMBEDDED_OR_SKIP(reactor, wait);
    CHECK(std::string_view(reactor.stats().backend) == "epoll");
    event_fd fd;
    unsigned taken = 0, slept = 0, posted = 0;
    bool stopped = false;
    std::stop_source stop;
    vb::scope scope;
    const auto at_rest = [&] { // once it may be readable in vain: for a wake that came late
        for (int attempt = 0; attempt < 2; ++attempt) {
            do
                while (reactor.poll().value() > 0) {}
            while (reactor.prepare_wait().value() == vb::wait_state::ready);
            if (!wait(0)) return true;
        }
        return false;
    };
    scope.spawn(take(reactor, fd, 1, taken));
    scope.spawn([](vb::reactor& r, std::stop_token token, bool& was_stopped) -> vb::task<> {
        event_fd never;
        const auto got = co_await vb::with_stop(r.wait_readable(never.get()), token);
        was_stopped = !got && got.error() == errc::stopped;
    }(reactor, stop.get_token(), stopped));
    CHECK(at_rest());
    SECTION("a descriptor") {
        std::jthread other([&] { fd.signal(); });
        embed(reactor, wait, [&] { return taken == 1; });
    }
    SECTION("a timer") {
        scope.spawn(naps(reactor, 1, slept));
        embed(reactor, wait, [&] { return slept == 1; });
    }
    SECTION("a posted function") {
        std::jthread other([&] { reactor.post([&] { ++posted; }); });
        embed(reactor, wait, [&] { return posted == 1; });
    }
    SECTION("a stop") {
        std::jthread other([&] { stop.request_stop(); });
        embed(reactor, wait, [&] { return stopped; });
    }
    CHECK(at_rest());
}

TEST_CASE("a foreign loop loses nothing of what others do while it is about to wait", "[backend]") {
    EMBEDDED_OR_SKIP(reactor, wait);
    constexpr unsigned total = 2'000;
    event_fd fd;
    std::atomic<unsigned> seen = 0;
    unsigned taken = 0, slept = 0, posted = 0;
    vb::scope scope;
    scope.spawn(take(reactor, fd, total, taken));
    scope.spawn(naps(reactor, 20, slept));
    std::jthread writer([&] {
        for (unsigned i = 1; i <= total; ++i) {
            fd.signal();
            while (i % 3 != 0 && seen.load() < i) std::this_thread::yield();
        }
    });
    std::jthread poster([&] {
        for (unsigned i = 0; i < total; ++i) reactor.post([&] { ++posted; });
    });
    const unsigned waits = embed(reactor, wait, [&] {
        seen = taken;
        return taken == total && posted == total && slept == 20;
    });
    CHECK(waits > 0);
    CHECK(waits <= reactor.stats().parks);
}

TEST_CASE("a handle is asked for before anything runs, and a wait is prepared after it", "[backend]") {
    vb::reactor sleeps;
    const auto unprepared = sleeps.prepare_wait();
    CHECK((!unprepared && unprepared.error() == errc::invalid_argument));
    sleeps.poll().value();
    const auto late = sleeps.native_handle();
    if (std::string_view(sleeps.stats().backend) == "io_uring") CHECK((!late && late.error() == errc::in_use));

    vb::reactor embedded;
    const int fd = embedded.native_handle().value();
    CHECK(embedded.native_handle().value() == fd);
    std::thread([&] {
        const auto handle = embedded.native_handle();
        CHECK((!handle && handle.error() == errc::wrong_thread));
        const auto prepared = embedded.prepare_wait();
        CHECK((!prepared && prepared.error() == errc::wrong_thread));
    }).join();
    unsigned slept = 0;
    embedded.run(naps(embedded, 3, slept)); // it can sleep by itself as well
    CHECK(slept == 3);
}

TEST_CASE("where there is no handle to be had, the reason is told", "[backend]") {
    vb::error failed;
    bool filtered = false;
    std::thread([&] {
        filtered = support::refuse(SYS_timerfd_create, EMFILE);
        vb::reactor reactor;
        if (auto handle = reactor.native_handle(); !handle) failed = handle.error();
    }).join();
    if (!filtered) VERBENA_SKIP("system calls cannot be filtered here");
    CHECK(failed == errc::resource);
    CHECK(std::string_view(failed.verb()) == "timerfd_create");
}
