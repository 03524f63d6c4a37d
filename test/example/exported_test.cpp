// What a program uses is exported by the shared library: here without a device.

#include "support/catch.hpp"

#include <verbena/format.hpp>
#include <verbena/verbena.hpp>

#include <chrono>
#include <string>
#include <utility>

#include <unistd.h>

namespace vb = verbena;
using namespace std::chrono_literals;

namespace {

vb::task<int> use(vb::reactor& reactor, int readable) {
    vb::scope scope;
    vb::event event;
    vb::semaphore semaphore(1);
    auto child = scope.spawn([](vb::event& e, vb::semaphore& s) -> vb::task<int> {
        co_await e.wait();
        co_await s.acquire();
        s.release();
        co_return 40;
    }(event, semaphore));
    co_await reactor.sleep_for(1us);
    co_await reactor.yield();
    (co_await reactor.wait_readable(readable)).value();
    event.set();
    const int forty = co_await child.wait();
    co_await scope.join();
    const auto [one, other] =
        co_await vb::when_all([]() -> vb::task<int> { co_return 1; }(), []() -> vb::task<int> { co_return 1; }());
    co_return forty + one + other;
}

} // namespace

TEST_CASE("a program without a device links and runs") {
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    REQUIRE(write(ends[1], "x", 1) == 1);
    vb::set_log_sink({});
    vb::reactor reactor;
    CHECK(reactor.run(use(reactor, ends[0])) == 42);
    const auto unknown = vb::context::open("no such device");
    CHECK(!unknown);
    CHECK(!fmt::format("{} {}", unknown.error(), reactor.stats()).empty());
    CHECK(vb::endpoint::from_bytes(vb::endpoint{.qp_num = 1, .mtu = 1024}.to_bytes()).has_value());
    CHECK(vb::remote_slice::from_bytes(vb::remote_slice{}.to_bytes()) == vb::remote_slice{});
    CHECK(vb::gid{}.is_zero());
    CHECK(!vb::gid{}.is_ipv4_mapped());
    close(ends[0]);
    close(ends[1]);
}
