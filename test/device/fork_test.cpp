// What a child of fork(2) destroys is its copy: the parent's objects are not touched, and everything that the child
// calls on them is refused (B49). No descriptor of the library gets into a program that is executed.

#include "family.hpp"

#include <functional>
#include <set>
#include <string>
#include <vector>

#include <dirent.h>
#include <fcntl.h>

namespace vb = verbena;
using namespace std::chrono_literals;
using support::family;

namespace {

std::set<int> open_descriptors() {
    std::set<int> found;
    DIR* list = opendir("/proc/self/fd");
    if (list == nullptr) return found;
    while (const dirent* entry = readdir(list))
        if (entry->d_name[0] != '.' && std::atoi(entry->d_name) != dirfd(list)) found.insert(std::atoi(entry->d_name));
    closedir(list);
    return found;
}

bool refused(const vb::error& e) {
    return e == vb::errc::wrong_thread && support::names(e, "this process is a fork of the one that made it");
}

/// Runs in a child: the number of the first call that was not refused, or 0.
int first_not_refused(family& f) {
    int number = 0, first = 0;
    const auto expect = [&](const auto& outcome) {
        ++number;
        if (first == 0 && (outcome || !refused(outcome.error()))) first = number;
    };
    auto& reactor = f.engine->reactor;
    std::array<vb::poll_slot, 4> slots;
    expect(f.device->port(1));
    expect(f.device->gids(1));
    expect(vb::protection_domain::create(*f.device));
    expect(vb::completion_channel::create(*f.device));
    expect(vb::completion_queue::create(*f.device, 16));
    expect(f.engine->cq.poll(slots)); // 6
    expect(f.engine->cq.resize(1024));
    expect(vb::memory_region::allocate(*f.domain, 64));
    expect(vb::buffer_pool::create(*f.domain, 1, 64));
    expect(vb::shared_receive_queue::create(*f.domain, {.max_wr = 1}));
    expect(f.srq->arm_limit(1)); // 11
    expect(vb::address_handle::create(*f.domain, {.destination = f.wire->left.endpoint().gid}));
    expect(vb::queue_pair::create(*f.domain, {.send_cq = f.engine->cq, .recv_cq = f.engine->cq}));
    expect(f.wire->left.connect(f.wire->right.endpoint()));
    expect(f.wire->left.state());
    expect(f.on_srq->post(vb::send_request{f.memory->slice(0, 64)}, 1)); // 16
    expect(f.wire->left.send_detached(vb::inline_data(f.memory->bytes().first(8))));
    expect(vb::receiver::create(f.wire->right, {.depth = 1, .message_bytes = 8}));
    expect(vb::receiver::create(reactor, *f.srq, {.depth = 1, .message_bytes = 8}));
    expect(reactor.attach(f.engine->cq, slots));
    expect(reactor.detach(f.engine->cq)); // 21
    expect(reactor.events(*f.device));
    expect(reactor.poll());
    try {
        reactor.run([]() -> vb::task<> { co_return; }());
        expect(vb::result<void>());
    } catch (const std::system_error& e) {
        expect(vb::result<void>(vb::error(e.code(), "").with_note(e.what())));
    }
    // A reactor of this process can do nothing with them either.
    vb::reactor own;
    expect(own.attach(f.engine->cq, slots));
    expect(own.events(*f.device)); // 26
    vb::scope scope;
    const auto expect_awaited = [&](auto&& start) {
        std::optional<vb::error> end;
        scope.spawn(start(end));
        expect(end ? vb::result<void>(*end) : vb::result<void>());
    };
    expect_awaited([&](auto& end) {
        return [](family& all, std::optional<vb::error>& e) -> vb::task<> {
            const auto outcome = co_await all.wire->right.recv(all.memory->slice(0, 64));
            if (!outcome) e = outcome.error();
        }(f, end);
    });
    expect_awaited([&](auto& end) {
        return [](family& all, std::optional<vb::error>& e) -> vb::task<> {
            const auto outcome = co_await all.wire->left.close();
            if (!outcome) e = outcome.error();
        }(f, end);
    });
    expect_awaited([&](auto& end) {
        return [](family& all, std::optional<vb::error>& e) -> vb::task<> {
            const auto outcome = co_await all.inbox->next();
            if (!outcome) e = outcome.error();
        }(f, end);
    });
    expect_awaited([&](auto& end) {
        return [](family& all, std::optional<vb::error>& e) -> vb::task<> {
            const auto outcome = co_await all.events->next();
            if (!outcome) e = outcome.error();
        }(f, end);
    });
    expect_awaited([&](auto& end) { // 31
        return [](family& all, std::optional<vb::error>& e) -> vb::task<> {
            const auto outcome = co_await all.engine->reactor.wait_readable(all.ends[0]);
            if (!outcome) e = outcome.error();
        }(f, end);
    });
    expect(f.engine->cq.moderate(1, 1us));
    reactor.stop();
    reactor.post([] { _exit(99); });
    f.stop.request_stop();
    return first;
}

} // namespace

