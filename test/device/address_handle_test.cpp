// Invariant: an address handle leads where its address says, and one made from a received message leads back.

#include "support.hpp"

#include <verbena/verbs/address_handle.hpp>
#include <verbena/verbs/completion_queue.hpp>

#include <array>
#include <cstring>

namespace vb = verbena;

namespace {

constexpr std::uint32_t key = 0x1234;
constexpr std::uint32_t payload = 32;

/// One UD queue pair that talks to itself, by plain verbs.
struct datagrams {
    vb::completion_queue cq;
    vb::memory_region memory;
    ibv_qp* qp;

    explicit datagrams(const vb::protection_domain& domain)
        : cq(vb::completion_queue::create(domain.context(), 16).value()),
          memory(vb::memory_region::allocate(domain, 1024).value()) {
        ibv_qp_init_attr wanted{};
        wanted.send_cq = wanted.recv_cq = cq.native_handle();
        wanted.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 0};
        wanted.qp_type = IBV_QPT_UD;
        qp = support::require_pointer(ibv_create_qp(domain.native_handle(), &wanted), "ibv_create_qp");
        ibv_qp_attr attributes{};
        attributes.qp_state = IBV_QPS_INIT;
        attributes.port_num = 1;
        attributes.qkey = key;
        support::require_zero(
            ibv_modify_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY), "INIT");
        attributes.qp_state = IBV_QPS_RTR;
        support::require_zero(ibv_modify_qp(qp, &attributes, IBV_QP_STATE), "RTR");
        attributes.qp_state = IBV_QPS_RTS;
        support::require_zero(ibv_modify_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_SQ_PSN), "RTS");
    }
    datagrams(const datagrams&) = delete;
    datagrams& operator=(const datagrams&) = delete;
    ~datagrams() { ibv_destroy_qp(qp); }

    /// Sends `payload` bytes of `value` and answers the receive's completion; the message lies at offset 512.
    vb::work_completion round(const vb::address_handle& to, std::byte value) {
        std::memset(memory.bytes().data(), std::to_integer<int>(value), payload);
        auto into = memory.slice(512, vb::address_handle::grh_bytes + payload);
        ibv_recv_wr receive{.wr_id = 1, .next = nullptr, .sg_list = reinterpret_cast<ibv_sge*>(&into), .num_sge = 1};
        ibv_recv_wr* bad_receive = nullptr;
        support::require_zero(ibv_post_recv(qp, &receive, &bad_receive), "ibv_post_recv");
        auto from = memory.slice(0, payload);
        ibv_send_wr send{};
        send.wr_id = 2;
        send.sg_list = reinterpret_cast<ibv_sge*>(&from);
        send.num_sge = 1;
        send.opcode = IBV_WR_SEND;
        send.send_flags = IBV_SEND_SIGNALED;
        send.wr.ud.ah = to.native_handle();
        send.wr.ud.remote_qpn = qp->qp_num;
        send.wr.ud.remote_qkey = key;
        ibv_send_wr* bad_send = nullptr;
        support::require_zero(ibv_post_send(qp, &send, &bad_send), "ibv_post_send");
        std::optional<vb::work_completion> received;
        for (int outstanding = 2; outstanding > 0;) {
            std::array<vb::poll_slot, 2> slots;
            for (vb::work_completion done : cq.poll(slots).value()) {
                CHECK(done.ok());
                --outstanding;
                if (done.is_receive()) received = done;
            }
        }
        return received.value();
    }
};

} // namespace

TEST_CASE("a datagram reaches its address, and its completion leads back") {
    VERBENA_REQUIRE_DEVICE(device);
    const auto domain = vb::protection_domain::create(device).value();
    const auto local = support::usable_gid(device);
    const auto there = vb::address_handle::create(domain, {.destination = local.gid,
                                                           .gid_index = static_cast<std::uint8_t>(local.index),
                                                           .lid = device.port(1)->lid})
                           .value();
    CHECK(there.domain() == domain);
    CHECK(fmt::format("{}", there).find(device.name()) != std::string::npos);

    datagrams d(domain);
    const auto received = d.round(there, std::byte{7});
    CHECK(received.byte_len() == vb::address_handle::grh_bytes + payload);
    CHECK(received.source_qp() == d.qp->qp_num);
    REQUIRE(received.has_grh());
    const auto message = d.memory.bytes().subspan(512, vb::address_handle::grh_bytes + payload);
    CHECK(message[vb::address_handle::grh_bytes] == std::byte{7});

    const auto back = vb::address_handle::create(domain, received, message).value();
    CHECK(d.round(back, std::byte{9}).ok());
    CHECK(message[vb::address_handle::grh_bytes] == std::byte{9});

    CHECK(vb::address_handle::create(domain, received, message.first(39)).error() == vb::errc::invalid_argument);
    CHECK(vb::address_handle::create(domain, received, message, 9).error() == vb::errc::not_found);
    const std::array<std::byte, vb::address_handle::grh_bytes> nonsense{};
    const auto lost = vb::address_handle::create(domain, received, nonsense);
    REQUIRE(!lost);
    CHECK(lost.error() == vb::errc::not_found);
    CHECK(lost.error().message().find("ibv_init_ah_from_wc: ") == 0);

    ibv_wc failed = received.native();
    failed.status = IBV_WC_WR_FLUSH_ERR;
    CHECK(vb::address_handle::create(domain, vb::work_completion(failed), message).error() ==
          vb::errc::invalid_argument);
}

TEST_CASE("an address that cannot be is refused") {
    VERBENA_REQUIRE_DEVICE(device);
    const auto domain = vb::protection_domain::create(device).value();
    const auto local = support::usable_gid(device);
    const auto code = [&](const vb::address_vector& address) {
        return vb::address_handle::create(domain, address).error().code();
    };
    CHECK(code({}) == vb::errc::invalid_argument);
    CHECK(code({.destination = local.gid, .port = 0}) == vb::errc::not_found);
    CHECK(code({.destination = local.gid, .port = 200}) == vb::errc::not_found);
    if (device.port(1)->link == vb::link_layer::ethernet) CHECK(code({.lid = 1}) == vb::errc::invalid_argument);
    if (device.port(1)->gid_table_length <= 255)
        CHECK(code({.destination = local.gid, .gid_index = 255}) == vb::errc::invalid_argument);
    CHECK(vb::address_handle::create({}, {.destination = local.gid}).error() == vb::errc::invalid_argument);
    const auto text = fmt::format("{}", vb::address_vector{.destination = local.gid, .gid_index = 1});
    CHECK(text == fmt::format("address(port 1, {} by gid[1])", local.gid));
}
