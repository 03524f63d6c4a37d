// A connection belongs to one thread at a time: it can be given to the thread of another reactor with all that happened
// to it on the way, and every call from a wrong one is refused. In a fork it can only be forgotten.

#include "cm_rig.hpp"

#include "cm/connection_manager_core.hpp"
#include "support/forked.hpp"
#include "verbs/states.hpp"

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include <poll.h>

using namespace cm;

namespace {

template <class T>
using running = support::running_task<vb::result<T>>;

/// A reactor with a manager on a thread of its own, which serves the connections that it is given until they end.
class worker {
  public:
    worker(const vb::context& device, std::atomic<int>& ended_well)
        : ended_well_(ended_well), domain_(vb::protection_domain::create(device).value()),
          engine_(std::in_place, device, vb::wait_policy::park_at_once()),
          manager_(vb::connection_manager::create().value()) {
        engine_->reactor.attach(*manager_).value();
        thread_ = std::thread([this] {
            engine_->reactor.run([](worker& self) -> vb::task<> {
                co_await self.last_.wait();
                co_await self.scope_.join();
            }(*this));
            manager_.reset();
            engine_.reset();
        });
    }
    ~worker() {
        engine_->reactor.post([this] { last_.set(); });
        thread_.join();
    }
    const vb::connection_manager& manager() const { return *manager_; }
    void give(vb::connection c) {
        engine_->reactor.post(
            [this, given = std::make_shared<vb::connection>(std::move(c))] { scope_.spawn(serve(std::move(*given))); });
    }

  private:
    vb::task<> serve(vb::connection c) {
        auto qp = support::make_pair_end(domain_, engine_->cq, support::pair_options());
        auto inbox = vb::receiver::create(qp, {.message_bytes = 64}).value();
        auto accepted = co_await c.accept(qp);
        accepted.value();
        while (true) {
            auto message = co_await inbox.next();
            if (!message) {
                if (message.error().root_cause() == vb::errc::disconnected) ++ended_well_;
                break;
            }
            auto sent = co_await qp.send(message->bytes());
            if (!sent) break;
        }
    }

    std::atomic<int>& ended_well_;
    vb::protection_domain domain_;
    std::optional<support::engine> engine_;
    std::optional<vb::connection_manager> manager_;
    vb::event last_; ///< nothing more is given
    vb::scope scope_;
    std::thread thread_;
};

vb::task<> talk(rig& r, const vb::connection_listener& door) {
    auto qp = r.pair();
    auto inbox = vb::receiver::create(qp, {.message_bytes = 64}).value();
    auto memory = vb::memory_region::allocate(r.domain, 64).value();
    auto c = (co_await r.manager->resolve(door.local_address())).value();
    auto connected = co_await c.connect(qp);
    connected.value();
    for (std::uint64_t i = 0; i < 20; ++i) {
        support::put_number(memory.bytes(), i);
        auto sent = co_await qp.send(memory.slice());
        sent.value();
        auto answer = co_await inbox.next();
        CHECK(support::has_number(answer.value().bytes().bytes(), i));
    }
    auto ended = co_await c.disconnect();
    ended.value();
}

vb::task<> spread(const vb::connection_listener& door, std::vector<std::unique_ptr<worker>>& workers, int count) {
    for (int i = 0; i < count; ++i) {
        auto request = co_await door.next();
        worker& to = *workers[static_cast<std::size_t>(i) % workers.size()];
        request->move_to(to.manager()).value();
        to.give(std::move(*request));
    }
}

} // namespace

TEST_CASE("connections are given to the reactors of other threads, and end there") {
    NEEDS_CONNECTIONS();
    constexpr int count = 12;
    rig r;
    auto door = r.listen();
    std::atomic<int> ended_well{0};
    std::vector<std::unique_ptr<worker>> workers;
    for (int i = 0; i < 2; ++i) workers.push_back(std::make_unique<worker>(r.device, ended_well));
    vb::scope scope;
    scope.spawn(spread(door, workers, count));
    for (int i = 0; i < count; ++i) scope.spawn(talk(r, door));
    r.reactor().run([](vb::scope& s) -> vb::task<> { co_await s.join(); }(scope));
    workers.clear(); // when what they serve has ended
    CHECK(ended_well == count);
}

