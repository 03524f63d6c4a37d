#pragma once

#include <verbena/detail/broken_rule.hpp>
#include <verbena/detail/outcome.hpp>
#include <verbena/detail/stop.hpp>

#include <concepts>
#include <coroutine>
#include <cstddef>
#include <cstring>
#include <exception>
#include <memory>
#include <memory_resource>
#include <utility>

namespace verbena {

template <class T>
class task;

namespace detail {

/// A frame whose coroutine names where its memory is from. The resource stands behind the frame. Inlined, since g++ 12
/// takes a template of operator new and an operator delete that is none for a mismatch.
struct frame_from_resource {
    template <class... Parameters>
    [[gnu::always_inline]] static void* operator new(std::size_t bytes, std::allocator_arg_t,
                                                     std::pmr::memory_resource* resource, const Parameters&...) {
        void* const frame = resource->allocate(whole(bytes));
        std::memcpy(behind(frame, bytes), &resource, sizeof resource);
        return frame;
    }
    template <class Object, class... Parameters> // of a member function or a lambda
    [[gnu::always_inline]] static void* operator new(std::size_t bytes, const Object&, std::allocator_arg_t,
                                                     std::pmr::memory_resource* resource, const Parameters&...) {
        return operator new(bytes, std::allocator_arg, resource);
    }
    static void operator delete(void* frame, std::size_t bytes) noexcept {
        std::pmr::memory_resource* resource;
        std::memcpy(&resource, behind(frame, bytes), sizeof resource);
        resource->deallocate(frame, whole(bytes));
    }

  private:
    static std::size_t whole(std::size_t bytes) noexcept { return bytes + sizeof(std::pmr::memory_resource*); }
    static void* behind(void* frame, std::size_t bytes) noexcept { return static_cast<std::byte*>(frame) + bytes; }
};

struct task_promise_base {
    // At the end the parent goes on from here, inside the resume() of its child, but only if it had really suspended.
    // It then destroys the child's frame, so nothing may be touched after its resume(). No symmetric transfer: without
    // optimisation and under sanitizers g++ makes it a call that never returns, one more frame for every await.
    struct final_awaiter {
        bool await_ready() const noexcept { return false; }
        template <class Promise>
        void await_suspend(std::coroutine_handle<Promise> self) const noexcept {
            if (const auto parent = self.promise().parent) parent.resume();
        }
        void await_resume() const noexcept {}
    };

    std::suspend_always initial_suspend() const noexcept { return {}; }
    final_awaiter final_suspend() const noexcept { return {}; }

    template <class Awaitable>
    stoppable_wait<Awaitable> await_transform(Awaitable&& awaitable) {
        return stoppable_wait<Awaitable>(stop, std::forward<Awaitable>(awaitable));
    }

    std::coroutine_handle<> parent; // null while the parent has not suspended
    stop_point stop;
};

template <class T>
struct task_promise : task_promise_base {
    task<T> get_return_object() noexcept;
    template <class U = T>
        requires std::constructible_from<T, U>
    void return_value(U&& value) {
        result.set_value(std::forward<U>(value));
    }
    void unhandled_exception() noexcept { result.set_exception(std::current_exception()); }

    outcome<T> result;
};

template <class T>
    requires std::is_reference_v<T>
struct task_promise<T> : task_promise_base {
    task<T> get_return_object() noexcept;
    void return_value(T value) noexcept { result.set_value(value); }
    void unhandled_exception() noexcept { result.set_exception(std::current_exception()); }

    outcome<T> result;
};

template <>
struct task_promise<void> : task_promise_base {
    inline task<void> get_return_object() noexcept;
    void return_void() noexcept { result.set_value(); }
    void unhandled_exception() noexcept { result.set_exception(std::current_exception()); }

    outcome<void> result;
};

/// Owns the frame of the task that is awaited, and destroys it.
template <class T>
class [[nodiscard]] task_awaiter {
  public:
    explicit task_awaiter(std::coroutine_handle<task_promise<T>> child) noexcept : child_(child) {}
    task_awaiter(const task_awaiter&) = delete;
    task_awaiter& operator=(const task_awaiter&) = delete;
    ~task_awaiter() { drop_frame(); }

    bool await_ready() const noexcept { return false; }
    bool await_suspend(std::coroutine_handle<> parent) {
        child_.resume();
        if (child_.done()) return false;
        child_.promise().parent = parent;
        return true;
    }
    T await_resume() { return child_.promise().result.take(); }

    /// The task was told to stop before it began.
    void inherit_stop(errc cause) noexcept { child_.promise().stop.cause = cause; }
    /// Ends what the task waits for, and all that it will wait for.
    void pass_stop(errc cause, list<ready_node>& woken) noexcept {
        if (child_) child_.promise().stop.request(cause, woken);
    }