TEST_CASE("a child of fork that destroys everything takes nothing from its parent", "[fork]") {
    VERBENA_REQUIRE_DEVICE(device);
    const support::deadline allow(300s);
    for (const bool ran : {true, false})
        for (const auto order : family::orders) {
            INFO((ran ? "ran" : "made only") << ", order " << static_cast<int>(order));
            family all(device, ran);
            CHECK(support::forked([&] {
                      all.destroy(order);
                      return 0;
                  }) == 0);
            if (ran) all.check_alive();
        }
}

TEST_CASE("a child of fork is refused whatever it calls on its parent's objects", "[fork]") {
    VERBENA_REQUIRE_DEVICE(device);
    for (const bool ran : {true, false}) {
        INFO((ran ? "ran" : "made only"));
        family all(device, ran);
        CHECK(support::forked([&] {
                  const int number = first_not_refused(all);
                  all.destroy(family::order::waits_first);
                  return number;
              }) == 0);
        if (ran) all.check_alive();
    }
}

TEST_CASE("a coroutine that forks goes on in the child alone, and leaves the reactor to the parent", "[fork]") {
    VERBENA_REQUIRE_DEVICE(device);
    for (const bool to_the_end : {true, false}) {
        INFO((to_the_end ? "run returns" : "run throws"));
        family all(device, true);
        pid_t process = -1;
        unsigned beside = 0;
        bool refused_in_child = false;
        std::error_code thrown;
        vb::event never;
        const auto main = [](family& f, vb::event& n, pid_t& id, bool ends, unsigned& others, bool& no) -> vb::task<> {
            vb::scope scope;
            const auto count = [](family& all_of, unsigned& number) -> vb::task<> {
                co_await all_of.engine->reactor.yield();
                ++number;
            };
            const auto behind = [](family& all_of, auto time, unsigned& number) -> vb::task<> {
                co_await all_of.engine->reactor.yield();
                co_await all_of.engine->reactor.sleep_until(time);
                ++number;
            };
            const auto soon = std::chrono::steady_clock::now() + 20ms;
            scope.spawn(behind(f, soon, others)); // in one batch with this one, behind it
            co_await f.engine->reactor.sleep_until(soon);
            scope.spawn(count(f, others)); // ready already when this one is asked again
            f.engine->reactor.post([&others] { ++others; });
            id = support::fork_confined();
            if (id != 0) {
                co_await scope.join();
                co_return;
            }
            const auto got = co_await f.wire->right.recv(f.memory->slice(0, 64));
            no = !got && refused(got.error());
            if (!ends) co_await n.wait();
        };
        try {
            all.engine->reactor.run(main(all, never, process, to_the_end, beside, refused_in_child));
        } catch (const std::system_error& e) {
            thrown = e.code();
        }
        if (process == 0) {
            const bool as_wanted = to_the_end ? !thrown : thrown == vb::errc::wrong_thread;
            all.destroy(family::order::waits_first);
            _exit(beside == 0 && refused_in_child && as_wanted ? 0 : 1);
        }
        CHECK(support::end_of(process) == 0);
        CHECK(!thrown);
        CHECK(beside == 3);
        all.check_alive();
    }
}

TEST_CASE("all descriptors of the library are closed when a program is executed", "[fork]") {
    VERBENA_REQUIRE_DEVICE(device);
    const auto before = open_descriptors();
    family all(vb::context::open(device.name()).value(), true);
    unsigned fresh = 0;
    for (const int fd : open_descriptors()) {
        if (before.contains(fd) || fd == all.ends[0] || fd == all.ends[1]) continue;
        ++fresh;
        INFO("descriptor " << fd);
        CHECK((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    }
    CHECK(fresh >= 4); // the device, its asynchronous events, a channel, and what the reactor sleeps on
}
