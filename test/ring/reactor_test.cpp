// Invariant: where io_uring is forbidden, missing or too old a reactor sleeps on epoll(7) and says so; where something
// has run out it fails with that. It belongs to the thread that runs it, wherever it was made (B24).

#include "ring_support.hpp"
#include "support/refused_call.hpp"

#include <verbena/log.hpp>
#include <verbena/reactor.hpp>

#include <atomic>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include <sys/syscall.h>

namespace vb = verbena;

namespace {

/// While it lives, log lines are kept instead of printed.
class log_lines {
  public:
    log_lines() {
        vb::set_log_sink([this](vb::log_level level, std::string_view text) {
            lines_.push_back((level == vb::log_level::warning ? "warning: " : "") + std::string(text));
        });
    }
    ~log_lines() { vb::set_log_sink({}); }
    const std::vector<std::string>& lines() const { return lines_; }

  private:
    std::vector<std::string> lines_;
};

/// Runs `f` where the system call fails so. False if nothing can be filtered here.
template <class F>
bool where_refused(unsigned call, int error, F f) {
    bool filtered = false;
    std::exception_ptr thrown;
    std::thread([&] {
        filtered = support::refuse(call, error);
        try {
            if (filtered) f();
        } catch (...) {
            thrown = std::current_exception();
        }
    }).join();
    if (thrown) std::rethrow_exception(thrown);
    return filtered;
}

vb::task<> wait_for(vb::reactor& reactor, int fd, bool& readable) {
    const auto got = co_await reactor.wait_readable(fd);
    readable = got.has_value();
}

} // namespace

TEST_CASE("without io_uring a reactor sleeps on epoll(7), and says so in one line", "[backend]") {
    for (const int refusal : {ENOSYS, EPERM, EACCES, EINVAL}) {
        const log_lines log;
        std::string backend;
        bool readable = false;
        const bool filtered = where_refused(SYS_io_uring_setup, refusal, [&] {
            event_fd fd;
            vb::reactor reactor({.wait = vb::wait_policy::park_at_once()});
            reactor.run([](vb::reactor& r) -> vb::task<> { co_await r.sleep_for(1ms); }(reactor));
            std::jthread other([&] { reactor.post([&] { fd.signal(); }); });
            reactor.run(wait_for(reactor, fd.get(), readable));
            backend = reactor.stats().backend;
            vb::reactor another;
            another.poll().value();
            CHECK(std::string_view(another.stats().backend) == "epoll");
        });
        if (!filtered) VERBENA_SKIP("system calls cannot be filtered here");
        INFO(std::strerror(refusal));
        CHECK(backend == "epoll");
        CHECK(readable);
        REQUIRE(log.lines().size() == 1);
        CHECK(log.lines()[0].find("warning: ") == 0);
        CHECK(log.lines()[0].find("epoll(7)") != std::string::npos);
        CHECK(log.lines()[0].find(std::strerror(refusal)) != std::string::npos);
        CHECK(log.lines()[0].find('\n') == std::string::npos);
    }
}

TEST_CASE("a ring that cannot be made for want of something is an error", "[backend]") {
    for (const int refusal : {ENOMEM, EMFILE, ENFILE}) {
        const log_lines log;
        std::error_code thrown;
        std::string backend;
        const bool filtered = where_refused(SYS_io_uring_setup, refusal, [&] {
            vb::reactor reactor;
            try {
                reactor.run([]() -> vb::task<> { co_return; }());
            } catch (const std::system_error& e) {
                thrown = e.code();
            }
            backend = reactor.stats().backend;
        });
        if (!filtered) VERBENA_SKIP("system calls cannot be filtered here");
        CHECK(thrown == std::error_code(refusal, std::system_category()));
        CHECK(backend == "none");
        CHECK(log.lines().empty());
    }
}

TEST_CASE("where nothing can be made to sleep on, the error is the last one", "[backend]") {
    const log_lines log;
    vb::error failed;
    const bool filtered = where_refused(SYS_io_uring_setup, EPERM, [&] {
        if (!support::refuse(SYS_eventfd2, EMFILE)) return;
        vb::reactor reactor;
        if (auto polled = reactor.poll(); !polled) failed = polled.error();
    });
    if (!filtered) VERBENA_SKIP("system calls cannot be filtered here");
    CHECK(failed.code() == std::error_code(EMFILE, std::system_category()));
    CHECK(std::string_view(failed.verb()) == "eventfd");
    CHECK(log.lines().empty());
}

TEST_CASE("a reactor that another thread runs refuses this one and takes its posts", "[backend]") {
    for (const bool refused : {false, true}) {
        const log_lines log;
        event_fd fd;
        bool readable = false, filtered = true;
        auto reactor = std::make_unique<vb::reactor>(vb::reactor_options{.wait = vb::wait_policy::park_at_once()});
        std::atomic<bool> running = false;
        std::thread runner([&] {
            if (refused) filtered = support::refuse(SYS_io_uring_setup, EPERM);
            reactor->post([&] {
                running = true;
                running.notify_one();
            });
            reactor->run(wait_for(*reactor, fd.get(), readable));
            reactor.reset();
        });
        running.wait(false);
        const auto polled = reactor->poll();
        CHECK((!polled && polled.error() == errc::wrong_thread));
        CHECK_THROWS_AS(reactor->run([]() -> vb::task<> { co_return; }()), std::system_error);
        reactor->post([&] { fd.signal(); });
        runner.join();
        if (!filtered) VERBENA_SKIP("system calls cannot be filtered here");
        CHECK(readable);
    }
}
