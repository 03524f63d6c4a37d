// Invariant: a queue is created within the device's limits or not at all, and polling it gives what the device put
// there, in its order, to whoever shares it.

#include "support.hpp"

#include "verbs/states.hpp"

#include <verbena/verbs/completion_queue.hpp>

#include <fcntl.h>

#include <array>
#include <climits>

namespace vb = verbena;

TEST_CASE("a queue has at least the capacity asked for") {
    VERBENA_REQUIRE_DEVICE(device);
    for (const std::size_t capacity :
         {std::size_t{1}, std::size_t{64}, static_cast<std::size_t>(device.attributes().max_cqe)}) {
        const auto cq = vb::completion_queue::create(device, capacity).value();
        CHECK(cq.min_capacity() == capacity);
        CHECK(cq.capacity() >= capacity);
        CHECK(cq.context() == device);
        CHECK(!cq.channel());
        CHECK(!cq.attached());
    }
}

TEST_CASE("a capacity beyond the limits is refused") {
    VERBENA_REQUIRE_DEVICE(device);
    const auto limit = static_cast<std::size_t>(device.attributes().max_cqe);
    for (const std::size_t capacity : {std::size_t{0}, limit + 1, std::size_t{INT_MAX} + 1, ~std::size_t{0}}) {
        const auto cq = vb::completion_queue::create(device, capacity);
        REQUIRE(!cq);
        CHECK(cq.error() == vb::errc::invalid_argument);
        CHECK(cq.error().message().find("ibv_create_cq: ") == 0);
        CHECK(cq.error().message().find(fmt::format("takes 1 to {}", limit)) != std::string::npos);
    }
    CHECK(vb::completion_queue::create({}, 1).error() == vb::errc::invalid_argument);
}

TEST_CASE("a comp_vector out of range is refused") {
    VERBENA_REQUIRE_DEVICE(device);
    const int vectors = device.native_handle()->num_comp_vectors;
    CHECK(vb::completion_queue::create(device, 1, {.comp_vector = vectors - 1}));
    for (const int vector : {-1, vectors, INT_MAX}) {
        const auto cq = vb::completion_queue::create(device, 1, {.comp_vector = vector});
        REQUIRE(!cq);
        CHECK(cq.error() == vb::errc::invalid_argument);
        CHECK(cq.error().message().find("num_comp_vectors") != std::string::npos);
    }
}

TEST_CASE("a channel is non-blocking, and of the same context") {
    VERBENA_REQUIRE_DEVICE(device);
    const auto channel = vb::completion_channel::create(device).value();
    CHECK((fcntl(channel.fd(), F_GETFL) & O_NONBLOCK) != 0);
    CHECK((fcntl(channel.fd(), F_GETFD) & FD_CLOEXEC) != 0);
    const auto cq = vb::completion_queue::create(device, 1, {.channel = channel}).value();
    CHECK(cq.channel() == channel);
    CHECK(vb::completion_channel::create({}).error() == vb::errc::invalid_argument);

    const auto other = vb::context::open(device.name()).value();
    CHECK(vb::completion_queue::create(other, 1, {.channel = channel}).error() == vb::errc::invalid_argument);
}

TEST_CASE("a queue keeps its channel and its context") {
    VERBENA_REQUIRE_DEVICE(device);
    vb::completion_queue cq;
    {
        const auto own = vb::context::open(device.name()).value();
        cq = vb::completion_queue::create(own, 8, {.channel = vb::completion_channel::create(own).value()}).value();
    }
    std::array<vb::poll_slot, 4> slots;
    CHECK(cq.poll(slots).value().empty());
    CHECK(cq.channel().fd() >= 0);
}

TEST_CASE("an event that was got and not acked does not hang the destruction") {
    VERBENA_REQUIRE_DEVICE(device);
    const auto domain = vb::protection_domain::create(device).value();
    const auto channel = vb::completion_channel::create(device).value();
    auto cq = vb::completion_queue::create(device, 8, {.channel = channel}).value();
    {
        support::filler filler(domain, cq.native_handle(), 8);
        REQUIRE(ibv_req_notify_cq(cq.native_handle(), 0) == 0);
        filler.fill(1, 0);
        ibv_cq* announced = nullptr;
        void* state = nullptr;
        while (ibv_get_cq_event(channel.native_handle(), &announced, &state) != 0) {}
        CHECK(announced == cq.native_handle());
        CHECK(state == vb::detail::access::state(cq).get());
        vb::detail::access::state(cq)->unacked_events = 1;
    }
    cq = {};
    CHECK(!cq);
}

TEST_CASE("polling gives the completions in order, through every copy") {
    VERBENA_REQUIRE_DEVICE(device);
    const auto domain = vb::protection_domain::create(device).value();
    const auto cq = vb::completion_queue::create(device, 16).value();
    const auto copy = cq;
    CHECK(copy == cq);
    support::filler filler(domain, cq.native_handle(), 16);

    std::array<vb::poll_slot, 4> slots;
    CHECK(cq.poll(slots).value().empty());
    CHECK(cq.poll({}).value().empty());

    filler.fill(10, 100);
    CHECK(cq.poll({}).value().empty());
    std::uint64_t expected = 100;
    for (const std::size_t count : {4, 4, 2, 0}) {
        const auto polled = (count == 4 ? cq : copy).poll(slots).value();
        CHECK(polled.size() == count);
        for (vb::work_completion done : polled) {
            CHECK(done.ok());
            CHECK(done.wr_id() == expected++);
            CHECK(done.opcode() == vb::completion_opcode::receive);
            CHECK(done.byte_len() == 8U);
            CHECK(!done.immediate());
        }
    }
    CHECK(fmt::format("{}", cq).find(device.name()) != std::string::npos);
}
