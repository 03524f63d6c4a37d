// What cannot be reported to anyone ends the program, at once, with one line that names the rule: going on would resume
// a dead coroutine, or give back a buffer that the device still writes to.

#include "sim/races/race_rig.hpp"
#include "support/aborts.hpp"

#include <memory>
#include <thread>

using namespace races;
using namespace std::chrono_literals;

namespace {

/// What `f`, called on another thread than the one that the lab's reactor has run on, ends the program with.
template <class F>
std::string elsewhere(F f) {
    return support::aborts([&] {
        lab l("sim0");
        l.turns();
        f(l, [](auto work) { std::thread([&] { work(); }).join(); });
    });
}

#define ENDS_WITH(text, rule)                                                                                          \
    do {                                                                                                               \
        const std::string said = text;                                                                                 \
        CHECK(said.substr(0, said.find('\n')) == std::string("verbena: ") + (rule));                                   \
        CHECK(said.find('\n') + 1 == said.size());                                                                     \
    } while (false)

} // namespace

TEST_CASE("a queue pair that can neither be reset nor destroyed") {
    for (const bool awaited : {true, false}) {
        const auto text = support::aborts([&] {
            lab l("sim0");
            ending_log log;
            vb::scope scope;
            if (awaited) scope.spawn(support::receive(*l.right, l.slice(0), log));
            l.control.fail("ibv_modify_qp", {.value = ENOMEM, .times = 2});
            l.control.fail("ibv_destroy_qp", {.value = EBUSY, .times = 9});
            l.right.reset();
        });
        INFO(text);
        CHECK(text.find("verbena: a queue pair can neither be reset nor destroyed, so that its buffers cannot be given "
                        "back: ") == 0);
        CHECK(text.find('\n') + 1 == text.size());
    }
}

TEST_CASE("what belongs to a reactor, destroyed on another thread") {
    ENDS_WITH(elsewhere([](lab& l, auto on_thread) {
                  ending_log log;
                  vb::scope scope;
                  scope.spawn(support::receive(*l.right, l.slice(0), log));
                  on_thread([&] { l.right.reset(); });
              }),
              "a queue pair was destroyed on a thread that its reactor does not run on");
    ENDS_WITH(elsewhere([](lab& l, auto on_thread) {
                  ending_log log;
                  auto scope = std::make_unique<vb::scope>();
                  scope->spawn(support::receive(*l.right, l.slice(0), log));
                  on_thread([&] { scope.reset(); });
              }),
              "a coroutine was destroyed, while its work request was outstanding, on a thread that its reactor does "
              "not run on");
    ENDS_WITH(elsewhere([](lab& l, auto on_thread) { on_thread([&] { l.reactor.~reactor(); }); }),
              "a reactor was destroyed on another thread than the one that runs it");
    ENDS_WITH(elsewhere([](lab& l, auto on_thread) {
                  auto inbox = vb::receiver::create(*l.right, {.depth = 4, .message_bytes = 8}).value();
                  ending_log log;
                  l.reactor.run([](lab& lab, ending_log& out) -> vb::task<> {
                      auto sent = co_await lab.left->send(lab.memory.slice(0, 8));
                      out.add(sent);
                  }(l, log));
                  auto message = l.reactor.run([](vb::receiver& r) -> vb::task<vb::result<vb::message>> {
                      auto one = co_await r.next();
                      co_return one;
                  }(inbox));
                  on_thread([&] { vb::message gone = std::move(message).value(); });
              }),
              "a message was destroyed on another thread than the one that runs its reactor");
}

TEST_CASE("a wait without a result, awaited on another thread") {
    const auto awaits = [](auto make) {
        return elsewhere([&](lab& l, auto on_thread) {
            on_thread([&] {
                vb::scope scope;
                scope.spawn([&]() -> vb::task<> { co_await make(l); });
            });
        });
    };
    ENDS_WITH(awaits([](lab& l) { return l.reactor.sleep_for(1h); }),
              "sleep_for was awaited on another thread than its reactor's");
    ENDS_WITH(awaits([](lab& l) { return l.reactor.yield(); }),
              "yield was awaited on another thread than its reactor's");
    const auto readable = elsewhere([](lab& l, auto on_thread) {
        on_thread([&] {
            vb::scope scope;
            scope.spawn([&]() -> vb::task<> {
                auto outcome = co_await l.reactor.wait_readable(0);
                static_cast<void>(outcome.has_value());
            });
        });
    });
    ENDS_WITH(readable, "wait_readable was awaited on another thread than its reactor's");
    const auto next = elsewhere([](lab& l, auto on_thread) {
        auto inbox = vb::receiver::create(*l.right, {.depth = 4, .message_bytes = 8}).value();
        on_thread([&] {
            vb::scope scope;
            scope.spawn([&]() -> vb::task<> {
                auto outcome = co_await inbox.next();
                static_cast<void>(outcome.has_value());
            });
        });
    });
    ENDS_WITH(next, "receiver::next was awaited on another thread than the one that runs its reactor");
}

TEST_CASE("a coroutine of this library, destroyed by somebody else") {
    vb::event event;
    auto text = support::aborts([] {
        vb::detail::continuation one([](void*) {});
        one.handle().destroy();
    });
    ENDS_WITH(text, "only the owner of a coroutine may destroy it");
}
