// Completions that are there at once need no more stack and memory for a million operations than for one (B20).

#include "race_rig.hpp"
#include "support/small_stack.hpp"

#include <unistd.h>

#include <array>
#include <fstream>

using namespace races;
using namespace std::chrono_literals;

namespace {

std::size_t resident_pages() {
    std::size_t all = 0, resident = 0;
    std::ifstream("/proc/self/statm") >> all >> resident;
    return resident;
}

vb::task<> write_often(lab& l, std::uint64_t count, bool signaled, ending_log& log) {
    std::array<std::byte, 8> bytes{};
    for (std::uint64_t i = 0; i < count; ++i) {
        auto done = co_await l.left->write(vb::inline_data(bytes), l.memory.remote(4096, 8), {.signaled = signaled});
        log.add(done);
    }
}

vb::task<> ping_pong(lab& l, const vb::queue_pair& mine, std::size_t slot, std::uint64_t count, bool begins,
                     ending_log& log) {
    for (std::uint64_t i = 0; i < count; ++i) {
        if (begins) {
            auto [got, sent] = co_await vb::when_all(mine.recv(l.slice(slot)), mine.send(l.slice(slot + 1)));
            log.add(got);
            log.add(sent);
        } else {
            auto got = co_await mine.recv(l.slice(slot));
            log.add(got);
            auto sent = co_await mine.send(l.slice(slot + 1));
            log.add(sent);
        }
    }
}

} // namespace

TEST_CASE("a million operations that complete at once need the stack and the memory of one") {
    const support::deadline limit(120s);
    const std::uint64_t count = support::rounds(support::sanitized ? 50'000 : 1'000'000);
    for (const auto& name : devices()) {
        INFO(name);
        support::on_small_stack([&] {
            lab l(name, {.depth = 4096}); // unsignaled ones complete at once as long as there is room
            ending_log log;
            l.reactor.run(write_often(l, count / 4, true, log));
            const auto before = resident_pages();
            l.reactor.run(write_often(l, count / 4, true, log));
            l.reactor.run(write_often(l, count / 2, false, log));
            CHECK(log.successes == count);
            if (!support::sanitized) CHECK(resident_pages() < before + 256); // a mebibyte
        });
    }
}

TEST_CASE("two coroutines that answer each other a hundred thousand times need the stack of one answer") {
    const support::deadline limit(120s);
    const std::uint64_t count = support::rounds(support::sanitized ? 5'000 : 100'000);
    for (const auto& name : devices()) {
        INFO(name);
        support::on_small_stack([&] {
            lab l(name);
            ending_log log;
            vb::scope scope;
            scope.spawn(ping_pong(l, *l.right, 0, count, false, log));
            scope.spawn(ping_pong(l, *l.left, 2, count, true, log));
            l.finish(scope);
            CHECK(log.successes == 4 * count);
        });
    }
}
