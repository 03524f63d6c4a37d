// What cannot be is refused before it reaches the device, or reported as what it is; the channel goes on (B07).

#include "devx_rig.hpp"

#include <infiniband/mlx5dv.h>

using namespace devx;

namespace {

vb::result<mlx5::response> query(vb::reactor& reactor, const mlx5::command_channel& channel, const mlx5::object& object,
                                 std::span<const std::byte> in, std::span<std::byte> out) {
    return reactor.run([](const auto& c, const auto& o, auto from, auto to) -> vb::task<vb::result<mlx5::response>> {
        co_return co_await c.query(o, from, to);
    }(channel, object, in, out));
}

bool goes_on(rig& r) {
    output<> out;
    const auto got = query(r.reactor, r.channel, r.counter.handle, r.counter.query(9), out);
    return got && r.counter.answers(got->bytes(), 9);
}

} // namespace

TEST_CASE("a response longer than the channel's buffer is refused before its command is issued") {
    const support::deadline limit(60s);
    rig r(64);
    output<65> too_long;
    const auto refused = query(r.reactor, r.channel, r.counter.handle, r.counter.query(1), too_long);
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error() == vb::errc::invalid_argument);
    CHECK(r.channel.stats().issue_calls == 0);
    CHECK(goes_on(r));
}

TEST_CASE("bad queries are errors, and the channel goes on") {
    const support::deadline limit(60s);
    rig r(65535);
    output<> out;
    std::vector<std::byte> huge(65536);
    const auto is_invalid = [&](const mlx5::object& object, std::span<const std::byte> in, std::span<std::byte> to) {
        const auto got = query(r.reactor, r.channel, object, in, to);
        const bool invalid = !got && got.error() == vb::errc::invalid_argument;
        if (!got) UNSCOPED_INFO(got.error().message());
        return invalid && goes_on(r);
    };
    const auto in = r.counter.query(1);
    CHECK(is_invalid(r.counter.handle, in, {}));
    CHECK(is_invalid(r.counter.handle, in, std::span(out).first(15)));
    CHECK(is_invalid(r.counter.handle, in, huge));
    CHECK(is_invalid(r.counter.handle, std::span(in).first(15), out));
    CHECK(is_invalid(r.counter.handle, huge, out));
    CHECK(is_invalid(r.counter.handle, make_command(alloc_counter), out)); // no query
    CHECK(is_invalid(r.counter.handle, r.general.query(1), out));
    CHECK(is_invalid(r.general.handle, in, out));
    CHECK(is_invalid(mlx5::object(), in, out));

    const auto other = mlx5::open_context(test_device::name).value();
    const thing foreign(other, false);
    CHECK(is_invalid(foreign.handle, foreign.query(1), out));

    CHECK(query(r.reactor, mlx5::command_channel(), r.counter.handle, in, out).error() == vb::errc::invalid_argument);
    const auto loose = mlx5::command_channel::create(r.device, {.max_response = 64}).value();
    CHECK(query(r.reactor, loose, r.counter.handle, in, out).error() == vb::errc::not_attached);
}

TEST_CASE("channels and contexts that cannot be are refused") {
    const support::deadline limit(60s);
    rig r;
    CHECK(mlx5::open_context(test_device::without_devx).error() == vb::errc::unsupported);
    CHECK(mlx5::open_context("none").error() == vb::errc::not_found);
    CHECK(mlx5::command_channel::create({}, {.max_response = 64}).error() == vb::errc::invalid_argument);
    for (const std::size_t bytes : {0, 15, 65536})
        CHECK(mlx5::command_channel::create(r.device, {.max_response = bytes}).error() == vb::errc::invalid_argument);
    const auto plain = vb::context::open(test_device::without_devx).value();
    CHECK(mlx5::command_channel::create(plain, {.max_response = 64}).error() == vb::errc::unsupported);

    CHECK(r.reactor.attach(r.channel).error() == vb::errc::attached);
    vb::reactor second;
    CHECK(second.attach(r.channel).error() == vb::errc::attached);
    CHECK(second.attach(mlx5::command_channel()).error() == vb::errc::invalid_argument);
    CHECK(goes_on(r));
}

TEST_CASE("a refusal of the firmware is an error with its status and syndrome") {
    const support::deadline limit(60s);
    rig r;
    output<> out;
    r.devx.refuse(0x03, 0xabcd1234);
    const auto refused = query(r.reactor, r.channel, r.counter.handle, r.counter.query(1), out);
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().code().category() == mlx5::devx_category());
    CHECK(refused.error().code().value() == 0x03);
    CHECK(refused.error().vendor_error() == 0xabcd1234);
    CHECK(refused.error() == vb::errc::invalid_argument);
    CHECK(refused.error().message() ==
          "command_channel::query: the firmware refuses it: bad parameter, status 0x03 [vendor error 0xabcd1234]");
    r.devx.refuse(0x77, 1);
    const auto unknown = query(r.reactor, r.channel, r.counter.handle, r.counter.query(1), out);
    CHECK(unknown.error().code() == std::error_code(0x77, mlx5::devx_category()));
    CHECK(goes_on(r));
}

