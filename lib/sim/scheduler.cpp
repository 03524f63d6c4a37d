#include "scheduler.hpp"

#include <algorithm>
#include <utility>

namespace verbena::sim {

scheduler::time scheduler::now() const noexcept {
    return manual_ ? manual_now_ : std::chrono::steady_clock::now().time_since_epoch();
}

void scheduler::set_manual(bool manual) {
    if (manual == manual_) return;
    const time before = now();
    manual_ = manual;
    manual_now_ = {};
    const time after = now();
    std::map<id, std::function<void()>> moved;
    // Whoever keeps an id of these could not cancel it: keep the order number, by which `cancel` finds it.
    for (auto& [key, action] : std::exchange(actions_, {}))
        moved.emplace(id{key.when - before + after, key.order}, std::move(action));
    actions_ = std::move(moved);
    if (!manual_ && !actions_.empty()) tell_thread();
}

scheduler::id scheduler::add(time delay, std::function<void()> action) {
    const id key{now() + delay, ++last_order_};
    actions_.emplace(key, std::move(action));
    if (!manual_ && actions_.begin()->first == key) tell_thread();
    return key;
}

void scheduler::cancel(id& action) noexcept {
    const id key = std::exchange(action, id{});
    if (!key) return;
    auto at = actions_.find(key);
    if (at == actions_.end()) // the clock was changed since
        for (at = actions_.begin(); at != actions_.end() && at->first.order != key.order;) ++at;
    if (at != actions_.end()) actions_.erase(at);
}

std::optional<scheduler::time> scheduler::next() const noexcept {
    if (actions_.empty()) return std::nullopt;
    return actions_.begin()->first.when;
}

bool scheduler::run_first() {
    auto first = actions_.extract(actions_.begin());
    first.mapped()();
    return true;
}

bool scheduler::step() {
    if (!manual_ || actions_.empty()) return false;
    manual_now_ = std::max(manual_now_, actions_.begin()->first.when);
    return run_first();
}

void scheduler::advance(time by) {
    if (!manual_) return;
    const time until = manual_now_ + by;
    while (!actions_.empty() && actions_.begin()->first.when <= until) step();
    manual_now_ = std::max(manual_now_, until);
}

void scheduler::tell_thread() {
    const std::lock_guard guard(mutex_);
    wake_at_ = actions_.begin()->first.when;
    if (!std::exchange(thread_runs_, true)) {
        std::thread([this] { run_thread(); }).detach(); // devices are never destroyed
        return;
    }
    changed_.notify_one();
}

void scheduler::run_thread() {
    std::unique_lock sleep(mutex_);
    for (;;) {
        if (wake_at_ == time::max()) {
            changed_.wait(sleep);
            continue;
        }
        const auto due = std::chrono::steady_clock::time_point(
            std::chrono::duration_cast<std::chrono::steady_clock::duration>(wake_at_));
        if (std::chrono::steady_clock::now() < due) {
            changed_.wait_until(sleep, due);
            continue;
        }
        wake_at_ = time::max();
        sleep.unlock();
        lock_.lock();
        while (!manual_ && !actions_.empty() && actions_.begin()->first.when <= now()) run_first();
        const time next = manual_ || actions_.empty() ? time::max() : actions_.begin()->first.when;
        {
            const std::lock_guard guard(mutex_);
            wake_at_ = next;
        }
        lock_.unlock();
        sleep.lock();
    }
}

} // namespace verbena::sim
