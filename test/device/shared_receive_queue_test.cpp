// Invariant: a shared receive queue is created within the device's limits or not at all.

#include "support.hpp"

#include <verbena/verbs/shared_receive_queue.hpp>

namespace vb = verbena;

TEST_CASE("a shared receive queue holds what was asked for") {
    VERBENA_REQUIRE_DEVICE(device);
    const auto domain = vb::protection_domain::create(device).value();
    const auto created = vb::shared_receive_queue::create(domain, {.max_wr = 16});
    if (!created && created.error() == vb::errc::unsupported) VERBENA_SKIP(created.error().message());
    const auto srq = *created;
    CHECK(srq.max_wr() == 16);
    CHECK(srq.max_sge() == 1);
    CHECK(srq.domain() == domain);
    ibv_srq_attr attributes{};
    REQUIRE(ibv_query_srq(srq.native_handle(), &attributes) == 0);
    CHECK(attributes.max_wr >= 16);
    CHECK(attributes.srq_limit == 0);
    CHECK(fmt::format("{}", srq).find("16 receives") != std::string::npos);
}

TEST_CASE("a limit is armed at creation and anew") {
    VERBENA_REQUIRE_DEVICE(device);
    const auto domain = vb::protection_domain::create(device).value();
    const auto created = vb::shared_receive_queue::create(domain, {.max_wr = 16, .limit = 4});
    if (!created && created.error() == vb::errc::unsupported) VERBENA_SKIP(created.error().message());
    ibv_srq_attr attributes{};
    REQUIRE(ibv_query_srq(created->native_handle(), &attributes) == 0);
    CHECK(attributes.srq_limit == 4);
    created->arm_limit(2).value();
    REQUIRE(ibv_query_srq(created->native_handle(), &attributes) == 0);
    CHECK(attributes.srq_limit == 2);
    CHECK(created->arm_limit(17).error() == vb::errc::invalid_argument);
}

TEST_CASE("sizes beyond the device are refused") {
    VERBENA_REQUIRE_DEVICE(device);
    const auto domain = vb::protection_domain::create(device).value();
    const auto wr_limit = static_cast<std::uint32_t>(device.attributes().max_srq_wr);
    const auto sge_limit = static_cast<std::uint32_t>(device.attributes().max_srq_sge);
    for (const vb::shared_receive_queue_options& options :
         {vb::shared_receive_queue_options{}, vb::shared_receive_queue_options{.max_wr = wr_limit + 1},
          vb::shared_receive_queue_options{.max_wr = 1, .max_sge = 0},
          vb::shared_receive_queue_options{.max_wr = 1, .max_sge = sge_limit + 1},
          vb::shared_receive_queue_options{.max_wr = 1, .limit = 2}}) {
        const auto srq = vb::shared_receive_queue::create(domain, options);
        REQUIRE(!srq);
        CHECK((srq.error() == vb::errc::invalid_argument || srq.error() == vb::errc::unsupported));
    }
    CHECK(vb::shared_receive_queue::create({}, {.max_wr = 1}).error() == vb::errc::invalid_argument);
}
