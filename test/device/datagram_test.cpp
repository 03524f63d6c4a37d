// A datagram reaches the queue pair that its destination names, and its route header is kept out of the message.

#include "rig.hpp"
#include "too_long.hpp"

#include "support/deadline.hpp"

namespace vb = verbena;
using support::has_number;
using support::put_number;

namespace {

constexpr std::uint32_t left_key = 0x1111, right_key = 0x2222;
constexpr std::size_t grh = vb::address_handle::grh_bytes;

struct fixture {
    explicit fixture(const vb::context& device)
        : domain(vb::protection_domain::create(device).value()), engine(device),
          here(vb::memory_region::allocate(domain, 1024).value()),
          there(vb::memory_region::allocate(domain, 1024).value()),
          way(vb::address_handle::create(domain,
                                         {.destination = support::usable_gid(device).gid,
                                          .gid_index = static_cast<std::uint8_t>(support::usable_gid(device).index)})
                  .value()),
          left(support::make_pair_end(domain, engine.cq, options())),
          right(support::make_pair_end(domain, engine.cq, options())) {
        left.activate(left_key).value();
        right.activate(right_key).value();
    }
    static vb::queue_pair_options options() {
        auto o = support::pair_options();
        o.type = vb::queue_pair_type::ud;
        return o;
    }
    vb::ud_destination to_right() const {
        const auto end = right.endpoint();
        return {way.native_handle(), end.qp_num, end.qkey};
    }

    vb::protection_domain domain;
    support::engine engine;
    vb::memory_region here;
    vb::memory_region there;
    vb::address_handle way;
    vb::queue_pair left;
    vb::queue_pair right;
    support::state_printer state{[this] { return support::describe(engine.reactor.stats()); }};
};

} // namespace

TEST_CASE("datagram: the first 40 bytes of the buffer are the header's") {
    VERBENA_REQUIRE_DEVICE(device);
    fixture f(device);
    CHECK(f.right.endpoint().qkey == right_key);
    CHECK(f.right.endpoint().type == vb::queue_pair_type::ud);
    f.engine.reactor.run([&]() -> vb::task<> {
        put_number(f.here.bytes().first(64), 30);
        auto [received, sent] = co_await vb::when_all(f.right.recv(f.there.slice(0, 256)),
                                                      f.left.send_to(f.to_right(), f.here.slice(0, 64)));
        sent.value();
        CHECK(received.value().byte_len == 64);
        CHECK(received->source_qp == f.left.qp_num());
        CHECK(!received->immediate.has_value());
        CHECK(has_number(f.there.bytes().subspan(grh, 64), 30));
        CHECK(has_number(f.there.bytes().subspan(grh + 64), 0));

        // The header may have a slice of its own.
        put_number(f.here.bytes().first(64), 31);
        auto [apart, again] = co_await vb::when_all(
            f.right.recv(f.there.slice(512, grh), f.there.slice(600, 64)),
            f.left.chain(vb::send_request{.local = f.here.slice(0, 64), .immediate = 0x01020304, .to = f.to_right()}));
        again.value();
        CHECK(apart.value().byte_len == 64);
        CHECK(apart->immediate == 0x01020304u);
        CHECK(has_number(f.there.bytes().subspan(600, 64), 31));

        std::array<std::byte, 16> bytes;
        put_number(bytes, 32);
        auto [last, inlined] =
            co_await vb::when_all(f.right.recv(f.there.slice(0, 256)),
                                  f.left.send_to(f.to_right(), vb::inline_data(bytes), {.signaled = false}));
        inlined.value();
        CHECK(last.value().byte_len == 16);
        CHECK(has_number(f.there.bytes().subspan(grh, 16), 32));
        auto flushed = co_await f.left.flushed();
        flushed.value();
    }());
    CHECK(f.engine.reactor.stats().outstanding == 0);
}

TEST_CASE("datagram: what only a connection can, and a send without a destination, are refused") {
    VERBENA_REQUIRE_DEVICE(device);
    fixture f(device);
    f.engine.reactor.run([&]() -> vb::task<> {
        auto sent = co_await f.left.send(f.here.slice(0, 8));
        REQUIRE(!sent.has_value());
        CHECK(sent.error() == vb::errc::invalid_argument);
        auto written = co_await f.left.write(f.here.slice(0, 8), f.there.remote(0, 8));
        REQUIRE(!written.has_value());
        CHECK(written.error() == vb::errc::invalid_argument);
        std::array<std::byte, 8> bytes{};
        CHECK(f.left.send_detached(vb::inline_data(bytes)).error() == vb::errc::invalid_argument);
        CHECK(f.left.connect(f.right.endpoint()).error() == vb::errc::invalid_argument);

        support::wire wire(f.domain, f.engine);
        auto astray = co_await wire.left.send_to(f.to_right(), f.here.slice(0, 8));
        REQUIRE(!astray.has_value());
        CHECK(astray.error() == vb::errc::invalid_argument);
        CHECK(wire.left.activate(1).error() == vb::errc::invalid_argument);
    }());
}

