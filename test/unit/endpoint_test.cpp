// Invariant: an endpoint survives its byte form, which is the same on every machine, and no bytes make an endpoint that
// no queue pair has.

#include "support/catch.hpp"

#include <verbena/verbs/queue_pair.hpp>

#include <vector>

namespace vb = verbena;

namespace {

vb::endpoint example() {
    vb::endpoint e;
    e.qp_num = 0x010203;
    e.psn = 0xa0b0c0;
    e.qkey = 0x11223344;
    e.lid = 0x5566;
    e.mtu = 4096;
    e.link = vb::link_layer::ethernet;
    e.type = vb::queue_pair_type::ud;
    for (std::size_t i = 0; i < 16; ++i) e.gid.bytes[i] = static_cast<std::byte>(0xf0 + i);
    return e;
}

} // namespace

TEST_CASE("the byte form of an endpoint") {
    const auto bytes = example().to_bytes();
    const std::vector<int> wanted{0x00, 0x01, 0x02, 0x03, 0x00, 0xa0, 0xb0, 0xc0, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66,
                                  2,    1,    16,   0,    0,    0,    0,    0,    0,    0,    0xf0, 0xf1, 0xf2, 0xf3,
                                  0xf4, 0xf5, 0xf6, 0xf7, 0xf8, 0xf9, 0xfa, 0xfb, 0xfc, 0xfd, 0xfe, 0xff};
    REQUIRE(bytes.size() == wanted.size());
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        INFO("byte " << i);
        CHECK(static_cast<int>(bytes[i]) == wanted[i]);
    }
}

TEST_CASE("an endpoint survives its byte form") {
    for (const std::uint32_t mtu : {256u, 512u, 1024u, 2048u, 4096u})
        for (const auto type : {vb::queue_pair_type::rc, vb::queue_pair_type::ud})
            for (const auto link :
                 {vb::link_layer::unspecified, vb::link_layer::infiniband, vb::link_layer::ethernet}) {
                auto e = example();
                e.mtu = mtu;
                e.type = type;
                e.link = link;
                CHECK(vb::endpoint::from_bytes(e.to_bytes()).value() == e);
            }
    auto extreme = example();
    extreme.qp_num = 0xffffff;
    extreme.psn = 0xffffff;
    extreme.qkey = 0xffffffff;
    extreme.lid = 0xffff;
    CHECK(vb::endpoint::from_bytes(extreme.to_bytes()).value() == extreme);
    extreme.qp_num = 1;
    extreme.psn = extreme.qkey = extreme.lid = 0;
    extreme.gid = {};
    CHECK(vb::endpoint::from_bytes(extreme.to_bytes()).value() == extreme);
}

TEST_CASE("bytes that are no endpoint are refused") {
    const auto good = example().to_bytes();
    const auto refused = [](std::span<const std::byte> bytes) {
        const auto e = vb::endpoint::from_bytes(bytes);
        return !e && e.error() == vb::errc::invalid_argument;
    };
    std::vector<std::byte> longer(good.begin(), good.end());
    longer.push_back(std::byte{0});
    CHECK(refused(longer));
    for (std::size_t size = 0; size < good.size(); ++size) CHECK(refused(std::span(good).first(size)));
    CHECK(refused(std::vector<std::byte>(40)));
    CHECK(refused(std::vector<std::byte>(40, std::byte{0xff})));

    struct change {
        const char* what;
        std::size_t at;
        std::vector<int> bytes;
    };
    const std::vector<change> changes{
        {"queue pair 0", 0, {0, 0, 0, 0}}, {"a queue pair number of 25 bits", 0, {1, 0, 0, 0}},
        {"a PSN of 25 bits", 4, {1}},      {"an unknown link layer", 14, {3}},
        {"an unknown type", 15, {2}},      {"no MTU", 16, {0}},
        {"an MTU of 768", 16, {3}},        {"an MTU of 8192", 16, {32}},
        {"an MTU of 65280", 16, {255}},
    };
    for (const auto& c : changes) {
        INFO(c.what);
        auto bytes = good;
        for (std::size_t i = 0; i < c.bytes.size(); ++i) bytes[c.at + i] = static_cast<std::byte>(c.bytes[i]);
        CHECK(refused(bytes));
    }
}

TEST_CASE("what is reserved may have any value") {
    auto bytes = example().to_bytes();
    for (std::size_t i = 17; i < 24; ++i) bytes[i] = std::byte{0xaa};
    CHECK(vb::endpoint::from_bytes(bytes).value() == example());
}
