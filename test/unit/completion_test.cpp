// Invariant: polling writes into the caller's slots and nowhere else, and of a failed completion only what the device
// filled in can be read. No device is needed: the queue is one whose poll function the test supplies.

#include "support/catch.hpp"

#include "verbs/states.hpp"

#include <verbena/format.hpp>
#include <verbena/log.hpp>
#include <verbena/verbs/completion_queue.hpp>

#include <array>
#include <climits>
#include <cstring>
#include <deque>
#include <string>
#include <thread>
#include <vector>

namespace vb = verbena;

namespace {

std::deque<ibv_wc> device_queue;
std::vector<int> asked;
int failure = 0;

int fake_poll(ibv_cq*, int count, ibv_wc* out) {
    asked.push_back(count);
    int filled = 0;
    for (; filled < count && !device_queue.empty(); ++filled) {
        out[filled] = device_queue.front();
        device_queue.pop_front();
    }
    return failure != 0 ? failure : filled;
}

struct fake_queue {
    ibv_context context{};
    ibv_cq cq{};
    std::shared_ptr<vb::detail::completion_queue_state> state = std::make_shared<vb::detail::completion_queue_state>();
    vb::completion_queue queue = vb::detail::access::make<vb::completion_queue>(state);

    fake_queue() {
        context.ops.poll_cq = fake_poll;
        cq.context = &context;
        state->native = &cq;
        device_queue.clear();
        asked.clear();
        failure = 0;
    }
    fake_queue(const fake_queue&) = delete;
    fake_queue& operator=(const fake_queue&) = delete;
    ~fake_queue() { state->native = nullptr; }
};

/// Everything but what is named is garbage, as devices leave it.
ibv_wc completion(std::uint64_t wr_id, ibv_wc_status status, ibv_wc_opcode opcode, unsigned flags = 0) {
    ibv_wc wc;
    std::memset(&wc, 0xa5, sizeof wc);
    wc.wr_id = wr_id;
    wc.status = status;
    wc.opcode = opcode;
    wc.wc_flags = flags;
    wc.qp_num = 17;
    wc.vendor_err = 0;
    return wc;
}

} // namespace

TEST_CASE("an empty queue gives an empty view") {
    fake_queue f;
    std::array<vb::poll_slot, 4> slots;
    const auto polled = f.queue.poll(slots).value();
    CHECK(polled.empty());
    CHECK(polled.begin() == polled.end());
    CHECK(f.queue.poll({}).value().empty());
    CHECK(fmt::format("{}", polled) == "[]");
    CHECK(vb::completion_queue{}.poll(slots).error() == vb::errc::invalid_argument);
}

TEST_CASE("a poll fills the caller's slots in order and leaves the rest alone") {
    fake_queue f;
    for (std::uint64_t i = 0; i < 5; ++i) device_queue.push_back(completion(i, IBV_WC_SUCCESS, IBV_WC_SEND));
    std::array<vb::poll_slot, 4> slots;
    std::memset(static_cast<void*>(slots.data()), 0x5a, sizeof slots);
    const auto first = f.queue.poll(std::span(slots).first(3)).value();
    REQUIRE(first.size() == 3);
    CHECK(slots[3].native_handle()->wr_id == 0x5a5a5a5a5a5a5a5a);
    std::uint64_t expected = 0;
    for (vb::work_completion done : first) CHECK(done.wr_id() == expected++);
    CHECK(first[2].wr_id() == 2);
    CHECK(slots[2].native_handle()->wr_id == 2);

    const auto rest = f.queue.poll(slots).value();
    CHECK(rest.size() == 2);
    CHECK(rest[0].wr_id() == 3);
}

