#pragma once

#include <verbena/detail/list.hpp>

#include <chrono>
#include <cstdint>
#include <optional>

namespace verbena::detail {

using time_point = std::chrono::steady_clock::time_point;

class timer_queue;

/// One deadline, kept in the awaiter or coroutine frame that waits for it. Its destructor takes it out of the queue.
class timer_node : private list_node {
  public:
    timer_node() noexcept = default;
    inline ~timer_node();

    bool linked() const noexcept { return queue_ != nullptr; }
    time_point deadline() const noexcept { return deadline_; }

  private:
    friend class timer_queue;
    friend class list<timer_node>;

    bool before(const timer_node& other) const noexcept {
        return deadline_ != other.deadline_ ? deadline_ < other.deadline_ : sequence_ < other.sequence_;
    }

    timer_queue* queue_ = nullptr;
    timer_node* child_ = nullptr;
    timer_node* next_ = nullptr;
    timer_node* previous_ = nullptr; // the left sibling, or the parent of a first child
    time_point deadline_{};
    std::uint64_t sequence_ = 0;
};

/// Deadlines in order, first in first out among equal ones. An intrusive pairing heap: `add` and `earliest` are O(1),
/// `remove` and each expiry O(log n) amortised, and nothing allocates.
class timer_queue {
  public:
    timer_queue() noexcept = default;
    timer_queue(const timer_queue&) = delete;
    timer_queue& operator=(const timer_queue&) = delete;
    ~timer_queue() {
        while (!due_.empty()) due_.pop_front().queue_ = nullptr;
        // Every chain of siblings is put in front of the list it was found on: no recursion, each node seen twice.
        for (timer_node* node = root_; node != nullptr;) {
            if (timer_node* last = node->child_) {
                while (last->next_ != nullptr) last = last->next_;
                last->next_ = node->next_;
                node->next_ = node->child_;
            }
            timer_node* following = node->next_;
            forget(*node);
            node = following;
        }
    }

    bool empty() const noexcept { return root_ == nullptr && due_.empty(); }

    /// A node that is in the queue already is moved to the new deadline.
    void add(timer_node& node, time_point deadline) noexcept {
        remove(node);
        node.queue_ = this;
        node.deadline_ = deadline;
        node.sequence_ = ++sequence_;
        root_ = merge(root_, &node);
    }

    /// Does nothing if the node is not in the queue.
    void remove(timer_node& node) noexcept {
        if (!node.linked()) return;
        if (static_cast<list_node&>(node).linked())
            static_cast<list_node&>(node).unlink();
        else
            cut(node);
        forget(node);
    }

    std::optional<time_point> earliest() const noexcept {
        if (!due_.empty()) return due_.front().deadline_;
        if (root_ != nullptr) return root_->deadline_;
        return std::nullopt;
    }

    /// Takes out at most `budget` nodes whose deadline is not after `now`, in order, and calls `f(node)` for each;
    /// answers how many. `f` may add, remove and destroy any node, the given one included. What it adds waits for the
    /// next call, so that a timer which sets itself anew cannot keep the others from their turn.
    template <class F>
    unsigned expire(time_point now, unsigned budget, F&& f) {
        for (unsigned taken = 0; taken < budget && root_ != nullptr && root_->deadline_ <= now; ++taken) {
            timer_node& node = *root_;
            cut(node);
            due_.push_back(node);
        }
        unsigned called = 0;
        for (; called < budget && !due_.empty(); ++called) {
            timer_node& node = due_.pop_front();
            forget(node);
            f(node);
        }
        return called;
    }

  private:
    static void forget(timer_node& node) noexcept {
        node.queue_ = nullptr;
        node.child_ = node.next_ = node.previous_ = nullptr;
    }

    static timer_node* merge(timer_node* a, timer_node* b) noexcept {
        if (a == nullptr) return b;
        if (b == nullptr) return a;
        timer_node* parent = b->before(*a) ? b : a;
        timer_node* child = parent == a ? b : a;
        child->previous_ = parent;
        child->next_ = parent->child_;
        if (child->next_ != nullptr) child->next_->previous_ = child;
        parent->child_ = child;
        return parent;
    }

    /// Pairs the siblings from left to right, then merges the pairs from right to left.
    static timer_node* merge_siblings(timer_node* first) noexcept {
        timer_node* pairs = nullptr; // linked through next_, the last pair first
        while (first != nullptr) {
            timer_node* second = first->next_;
            timer_node* rest = second != nullptr ? second->next_ : nullptr;
            detach(*first);
            if (second != nullptr) detach(*second);
            timer_node* pair = merge(first, second);
            pair->next_ = pairs;
            pairs = pair;
            first = rest;
        }
        timer_node* root = nullptr;
        while (pairs != nullptr) {
            timer_node* pair = pairs;
            pairs = pair->next_;
            pair->next_ = nullptr;
            root = merge(root, pair);
        }
        return root;
    }

    static void detach(timer_node& node) noexcept { node.next_ = node.previous_ = nullptr; }

    void cut(timer_node& node) noexcept {
        timer_node* children = merge_siblings(node.child_);
        node.child_ = nullptr;
        if (&node == root_) {
            root_ = children;
            return;
        }
        if (node.previous_->child_ == &node)
            node.previous_->child_ = node.next_;
        else
            node.previous_->next_ = node.next_;
        if (node.next_ != nullptr) node.next_->previous_ = node.previous_;
        detach(node);
        root_ = merge(root_, children);
    }

    timer_node* root_ = nullptr;
    list<timer_node> due_; // taken out by `expire`, not called yet
    std::uint64_t sequence_ = 0;
};

timer_node::~timer_node() {
    if (queue_ != nullptr) queue_->remove(*this);
}

} // namespace verbena::detail
