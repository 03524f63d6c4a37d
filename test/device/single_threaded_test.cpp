// Invariant: a queue that is promised to one thread is asked for as such, and is otherwise like any; a device that does
// not know the promise refuses it.

#include "by_hand.hpp"

#include <array>
#include <cerrno>
#include <chrono>

namespace vb = verbena;
using support::check_failure;

namespace {

thread_local ibv_cq_init_attr_ex asked{};
thread_local int refusal = 0;

ibv_cq_ex* refuse(ibv_context*, ibv_cq_init_attr_ex* wanted) {
    asked = *wanted;
    errno = refusal;
    return nullptr;
}

} // namespace

TEST_CASE("a single-threaded queue is awaited on, resized and polled like any other") {
    VERBENA_REQUIRE_DEVICE(device);
    const auto domain = vb::protection_domain::create(device).value();
    const auto memory = vb::memory_region::allocate(domain, 4096).value();
    const auto channel = vb::completion_channel::create(device).value();
    const auto cq = vb::completion_queue::create(device, 16, {.channel = channel, .single_threaded = true}).value();
    CHECK(cq.capacity() >= 16);
    CHECK(cq.capacity() == static_cast<std::uint32_t>(cq.native_handle()->cqe));
    CHECK(cq.channel() == channel);
    {
        support::filler filler(domain, cq.native_handle(), 8);
        filler.fill(3, 100);
        std::array<vb::poll_slot, 4> slots;
        const auto polled = cq.poll(slots).value();
        REQUIRE(polled.size() == 3);
        CHECK(polled[2].wr_id() == 102);
    }
    std::array<vb::poll_slot, 8> slots;
    vb::reactor reactor({.wait = vb::wait_policy::park_at_once(), .safety_repoll = std::chrono::milliseconds{0}});
    reactor.attach(cq, slots).value();
    support::ending_log log;
    {
        auto left = support::make_pair_end(domain, cq, support::pair_options(64)); // grows the queue
        auto right = support::make_pair_end(domain, cq, support::pair_options(64));
        CHECK(cq.capacity() >= 256);
        support::connect(left, right);
        vb::scope scope;
        for (int i = 0; i < 20; ++i) {
            scope.spawn(support::receive(right, memory.slice(0, 64), log));
            scope.spawn(support::transmit(left, memory.slice(64, 64), log));
        }
        reactor.run([](vb::scope& s) -> vb::task<> { co_await s.join(); }(scope));
        CHECK(log.successes == 40);
        scope.spawn(support::receive(right, memory.slice(0, 64), log)); // is pending when its queue pair goes
        reactor.poll().value();
    }
    reactor.detach(cq).value();
    CHECK(cq.poll(slots).value().empty());
}

TEST_CASE("the device is asked for a single-threaded queue, and its refusals come back") {
    VERBENA_REQUIRE_DEVICE(device);
    auto& answer = verbs_get_ctx(device.native_handle())->create_cq_ex;
    answer = refuse;
    const auto channel = vb::completion_channel::create(device).value();
    const int vector = device.native_handle()->num_comp_vectors - 1;
    const vb::completion_queue_options options{.channel = channel, .comp_vector = vector, .single_threaded = true};
    for (const auto& [code, condition] : {std::pair{EOPNOTSUPP, vb::errc::unsupported},
                                          {EINVAL, vb::errc::invalid_argument},
                                          {ENOMEM, vb::errc::resource}}) {
        refusal = code;
        const auto refused = vb::completion_queue::create(device, 16, options);
        REQUIRE(!refused);
        check_failure(refused.error(), condition);
        CHECK(std::string_view(refused.error().verb()) == "ibv_create_cq_ex");
        CHECK(asked.cqe == 16);
        CHECK(asked.channel == channel.native_handle());
        CHECK(asked.comp_vector == static_cast<std::uint32_t>(vector));
        CHECK(asked.wc_flags == 0);
        CHECK(asked.comp_mask == IBV_CQ_INIT_ATTR_MASK_FLAGS);
        CHECK(asked.flags == IBV_CREATE_CQ_ATTR_SINGLE_THREADED);
    }
    answer = nullptr; // a library older than the verb
    check_failure(vb::completion_queue::create(device, 16, options).error(), vb::errc::unsupported);
    CHECK(vb::completion_queue::create(device, 16, {.channel = channel}).has_value());
}
