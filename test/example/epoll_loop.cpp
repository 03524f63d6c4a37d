// A reactor in a plain epoll loop that has other things to wait for.

#include "far_end.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace vb = verbena;
using example::ask;
using example::near_end;

namespace {

vb::task<> talk(near_end& end, int told, bool& done) {
    for (int i = 0; i < 100; ++i) {
        const std::string word = "word number " + std::to_string(i);
        const auto answer = co_await ask(end, word);
        if (answer != word) throw std::runtime_error("another answer");
        const std::uint64_t one = 1;
        if (::write(told, &one, sizeof one) != sizeof one) throw std::runtime_error("write");
    }
    (co_await ask(end, ".")).clear();
    done = true;
}

// README: epoll
/// `other` stands for the sockets, signals and timers of the program that has the loop.
void loop(vb::reactor& reactor, int other, const std::function<void()>& serve_other, const bool& done) {
    const int handle = reactor.native_handle().value();
    const int epoll = epoll_create1(EPOLL_CLOEXEC);
    for (const int fd : {handle, other}) {
        epoll_event wanted{.events = EPOLLIN, .data = {.fd = fd}};
        if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &wanted) != 0) throw std::system_error(errno, std::system_category());
    }
    while (!done) {
        const bool ready = // then only look
            reactor.poll().value() > 0 || reactor.prepare_wait().value() == vb::wait_state::ready;
        std::array<epoll_event, 8> events;
        const int count = epoll_wait(epoll, events.data(), events.size(), ready || done ? 0 : -1);
        for (int i = 0; i < count; ++i)
            if (events[static_cast<std::size_t>(i)].data.fd == other) serve_other();
    }
    ::close(epoll);
}
// README: end

} // namespace

TEST_CASE("a plain epoll loop serves a reactor beside its other descriptors") {
    const auto device = support::open_device().value();
    vb::reactor reactor({.safety_repoll = std::chrono::milliseconds{0}});
    reactor.native_handle().value();
    near_end end(device, reactor);
    const int other = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    std::uint64_t told = 0;
    bool done = false;
    vb::scope scope;
    scope.spawn(talk(end, other, done));
    const auto serve_other = [&] {
        std::uint64_t count = 0;
        if (::read(other, &count, sizeof count) == sizeof count) told += count;
    };
    loop(reactor, other, serve_other, done);
    serve_other();
    CHECK(told == 100);
    CHECK(reactor.stats().rescued == 0);
    ::close(other);
}
