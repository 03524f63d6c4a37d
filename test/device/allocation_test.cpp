// In steady state nothing that is awaited allocates: not its post, its completion, its resume, nor the sleep in
// between; but for a task's frame, which a pool can give, and what the headers of `scope` and `when_all` say.

#include "by_hand.hpp"
#include "counting_new.hpp"

#include "support/deadline.hpp"

#include <algorithm>
#include <chrono>
#include <memory_resource>
#include <stop_token>
#include <utility>
#include <vector>

#include <sys/eventfd.h>
#include <unistd.h>

namespace vb = verbena;
using namespace std::chrono_literals;

#if VERBENA_COUNTS_ALLOCATIONS

namespace {

constexpr std::uint32_t bytes = 64;
constexpr std::uint64_t warm = 50;

void require(const auto& outcome) {
    if (!outcome) throw std::runtime_error(outcome.error().message());
}

/// Counts rounds, and what they allocate from the round `warm` on.
struct meter {
    explicit meter(std::uint64_t measured) : left(warm + measured), last(measured) {}
    bool more() {
        if (left == last) before = support::allocations();
        if (left != 0) return left-- != 0;
        allocated = support::allocations() - before;
        return false;
    }

    std::uint64_t left;
    const std::uint64_t last;
    std::uint64_t before = 0;
    std::uint64_t allocated = UINT64_MAX;
};

struct fixture {
    fixture(const vb::context& device, vb::wait_policy policy, vb::post_mode mode)
        : domain(vb::protection_domain::create(device).value()), engine(device, policy, 512, 100ms),
          wire(domain, engine, options(mode)), narrow(domain, engine, options(mode, 2)),
          with_inbox(domain, engine, options(mode)),
          inbox(vb::receiver::create(with_inbox.right, {.depth = 16, .message_bytes = bytes}).value()),
          here(datagrams(mode)), there(datagrams(mode)),
          memory(vb::memory_region::allocate(domain, 4096,
                                             vb::access_flags::local_write | vb::access_flags::remote_write |
                                                 vb::access_flags::remote_read | vb::access_flags::remote_atomic)
                     .value()),
          pool(vb::buffer_pool::create(domain, 4, bytes).value()),
          way(vb::address_handle::create(domain,
                                         {.destination = support::usable_gid(device).gid,
                                          .gid_index = static_cast<std::uint8_t>(support::usable_gid(device).index)})
                  .value()) {
        here.activate(1).value();
        there.activate(2).value();
    }
    ~fixture() { close(readable); }
    static vb::queue_pair_options options(vb::post_mode mode, std::uint32_t depth = 16) {
        auto o = support::pair_options(depth);
        o.post_mode = mode;
        return o;
    }
    vb::queue_pair datagrams(vb::post_mode mode) {
        auto o = options(mode);
        o.type = vb::queue_pair_type::ud;
        return support::make_pair_end(domain, engine.cq, o);
    }
    vb::memory_slice slice(std::size_t index) const { return memory.slice(index * 128, bytes); }
    vb::memory_slice number() const { return memory.slice(2048, 8); }
    vb::remote_slice remote() const { return memory.remote(1024, bytes); }
    vb::remote_slice remote_number() const { return memory.remote(1024, 8); }

