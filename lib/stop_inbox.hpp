#pragma once

#include "process.hpp"
#include "wait_backend.hpp"

#include <verbena/detail/limit.hpp>
#include <verbena/detail/list.hpp>

#include <atomic>
#include <mutex>

namespace verbena::detail {

/// Where other threads leave the stops that they request. Outlives its reactor, held by those who may be stopped.
class stop_inbox {
  public:
    /// Thread-safe; wakes the reactor. Does nothing when that is gone.
    void put(stop_node& node) noexcept {
        if (process_.forked()) return;
        const std::lock_guard lock(mutex_);
        if (closed_ || node.linked()) return;
        nodes_.push_back(node);
        waiting_.store(true);
        if (backend_ != nullptr) backend_->wake();
    }
    void take_out(stop_node& node) noexcept {
        const auto lock = lock_here();
        node.unlink();
    }

    // The rest is the reactor's.
    void open(wait_backend& backend) noexcept {
        const std::lock_guard lock(mutex_);
        backend_ = &backend;
    }
    void close() noexcept {
        const auto lock = lock_here();
        closed_ = true;
        backend_ = nullptr;
        while (!nodes_.empty()) nodes_.pop_front();
    }
    bool waiting() const noexcept { return waiting_.load(); }
    unsigned serve() noexcept {
        unsigned served = 0;
        while (stop_node* node = next()) {
            node->stopped();
            ++served;
        }
        return served;
    }

  private:
    /// In a fork nobody would unlock it if another thread held it.
    std::unique_lock<std::mutex> lock_here() noexcept {
        return process_.forked() ? std::unique_lock<std::mutex>{} : std::unique_lock{mutex_};
    }
    stop_node* next() noexcept {
        const std::lock_guard lock(mutex_);
        if (!nodes_.empty()) return &nodes_.pop_front();
        waiting_.store(false);
        return nullptr;
    }

    const process_mark process_;
    std::mutex mutex_; ///< guards all but `waiting_`
    list<stop_node> nodes_;
    wait_backend* backend_ = nullptr;
    bool closed_ = false;
    std::atomic<bool> waiting_{false};
};

} // namespace verbena::detail
