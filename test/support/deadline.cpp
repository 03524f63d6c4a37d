#include "deadline.hpp"

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <utility>

#include <unistd.h>

namespace support {

namespace {

using clock = std::chrono::steady_clock;
constexpr std::chrono::seconds default_limit{120};
constexpr auto never = clock::time_point::max();

struct watched {
    std::mutex mutex;
    std::condition_variable changed;
    std::string test;
    clock::time_point expiry = never;
    std::list<std::function<std::string()>> printers;
    bool over = false;
    std::thread thread;
};

watched& state() {
    static watched one;
    return one;
}

clock::duration scaled(std::chrono::seconds limit) {
    static const double factor = [] {
        const char* text = std::getenv("VERBENA_TEST_SECONDS");
        const double seconds = text != nullptr ? std::atof(text) : 0;
        return seconds > 0 ? seconds / std::chrono::duration<double>(default_limit).count() : 1.0;
    }();
    return std::chrono::duration_cast<clock::duration>(limit * factor);
}

[[noreturn]] void expire(const watched& w) {
    std::printf("FAIL  %s: its time is over\n", w.test.c_str());
    std::fflush(stdout);
    for (const auto& print : w.printers) {
        std::printf("%s\n", print().c_str());
        std::fflush(stdout);
    }
    _exit(3); // no destructor of the hanging test may run
}

void watch() {
    auto& w = state();
    std::unique_lock lock(w.mutex);
    while (!w.over) {
        if (clock::now() >= w.expiry) expire(w);
        if (w.expiry == never)
            w.changed.wait(lock);
        else
            w.changed.wait_until(lock, w.expiry);
    }
}

clock::time_point set_expiry(clock::time_point expiry) {
    auto& w = state();
    std::lock_guard lock(w.mutex);
    w.changed.notify_one();
    return std::exchange(w.expiry, expiry);
}

} // namespace

deadline::deadline(std::chrono::seconds limit) {
    const auto now = clock::now();
    const auto previous = set_expiry(now + scaled(limit));
    remaining_ = previous == never ? clock::duration::max() : previous - now;
}

deadline::~deadline() { set_expiry(remaining_ == clock::duration::max() ? never : clock::now() + remaining_); }

state_printer::state_printer(std::function<std::string()> print) {
    auto& w = state();
    std::lock_guard lock(w.mutex);
    place_ = w.printers.insert(w.printers.end(), std::move(print));
}

state_printer::~state_printer() {
    auto& w = state();
    std::lock_guard lock(w.mutex);
    w.printers.erase(place_);
}

watchdog::watchdog() { state().thread = std::thread(watch); }

watchdog::~watchdog() {
    auto& w = state();
    {
        std::lock_guard lock(w.mutex);
        w.over = true;
        w.changed.notify_one();
    }
    w.thread.join();
}

void watchdog::begin(std::string test) {
    auto& w = state();
    {
        std::lock_guard lock(w.mutex);
        w.test = std::move(test);
    }
    set_expiry(clock::now() + scaled(default_limit));
}

void watchdog::end() { set_expiry(never); }

} // namespace support
