#pragma once

namespace verbena::detail {

/// A member of an intrusive list. Its destructor unlinks it, so that nothing in a list can dangle.
class list_node {
  public:
    list_node() noexcept = default;
    list_node(const list_node&) = delete;
    list_node& operator=(const list_node&) = delete;
    ~list_node() {
        if (linked()) unlink();
    }

    bool linked() const noexcept { return next_ != this; }
    void unlink() noexcept {
        previous_->next_ = next_;
        next_->previous_ = previous_;
        previous_ = next_ = this;
    }

  private:
    template <class T>
    friend class list;

    list_node* previous_ = this;
    list_node* next_ = this;
};

/// A FIFO of nodes derived from `list_node`; owns none of them.
template <class T>
class list {
  public:
    list() noexcept = default;
    ~list() {
        while (!empty()) pop_front();
    }

    bool empty() const noexcept { return !head_.linked(); }
    T& front() const noexcept { return static_cast<T&>(*head_.next_); }
    T& back() const noexcept { return static_cast<T&>(*head_.previous_); }
    void push_back(T& node) noexcept {
        list_node& n = node;
        n.previous_ = head_.previous_;
        n.next_ = &head_;
        n.previous_->next_ = n.next_->previous_ = &n;
    }
    T& pop_front() noexcept {
        T& node = front();
        static_cast<list_node&>(node).unlink();
        return node;
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
