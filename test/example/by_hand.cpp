// The second example of README.md, as it stands there: a queue pair without coroutines, to itself.

#include "support/catch.hpp"

#include <verbena/format.hpp>
#include <verbena/verbena.hpp>

#include <algorithm>
#include <array>
#include <cstdlib>

namespace vb = verbena;

TEST_CASE("README's queue is posted to and polled by hand") {
    const char* wanted = std::getenv("VERBENA_DEVICE");
    const auto opened = wanted != nullptr ? vb::context::open(wanted) : vb::context::open_default();
    if (!opened) VERBENA_SKIP(opened.error().message());
    auto domain = vb::protection_domain::create(*opened).value();
    auto cq = vb::completion_queue::create(*opened, 16).value();
    auto qp = vb::queue_pair::create(domain, {.send_cq = cq, .recv_cq = cq}).value();
    qp.connect(qp.endpoint()).value();
    auto region = vb::memory_region::allocate(domain, 128).value();
    auto bytes = region.slice(0, 64);
    std::ranges::fill(bytes.bytes(), std::byte{7});
    qp.post(vb::recv_request{.local = region.slice(64, 64)}, /*wr_id*/ 8).value();
    // README: by hand
    qp.post(vb::send_request{.local = bytes, .signaled = true}, /*wr_id*/ 7).value();
    std::array<vb::poll_slot, 32> slots;
    for (int seen = 0; seen < 2;)
        for (vb::work_completion done : cq.poll(slots).value()) {
            fmt::print("{}\n", done);
            ++seen;
        }
    // README: end
    CHECK(std::ranges::equal(region.slice(0, 64).bytes(), region.slice(64, 64).bytes()));
}