TEST_CASE("datagram: a receiver gives the message alone, and the way back") {
    VERBENA_REQUIRE_DEVICE(device);
    fixture f(device);
    f.engine.reactor.run([&]() -> vb::task<> {
        auto left_inbox = vb::receiver::create(f.left, {.depth = 4, .message_bytes = 64}).value();
        auto right_inbox = vb::receiver::create(f.right, {.depth = 4, .message_bytes = 64}).value();
        for (std::uint64_t i = 0; i < 40; ++i) {
            const std::uint32_t bytes = 8 * (1 + i % 8);
            put_number(f.here.bytes().first(64), i);
            auto sent = co_await f.left.chain(
                vb::send_request{.local = f.here.slice(0, bytes),
                                 .immediate = i % 2 == 0 ? std::optional(static_cast<std::uint32_t>(i)) : std::nullopt,
                                 .to = f.to_right()});
            sent.value();
            auto message = co_await right_inbox.next();
            REQUIRE(message.has_value());
            CHECK(message->bytes().length == bytes);
            CHECK(has_number(message->bytes().bytes(), i));
            CHECK(message->immediate() == (i % 2 == 0 ? std::optional(static_cast<std::uint32_t>(i)) : std::nullopt));
            CHECK(message->qp_num() == f.right.qp_num());
            CHECK(message->source_qp() == f.left.qp_num());

            const auto back = message->reply_address().value();
            put_number(message->bytes().bytes(), i + 1000);
            auto replied =
                co_await f.right.send_to({back.native_handle(), message->source_qp(), left_key}, message->bytes());
            replied.value();
            auto answer = co_await left_inbox.next();
            REQUIRE(answer.has_value());
            CHECK(answer->bytes().length == bytes);
            CHECK(has_number(answer->bytes().bytes(), i + 1000));
            CHECK(answer->source_qp() == f.right.qp_num());
        }
        CHECK(right_inbox.stats().messages == 40);
        CHECK(right_inbox.stats().failed == 0);
    }());
}

TEST_CASE("datagram: one with a wrong key is not delivered") {
    VERBENA_REQUIRE_DEVICE(device);
    fixture f(device);
    f.engine.reactor.run([&]() -> vb::task<> {
        auto inbox = vb::receiver::create(f.right, {.depth = 4, .message_bytes = 64}).value();
        for (const std::uint32_t key : {right_key + 1, right_key}) {
            put_number(f.here.bytes().first(64), key);
            auto sent = co_await f.left.send_to({f.way.native_handle(), f.right.qp_num(), key}, f.here.slice(0, 64));
            sent.value(); // nobody tells the sender
        }
        auto message = co_await inbox.next();
        REQUIRE(message.has_value());
        CHECK(has_number(message->bytes().bytes(), right_key));
    }());
}

// The device drops it, and goes on or lets the queue pair fail; then the receiver says so. The sender goes on anyway.
TEST_CASE("datagram: one longer than the buffer is never handed out") {
    VERBENA_REQUIRE_DEVICE(device);
    fixture f(device);
    f.engine.reactor.run([&]() -> vb::task<> {
        auto inbox = vb::receiver::create(f.right, {.depth = 4, .message_bytes = 64}).value();
        const auto send = [&](std::uint32_t bytes, std::uint64_t number) -> vb::task<> {
            put_number(f.here.bytes(), number);
            auto sent = co_await f.left.send_to(f.to_right(), f.here.slice(0, bytes));
            sent.value();
        };
        co_await send(64, 1);
        auto message = co_await inbox.next();
        REQUIRE(message.has_value());
        CHECK(has_number(message->bytes().bytes(), 1));
        co_await send(128, 2);
        for (std::uint64_t i = 3; i < 10; ++i) co_await send(64, i);
        message = co_await inbox.next();
        if (message) {
            CHECK(message->bytes().length <= 64);
            CHECK(f.right.state().value() == vb::queue_pair_state::ready_to_send);
        } else {
            INFO(message.error().message());
            CHECK(support::says_too_long(message.error().root_cause()));
            CHECK(f.right.state().value() == vb::queue_pair_state::error);
            auto sent = co_await f.right.send_to(f.to_right(), f.here.slice(0, 64));
            REQUIRE(!sent.has_value());
            CHECK(support::says_too_long(sent.error().root_cause()));
        }

        auto third = support::make_pair_end(f.domain, f.engine.cq, fixture::options());
        third.activate(3).value();
        put_number(f.here.bytes().first(64), 11);
        auto [received, sent] =
            co_await vb::when_all(third.recv(f.there.slice(0, 256)),
                                  f.left.send_to({f.way.native_handle(), third.qp_num(), 3}, f.here.slice(0, 64)));
        sent.value();
        received.value();
        CHECK(has_number(f.there.bytes().subspan(grh, 64), 11));
    }());
}
