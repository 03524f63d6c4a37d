#pragma once

// One of every handle, each of them in use, for tests that fork.

#include "by_hand.hpp"

#include "support/deadline.hpp"
#include "support/forked.hpp"

#include <chrono>
#include <memory>
#include <optional>
#include <stop_token>

#include <unistd.h>

namespace support {

struct family {
    enum class order { waits_first, reactor_first, queue_pairs_first, parents_first };
    static constexpr auto orders = {order::waits_first, order::reactor_first, order::queue_pairs_first,
                                    order::parents_first};

    /// Two receives and one of each other kind of wait go on. With `ran` the reactor has a backend and a thread.
    family(const vb::context& opened, bool ran)
        : device(opened), domain(vb::protection_domain::create(*device).value()), engine(new support::engine(*device)),
          wire(new support::wire(*domain, *engine)), memory(vb::memory_region::allocate(*domain, 4096).value()),
          pool(vb::buffer_pool::create(*domain, 4, 64).value()), buffer(pool->try_acquire().value()),
          srq(vb::shared_receive_queue::create(*domain, {.max_wr = 4}).value()),
          on_srq(vb::queue_pair::create(
                     *domain, {.send_cq = engine->cq, .recv_cq = engine->cq, .max_send = 4, .max_recv = 0, .srq = *srq})
                     .value()),
          address(
              vb::address_handle::create(*domain, {.destination = wire->left.endpoint().gid,
                                                   .gid_index = static_cast<std::uint8_t>(usable_gid(*device).index)})
                  .value()),
          shared_inbox(vb::receiver::create(engine->reactor, *srq, {.depth = 4, .message_bytes = 64}).value()),
          inbox(vb::receiver::create(wire->left, {.depth = 4, .message_bytes = 64}).value()),
          events(engine->reactor.events(*device).value()), scope(new vb::scope) {
        if (pipe(ends) != 0) throw std::runtime_error("no pipe");
        if (ran) {
            engine->reactor.run([](family& f) -> vb::task<> {
                auto [got, sent] = co_await vb::when_all(f.inbox->next(), f.wire->right.send(f.memory->slice(0, 64)));
                if (got) f.message.emplace(std::move(got).value());
                f.log.add(sent);
            }(*this));
        }
        for (std::size_t i = 1; i < 3; ++i) scope->spawn(receive(wire->right, memory->slice(64 * i, 64), log));
        scope->spawn(take(*inbox, others));
        scope->spawn([](vb::receiver& box, ending_log& l) -> vb::task<> {
            auto got = co_await vb::with_timeout(box.next(), std::chrono::hours{1});
            l.add(got);
        }(*shared_inbox, others));
        // Limits need a reactor that runs.
        if (!ran) return;
        scope->spawn(
            [](family& f) -> vb::task<> { co_await f.engine->reactor.sleep_for(std::chrono::hours{1}); }(*this));
        scope->spawn([](family& f) -> vb::task<> {
            const auto readable = co_await f.engine->reactor.wait_readable(f.ends[0]);
            f.others.add(readable);
        }(*this));
        scope->spawn([](family& f) -> vb::task<> {
            const auto event = co_await vb::with_stop(f.events->next(), f.stop.get_token());
            f.others.add(event);
        }(*this));
        some_turns(engine->reactor);
    }
    ~family() {
        scope.reset();
        for (const int fd : ends) close(fd);
    }
    family(const family&) = delete;
    family& operator=(const family&) = delete;

    static vb::task<> take(vb::receiver& box, ending_log& log) {
        auto got = co_await box.next();
        log.add(got);
    }

    /// Destroys all of it.
    void destroy(order which) {
        const auto waits = [this] { scope.reset(); };
        const auto reactor = [this] { engine.reset(); };
        const auto pairs = [this] {
            on_srq.reset();
            wire.reset();
        };
        const auto receivers = [this] {
            message.reset();
            inbox.reset();
            shared_inbox.reset();
            events.reset();
        };
        const auto parents = [this] {
            memory.reset();
            buffer.reset();
            pool.reset();
            address.reset();
            srq.reset();
            domain.reset();
            device.reset();
        };
        switch (which) {
        case order::waits_first: waits(), receivers(), pairs(), reactor(), parents(); return;
        case order::reactor_first: reactor(), pairs(), waits(), receivers(), parents(); return;
        case order::queue_pairs_first: pairs(), waits(), reactor(), receivers(), parents(); return;
        case order::parents_first: parents(), receivers(), waits(), reactor(), pairs(); return;
        }
    }

    /// What was under way is completed, and once.
    void check_alive() {
        const auto before = log.successes;
        engine->reactor.run([](family& f) -> vb::task<> {
            for (int i = 0; i < 2; ++i) {
                const auto sent = co_await f.wire->left.send(f.memory->slice(512, 64));
                f.log.add(sent);
            }
            while (f.log.successes < 5) co_await f.engine->reactor.yield();
            const auto sent = co_await f.wire->right.send(f.memory->slice(512, 64));
            f.log.add(sent);
            while (f.others.resumes() == 0) co_await f.engine->reactor.yield();
        }(*this));
        CHECK(log.successes == before + 5);
        CHECK(log.failures.empty());
        CHECK(others.successes == 1);
        const auto resized = engine->cq.resize(512);
        CHECK(resized.has_value());
        CHECK(engine->reactor.stats().rescued == 0);
    }

    std::optional<vb::context> device;
    std::optional<vb::protection_domain> domain;
    std::unique_ptr<support::engine> engine;
    std::unique_ptr<support::wire> wire;
    std::optional<vb::memory_region> memory;
    std::optional<vb::buffer_pool> pool;
    std::optional<vb::pool_buffer> buffer;
    std::optional<vb::shared_receive_queue> srq;
    std::optional<vb::queue_pair> on_srq;
    std::optional<vb::address_handle> address;
    std::optional<vb::receiver> shared_inbox;
    std::optional<vb::receiver> inbox;
    std::optional<vb::event_stream> events;
    std::optional<vb::message> message;
    std::stop_source stop;
    int ends[2]{-1, -1};
    ending_log log;    ///< the sends and the two receives
    ending_log others; ///< the other waits
    std::unique_ptr<vb::scope> scope;
};

} // namespace support
