// Invariant: what the device is told is what was asked for, and a device that cannot says so; the queue goes on either
// way.

#include "by_hand.hpp"

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <thread>
#include <utility>

namespace vb = verbena;
using namespace std::chrono_literals;
using support::check_failure;

namespace {

// What the device is called with, and what it answers instead.
thread_local ibv_modify_cq_attr asked{};
thread_local int answered = 0;

int modify(ibv_cq*, ibv_modify_cq_attr* wanted) {
    asked = *wanted;
    return answered;
}

ibv_cq_moderation_caps limits_of(const vb::context& device) {
    ibv_device_attr_ex limits{};
    support::require_zero(ibv_query_device_ex(device.native_handle(), nullptr, &limits), "ibv_query_device_ex");
    return limits.cq_mod_caps;
}

} // namespace

TEST_CASE("moderation is accepted, attached or not and on any thread, where the device has it") {
    VERBENA_REQUIRE_DEVICE(device);
    const auto limits = limits_of(device);
    const auto domain = vb::protection_domain::create(device).value();
    const auto memory = vb::memory_region::allocate(domain, 4096).value();
    support::engine engine(device);
    support::wire wire(domain, engine);
    const auto free = vb::completion_queue::create(device, 16).value();
    const auto check = [&](const vb::completion_queue& cq) {
        const auto moderated = cq.moderate(1, std::chrono::microseconds(limits.max_cq_period));
        if (limits.max_cq_count != 0)
            CHECK(moderated.has_value());
        else
            check_failure(moderated.error(), vb::errc::unsupported);
        if (limits.max_cq_period == 0 || limits.max_cq_period == UINT16_MAX) return;
        const auto beyond = cq.moderate(1, std::chrono::microseconds(limits.max_cq_period + 1)).error();
        check_failure(beyond, vb::errc::invalid_argument);
        CHECK(support::names(beyond, fmt::format("{} us", limits.max_cq_period + 1)));
    };
    support::ending_log log;
    for (int i = 0; i < 2; ++i) {
        vb::scope scope;
        scope.spawn(support::receive(wire.right, memory.slice(0, 64), log));
        scope.spawn(support::transmit(wire.left, memory.slice(64, 64), log));
        engine.reactor.run([](vb::scope& s) -> vb::task<> { co_await s.join(); }(scope));
        check(free);
        check(engine.cq);
        bool same = false;
        std::thread([&] { same = engine.cq.moderate(1, 0us).has_value() == (limits.max_cq_count != 0); }).join();
        CHECK(same);
    }
    CHECK(log.successes == 4);
}

TEST_CASE("the device gets the numbers, and its refusals come back") {
    VERBENA_REQUIRE_DEVICE(device);
    verbs_get_ctx(device.native_handle())->modify_cq = modify;
    const auto cq = vb::completion_queue::create(device, 16).value();
    for (const auto& [count, period] :
         {std::pair{0, 0us}, {1, 2us}, {UINT16_MAX, std::chrono::microseconds(UINT16_MAX)}}) {
        CHECK(cq.moderate(static_cast<std::uint16_t>(count), period).has_value());
        CHECK(asked.attr_mask == IBV_CQ_ATTR_MODERATE);
        CHECK(asked.moderate.cq_count == count);
        CHECK(asked.moderate.cq_period == period.count());
    }
    for (const auto& [code, condition] : {std::pair{EOPNOTSUPP, vb::errc::unsupported},
                                          {ENOSYS, vb::errc::unsupported},
                                          {-EOPNOTSUPP, vb::errc::unsupported},
                                          {EINVAL, vb::errc::invalid_argument},
                                          {ENOMEM, vb::errc::resource},
                                          {EIO, vb::errc::device_removed}}) {
        answered = code;
        check_failure(cq.moderate(8, 16us).error(), condition);
    }
    answered = 0;
}

TEST_CASE("a period that is no number of 16 bits does not reach the device") {
    VERBENA_REQUIRE_DEVICE(device);
    verbs_get_ctx(device.native_handle())->modify_cq = modify;
    const auto cq = vb::completion_queue::create(device, 16).value();
    asked.attr_mask = 0;
    for (const auto period : {-1us, 65536us, std::chrono::microseconds::max(), std::chrono::microseconds::min()})
        check_failure(cq.moderate(1, period).error(), vb::errc::invalid_argument);
    check_failure(vb::completion_queue().moderate(1, 1us).error(), vb::errc::invalid_argument);
    CHECK(asked.attr_mask == 0);
}
