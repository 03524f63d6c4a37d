#include "plain_side.hpp"

#include <sys/eventfd.h>
#include <sys/timerfd.h>

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

figures parked_idle(const options& options) {
    const device device(options);
    const owned<ibv_comp_channel, ibv_destroy_comp_channel> channel(
        created(ibv_create_comp_channel(device.context.get()), "ibv_create_comp_channel"));
    std::vector<owned<ibv_cq, ibv_destroy_cq>> queues(1 + options.idle_queues);
    for (auto& queue : queues) {
        queue.reset(created(ibv_create_cq(device.context.get(), 1, nullptr, channel.get(), 0), "ibv_create_cq"));
        check(ibv_req_notify_cq(queue.get(), 0), "ibv_req_notify_cq");
    }
    const descriptor timer(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK), "timerfd_create");
    sleeper sleep(options.polls, {channel->fd, timer.get()});
    figures counts{.rounds = options.rounds};
    const std::uint64_t started = thread_cpu_ns();
    for (; counts.parks < options.rounds; ++counts.parks) {
        const itimerspec after{.it_interval = {}, .it_value = {.tv_sec = 0, .tv_nsec = 1000 * long{options.sleep_us}}};
        if (::timerfd_settime(timer.get(), 0, &after, nullptr) != 0) fail(errno, "timerfd_settime");
        sleep.wait();
    }
    counts.total_ns = thread_cpu_ns() - started;
    return counts;
}

} // namespace plain
