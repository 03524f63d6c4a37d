// A child of fork(2) calls no verb on what is its parent's, in whatever order it destroys it (B49).

#include "device/family.hpp"
#include "race_rig.hpp"

using namespace races;
using support::family;

namespace {

constexpr int no_calls = 0;

/// How many verbs `f` calls in a child of this process.
template <class F>
int calls_in_child(const std::string& name, F f) {
    return support::forked([&] {
        sim::control control(name);
        control.fail("ibv_poll_cq", {.call = ~std::uint64_t{0}}); // never; but from now on every call counts
        const auto before = control.calls();
        f();
        const auto calls = control.calls() - before;
        return calls < 200 ? static_cast<int>(calls) : 200;
    });
}

/// Two receives wait, in the children of a scope.
struct waiting {
    explicit waiting(const std::string& name) : l(std::make_unique<lab>(name)) {
        for (std::size_t i = 0; i < 2; ++i) scope->spawn(support::receive(*l->right, l->slice(i), log));
        l->turns();
    }
    void complete() {
        scope->spawn(support::transmit(*l->left, l->slice(4), log));
        scope->spawn(support::transmit(*l->left, l->slice(5), log));
        l->finish(*scope);
        CHECK(log.successes == 4);
        CHECK(log.failures.empty());
    }
    std::unique_ptr<lab> l;
    ending_log log;
    std::unique_ptr<vb::scope> scope = std::make_unique<vb::scope>();
};

} // namespace

TEST_CASE("two operations are pending, and a child of fork destroys them, their queue pair or all", "[fork]") {
    for (const auto& name : devices()) {
        INFO(name);
        waiting w(name);
        CHECK(calls_in_child(name, [&] { w.scope.reset(); }) == no_calls);
        CHECK(calls_in_child(name, [&] { w.l->right.reset(); }) == no_calls);
        CHECK(calls_in_child(name, [&] {
                  w.l->right.reset();
                  w.scope.reset();
                  w.l.reset();
              }) == no_calls);
        w.complete();
    }
}

TEST_CASE("a child of fork calls no verb when it destroys one of every handle", "[fork]") {
    for (const auto& name : devices())
        for (const bool ran : {true, false})
            for (const auto order : family::orders) {
                INFO(name << (ran ? ", ran" : ", made only") << ", order " << static_cast<int>(order));
                sim::control(name).reset();
                family all(vb::context::open(name).value(), ran);
                CHECK(calls_in_child(name, [&] { all.destroy(order); }) == no_calls);
                if (ran) all.check_alive();
            }
}

TEST_CASE("a stop that a child of fork requests, or a time that is over there, reaches no queue pair", "[fork]") {
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name);
        std::stop_source stop;
        ending_log log;
        vb::scope scope;
        l.reactor.run([](lab& own, vb::scope& s, std::stop_token token, ending_log& ends) -> vb::task<> {
            s.spawn([](lab& inner, std::stop_token t, ending_log& e) -> vb::task<> {
                const auto got = co_await vb::with_stop(inner.right->recv(inner.slice(0)), t);
                e.add(got);
            }(own, token, ends));
            co_return;
        }(l, scope, stop.get_token(), log));
        CHECK(calls_in_child(name, [&] {
                  stop.request_stop();
                  scope.request_stop();
                  if (l.reactor.poll()) _exit(200);
              }) == no_calls);
        scope.spawn(support::transmit(*l.left, l.slice(1), log));
        l.finish(scope);
        CHECK(log.successes == 2);
    }
}

TEST_CASE("events that wait to be acked are not acked by a child of fork", "[fork]") {
    for (const auto& name : devices()) {
        INFO(name);
        auto w = std::make_unique<waiting>(name);
        w->l->complete_asleep();
        w->complete();
        w->l->control.reset();
        CHECK(w->l->reactor.stats().events > 0);
        CHECK(calls_in_child(name, [&] { w.reset(); }) == no_calls);
        w.reset(); // would block for ever if one was missing
    }
}
