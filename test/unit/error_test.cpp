// Invariant: an error keeps what the system or the device said, and compares by what that means.

#include "support/catch.hpp"

#include <verbena/format.hpp>
#include <verbena/result.hpp>

#include <verbena/verbs/context.hpp>

#include <infiniband/verbs.h>

#include <cerrno>
#include <set>

namespace vb = verbena;
using vb::errc;

namespace {

struct meaning {
    int value;
    errc condition;
};

constexpr meaning errno_meanings[] = {
    {EINVAL, errc::invalid_argument}, {EFAULT, errc::invalid_argument},
    {ENOMEM, errc::resource},         {EMFILE, errc::resource},
    {ENFILE, errc::resource},         {EOPNOTSUPP, errc::unsupported},
    {ENOSYS, errc::unsupported},      {EBUSY, errc::in_use},
    {EACCES, errc::access_denied},    {EPERM, errc::access_denied},
    {ETIMEDOUT, errc::timed_out},     {EIO, errc::device_removed},
    {ENODEV, errc::device_removed},   {EHOSTUNREACH, errc::peer_unreachable},
};

constexpr meaning status_meanings[] = {
    {IBV_WC_WR_FLUSH_ERR, errc::connection_reset},        {IBV_WC_LOC_LEN_ERR, errc::message_too_long},
    {IBV_WC_REM_INV_REQ_ERR, errc::message_too_long},     {IBV_WC_LOC_PROT_ERR, errc::access_denied},
    {IBV_WC_REM_ACCESS_ERR, errc::access_denied},         {IBV_WC_RETRY_EXC_ERR, errc::peer_unreachable},
    {IBV_WC_RNR_RETRY_EXC_ERR, errc::receiver_not_ready}, {IBV_WC_FATAL_ERR, errc::device_removed},
};

constexpr auto last_condition = errc::not_found;

/// No code means two things.
void check_only(std::error_code code, errc condition) {
    for (int i = 1; i <= static_cast<int>(last_condition); ++i) {
        const auto other = static_cast<errc>(i);
        INFO(code.message() << " against " << fmt::format("{}", other));
        CHECK((code == other) == (other == condition));
        CHECK((vb::error(code, "verb") == other) == (other == condition));
    }
}

} // namespace

TEST_CASE("errno values, of either category, mean one condition each") {
    for (const auto [value, condition] : errno_meanings) {
        check_only({value, std::system_category()}, condition);
        check_only({value, std::generic_category()}, condition);
    }
    for (int i = 1; i <= static_cast<int>(last_condition); ++i)
        CHECK(!(std::error_code(0, std::system_category()) == static_cast<errc>(i)));
}

TEST_CASE("completion statuses mean one condition each") {
    for (const auto [value, condition] : status_meanings) check_only({value, vb::completion_category()}, condition);
    CHECK(std::error_code(IBV_WC_WR_FLUSH_ERR, vb::completion_category()).message() ==
          ibv_wc_status_str(IBV_WC_WR_FLUSH_ERR));
    CHECK(!std::error_code(IBV_WC_SUCCESS, vb::completion_category()));
    CHECK(!std::error_code(9999, vb::completion_category()).message().empty());
}

TEST_CASE("every condition has its own code and text") {
    std::set<std::string> texts;
    for (int i = 1; i <= static_cast<int>(last_condition); ++i) {
        const auto condition = static_cast<errc>(i);
        check_only(vb::make_code(condition), condition);
        CHECK(fmt::format("{}", condition) != "unknown");
        texts.insert(fmt::format("{}", condition));
    }
    CHECK(texts.size() == static_cast<std::size_t>(last_condition));
}

TEST_CASE("a message names the verb, the cause, and what is known besides") {
    vb::error plain(errc::in_use, "ibv_destroy_cq");
    CHECK(plain.message() == "ibv_destroy_cq: in use");
    CHECK(plain.root_cause() == plain.code());
    CHECK(fmt::format("{}", plain.with_note("2 queue pairs")) == "ibv_destroy_cq: in use (2 queue pairs)");
    CHECK(vb::error(plain).with_note("try later").message() == "ibv_destroy_cq: in use (2 queue pairs; try later)");
    CHECK(plain.message() == "ibv_destroy_cq: in use (2 queue pairs)");

    const auto flushed = vb::error(std::error_code(IBV_WC_WR_FLUSH_ERR, vb::completion_category()), "ibv_post_send")
                             .with_completion(17, 0x68)
                             .with_root_cause({IBV_WC_RETRY_EXC_ERR, vb::completion_category()});
    CHECK(flushed == errc::connection_reset);
    CHECK(flushed.root_cause() == errc::peer_unreachable);
    CHECK(flushed.qp_num() == 17);
    CHECK(flushed.vendor_error() == 0x68);
    const auto text = flushed.message();
    CHECK(text.find("ibv_post_send: ") == 0);
    CHECK(text.find("queue pair 17, vendor error 0x68") != std::string::npos);
    CHECK(text.find(ibv_wc_status_str(IBV_WC_RETRY_EXC_ERR)) != std::string::npos);

    const auto copy = plain;
    CHECK(copy.message() == plain.message());
    CHECK(!vb::error().code());
}

TEST_CASE("on a machine without a device the error says what to do") {
    const auto devices = vb::context::list();
    if (devices && !devices->empty()) return;
    for (const auto& opened : {vb::context::open("rxe0"), vb::context::open_default()}) {
        REQUIRE(!opened);
        CHECK((opened.error() == errc::not_found || opened.error() == errc::unsupported));
        CHECK(opened.error().message().find("rdma link add") != std::string::npos);
    }
}
