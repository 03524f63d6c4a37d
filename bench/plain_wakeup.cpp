#include "plain_side.hpp"

#include <sys/timerfd.h>

#include <future>

namespace plain {
namespace {

struct waiter {
    waiter(bool polls, const event_descriptor& own, const event_descriptor& other)
        : sleep(polls, {own.get()}), own(own), other(other) {}

    void run(std::uint64_t rounds) {
        for (std::uint64_t i = 0; i < rounds;) {
            ++parks;
            if (sleep.wait() < 0) continue;
            own.take();
            if (++i < rounds || answers) other.wake();
        }
    }

    sleeper sleep;
    const event_descriptor& own;
    const event_descriptor& other;
    bool answers = false;
    std::uint64_t parks = 0;
};

} // namespace

figures parked_eventfds(const options& options) {
    const event_descriptor here, there;
    waiter asking(options.polls, here, there), answering(options.polls, there, here);
    answering.answers = true;
    auto other = std::async(std::launch::async, [&] { answering.run(options.rounds); });
    figures counts{.rounds = options.rounds};
    const std::uint64_t started = now_ns();
    there.wake();
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
