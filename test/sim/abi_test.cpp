// Invariant: what programs and libraries compiled against libibverbs find is laid out as they expect, and is found here
// first. The numbers are those of facts E.1.

#include "fixture.hpp"

#include <dlfcn.h>

#include <cstddef>

using namespace simulated;

static_assert(sizeof(ibv_device) == 664 && offsetof(ibv_device, name) == 24);
static_assert(sizeof(ibv_context) == 328 && offsetof(ibv_context, ops) == 8 && offsetof(ibv_context, async_fd) == 268);
static_assert(offsetof(ibv_context, num_comp_vectors) == 272 && offsetof(ibv_context, abi_compat) == 320);
static_assert(offsetof(ibv_context_ops, poll_cq) == 88 && offsetof(ibv_context_ops, req_notify_cq) == 96);
static_assert(offsetof(ibv_context_ops, post_srq_recv) == 160 && offsetof(ibv_context_ops, post_send) == 200);
static_assert(offsetof(ibv_context_ops, post_recv) == 208);
static_assert(sizeof(verbs_context) == 648 && offsetof(verbs_context, context) == 320);
static_assert(sizeof(ibv_cq) == 128 && offsetof(ibv_cq, cqe) == 28 && sizeof(ibv_qp) == 160);
static_assert(sizeof(ibv_cq_ex) == 288 && offsetof(ibv_cq_ex, comp_mask) == sizeof(ibv_cq));
static_assert(offsetof(ibv_cq_ex, start_poll) == 144);
static_assert(offsetof(ibv_qp, qp_num) == 52 && sizeof(ibv_wc) == 48 && sizeof(ibv_mr) == 48 && sizeof(ibv_srq) == 128);
static_assert(sizeof(ibv_comp_channel) == 16 && (sizeof(ibv_port_attr) == 52 || sizeof(ibv_port_attr) == 56) &&
              sizeof(ibv_pd) == 16);

TEST_CASE("a context is filled for the inline functions of the header") {
    for (const char* name : both) {
        device d(name);
        const auto& ops = d.context->ops;
        CHECK((ops.poll_cq && ops.req_notify_cq && ops.post_send && ops.post_recv && ops.post_srq_recv));
        auto* extended = verbs_get_ctx(d.context);
        REQUIRE(extended != nullptr);
        CHECK(extended->sz == sizeof(verbs_context));
        ibv_device_attr_ex more{};
        CHECK(ibv_query_device_ex(d.context, nullptr, &more) == 0);
        CHECK(more.orig_attr.max_cqe > 0);
        ibv_qp_init_attr_ex unsupported{};
        unsupported.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS;
        CHECK(ibv_create_qp_ex(d.context, &unsupported) == nullptr);
        CHECK(errno == EOPNOTSUPP);
    }
}

TEST_CASE("every form of registration is found") {
    device d("sim0");
    volatile int access = local_write; // not a constant: the macro calls ibv_reg_mr_iova2
    ibv_mr* by_iova2 = ibv_reg_mr(d.pd, d.at(0), 64, access | int{IBV_ACCESS_RELAXED_ORDERING});
    ibv_mr* by_iova = ibv_reg_mr_iova(d.pd, d.at(0), 64, 4096, local_write);
    REQUIRE((by_iova2 != nullptr && by_iova != nullptr));
    CHECK(by_iova2->lkey != by_iova->lkey);
    CHECK(ibv_dereg_mr(by_iova2) == 0);
    CHECK(ibv_dereg_mr(by_iova) == 0);
}

TEST_CASE("ports, GIDs and keys are as on an Ethernet device") {
    for (const char* name : both) {
        device d(name);
        ibv_port_attr port{};
        CHECK(ibv_query_port(d.context, 1, &port) == 0);
        CHECK((port.state == IBV_PORT_ACTIVE && port.link_layer == IBV_LINK_LAYER_ETHERNET));
        CHECK(ibv_query_port(d.context, 0, &port) == EINVAL);
        CHECK(ibv_query_port(d.context, 2, &port) == EINVAL);
        std::array<ibv_gid_entry, 16> table{};
        CHECK(ibv_query_gid_table(d.context, table.data(), table.size(), 0) == 2);
        CHECK((table[0].gid.raw[0] == 0xfe && table[1].gid.raw[12] == 10));
        for (int i : {0, 1}) CHECK(table[static_cast<std::size_t>(i)].gid_type == IBV_GID_TYPE_ROCE_V2);
        ibv_gid_entry entry{};
        CHECK(ibv_query_gid_ex(d.context, 1, 5, &entry, 0) == ENODATA);
        __be16 key = 0;
        CHECK((ibv_query_pkey(d.context, 1, 0, &key) == 0 && key == 0xffff));
        CHECK(ibv_query_pkey(d.context, 1, 1, &key) == -1);
    }
}

TEST_CASE("the verbs of the program are those linked into it") {
    Dl_info info{};
    REQUIRE(dladdr(reinterpret_cast<void*>(&ibv_open_device), &info) != 0);
    CHECK(std::string(info.dli_fname).find("libibverbs") == std::string::npos);
    device d("sim0");
    REQUIRE(dladdr(reinterpret_cast<void*>(d.context->ops.poll_cq), &info) != 0);
    CHECK(std::string(info.dli_fname).find("libibverbs") == std::string::npos);
}

TEST_CASE("strings say something for every value, and unknown for others") {
    for (int i = IBV_WC_SUCCESS; i <= IBV_WC_TM_RNDV_INCOMPLETE; ++i)
        CHECK(std::string(ibv_wc_status_str(static_cast<ibv_wc_status>(i))) != "unknown");
    CHECK(std::string(ibv_wc_status_str(static_cast<ibv_wc_status>(31))) == "unknown");
    CHECK(std::string(ibv_event_type_str(IBV_EVENT_DEVICE_FATAL)) == "device fatal error");
    CHECK(std::string(ibv_port_state_str(IBV_PORT_ACTIVE)) == "active");
    CHECK(ibv_is_fork_initialized() == IBV_FORK_UNNEEDED);
}