    vb::protection_domain domain;
    support::engine engine;
    support::wire wire;
    support::wire narrow; ///< with room for two
    support::wire with_inbox;
    vb::receiver inbox;
    vb::queue_pair here; ///< UD
    vb::queue_pair there;
    vb::memory_region memory;
    vb::buffer_pool pool;
    vb::address_handle way;
    vb::reactor& reactor = engine.reactor;
    vb::event event;
    vb::semaphore semaphore{0};
    std::stop_source stop;
    std::pmr::unsynchronized_pool_resource frames;
    int readable = eventfd(1, EFD_CLOEXEC);
};

/// Does something, when it is awaited.
template <class F>
struct call {
    F f;
    bool await_ready() {
        f();
        return true;
    }
    void await_suspend(std::coroutine_handle<>) {}
    void await_resume() {}
};

vb::task<> child(vb::reactor& reactor) { co_await reactor.yield(); }
vb::task<> pooled(std::allocator_arg_t, std::pmr::memory_resource*, vb::reactor& reactor) { co_await reactor.yield(); }

struct awaitable_case {
    const char* name;
    vb::task<> (*use)(fixture&, meter&);
    std::uint64_t each = 0; ///< how often it allocates
};

const awaitable_case cases[] = {
    {"send, receiver.next",
     [](fixture& f, meter& m) -> vb::task<> {
         while (m.more()) {
             const auto sent = co_await f.with_inbox.left.send(f.slice(0));
             require(sent);
             const auto message = co_await f.inbox.next();
             require(message);
         }
     }},
    {"receiver.next, which waits",
     [](fixture& f, meter& m) -> vb::task<> {
         while (m.more()) {
             const auto [message, sent] = co_await vb::when_all(f.inbox.next(), f.with_inbox.left.send(f.slice(0)));
             require(message);
             require(sent);
         }
     }},
    {"recv",
     [](fixture& f, meter& m) -> vb::task<> {
         while (m.more()) {
             const auto [got, sent] =
                 co_await vb::when_all(f.wire.right.recv(f.slice(1)), f.wire.left.send(f.slice(0)));
             require(got);
             require(sent);
         }
     }},
    {"send_to",
     [](fixture& f, meter& m) -> vb::task<> {
         const auto end = f.there.endpoint();
         const vb::ud_destination to(f.way.native_handle(), end.qp_num, end.qkey);
         while (m.more()) {
             const auto [got, sent] =
                 co_await vb::when_all(f.there.recv(f.memory.slice(128, 40 + bytes)), f.here.send_to(to, f.slice(0)));
             require(got);
             require(sent);
         }
     }},
    {"write",
     [](fixture& f, meter& m) -> vb::task<> {
         while (m.more()) {
             const auto written = co_await f.wire.left.write(f.slice(0), f.remote());
             require(written);
         }
     }},
    {"unsignaled write, flushed",
     [](fixture& f, meter& m) -> vb::task<> {
         while (m.more()) {
             const auto written = co_await f.wire.left.write(f.slice(0), f.remote(), {.signaled = false});
             require(written);
             const auto flushed = co_await f.wire.left.flushed();
             require(flushed);
         }
     }},
    {"write, beyond the room of its queue",
     [](fixture& f, meter& m) -> vb::task<> {
         const auto write = [&] { return f.narrow.left.write(f.slice(0), f.remote()); };
         while (m.more()) {
             const auto [a, b, c, d] = co_await vb::when_all(write(), write(), write(), write());
             require(a), require(b), require(c), require(d);
         }
     }},
    {"read",
     [](fixture& f, meter& m) -> vb::task<> {
         while (m.more()) {
             const auto read = co_await f.wire.left.read(f.slice(0), f.remote());
             require(read);
         }
     }},
    {"fetch_add",
     [](fixture& f, meter& m) -> vb::task<> {
         while (m.more()) {
             const auto before = co_await f.wire.left.fetch_add(f.number(), f.remote_number(), 1);
             require(before);
         }
     }},
    {"compare_swap",
     [](fixture& f, meter& m) -> vb::task<> {
         while (m.more()) {
             const auto before = co_await f.wire.left.compare_swap(f.number(), f.remote_number(), 1, 2);
             require(before);
         }
     }},
    {"chain",
     [](fixture& f, meter& m) -> vb::task<> {
         const vb::write_request one{.local = f.slice(0), .remote = f.remote()};
         while (m.more()) {
             const auto chained = co_await f.wire.left.chain(one, one);
             require(chained);
         }
     }},
    {"send_detached, of inline data and of a pool's buffer",
     [](fixture& f, meter& m) -> vb::task<> {
         while (m.more()) {
             require(f.with_inbox.left.send_detached(vb::inline_data(f.memory.bytes().first(8))));
             auto buffer = f.pool.try_acquire();
             if (!buffer) throw std::runtime_error("a pool buffer did not come back");
             require(f.with_inbox.left.send_detached(*std::move(buffer)));
             for (int i = 0; i < 2; ++i) {
                 const auto message = co_await f.inbox.next();
                 require(message);
             }
             const auto flushed = co_await f.with_inbox.left.flushed();
             require(flushed);
         }
     }},
    {"sleep_for",
     [](fixture& f, meter& m) -> vb::task<> {
         while (m.more()) co_await f.reactor.sleep_for(1us);
     }},
    {"yield",
     [](fixture& f, meter& m) -> vb::task<> {
         while (m.more()) co_await f.reactor.yield();
     }},
    {"wait_readable",
     [](fixture& f, meter& m) -> vb::task<> {
         while (m.more()) {
             const auto readable = co_await f.reactor.wait_readable(f.readable);
             require(readable);
         }
     }},
    {"event.wait",
     [](fixture& f, meter& m) -> vb::task<> {
         while (m.more()) {
             f.event.reset();
             co_await vb::when_all(f.event.wait(), call{[&] { f.event.set(); }});
         }
     }},
    {"semaphore.acquire",
     [](fixture& f, meter& m) -> vb::task<> {
         while (m.more()) co_await vb::when_all(f.semaphore.acquire(), call{[&] { f.semaphore.release(); }});
     }},
    {"when_any",
     [](fixture& f, meter& m) -> vb::task<> {
         f.event.reset();
         while (m.more()) co_await vb::when_any(f.event.wait(), f.inbox.next(), f.reactor.sleep_for(1us));
     }},
    {"with_timeout, which strikes",
     [](fixture& f, meter& m) -> vb::task<> {
         f.event.reset();
         while (m.more()) {
             const auto got = co_await vb::with_timeout(f.event.wait(), 1us);
             if (got) throw std::runtime_error("nobody set it");
         }
     }},
    {"with_timeout, which does not",
     [](fixture& f, meter& m) -> vb::task<> {
         while (m.more()) {
             const auto read = co_await vb::with_timeout(f.wire.left.read(f.slice(0), f.remote()), 1h);
             require(read);
         }
     }},
    {"with_stop",
     [](fixture& f, meter& m) -> vb::task<> {
         while (m.more()) {
             const auto read = co_await vb::with_stop(f.wire.left.read(f.slice(0), f.remote()), f.stop.get_token());
             require(read);
         }
     }},
    {"a task",
     [](fixture& f, meter& m) -> vb::task<> {
         while (m.more()) co_await child(f.reactor);
     },
     1},
    {"a task whose frame is from a pool",
     [](fixture& f, meter& m) -> vb::task<> {
         while (m.more()) co_await pooled(std::allocator_arg, &f.frames, f.reactor);
     }},
    {"tasks from a pool, side by side",
     [](fixture& f, meter& m) -> vb::task<> {
         const auto one = [&] { return pooled(std::allocator_arg, &f.frames, f.reactor); };
         while (m.more()) co_await vb::when_all(one(), vb::with_timeout(one(), 1h));
     }},
    {"when_all of a vector: the vector, the waits, the results",
     [](fixture& f, meter& m) -> vb::task<> {
         while (m.more()) {
             std::vector<vb::task<>> tasks;
             tasks.push_back(pooled(std::allocator_arg, &f.frames, f.reactor));
             co_await vb::when_all(std::move(tasks));
         }
     },
     3},
    {"spawn of a task from a pool, child.wait, join",
     [](fixture& f, meter& m) -> vb::task<> {
         vb::scope scope;
         while (m.more()) {
             auto spawned = scope.spawn(pooled(std::allocator_arg, &f.frames, f.reactor));
             co_await spawned.wait();
             co_await scope.join();
         }
     },
     1},
};

} // namespace