TEST_CASE("a buffer beyond INT32_MAX is used up to there, with one warning") {
    fake_queue f;
    std::vector<std::string> lines;
    vb::set_log_sink(
        [&](vb::log_level level, std::string_view text) { lines.push_back(fmt::format("{}: {}", level, text)); });
    device_queue.push_back(completion(1, IBV_WC_SUCCESS, IBV_WC_SEND));
    std::array<vb::poll_slot, 1> slot;
    // Only the first of these slots exists, and only it is written.
    const std::span<vb::poll_slot> huge(slot.data(), std::size_t{INT32_MAX} + 1);
    CHECK(f.queue.poll(huge).value().size() == 1);
    CHECK(f.queue.poll(huge).value().empty());
    vb::set_log_sink({});
    CHECK(asked == std::vector<int>{INT32_MAX, INT32_MAX});
    REQUIRE(lines.size() == 1);
    CHECK(lines[0].find("warning: ") == 0);
    CHECK(lines[0].find("INT32_MAX") != std::string::npos);
}

TEST_CASE("a negative answer ends the queue for good") {
    fake_queue f;
    std::array<vb::poll_slot, 1> slots;
    failure = -2;
    const auto failed = f.queue.poll(slots);
    REQUIRE(!failed);
    CHECK(failed.error() == vb::errc::queue_failed);
    CHECK(failed.error().message().find("ibv_poll_cq: ") == 0);
    failure = 0;
    CHECK(f.queue.poll(slots).error() == vb::errc::queue_failed);
    CHECK(asked.size() == 1);
}

TEST_CASE("several threads may poll one queue") {
    fake_queue f;
    const auto poll = [&, queue = f.queue] {
        for (int i = 0; i < 1000; ++i) {
            if (queue.attached() || queue.capacity() != 0) return false;
            if (!queue.poll({})) return false;
        }
        return true;
    };
    f.context.ops.poll_cq = [](ibv_cq*, int, ibv_wc*) { return 0; };
    bool other = false;
    std::thread thread([&] { other = poll(); });
    const bool here = poll();
    thread.join();
    CHECK(here);
    CHECK(other);
}

TEST_CASE("a successful receive") {
    auto wc = completion(9, IBV_WC_SUCCESS, IBV_WC_RECV, IBV_WC_WITH_IMM | IBV_WC_GRH);
    wc.byte_len = 100;
    wc.imm_data = htobe32(0x01020304);
    wc.src_qp = 5;
    const vb::work_completion done(wc);
    CHECK(done.ok());
    CHECK(!done.status());
    CHECK(done.is_receive());
    CHECK(done.opcode() == vb::completion_opcode::receive);
    CHECK(done.byte_len() == 100U);
    CHECK(done.immediate() == 0x01020304U);
    CHECK(done.source_qp() == 5U);
    CHECK(done.has_grh());
    CHECK(!done.invalidated_rkey());
    CHECK(done.qp_num() == 17);
    CHECK(fmt::format("{}", done) == "completion(0x9 on queue pair 17: receive, 100 bytes, immediate 0x1020304)");
}

TEST_CASE("a successful receive without flags has no optional parts") {
    const vb::work_completion done(completion(9, IBV_WC_SUCCESS, IBV_WC_RECV_RDMA_WITH_IMM));
    CHECK(done.opcode() == vb::completion_opcode::receive_rdma_write);
    CHECK(!done.immediate());
    CHECK(!done.has_grh());
    CHECK(vb::work_completion(completion(9, IBV_WC_SUCCESS, IBV_WC_RECV, IBV_WC_WITH_INV)).invalidated_rkey());
}

TEST_CASE("only receives, reads and atomics have a length") {
    for (const auto opcode :
         {IBV_WC_RECV, IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_RDMA_READ, IBV_WC_COMP_SWAP, IBV_WC_FETCH_ADD})
        CHECK(vb::work_completion(completion(1, IBV_WC_SUCCESS, opcode)).byte_len());
    for (const auto opcode : {IBV_WC_SEND, IBV_WC_RDMA_WRITE, IBV_WC_BIND_MW, IBV_WC_LOCAL_INV})
        CHECK(!vb::work_completion(completion(1, IBV_WC_SUCCESS, opcode)).byte_len());
    CHECK(fmt::format("{}", vb::work_completion(completion(1, IBV_WC_SUCCESS, IBV_WC_SEND))) ==
          "completion(0x1 on queue pair 17: send)");
}

