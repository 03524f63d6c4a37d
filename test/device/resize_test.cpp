// Invariant: a resize grants at least what was asked or changes nothing, and either way every unpolled completion stays
// where it was.

#include "support.hpp"

#include "verbs/states.hpp"

#include <verbena/verbs/completion_queue.hpp>

#include <array>
#include <climits>
#include <vector>

namespace vb = verbena;

namespace {

constexpr std::uint32_t queued = 20;

struct fixture {
    vb::protection_domain domain;
    vb::completion_queue cq;
    support::filler filler;

    explicit fixture(const vb::context& device)
        : domain(vb::protection_domain::create(device).value()), cq(vb::completion_queue::create(device, 100).value()),
          filler(domain, cq.native_handle(), 64) {}

    auto& state() const { return *vb::detail::access::state(cq); }
};

void check_entries(const vb::completion_queue& cq, std::uint64_t first, std::size_t count) {
    std::vector<vb::poll_slot> slots(count + 1);
    const auto polled = cq.poll(slots).value();
    REQUIRE(polled.size() == count);
    for (std::size_t i = 0; i < count; ++i) {
        CHECK(polled[i].ok());
        CHECK(polled[i].wr_id() == first + i);
    }
}

class attachment final : public vb::detail::cq_attachment {
  public:
    bool here = true;
    std::vector<std::string> calls;

    bool on_reactor_thread() const noexcept override { return here; }
    void about_to_resize() noexcept override { calls.emplace_back("about_to_resize"); }
    void resized() noexcept override { calls.emplace_back("resized"); }
};

bool skip_without_resize(const vb::completion_queue& cq) {
    const auto resized = cq.resize(cq.capacity());
    return !resized && resized.error() == vb::errc::unsupported;
}

} // namespace

#define VERBENA_REQUIRE_RESIZE(f)                                                                                      \
    if (skip_without_resize((f).cq)) VERBENA_SKIP("the device cannot resize completion queues")

TEST_CASE("resize up and down, empty and filled") {
    VERBENA_REQUIRE_DEVICE(device);
    fixture f(device);
    VERBENA_REQUIRE_RESIZE(f);
    std::uint64_t next = 0;
    for (const std::size_t capacity : {500, 10, 200, 1, 64}) {
        f.cq.resize(capacity).value();
        CHECK(f.cq.capacity() >= capacity);
        CHECK(f.cq.capacity() == static_cast<std::uint32_t>(f.cq.native_handle()->cqe));
        CHECK(f.cq.min_capacity() == 100);
    }
    f.filler.fill(queued, next);
    for (const std::size_t capacity : {500, 60, static_cast<int>(queued), 64}) {
        f.cq.resize(capacity).value();
        CHECK(f.cq.capacity() >= capacity);
    }
    check_entries(f.cq, next, queued);
    next += queued;
    f.filler.fill(queued, next);
    check_entries(f.cq, next, queued);
}

TEST_CASE("a size that cannot be leaves queue and entries unharmed") {
    VERBENA_REQUIRE_DEVICE(device);
    fixture f(device);
    VERBENA_REQUIRE_RESIZE(f);
    f.filler.fill(queued, 1);
    const auto before = f.cq.capacity();
    const auto limit = static_cast<std::size_t>(device.attributes().max_cqe);
    for (const std::size_t capacity : {std::size_t{0}, limit + 1, std::size_t{INT_MAX} + 1, std::size_t{10}}) {
        const auto resized = f.cq.resize(capacity);
        REQUIRE(!resized);
        CHECK(resized.error() == vb::errc::invalid_argument);
        CHECK(resized.error().message().find("ibv_resize_cq: ") == 0);
        CHECK(f.cq.capacity() == before);
    }
    CHECK(f.cq.resize(10).error().message().find("unpolled") != std::string::npos);
    check_entries(f.cq, 1, queued);
    f.cq.resize(10).value();
    CHECK(f.cq.capacity() < before);
    f.filler.fill(10, 50);
    check_entries(f.cq, 50, 10);
}

TEST_CASE("what is reserved is never resized away") {
    VERBENA_REQUIRE_DEVICE(device);
    fixture f(device);
    VERBENA_REQUIRE_RESIZE(f);
    f.state().reserve(60).value();
    f.filler.fill(queued, 1);
    const auto resized = f.cq.resize(59);
    REQUIRE(!resized);
    CHECK(resized.error() == vb::errc::in_use);
    CHECK(resized.error().message().find("60") != std::string::npos);
    f.cq.resize(60).value();
    check_entries(f.cq, 1, queued);
    f.state().release(60);
    f.cq.resize(59).value();
    f.state().release(1); // more than there is: no harm
    CHECK(f.state().reserved == 0);
}

TEST_CASE("reserving grows the queue, or names the sizes") {
    VERBENA_REQUIRE_DEVICE(device);
    fixture f(device);
    VERBENA_REQUIRE_RESIZE(f);
    const auto before = f.cq.capacity();
    f.state().reserve(before).value();
    CHECK(f.cq.capacity() == before);
    f.state().reserve(1).value();
    CHECK(f.cq.capacity() > before);
    CHECK(f.state().reserved == before + 1);

    const auto capacity = f.cq.capacity();
    const auto limit = static_cast<std::uint32_t>(device.attributes().max_cqe);
    for (const std::uint32_t entries : {limit, UINT32_MAX}) {
        const auto reserved = f.state().reserve(entries);
        REQUIRE(!reserved);
        CHECK(reserved.error() == vb::errc::resource);
        const auto text = reserved.error().message();
        for (const auto size : {capacity, before + 1, entries})
            CHECK(text.find(fmt::format("{}", size)) != std::string::npos);
    }
    CHECK(f.state().reserved == before + 1);
    CHECK(f.cq.capacity() == capacity);
}

TEST_CASE("an attached queue is resized on its reactor's thread, which is told") {
    VERBENA_REQUIRE_DEVICE(device);
    fixture f(device);
    VERBENA_REQUIRE_RESIZE(f);
    attachment reactor;
    f.state().attachment = &reactor;
    std::array<vb::poll_slot, 1> slots;
    CHECK(f.cq.attached());
    CHECK(f.cq.poll(slots).error() == vb::errc::attached);

    f.cq.resize(300).value();
    CHECK(reactor.calls == std::vector<std::string>{"about_to_resize", "resized"});
    f.state().reserve(10).value();
    CHECK(reactor.calls.size() == 2);

    reactor.here = false;
    CHECK(f.cq.resize(400).error() == vb::errc::wrong_thread);
    CHECK(f.state().reserve(1).error() == vb::errc::wrong_thread);
    CHECK(reactor.calls.size() == 2);
    f.state().attachment = nullptr;
    CHECK(f.cq.poll(slots).value().empty());
}
