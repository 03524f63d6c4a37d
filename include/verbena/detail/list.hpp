#pragma once

namespace verbena::detail {

/// A member of an intrusive list. Its destructor unlinks it, so that nothing in a list can dangle.
class list_node {
  public:
    list_node() noexcept = default;
    list_node(const list_node&) = delete;
    list_node& operator=(const list_node&) = delete;
    ~list_node() { unlink(); }

    bool linked() const noexcept { return next_ != nullptr; }
    void unlink() noexcept {
        if (linked()) cut();
    }

  private:
    template <class T>
    friend class list;

    void cut() noexcept {
        previous_->next_ = next_;
        next_->previous_ = previous_;
        next_ = nullptr;
    }

    list_node* previous_; // with `next_`
    list_node* next_ = nullptr;
};

/// A FIFO of nodes derived from `list_node`; owns none of them.
template <class T>
class list {
  public:
    list() noexcept { head_.previous_ = head_.next_ = &head_; }
    ~list() {
        while (!empty()) pop_front();
    }

    bool empty() const noexcept { return head_.next_ == &head_; }
    T& front() const noexcept { return static_cast<T&>(*head_.next_); }
    T& back() const noexcept { return static_cast<T&>(*head_.previous_); }
    void push_back(T& node) noexcept {
        list_node& n = node;
        list_node& last = *head_.previous_;
        n.previous_ = &last;
        n.next_ = &head_;
        last.next_ = &n;
        head_.previous_ = &n;
    }
    T& pop_front() noexcept {
        list_node& node = *head_.next_;
        head_.next_ = node.next_;
        node.next_->previous_ = &head_;
        node.next_ = nullptr;
        return static_cast<T&>(node);
    }
    /// Moves all of `other` behind what is here.
    void splice(list& other) noexcept {
        if (other.empty()) return;
        list_node& first = *other.head_.next_;
        list_node& last = *other.head_.previous_;
        other.head_.previous_ = other.head_.next_ = &other.head_;
        first.previous_ = head_.previous_;
        head_.previous_->next_ = &first;
        last.next_ = &head_;
        head_.previous_ = &last;
    }

    template <class F>
    void for_each(F&& f) const {
        for (list_node* n = head_.next_; n != &head_;) {
            list_node* next = n->next_;
            f(static_cast<T&>(*n));
            n = next;
        }
    }

  private:
    list_node head_;
};

} // namespace verbena::detail
