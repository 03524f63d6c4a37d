// A queue that is detached stays armed: what its event costs later is known when it is attached again.

#include "race_rig.hpp"

#include "reactor_core.hpp"

#include <poll.h>

using namespace races;

namespace {

/// Looks at one descriptor when the test says so, at the others never, and sleeps not at all.
class prompted_backend final : public vb::detail::wait_backend {
  public:
    explicit prompted_backend(int fd) : fd_(fd) {}

    bool prompt = false;

    const char* name() const noexcept override { return "prompted"; }
    vb::result<void> add(vb::detail::watch& w, int fd, unsigned) override {
        slot_of(w) = 0;
        if (fd == fd_) watch_ = &w;
        return {};
    }
    vb::result<void> remove(vb::detail::watch& w) override {
        slot_of(w) = no_slot;
        if (watch_ == &w) watch_ = nullptr;
        return {};
    }
    bool pending() const noexcept override { return prompt; }
    unsigned collect(unsigned) override {
        prompt = false;
        watch_->ready(POLLIN);
        return 1;
    }
    vb::result<unsigned> wait(std::optional<vb::detail::time_point>) override { return 0u; }
    void wake() noexcept override {}

  private:
    int fd_;
    vb::detail::watch* watch_ = nullptr;
};

bool readable(const vb::completion_channel& channel) {
    pollfd fd{.fd = channel.native_handle()->fd, .events = POLLIN, .revents = 0};
    return ::poll(&fd, 1, 0) > 0;
}

} // namespace

TEST_CASE("the event of an arm that outlived a detach is taken with the others") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices())
        for (const bool other_reactor : {false, true}) {
            INFO(name << (other_reactor ? ", by another reactor" : ""));
            lab l(name, {.attach = false});
            prompted_backend* backend = nullptr;
            const auto make = [&] {
                auto made = std::make_unique<prompted_backend>(l.channel.native_handle()->fd);
                backend = made.get();
                return std::unique_ptr<vb::reactor>(new vb::reactor(
                    vb::detail::access::make_reactor<vb::reactor>(std::make_unique<vb::detail::reactor_core>(
                        vb::reactor_options{.wait = vb::wait_policy::park_at_once(),
                                            .safety_repoll = std::chrono::milliseconds{0}},
                        nullptr, std::move(made)))));
            };
            auto reactor = make();
            const auto attach = [&](const vb::completion_queue& cq) { reactor->attach(cq, l.slots).value(); };
            const auto fall_asleep = [&] { // all queues are armed then
                reactor->run(
                    [](vb::reactor& r) -> vb::task<> { co_await r.sleep_for(std::chrono::milliseconds{1}); }(*reactor));
            };
            attach(l.send_cq);
            attach(l.recv_cq);
            fall_asleep();
            if (other_reactor) {
                reactor.reset();
                reactor = make();
                attach(l.send_cq);
                (void)reactor->poll();
                fall_asleep();
            } else {
                reactor->detach(l.recv_cq).value();
            }
            attach(l.recv_cq);

            l.hold();
            ending_log log;
            vb::scope scope;
            scope.spawn(exchange(l, log));
            (void)reactor->poll();
            l.let_go(l.sends()); // its event comes first, that of the detached arm behind it
            l.let_go(l.receives());
            CHECK(readable(l.channel));
            backend->prompt = true;
            (void)reactor->poll();
            CHECK(log.successes == 2);
            // On mlx5 a queue with an unread event cannot be armed.
            CHECK(!readable(l.channel));
            fall_asleep();
            CHECK(l.control.ledger().ignored_arms == 0);
        }
}

TEST_CASE("what completes in a queue that is attached cannot be awaited while its shared receive queue has one that is "
          "not") {
    const support::deadline limit(std::chrono::seconds{60});
    for (const auto& name : devices()) {
        INFO(name);
        lab l(name);
        auto srq = vb::shared_receive_queue::create(l.domain, {.max_wr = 4}).value();
        const auto make = [&](const vb::completion_queue& cq) {
            return vb::queue_pair::create(
                       l.domain, {.send_cq = l.send_cq, .recv_cq = cq, .max_send = 4, .max_recv = 4, .srq = srq})
                .value();
        };
        auto first = make(l.send_cq), second = make(l.recv_cq);
        auto peer = vb::queue_pair::create(l.domain, {.send_cq = l.send_cq, .recv_cq = l.send_cq}).value();
        support::connect(first, peer);
        auto inbox = vb::receiver::create(l.reactor, srq, {.depth = 4, .message_bytes = message_bytes}).value();
        l.reactor.detach(l.recv_cq).value();
        ending_log log;
        l.reactor.run(support::transmit(first, l.slice(0), log));
        REQUIRE(log.failures.size() == 1);
        CHECK(log.failures[0] == vb::errc::not_attached);
        l.reactor.attach(l.recv_cq, l.slots).value();
        vb::scope scope;
        scope.spawn(support::receive(peer, l.slice(1), log));
        scope.spawn(support::transmit(first, l.slice(0), log));
        l.finish(scope);
        CHECK(log.failures.size() == 1);
        CHECK(log.successes == 2);
    }
}
