#include "plain_side.hpp"

#include <sys/eventfd.h>

#include <future>

namespace plain {
namespace {

struct waiter {
    waiter(bool polls, int own, int other) : sleep(polls, {own}), own(own), other(other) {}

    void run(std::uint64_t rounds) {
        for (std::uint64_t i = 0; i < rounds;) {
            ++parks;
            if (sleep.wait() < 0) continue;
            eventfd_t value = 0;
            if (::eventfd_read(own, &value) != 0) fail(errno, "eventfd_read");
            if (++i < rounds || answers) wake();
        }
    }
    void wake() const {
        if (::eventfd_write(other, 1) != 0) fail(errno, "eventfd_write");
    }

    sleeper sleep;
    int own;
    int other;
    bool answers = false;
    std::uint64_t parks = 0;
};

} // namespace

figures parked_eventfds(const options& options) {
    const descriptor here(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd");
    const descriptor there(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd");
    waiter asking(options.polls, here.get(), there.get()), answering(options.polls, there.get(), here.get());
    answering.answers = true;
    auto other = std::async(std::launch::async, [&] { answering.run(options.rounds); });
    figures counts{.rounds = options.rounds};
    const std::uint64_t started = now_ns();
    asking.wake();
    asking.run(options.rounds);
    counts.total_ns = now_ns() - started;
    other.get();
    counts.parks = asking.parks + answering.parks;
    return counts;
}

} // namespace plain