    /// What the finished task left, for those who would rather not throw.
    outcome<T>& result() noexcept { return child_.promise().result; }
    void drop_frame() noexcept {
        if (child_) std::exchange(child_, nullptr).destroy();
    }

  private:
    std::coroutine_handle<task_promise<T>> child_;
};

} // namespace detail

/// A coroutine that starts when it is awaited and gives its awaiter a T (void, a reference, or a type that moves), or
/// throws there what left its body.
///
///     task<std::size_t> read_all(queue_pair& qp);
///     task<> serve(queue_pair& qp) { auto bytes = co_await read_all(qp); }
///
/// - Completes when: its body has ended. A body that ends without suspending does not suspend the awaiter either.
/// - In flight together: any number; each is awaited once (`co_await std::move(t)`, or of the call itself). To await
///   again, or one that was moved from, ends the program.
/// - Buffer lifetime: its parameters and locals live in its frame, until the `co_await` expression ends. The captures
///   of a lambda do not: the lambda must live as long (see `scope::spawn`).
/// - Errors: exceptions of the body; `std::bad_alloc` of the call that makes the frame.
/// - Memory: the frame, one allocation by operator new. A coroutine whose first parameters are `std::allocator_arg_t`
///   and a `std::pmr::memory_resource*` takes it from there, and gives it back there: with a pool a task that is
///   awaited again and again allocates nothing. The resource is not null, outlives the frame, and is for the threads
///   that make and destroy it.
///
///     task<std::size_t> read_all(std::allocator_arg_t, std::pmr::memory_resource* frames, queue_pair& qp);
///     auto bytes = co_await read_all(std::allocator_arg, &pool, qp);
///
/// - Stopping: once it was told to stop (`with_timeout`, `with_stop`, `scope::request_stop`), the operation it waits
///   for ends early, and so does, at once and without having posted anything, each that it awaits afterwards, in the
///   tasks that it awaits, too: with `timed_out` or `stopped` where there is a result, else by `std::system_error`. It
///   goes on to its end by itself.
/// - Cancel safety: destroying a suspended task destroys its frame and those of all that it awaits, innermost first,
///   each by the rule of what it awaits. A task must not be destroyed while it runs, that is by itself or by anything
///   it calls, nor while one that it awaits runs.
/// - Thread: reactor-bound. A foreign coroutine that awaits a task must not let exceptions leave its `resume()`.
template <class T = void>
class [[nodiscard]] task {
  public:
    using promise_type = detail::task_promise<T>; ///< for the compiler
    using value_type = T;                         ///< what awaiting it gives

    task(task&& other) noexcept : coroutine_(std::exchange(other.coroutine_, nullptr)) {}
    task& operator=(task&& other) noexcept {
        task(std::move(other)).swap(*this);
        return *this;
    }
    ~task() {
        if (coroutine_) coroutine_.destroy();
    }

    /// Takes the frame: the task is empty afterwards.
    detail::task_awaiter<T> operator co_await() && noexcept {
        if (!coroutine_) detail::broken_rule("a task is awaited once, and not after it was moved from");
        return detail::task_awaiter<T>(std::exchange(coroutine_, nullptr));
    }

  private:
    friend promise_type;

    explicit task(std::coroutine_handle<promise_type> coroutine) noexcept : coroutine_(coroutine) {}
    void swap(task& other) noexcept { std::swap(coroutine_, other.coroutine_); }

    std::coroutine_handle<promise_type> coroutine_;
};

namespace detail {

template <class T>
task<T> task_promise<T>::get_return_object() noexcept {
    return task<T>(std::coroutine_handle<task_promise>::from_promise(*this));
}

template <class T>
    requires std::is_reference_v<T>
task<T> task_promise<T>::get_return_object() noexcept {
    return task<T>(std::coroutine_handle<task_promise>::from_promise(*this));
}

task<void> task_promise<void>::get_return_object() noexcept {
    return task<void>(std::coroutine_handle<task_promise>::from_promise(*this));
}

template <class T>
inline constexpr bool is_task = false;
template <class T>
inline constexpr bool is_task<task<T>> = true;

/// Where the other's handles look for it: the same but for the memory of its frame.
template <class T>
struct task_promise_from_resource : task_promise<T>, frame_from_resource {
    task_promise_from_resource() noexcept {
        static_assert(sizeof *this == sizeof(task_promise<T>) &&
                      alignof(task_promise_from_resource) == alignof(task_promise<T>));
    }
};

} // namespace detail
} // namespace verbena

template <class T, class Resource, class... Parameters>
struct std::coroutine_traits<verbena::task<T>, std::allocator_arg_t, Resource, Parameters...> {
    using promise_type = verbena::detail::task_promise_from_resource<T>;
};
template <class T, class Object, class Resource, class... Parameters>
struct std::coroutine_traits<verbena::task<T>, Object, std::allocator_arg_t, Resource, Parameters...> {
    using promise_type = verbena::detail::task_promise_from_resource<T>;
};
