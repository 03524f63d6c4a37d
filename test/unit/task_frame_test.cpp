// Invariant: a task whose coroutine names a memory resource has its frame from there, and gives all of it back there,
// whatever its form and however it ends.

#include "support/catch.hpp"
#include "support/pause.hpp"
#include "support/running_task.hpp"

#include <verbena/task.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <new>
#include <stdexcept>
#include <utility>

using support::running_task;
using verbena::task;

namespace {

/// Knows what it has given out.
class ledger final : public std::pmr::memory_resource {
  public:
    std::size_t blocks = 0;
    std::size_t bytes = 0;
    std::size_t given = 0; ///< blocks in all
    bool empty = false;

  private:
    void* do_allocate(std::size_t size, std::size_t alignment) override {
        if (empty) throw std::bad_alloc();
        ++blocks;
        ++given;
        bytes += size;
        return std::pmr::new_delete_resource()->allocate(size, alignment);
    }
    void do_deallocate(void* block, std::size_t size, std::size_t alignment) override {
        --blocks;
        bytes -= size;
        std::pmr::new_delete_resource()->deallocate(block, size, alignment);
    }
    bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
};

using resource = std::pmr::memory_resource*;
constexpr auto from = std::allocator_arg;

// Not inline: where a compiler sees the end of a frame it may leave it out.
[[gnu::noinline]] task<> nothing(std::allocator_arg_t, resource) { co_return; }
task<int> sum(std::allocator_arg_t, resource, int a, const int& b, std::unique_ptr<int> c) { co_return a + b + *c; }
task<int&> reference(std::allocator_arg_t, ledger*, int& n) { co_return n; }
task<> stop_at(std::allocator_arg_t, resource, support::pause& here) { co_await here.wait(); }
task<> fail(std::allocator_arg_t, resource) {
    throw std::runtime_error("at once");
    co_return;
}
template <class T>
task<T> give(std::allocator_arg_t, resource, T value) {
    co_return value;
}
struct aligned_by_16 {
    alignas(16) std::byte bytes[16];
};
task<bool> is_aligned(std::allocator_arg_t, resource, aligned_by_16 value) {
    co_return reinterpret_cast<std::uintptr_t>(&value) % 16 == 0;
}
struct holder {
    int held = 5;
    task<int> plus(std::allocator_arg_t, resource, int n) const { co_return held + n; }
    static task<int> doubled(std::allocator_arg_t, resource, int n) { co_return 2 * n; }
};

} // namespace

TEST_CASE("every form of coroutine has its frame from the resource that it names") {
    ledger first, second;
    auto body = [](ledger& a, ledger& b) -> task<> {
        int two = 2;
        std::size_t expected = 0;
        // Of the two resources in use each gets its own back.
        const auto count = [&] {
            CHECK(a.given == ++expected);
            CHECK((a.blocks == 0 && a.bytes == 0));
        };
        auto other = nothing(from, &b);
        co_await nothing(from, &a);
        count();
        const int six = co_await sum(from, &a, 1, two, std::make_unique<int>(3));
        CHECK(six == 6);
        count();
        int& same = co_await reference(from, &a, two);
        CHECK(&same == &two);
        count();
        const auto moved = co_await give(from, &a, std::make_unique<int>(7));
        CHECK(*moved == 7);
        count();
        const bool aligned = co_await is_aligned(from, &a, {});
        CHECK(aligned);
        count();
        const holder h;
        const int eight = co_await h.plus(from, &a, 3);
        CHECK(eight == 8);
        count();
        const int four = co_await holder::doubled(from, &a, 2);
        CHECK(four == 4);
        count();
        auto lambda = [h](std::allocator_arg_t, resource, int n) -> task<int> { co_return h.held* n; };
        const int ten = co_await lambda(from, &a, 2);
        CHECK(ten == 10);
        count();
        auto generic = [](std::allocator_arg_t, auto*, auto n) mutable -> task<int> { co_return n; };
        const int nine = co_await generic(from, &a, 9);
        CHECK(nine == 9);
        count();
        CHECK(b.blocks == 1);
        co_await std::move(other);
        CHECK((b.blocks == 0 && b.bytes == 0));
    };
    running_task running(body(first, second));
    CHECK(running.ended());
}

TEST_CASE("the frame goes back whether the task ends, fails, is never awaited or is destroyed where it waits") {
    ledger frames;
    { const auto never = nothing(from, &frames); }
    CHECK(frames.given == 1);
    CHECK(frames.blocks == 0);
    {
        support::pause here;
        running_task running(stop_at(from, &frames, here));
        CHECK(frames.blocks == 1);
    }
    CHECK(frames.blocks == 0);
    {
        running_task running(fail(from, &frames));
        CHECK_THROWS_AS(running.get(), std::runtime_error);
    }
    CHECK((frames.blocks == 0 && frames.bytes == 0));
    frames.empty = true;
    CHECK_THROWS_AS(nothing(from, &frames), std::bad_alloc);
}