TEST_CASE("a failed completion has no opcode, length or flags") {
    for (const auto opcode : {IBV_WC_SEND, IBV_WC_RECV}) {
        auto wc = completion(9, IBV_WC_REM_ACCESS_ERR, opcode, ~0U);
        wc.vendor_err = 0x88;
        const vb::work_completion done(wc);
        CHECK(!done.ok());
        CHECK(done.wr_id() == 9);
        CHECK(done.status() == vb::errc::access_denied);
        CHECK(!done.is_receive());
        CHECK(!done.opcode());
        CHECK(!done.byte_len());
        CHECK(!done.immediate());
        CHECK(!done.invalidated_rkey());
        CHECK(!done.source_qp());
        CHECK(!done.has_grh());
        CHECK(done.error() == vb::errc::access_denied);
        CHECK(done.error().qp_num() == 17);
        CHECK(done.error().vendor_error() == 0x88);
        CHECK(fmt::format("{}", done).find("vendor error 0x88") != std::string::npos);
    }
}

TEST_CASE("slices stay within their slice") {
    const vb::memory_slice slice{1000, 100, 7};
    CHECK(slice.first(10) == vb::memory_slice{1000, 10, 7});
    CHECK(slice.subslice(90, 10) == vb::memory_slice{1090, 10, 7});
    CHECK(slice.subslice(100, 0).length == 0);
    CHECK_THROWS_AS(slice.first(101), std::out_of_range);
    CHECK_THROWS_AS(slice.subslice(91, 10), std::out_of_range);
    CHECK_THROWS_AS(slice.subslice(101, 0), std::out_of_range);
    CHECK_THROWS_AS(slice.subslice(1, ~std::size_t{0}), std::out_of_range);
    CHECK(fmt::format("{}", slice) == "memory_slice(0x3e8, 100 bytes, lkey 0x7)");
}

TEST_CASE("a remote slice travels in 16 bytes, most significant first") {
    const vb::remote_slice slice{0x0102030405060708, 0x090a0b0c, 0x0d0e0f10};
    const auto bytes = slice.to_bytes();
    for (std::size_t i = 0; i < bytes.size(); ++i) CHECK(std::to_integer<std::size_t>(bytes[i]) == i + 1);
    CHECK(vb::remote_slice::from_bytes(bytes) == slice);
    CHECK(slice.subslice(1, 2) == vb::remote_slice{0x0102030405060709, 2, 0x0d0e0f10});
    CHECK_THROWS_AS(slice.subslice(0x090a0b0d, 0), std::out_of_range);
}

TEST_CASE("access flags and GIDs print") {
    using vb::access_flags;
    auto flags = access_flags::local_write | access_flags::remote_read;
    CHECK(has(flags, access_flags::remote_read));
    CHECK(!has(flags, access_flags::remote_write));
    CHECK(fmt::format("{}", flags) == "local_read|local_write|remote_read");
    flags |= access_flags::remote_atomic;
    CHECK(has(flags, access_flags::remote_atomic));

    vb::gid id;
    CHECK(id.is_zero());
    id.bytes[10] = id.bytes[11] = std::byte{0xff};
    id.bytes[12] = std::byte{10};
    id.bytes[15] = std::byte{1};
    CHECK(id.is_ipv4_mapped());
    CHECK(fmt::format("{}", id) == "::ffff:10.0.0.1");
    CHECK(vb::gid::from_native(id.native()) == id);
    id.bytes[0] = std::byte{0xfe};
    CHECK(!id.is_ipv4_mapped());
}