TEST_CASE("a lost response is never plain success") {
    const support::deadline limit(60s);
    rig r;
    output<> out;
    out.fill(std::byte{1});
    r.devx.lose();
    const auto got = query(r.reactor, r.channel, r.counter.handle, r.counter.query(1), out);
    REQUIRE(got.has_value());
    CHECK_FALSE(got->certain());
    CHECK(std::ranges::all_of(got->bytes(), [](std::byte b) { return b == std::byte{}; }));
    CHECK(goes_on(r));
}

TEST_CASE("a kernel that cannot query general objects asynchronously is told from a wrong command") {
    const support::deadline limit(60s);
    rig r;
    output<> out;
    r.devx.old_kernel(true);
    const auto cannot = query(r.reactor, r.channel, r.general.handle, r.general.query(1), out);
    REQUIRE_FALSE(cannot.has_value());
    CHECK(cannot.error() == vb::errc::unsupported);
    command wrong = r.general.query(1);
    wrong[11] ^= std::byte{1};
    CHECK(query(r.reactor, r.channel, r.general.handle, wrong, out).error() == vb::errc::invalid_argument);
    CHECK(r.general.handle.query(r.general.query(1), out).has_value());
    CHECK(goes_on(r));
}

TEST_CASE("a response that nobody here asked for is counted") {
    const support::deadline limit(60s);
    rig r;
    const auto in = r.counter.query(3);
    support::require_zero(mlx5dv_devx_obj_query_async(r.counter.handle.native_handle(), in.data(), in.size(), 64, 12345,
                                                      r.channel.native_handle()),
                          "query");
    CHECK(goes_on(r));
    CHECK(r.channel.stats().foreign == 1);
}

TEST_CASE("a response that does not fit ends the channel, since it stays in front of all others") {
    const support::deadline limit(60s);
    rig r(64);
    r.devx.hold();
    const auto in = r.counter.query(3);
    support::require_zero(mlx5dv_devx_obj_query_async(r.counter.handle.native_handle(), in.data(), in.size(), 128,
                                                      12345, r.channel.native_handle()),
                          "query");
    ending_log log;
    vb::scope scope;
    for (std::uint64_t i = 0; i < 2; ++i) scope.spawn(ask(r.channel, r.counter, i, log));
    r.devx.release();
    r.finish(scope);
    CHECK(log.failures.size() == 2);
    CHECK(all_are(log.failures, vb::errc::resource));
    CHECK(r.idle_turns() < 20);
    output<> out;
    CHECK(query(r.reactor, r.channel, r.counter.handle, in, out).error() == vb::errc::resource);
}

TEST_CASE("synchronous commands report refusals, losses and bad sizes") {
    const support::deadline limit(60s);
    rig r;
    output<> out;
    CHECK(r.counter.handle.query(r.counter.query(5), out).has_value());
    CHECK(r.counter.answers(out, 5));
    command modify = make_command(modify_general, general_type);
    put(&modify[8], r.general.id, 4);
    CHECK(r.general.handle.modify(modify, out).has_value());
    CHECK(mlx5::general_command(r.device, make_command(0x100), out).has_value());
    CHECK(mlx5::general_command(r.device, make_command(query_general), out).error() == vb::errc::invalid_argument);
    CHECK(mlx5::general_command({}, make_command(0x100), out).error() == vb::errc::invalid_argument);
    CHECK(r.counter.handle.query(r.counter.query(5), {}).error() == vb::errc::invalid_argument);
    CHECK(mlx5::object().query(modify, out).error() == vb::errc::invalid_argument);

    r.devx.refuse(0x06, 7, 2);
    const auto refused = r.general.handle.modify(modify, out);
    CHECK(refused.error().code() == std::error_code(0x06, mlx5::devx_category()));
    CHECK(refused.error().vendor_error() == 7);
    const auto none = mlx5::object::create(r.device, make_command(alloc_counter), out);
    CHECK(none.error().code() == std::error_code(0x06, mlx5::devx_category()));
    r.devx.lose();
    CHECK(r.counter.handle.query(r.counter.query(5), out).error() == vb::errc::timed_out);
    CHECK(r.counter.handle.destroy().has_value());
    CHECK_FALSE(r.counter.handle);
    CHECK(r.counter.handle.destroy().error() == vb::errc::invalid_argument);
}
