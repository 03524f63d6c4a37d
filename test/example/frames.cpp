// The example of README.md with frames from a pool, as it stands there.

#include "device/rig.hpp"

#include <verbena/verbena.hpp>

#include <cstring>
#include <memory>
#include <memory_resource>
#include <utility>

namespace vb = verbena;

namespace {

// README: frames
// The two parameters in front say where the frame comes from, and goes back to.
vb::task<bool> answer(std::allocator_arg_t, std::pmr::memory_resource*, vb::queue_pair& qp, vb::message request) {
    auto sent = co_await qp.send(request.bytes());
    co_return sent.has_value();
}

vb::task<> serve(vb::queue_pair& qp, vb::receiver& inbox) {
    std::pmr::unsynchronized_pool_resource frames; // of this thread, as the reactor is
    while (auto request = co_await inbox.next()) {
        const bool sent = co_await answer(std::allocator_arg, &frames, qp, *std::move(request));
        if (!sent) co_return;
    }
}
// README: end

vb::task<unsigned> ask(vb::queue_pair& qp, vb::receiver& inbox, vb::memory_region& memory) {
    unsigned answers = 0;
    for (unsigned i = 0; i < 3; ++i) {
        std::memcpy(memory.bytes().data(), &i, sizeof i);
        (co_await qp.send(memory.slice(0, sizeof i))).value();
        const auto answer = (co_await inbox.next()).value();
        if (std::memcmp(answer.bytes().bytes().data(), &i, sizeof i) == 0) ++answers;
    }
    (co_await qp.close()).value();
    co_return answers;
}

} // namespace

TEST_CASE("README's server with frames from a pool answers") {
    auto device = support::open_device().value();
    auto domain = vb::protection_domain::create(device).value();
    auto memory = vb::memory_region::allocate(domain, 64).value();
    support::engine engine(device, vb::wait_policy::adaptive());
    const vb::queue_pair_options options{.send_cq = engine.cq, .recv_cq = engine.cq, .max_send = 4, .max_recv = 4};
    auto left = vb::queue_pair::create(domain, options).value();
    auto right = vb::queue_pair::create(domain, options).value();
    auto left_inbox = vb::receiver::create(left, {.depth = 4, .message_bytes = 16}).value();
    auto right_inbox = vb::receiver::create(right, {.depth = 4, .message_bytes = 16}).value();
    left.connect(right.endpoint()).value();
    right.connect(left.endpoint()).value();
    vb::scope scope;
    scope.spawn(serve(right, right_inbox));
    CHECK(engine.reactor.run(ask(left, left_inbox, memory)) == 3);
}