TEST_CASE("what happened to a connection before it was moved is heard where it is then") {
    NEEDS_CONNECTIONS();
    rig r;
    support::engine second(r.device), third(r.device, vb::wait_policy::park_at_once());
    std::optional<vb::connection_manager> from(vb::connection_manager::create().value());
    auto to = vb::connection_manager::create().value();
    second.reactor.attach(*from).value();
    third.reactor.attach(to).value();
    third.reactor.poll().value(); // it watches the descriptor

    auto door = from->listen(r.address).value();
    auto pair = r.pair(), server_pair = support::make_pair_end(r.domain, second.cq, support::pair_options());
    auto client = r.reactor().run(resolve(*r.manager, door.local_address())).value();
    running<void> connects(connect(client, pair, {}));
    auto server = second.reactor.run(next(door)).value();
    running<void> accepts(accept(server, server_pair, {}));
    r.finish(connects).value();
    while (!accepts.ended()) second.reactor.poll().value();
    accepts.get().value();
    {
        running<void> waits(disconnected(server)); // on its own thread's reactor
        CHECK(server.move_to(to).error() == vb::errc::in_use);
    }
    running<void> leaves(disconnect(client));
    pollfd told{.fd = vb::detail::access::core(*from)->fd(), .events = POLLIN, .revents = 0};
    REQUIRE(::poll(&told, 1, -1) == 1);
    server.move_to(to).value();
    third.reactor.run(disconnected(server)).value();
    r.finish(leaves).value();

    // It has left nothing behind.
    door = vb::connection_listener();
    from.reset();
    CHECK(to.stats().disconnected == 1);
    CHECK(server.move_to(*r.manager).error() == vb::errc::disconnected);
}

TEST_CASE("a connection is not moved to what is gone") {
    NEEDS_CONNECTIONS();
    rig r;
    const auto client = r.reactor().run(resolve(*r.manager, r.listen().local_address())).value();
    CHECK(client.move_to(vb::connection_manager()).error() == vb::errc::invalid_argument);
    std::optional<vb::reactor> reactor(std::in_place);
    auto there = vb::connection_manager::create().value();
    reactor->attach(there).value();
    reactor.reset();
    CHECK(client.move_to(there).error() == vb::errc::not_attached);
    CHECK(client.move_to(*r.manager).has_value());
    // It is where it was.
    auto pair = r.pair();
    CHECK(r.reactor().run(connect(client, pair, {})).error() == vb::errc::connection_refused);
}

TEST_CASE("every call from a wrong thread is refused") {
    NEEDS_CONNECTIONS();
    rig r;
    joined j(r);
    auto client = r.reactor().run(resolve(*r.manager, j.door.local_address())).value();
    auto pair = r.pair();
    std::vector<vb::errc> ends;
    std::thread([&] {
        const auto now = [&](auto task) {
            support::running_task running(std::move(task));
            ends.push_back(running.ended_at_once() && running.get().error() == vb::errc::wrong_thread
                               ? vb::errc::wrong_thread
                               : vb::errc{});
        };
        const auto called = [&](const auto& result) {
            ends.push_back(!result && result.error() == vb::errc::wrong_thread ? vb::errc::wrong_thread : vb::errc{});
        };
        now(resolve(*r.manager, j.door.local_address()));
        now(next(j.door));
        now(connect(client, pair, {}));
        now(accept(client, pair, {}));
        now(disconnect(j.client));
        now(disconnected(j.client));
        called(client.reject());
        called(client.move_to(*r.manager));
        called(r.manager->listen(r.address));
        called(r.reactor().attach(*r.manager));
    }).join();
    CHECK(ends == std::vector<vb::errc>(10, vb::errc::wrong_thread));
    CHECK(j.client_pair.state().value() == vb::queue_pair_state::ready_to_send);
}

TEST_CASE("in a fork, connections are refused and forgotten, and the parent's go on", "[fork]") {
    NEEDS_CONNECTIONS();
    std::optional<rig> r(std::in_place);
    std::optional<joined> j(std::in_place, *r);
    auto pair = r->pair();
    auto client = r->reactor().run(resolve(*r->manager, j->door.local_address())).value();
    running<void> ends(disconnected(j->client));
    std::optional<running<void>> connects(std::in_place, connect(client, pair, {}));
    const int status = support::forked([&] {
        const auto refused = [](auto task) {
            support::running_task running(std::move(task));
            return running.ended_at_once() && running.get().error() == vb::errc::wrong_thread;
        };
        if (!refused(disconnect(j->server)) || !refused(next(j->door))) return 1;
        if (!refused(resolve(*r->manager, {}))) return 2;
        if (client.reject().error() != vb::errc::wrong_thread) return 3;
        connects.reset();
        client = vb::connection();
        j.reset();
        r.reset();
        return 0;
    });
    CHECK(status == 0);
    CHECK_FALSE(ends.ended());
    auto server = r->reactor().run(next(j->door)).value();
    server.reject().value();
    CHECK(r->finish(*connects).error() == vb::errc::connection_refused);
    r->reactor().run(disconnect(j->server)).value();
    r->finish(ends).value();
}
