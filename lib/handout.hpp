#pragma once

#include <verbena/detail/cancellable_wait.hpp>
#include <verbena/detail/list.hpp>

#include <cstddef>
#include <utility>
#include <vector>

namespace verbena::detail {

/// What came, and who waits for it. Whoever was woken takes the front when it runs; who comes later does not get in
/// before it. Reactor-bound.
template <class Item>
class handout {
  public:
    bool something_to_take() const noexcept { return items_.size() > promised_; }
    bool empty() const noexcept { return items_.empty(); }
    std::size_t size() const noexcept { return items_.size(); }
    list<cancellable_wait>& waiters() noexcept { return waiters_; }

    void push(Item item) { items_.push_back(std::move(item)); }
    void drop_oldest() noexcept { items_.erase(items_.begin()); }
    Item take() noexcept {
        Item front = std::move(items_.front());
        drop_oldest();
        return front;
    }
    /// Wakes the first who waits, if there is something that nobody else was woken for.
    void wake_next(list<ready_node>& woken) noexcept {
        if (waiters_.empty() || !something_to_take()) return;
        ++promised_;
        wake_first(waiters_, woken);
    }
    void wake_all(list<ready_node>& woken) noexcept {
        for (; !waiters_.empty(); ++promised_) wake_first(waiters_, woken);
    }
    /// One that was woken has run, or is destroyed instead.
    void keep_promise() noexcept { --promised_; }

  private:
    std::vector<Item> items_;  ///< few, and a deque would allocate again and again
    std::size_t promised_ = 0; ///< how many were woken and have not run
    list<cancellable_wait> waiters_;
};

} // namespace verbena::detail