TEST_CASE("in a steady state what is awaited allocates nothing, or what its header says") {
    VERBENA_REQUIRE_DEVICE(device);
    const support::deadline allow(600s);
    for (const auto mode : {vb::post_mode::immediate, vb::post_mode::batched})
        for (const auto policy : {vb::wait_policy::spin_forever(), vb::wait_policy::park_at_once()}) {
            fixture f(device, policy, mode);
            for (const auto& [name, use, each] : cases) {
                INFO(name);
                meter m(support::rounds(250));
                f.reactor.run(use(f, m));
                CHECK(m.allocated == each * m.last);
            }
            CHECK(f.reactor.stats().foreign + f.reactor.stats().stale == 0);
        }
}

TEST_CASE("draining and closing a queue pair allocate nothing") {
    VERBENA_REQUIRE_DEVICE(device);
    const auto domain = vb::protection_domain::create(device).value();
    support::engine engine(device);
    auto least = UINT64_MAX; // a simulated device keeps what was destroyed, in a list that grows now and then
    for (int round = 0; round < 4; ++round) {
        support::wire wire(domain, engine);
        const auto allocated = engine.reactor.run([](support::wire& w) -> vb::task<std::uint64_t> {
            const auto before = support::allocations();
            const auto drained = co_await w.left.drain();
            const auto closed = co_await w.right.close();
            const auto count = support::allocations() - before;
            require(drained);
            require(closed);
            co_return count;
        }(wire));
        least = std::min(least, allocated);
    }
    CHECK(least == 0);
}

#endif
