// The simulated DEVX commands behave as libmlx5 over a kernel does: every accepted query is answered exactly once, with
// its own `wr_id` and bytes, through a descriptor of which one read takes one response.

#include "support/catch.hpp"
#include "support/network_order.hpp"

#include <verbena/sim/devx_control.hpp>

#include <fcntl.h>
#include <infiniband/mlx5dv.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <future>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

namespace {

namespace sim = verbena::sim;
using namespace std::chrono_literals;
using support::get;
using support::put;

using command = std::array<std::uint8_t, 32>;

constexpr unsigned create_general = 0xa00, modify_general = 0xa01, query_general = 0xa02;
constexpr unsigned alloc_counter = 0x939, query_counter = 0x93b;
constexpr std::size_t counter_id_at = 28;

command make(unsigned opcode, std::uint16_t type = 0) {
    command c{};
    put(&c[0], opcode, 2);
    put(&c[6], type, 2);
    return c;
}

struct object {
    mlx5dv_devx_obj* handle;
    std::uint32_t id;
    std::uint16_t type; // 0: a flow counter

    command query(std::uint64_t number) const {
        command c = make(type != 0 ? query_general : query_counter, type);
        put(&c[type != 0 ? 8 : counter_id_at], id, 4);
        put(&c[16], number, 8);
        return c;
    }
    int issue(mlx5dv_devx_cmd_comp* channel, std::uint64_t wr_id, std::size_t outlen = 64) const {
        const command c = query(wr_id * 3);
        return mlx5dv_devx_obj_query_async(handle, c.data(), c.size(), outlen, wr_id, channel);
    }
};

ibv_device* find(std::string_view name) {
    ibv_device** list = ibv_get_device_list(nullptr);
    REQUIRE(list != nullptr);
    ibv_device* found = nullptr;
    for (ibv_device** at = list; *at != nullptr; ++at)
        if (name == ibv_get_device_name(*at)) found = *at;
    ibv_free_device_list(list);
    REQUIRE(found != nullptr);
    return found;
}

ibv_context* open(std::string_view name) {
    mlx5dv_context_attr attributes{};
    attributes.flags = MLX5DV_CONTEXT_FLAGS_DEVX;
    ibv_context* context = mlx5dv_open_device(find(name), &attributes);
    REQUIRE(context != nullptr);
    return context;
}

struct response {
    alignas(8) std::array<std::uint8_t, 8 + 65535> bytes{};
    int code = 0;

    std::uint64_t wr_id() const {
        std::uint64_t value;
        std::memcpy(&value, bytes.data(), sizeof value);
        return value;
    }
    const std::uint8_t* out() const { return bytes.data() + 8; }
};

struct rig {
    ibv_context* context = open("sim0");
    sim::control device{"sim0"};
    sim::devx_control devx{"sim0"};
    mlx5dv_devx_cmd_comp* channel = mlx5dv_devx_create_cmd_comp(context);
    std::unique_ptr<response> last = std::make_unique<response>();
    sim::devx_ledger before = devx.ledger();

    rig() { REQUIRE(channel != nullptr); }
    ~rig() {
        devx.reset();
        mlx5dv_devx_destroy_cmd_comp(channel);
        if (context != nullptr) ibv_close_device(context);
        device.reset();
        device.insert();
        const auto now = devx.ledger();
        CHECK(now.accepted - before.accepted == now.completed - before.completed + now.cancelled - before.cancelled);
        CHECK(now.completed - before.completed == now.read - before.read + now.dropped - before.dropped);
    }

    object make_object(std::uint16_t type) {
        const command in = make(type != 0 ? create_general : alloc_counter, type);
        std::array<std::uint8_t, 16> out{};
        mlx5dv_devx_obj* handle = mlx5dv_devx_obj_create(context, in.data(), in.size(), out.data(), out.size());
        REQUIRE(handle != nullptr);
        return {handle, static_cast<std::uint32_t>(get(&out[8], 4)), type};
    }
    object general() { return make_object(0x27); }
    object counter() { return make_object(0); }

    void non_blocking() const { fcntl(channel->fd, F_SETFL, O_NONBLOCK); }
    int read(std::size_t bytes = sizeof(response::bytes)) const {
        return mlx5dv_devx_get_async_cmd_comp(channel, reinterpret_cast<mlx5dv_devx_async_cmd_hdr*>(last->bytes.data()),
                                              bytes);
    }
    std::vector<std::uint64_t> read_all() const {
        std::vector<std::uint64_t> wr_ids;
        while (read() == 0) wr_ids.push_back(last->wr_id());
        return wr_ids;
    }
};

int readiness(int fd) {
    pollfd p{fd, POLLIN | POLLPRI | POLLRDHUP, 0};
    poll(&p, 1, 0);
    return p.revents;
}

using wr_ids = std::vector<std::uint64_t>;

} // namespace

TEST_CASE("only a device of the mlx5 kind has DEVX") {
    REQUIRE(mlx5dv_is_supported(find("sim0")));
    REQUIRE_FALSE(mlx5dv_is_supported(find("sim1")));
    REQUIRE_FALSE(mlx5dv_is_supported(nullptr));

    mlx5dv_context_attr attributes{};
    errno = 0;
    REQUIRE(mlx5dv_open_device(find("sim1"), &attributes) == nullptr);
    REQUIRE(errno == EOPNOTSUPP);
    attributes.comp_mask = 1;
    REQUIRE(mlx5dv_open_device(find("sim0"), &attributes) == nullptr);
    REQUIRE(errno == EINVAL);

    ibv_context* other = ibv_open_device(find("sim1"));
    REQUIRE(other != nullptr);
    const command in = make(alloc_counter);
    std::array<std::uint8_t, 16> out{};
    mlx5dv_context properties{};
    errno = 0;
    REQUIRE(mlx5dv_devx_create_cmd_comp(other) == nullptr);
    REQUIRE(errno == EOPNOTSUPP);
    errno = 0;
    REQUIRE(mlx5dv_devx_create_event_channel(other, {}) == nullptr);
    REQUIRE(errno == EOPNOTSUPP);
    errno = 0;
    REQUIRE(mlx5dv_devx_obj_create(other, in.data(), in.size(), out.data(), out.size()) == nullptr);
    REQUIRE(errno == EOPNOTSUPP);
    REQUIRE(mlx5dv_devx_general_cmd(other, in.data(), in.size(), out.data(), out.size()) == EOPNOTSUPP);
    REQUIRE(mlx5dv_query_device(other, &properties) == EOPNOTSUPP);
    REQUIRE_THROWS_AS(sim::devx_control(other), std::invalid_argument);
    REQUIRE(ibv_close_device(other) == 0);

    ibv_context* plain = ibv_open_device(find("sim0"));
    REQUIRE(mlx5dv_query_device(plain, &properties) == 0);
    REQUIRE(properties.flags == MLX5DV_CONTEXT_FLAGS_CQE_V1);
    REQUIRE_NOTHROW(sim::devx_control(plain));
    REQUIRE(ibv_close_device(plain) == 0);
    REQUIRE_THROWS_AS(sim::devx_control("sim1"), std::invalid_argument);
}

TEST_CASE("a synchronous command answers with the object's id and the command's number") {
    rig r;
    for (const object o : {r.general(), r.counter()}) {
        std::array<std::uint8_t, 40> out{};
        const command in = o.query(0x1122334455667788);
        REQUIRE(mlx5dv_devx_obj_query(o.handle, in.data(), in.size(), out.data(), out.size()) == 0);
        REQUIRE(get(&out[0], 8) == 0);
        REQUIRE(get(&out[8], 4) == o.id);
        REQUIRE(get(&out[16], 8) == 0x1122334455667788);
        REQUIRE(out[39] == static_cast<std::uint8_t>(0x88 + 39));
        REQUIRE(mlx5dv_devx_obj_destroy(o.handle) == 0);
    }
    const object o = r.general();
    std::array<std::uint8_t, 16> out{};
    command modify = make(modify_general, o.type);
    put(&modify[8], o.id, 4);
    REQUIRE(mlx5dv_devx_obj_modify(o.handle, modify.data(), modify.size(), out.data(), out.size()) == 0);
    const command in = o.query(1);
    REQUIRE(mlx5dv_devx_obj_query(o.handle, in.data(), in.size(), out.data(), out.size()) == 0);
    REQUIRE(get(&out[12], 4) == 1);

    const command capabilities = make(0x100);
    REQUIRE(mlx5dv_devx_general_cmd(r.context, capabilities.data(), 16, out.data(), 16) == 0);
    const command not_general = make(query_general);
    REQUIRE(mlx5dv_devx_general_cmd(r.context, not_general.data(), 16, out.data(), 16) == EINVAL);
}

TEST_CASE("the descriptor is close-on-exec, blocking at first, and seen by poll and epoll") {
    rig r;
    REQUIRE((fcntl(r.channel->fd, F_GETFD) & FD_CLOEXEC) != 0);
    REQUIRE((fcntl(r.channel->fd, F_GETFL) & O_NONBLOCK) == 0);
    const int epoll = epoll_create1(EPOLL_CLOEXEC);
    epoll_event wanted{};
    wanted.events = EPOLLIN | EPOLLRDHUP | EPOLLET;
    REQUIRE(epoll_ctl(epoll, EPOLL_CTL_ADD, r.channel->fd, &wanted) == 0);
    epoll_event seen{};
    REQUIRE(epoll_wait(epoll, &seen, 1, 0) == 0);
    REQUIRE(readiness(r.channel->fd) == 0);

    const object o = r.counter();
    REQUIRE(o.issue(r.channel, 7) == 0);
    REQUIRE(readiness(r.channel->fd) == POLLIN);
    REQUIRE(epoll_wait(epoll, &seen, 1, 0) == 1);
    REQUIRE(seen.events == EPOLLIN);
    close(epoll);
    REQUIRE(r.read() == 0);
    REQUIRE(readiness(r.channel->fd) == 0);
    r.non_blocking();
    REQUIRE(r.read() == EAGAIN);
}

TEST_CASE("every response carries its own wr_id and bytes, one a read") {
    rig r;
    r.non_blocking();
    const std::array objects{r.general(), r.counter(), r.counter()};
    for (std::uint64_t wr_id = 0; wr_id < 3; ++wr_id) REQUIRE(objects[wr_id].issue(r.channel, wr_id, 32 + wr_id) == 0);
    REQUIRE(objects[0].issue(r.channel, 2, 32) == 0); // the kernel does not care whether it is unique
    for (const std::uint64_t wr_id : {0, 1, 2}) {
        REQUIRE(r.read() == 0);
        REQUIRE(r.last->wr_id() == wr_id);
        REQUIRE(get(r.last->out(), 8) == 0);
        REQUIRE(get(r.last->out() + 8, 4) == objects[wr_id].id);
        REQUIRE(get(r.last->out() + 16, 8) == wr_id * 3);
    }
    REQUIRE(r.read() == 0);
    REQUIRE(r.last->wr_id() == 2);
    REQUIRE(get(r.last->out() + 8, 4) == objects[0].id);
    REQUIRE(r.read() == EAGAIN);
}

TEST_CASE("too small a buffer leaves the response where it is, before all others") {
    rig r;
    r.non_blocking();
    const object o = r.counter();
    REQUIRE(o.issue(r.channel, 1, 100) == 0);
    REQUIRE(o.issue(r.channel, 2, 10) == 0);
    for (const std::size_t bytes : {0, 8, 18, 107}) REQUIRE(r.read(bytes) == ENOSPC);
    REQUIRE(readiness(r.channel->fd) == POLLIN);
    REQUIRE(r.read(108) == 0);
    REQUIRE(r.last->wr_id() == 1);
    REQUIRE(r.read(18) == 0);
    REQUIRE(r.last->wr_id() == 2);
}

TEST_CASE("responses come in the order of completion") {
    rig r;
    r.non_blocking();
    r.device.use_manual_clock();
    const object o = r.counter();
    for (const auto& [wr_id, delay] : {std::pair{1, 200ms}, {2, 20ms}, {3, 100ms}}) {
        r.devx.delay(delay);
        REQUIRE(o.issue(r.channel, static_cast<std::uint64_t>(wr_id)) == 0);
    }
    REQUIRE(r.read() == EAGAIN);
    r.device.advance(100ms);
    REQUIRE(r.read_all() == wr_ids{2, 3});
    REQUIRE(r.device.step());
    REQUIRE(r.device.now() == 200ms);
    REQUIRE(r.read_all() == wr_ids{1});
}

TEST_CASE("held responses are released in any order") {
    rig r;
    r.non_blocking();
    const object o = r.counter();
    r.devx.hold();
    for (std::uint64_t wr_id = 1; wr_id <= 4; ++wr_id) REQUIRE(o.issue(r.channel, wr_id) == 0);
    REQUIRE(r.devx.held() == wr_ids{1, 2, 3, 4});
    REQUIRE(r.read() == EAGAIN);
    REQUIRE(r.devx.release(3));
    REQUIRE_FALSE(r.devx.release(3));
    REQUIRE(r.devx.release(2));
    REQUIRE(r.read_all() == wr_ids{3, 2});
    REQUIRE(r.devx.release() == 2);
    REQUIRE(r.read_all() == wr_ids{1, 4});
    REQUIRE(o.issue(r.channel, 5) == 0);
    REQUIRE(r.read_all() == wr_ids{5});
}

TEST_CASE("a blocking read waits for the response") {
    rig r;
    const object o = r.counter();
    r.devx.hold();
    REQUIRE(o.issue(r.channel, 11) == 0);
    auto code = std::async(std::launch::async, [&] { return r.read(); });
    REQUIRE(r.devx.release(11));
    REQUIRE(code.get() == 0);
    REQUIRE(r.last->wr_id() == 11);

    r.devx.release();
    r.devx.delay(1ms); // on the real clock
    REQUIRE(o.issue(r.channel, 12) == 0);
    REQUIRE(r.read() == 0);
    REQUIRE(r.last->wr_id() == 12);
}

TEST_CASE("1 MiB of output may be in flight or unread on a channel") {
    rig r;
    r.non_blocking();
    const object o = r.counter();
    r.devx.hold();
    for (std::uint64_t wr_id = 0; wr_id < 16; ++wr_id) REQUIRE(o.issue(r.channel, wr_id, 65535) == 0);
    REQUIRE(o.issue(r.channel, 16, 65535) == EAGAIN);
    REQUIRE(o.issue(r.channel, 16, 16) == 0);
    REQUIRE(o.issue(r.channel, 17, 1) == EAGAIN);
    REQUIRE(o.issue(r.channel, 17, 0) == 0);
    r.devx.release();
    REQUIRE(o.issue(r.channel, 18, 1) == EAGAIN); // completion gives nothing back
    REQUIRE(r.read() == 0);
    REQUIRE(o.issue(r.channel, 18, 65535) == 0);

    mlx5dv_devx_cmd_comp* other = mlx5dv_devx_create_cmd_comp(r.context);
    REQUIRE(o.issue(other, 0, 1000) == 0);
    mlx5dv_devx_destroy_cmd_comp(other);

    wr_ids expected;
    for (std::uint64_t wr_id = 1; wr_id <= 18; ++wr_id) expected.push_back(wr_id);
    REQUIRE(r.read_all() == expected);
    REQUIRE(r.last->bytes[8 + 65534] == static_cast<std::uint8_t>(18 * 3 + 65534));

    r.devx.window(10);
    REQUIRE(o.issue(r.channel, 1, 11) == EAGAIN);
    REQUIRE(o.issue(r.channel, 1, 10) == 0);
    REQUIRE(r.read() == 0);
}

TEST_CASE("an empty output is legal, one of 64 KiB is not") {
    rig r;
    r.non_blocking();
    const object o = r.counter();
    REQUIRE(o.issue(r.channel, 42, 0) == 0);
    REQUIRE(r.read(8) == 0);
    REQUIRE(r.last->wr_id() == 42);
    REQUIRE(o.issue(r.channel, 43, 65536) == EINVAL);
    REQUIRE(r.read() == EAGAIN);
    constexpr std::uint64_t many = 5000; // more than a socket holds
    for (std::uint64_t wr_id = 0; wr_id < many; ++wr_id) REQUIRE(o.issue(r.channel, wr_id, 0) == 0);
    const auto got = r.read_all();
    REQUIRE(got.size() == many);
    for (std::uint64_t wr_id = 0; wr_id < many; ++wr_id) REQUIRE(got[wr_id] == wr_id);
}

TEST_CASE("what is no query of this object is refused by the kernel") {
    rig r;
    r.non_blocking();
    const object o = r.general();
    const object other = r.general();
    const auto code = [&](command c, std::size_t length = sizeof(command)) {
        return mlx5dv_devx_obj_query_async(o.handle, c.data(), length, 64, 1, r.channel);
    };
    REQUIRE(code(other.query(1)) == EINVAL);
    REQUIRE(code(r.counter().query(1)) == EINVAL);
    command modify = make(modify_general, o.type);
    put(&modify[8], o.id, 4);
    REQUIRE(code(modify) == EINVAL);
    command tunnel = o.query(1);
    tunnel[5] = 1;
    REQUIRE(code(tunnel) == EINVAL);
    command type = o.query(1);
    type[7] ^= 1;
    REQUIRE(code(type) == EINVAL);
    REQUIRE(code(o.query(1), 15) == EINVAL);
    REQUIRE(code(o.query(1), 65536) == EINVAL);
    REQUIRE(mlx5dv_devx_obj_query_async(o.handle, nullptr, 32, 64, 1, r.channel) == EFAULT);
    REQUIRE(mlx5dv_devx_obj_query_async(nullptr, modify.data(), 32, 64, 1, r.channel) == EINVAL);

    ibv_context* context = open("sim0");
    mlx5dv_devx_cmd_comp* foreign = mlx5dv_devx_create_cmd_comp(context);
    REQUIRE(o.issue(foreign, 1) == EBADF);
    mlx5dv_devx_destroy_cmd_comp(foreign);
    REQUIRE(o.issue(foreign, 1) == EINVAL);
    mlx5dv_devx_destroy_cmd_comp(foreign);
    REQUIRE(ibv_close_device(context) == 0);

    std::array<std::uint8_t, 16> out{};
    errno = 0;
    REQUIRE(mlx5dv_devx_obj_create(r.context, modify.data(), 32, out.data(), 16) == nullptr);
    REQUIRE(errno == EINVAL);
    REQUIRE(mlx5dv_devx_obj_destroy(o.handle) == 0);
    REQUIRE(mlx5dv_devx_obj_destroy(o.handle) == EINVAL);
    REQUIRE(o.issue(r.channel, 1) == EINVAL);
    REQUIRE(r.read() == EAGAIN);
}

TEST_CASE("queries of general objects are throttled across the device") {
    rig r;
    r.non_blocking();
    const object o = r.general();
    const object counter = r.counter();
    mlx5dv_devx_cmd_comp* other = mlx5dv_devx_create_cmd_comp(r.context);
    r.devx.throttle(2);
    r.devx.hold();
    REQUIRE(o.issue(r.channel, 1) == 0);
    REQUIRE(o.issue(other, 2) == 0);
    REQUIRE(o.issue(r.channel, 3) == EBUSY);
    REQUIRE(counter.issue(r.channel, 3) == 0);
    REQUIRE(r.devx.release(2)); // completed is enough, unread or not
    REQUIRE(o.issue(r.channel, 4) == 0);
    r.devx.release();
    REQUIRE(r.read_all() == wr_ids{1, 3, 4});
    mlx5dv_devx_destroy_cmd_comp(other);

    r.devx.old_kernel(true);
    REQUIRE(o.issue(r.channel, 5) == EINVAL);
    REQUIRE(counter.issue(r.channel, 6) == 0);
    const command in = o.query(1);
    std::array<std::uint8_t, 24> out{};
    REQUIRE(mlx5dv_devx_obj_query(o.handle, in.data(), in.size(), out.data(), out.size()) == 0);
    REQUIRE(r.read_all() == wr_ids{6});
}

TEST_CASE("what the firmware refuses or loses is in the outbox alone") {
    rig r;
    r.non_blocking();
    const object o = r.counter();
    r.devx.refuse(0x05, 0xdeadbeef);
    r.devx.lose();
    for (std::uint64_t wr_id = 1; wr_id <= 3; ++wr_id) REQUIRE(o.issue(r.channel, wr_id, 32) == 0);
    REQUIRE(r.read() == 0);
    REQUIRE(r.last->out()[0] == 0x05);
    REQUIRE(get(r.last->out() + 4, 4) == 0xdeadbeef);
    REQUIRE(get(r.last->out() + 8, 8) == 0);
    REQUIRE(r.read() == 0);
    REQUIRE(r.last->wr_id() == 2);
    for (int i = 0; i < 32; ++i) REQUIRE(r.last->out()[i] == 0);
    REQUIRE(r.read() == 0);
    REQUIRE(get(r.last->out() + 8, 4) == o.id);

    const command in = o.query(9);
    std::array<std::uint8_t, 32> out{};
    r.devx.refuse(0x03, 17);
    r.devx.lose();
    REQUIRE(mlx5dv_devx_obj_query(o.handle, in.data(), in.size(), out.data(), out.size()) == EREMOTEIO);
    REQUIRE(out[0] == 0x03);
    REQUIRE(get(&out[4], 4) == 17);
    REQUIRE(mlx5dv_devx_obj_query(o.handle, in.data(), in.size(), out.data(), out.size()) == ETIMEDOUT);
    r.devx.refuse(0x08, 18);
    const command create = make(alloc_counter);
    errno = 0;
    REQUIRE(mlx5dv_devx_obj_create(r.context, create.data(), 16, out.data(), 16) == nullptr);
    REQUIRE(errno == EREMOTEIO);
    REQUIRE(out[0] == 0x08);
}

TEST_CASE("removal ends the channel: POLLIN and POLLRDHUP, EAGAIN for ever, no response") {
    rig r;
    r.non_blocking();
    const object o = r.counter();
    r.devx.delay(1h);
    REQUIRE(o.issue(r.channel, 1) == 0);
    r.devx.delay(0ns);
    REQUIRE(o.issue(r.channel, 2) == 0);
    mlx5dv_devx_event_channel* events = mlx5dv_devx_create_event_channel(r.context, {});
    r.device.remove();
    REQUIRE(r.devx.ledger().cancelled == r.before.cancelled + 1);
    REQUIRE(r.devx.ledger().dropped == r.before.dropped + 1);
    REQUIRE(readiness(r.channel->fd) == (POLLIN | POLLRDHUP));
    REQUIRE(readiness(events->fd) == (POLLIN | POLLRDHUP));
    REQUIRE(r.read() == EAGAIN);
    REQUIRE(r.read() == EAGAIN);
    REQUIRE(readiness(r.channel->fd) == (POLLIN | POLLRDHUP));
    fcntl(r.channel->fd, F_SETFL, 0);
    REQUIRE(r.read() == EIO);
    mlx5dv_devx_async_event_hdr header;
    errno = 0;
    REQUIRE(mlx5dv_devx_get_event(events, &header, 100) == -1);
    REQUIRE(errno == EIO);
    mlx5dv_devx_destroy_event_channel(events);

    REQUIRE(o.issue(r.channel, 3) == EIO);
    errno = 0;
    REQUIRE(mlx5dv_devx_obj_destroy(o.handle) == 0);
    REQUIRE(errno == EIO);
    errno = 0;
    REQUIRE(mlx5dv_devx_create_cmd_comp(r.context) == nullptr);
    REQUIRE(errno == EIO);
}

TEST_CASE("removal wakes a blocked reader with EIO") {
    rig r;
    auto code = std::async(std::launch::async, [&] { return r.read(); });
    r.device.remove();
    REQUIRE(code.get() == EIO);
}

TEST_CASE("destroying a channel waits for its commands in flight") {
    rig r;
    const object o = r.counter();
    SECTION("on the manual clock it lets the time pass") {
        r.device.use_manual_clock();
        mlx5dv_devx_cmd_comp* channel = mlx5dv_devx_create_cmd_comp(r.context);
        r.devx.delay(700ms);
        REQUIRE(o.issue(channel, 1) == 0);
        mlx5dv_devx_destroy_cmd_comp(channel);
        REQUIRE(r.device.now() == 700ms);
    }
    SECTION("on the real clock it sleeps") {
        mlx5dv_devx_cmd_comp* channel = mlx5dv_devx_create_cmd_comp(r.context);
        r.devx.delay(2ms);
        const auto before = r.devx.ledger().completed;
        REQUIRE(o.issue(channel, 1) == 0);
        mlx5dv_devx_destroy_cmd_comp(channel);
        REQUIRE(r.devx.ledger().completed == before + 1);
    }
    SECTION("a held one until another thread releases it") {
        mlx5dv_devx_cmd_comp* channel = mlx5dv_devx_create_cmd_comp(r.context);
        r.devx.hold();
        REQUIRE(o.issue(channel, 1) == 0);
        std::atomic<bool> destroyed = false;
        std::thread destroyer([&] {
            mlx5dv_devx_destroy_cmd_comp(channel);
            destroyed = true;
        });
        CHECK_FALSE(destroyed);
        CHECK(r.devx.release(1));
        destroyer.join();
    }
    SECTION("closing the context waits too, and ends what it had") {
        mlx5dv_devx_cmd_comp* channel = mlx5dv_devx_create_cmd_comp(r.context);
        fcntl(channel->fd, F_SETFL, O_NONBLOCK);
        r.device.use_manual_clock();
        r.devx.delay(30ms);
        REQUIRE(o.issue(channel, 1) == 0);
        REQUIRE(ibv_close_device(r.context) == 0);
        r.context = nullptr;
        REQUIRE(r.device.now() == 30ms);
        REQUIRE(readiness(channel->fd) == (POLLIN | POLLRDHUP));
        REQUIRE(o.issue(channel, 2) == EINVAL);
        REQUIRE(mlx5dv_devx_obj_destroy(o.handle) == EINVAL);
        mlx5dv_devx_destroy_cmd_comp(channel);
    }
}

TEST_CASE("a query outlives its object") {
    rig r;
    r.non_blocking();
    const object o = r.counter();
    r.devx.hold();
    REQUIRE(o.issue(r.channel, 5) == 0);
    REQUIRE(mlx5dv_devx_obj_destroy(o.handle) == 0);
    r.devx.release();
    REQUIRE(r.read() == 0);
    REQUIRE(get(r.last->out() + 8, 4) == o.id);
}

TEST_CASE("several threads issue and read, and every response is read once") {
    rig r;
    constexpr std::uint64_t issuers = 3, each = 300;
    const object o = r.counter();
    std::vector<std::thread> threads;
    std::atomic<int> wrong = 0;
    std::mutex mutex;
    std::multiset<std::uint64_t> seen;
    r.devx.delay(20us);
    for (std::uint64_t i = 0; i < issuers; ++i)
        threads.emplace_back([&, i] {
            for (std::uint64_t n = 0; n < each; ++n)
                if (o.issue(r.channel, i * each + n) != 0) ++wrong;
        });
    for (int i = 0; i < 3; ++i)
        threads.emplace_back([&] {
            alignas(8) std::array<std::uint8_t, 72> bytes;
            for (std::uint64_t n = 0; n < each; ++n) {
                const int code = mlx5dv_devx_get_async_cmd_comp(
                    r.channel, reinterpret_cast<mlx5dv_devx_async_cmd_hdr*>(bytes.data()), bytes.size());
                std::uint64_t wr_id;
                std::memcpy(&wr_id, bytes.data(), sizeof wr_id);
                if (code != 0 || get(&bytes[8 + 16], 8) != wr_id * 3) ++wrong;
                const std::lock_guard guard(mutex);
                seen.insert(wr_id);
            }
        });
    for (auto& t : threads) t.join();
    REQUIRE(wrong == 0);
    REQUIRE(seen.size() == issuers * each);
    for (std::uint64_t wr_id = 0; wr_id < issuers * each; ++wr_id) REQUIRE(seen.count(wr_id) == 1);
}

TEST_CASE("while seeded the order of completion comes from the seed") {
    rig r;
    r.non_blocking();
    const object o = r.counter();
    const auto order = [&](std::uint64_t seed) {
        r.device.seed(seed);
        for (std::uint64_t wr_id = 0; wr_id < 20; ++wr_id) REQUIRE(o.issue(r.channel, wr_id) == 0);
        while (r.device.step()) {}
        const auto got = r.read_all();
        REQUIRE(got.size() == 20);
        r.device.reset();
        return got;
    };
    const auto first = order(1);
    REQUIRE(first == order(1));
    REQUIRE(first != order(2));
}

TEST_CASE("any DEVX verb can be made to fail") {
    rig r;
    r.non_blocking();
    const object o = r.counter();
    r.devx.fail("mlx5dv_devx_obj_query_async", {.call = 2, .value = ENOMEM});
    REQUIRE(o.issue(r.channel, 1) == 0);
    REQUIRE(o.issue(r.channel, 2) == ENOMEM);
    REQUIRE(r.read_all() == wr_ids{1});
    r.devx.fail("mlx5dv_devx_get_async_cmd_comp", {.value = EINTR, .convention = sim::convention::negative_errno});
    REQUIRE(r.read() == -EINTR);
    r.devx.fail("mlx5dv_devx_create_cmd_comp", {.value = EMFILE});
    REQUIRE(mlx5dv_devx_create_cmd_comp(r.context) == nullptr);
    REQUIRE(errno == EMFILE);
    REQUIRE_THROWS_AS(r.devx.fail("ibv_post_send", {.value = 1}), std::invalid_argument);
}

namespace {

struct event {
    alignas(8) std::array<std::uint8_t, 72> bytes{};
    std::uint64_t cookie() const {
        std::uint64_t value;
        std::memcpy(&value, bytes.data(), sizeof value);
        return value;
    }
    ssize_t read(mlx5dv_devx_event_channel* channel, std::size_t size = 72) {
        errno = 0;
        return mlx5dv_devx_get_event(channel, reinterpret_cast<mlx5dv_devx_async_event_hdr*>(bytes.data()), size);
    }
};

struct event_rig : rig {
    explicit event_rig(bool omit)
        : events(mlx5dv_devx_create_event_channel(context, omit ? MLX5DV_DEVX_CREATE_EVENT_CHANNEL_FLAGS_OMIT_EV_DATA
                                                                : mlx5dv_devx_create_event_channel_flags{})) {
        REQUIRE(events != nullptr);
        fcntl(events->fd, F_SETFL, O_NONBLOCK);
    }
    ~event_rig() { mlx5dv_devx_destroy_event_channel(events); }

    int subscribe(const object* o, std::vector<std::uint16_t> numbers, std::uint64_t cookie) const {
        return mlx5dv_devx_subscribe_devx_event(events, o != nullptr ? o->handle : nullptr,
                                                static_cast<std::uint16_t>(numbers.size() * 2), numbers.data(), cookie);
    }

    mlx5dv_devx_event_channel* events;
};

} // namespace

TEST_CASE("an event channel delivers cookie and data, in order, one event a read") {
    event_rig r(false);
    const object o = r.general();
    REQUIRE(r.subscribe(&o, {4, 0}, 111) == 0);
    REQUIRE(r.subscribe(nullptr, {9}, 222) == 0);
    event e;
    REQUIRE(e.read(r.events) == -1);
    REQUIRE(errno == EAGAIN);
    const std::array data{std::byte{0xaa}, std::byte{0xbb}};
    REQUIRE(r.devx.raise(o.handle, 4, data) == 1);
    REQUIRE(r.devx.raise(nullptr, 9) == 1);
    REQUIRE(r.devx.raise(o.handle, 9) == 0);
    REQUIRE(r.devx.raise(nullptr, 4) == 0);
    REQUIRE(readiness(r.events->fd) == POLLIN);
    for (const std::size_t size : {0, 8, 71}) {
        REQUIRE(e.read(r.events, size) == -1);
        REQUIRE(errno == EINVAL);
    }
    REQUIRE(e.read(r.events) == 72);
    REQUIRE(e.cookie() == 111);
    REQUIRE(e.bytes[8 + 1] == 4);
    REQUIRE(get(&e.bytes[8 + 28], 4) == o.id);
    REQUIRE(get(&e.bytes[8 + 32], 2) == 0xaabb);
    REQUIRE(e.read(r.events) == 72);
    REQUIRE(e.cookie() == 222);
    REQUIRE(e.read(r.events) == -1);

    REQUIRE(mlx5dv_devx_obj_destroy(o.handle) == 0);
    REQUIRE_THROWS_AS(r.devx.raise(o.handle, 4), std::invalid_argument);
}

TEST_CASE("without data the events of one subscription come as one") {
    event_rig r(true);
    const object o = r.general();
    REQUIRE(r.subscribe(&o, {1}, 5) == 0);
    REQUIRE(r.subscribe(&o, {2}, 6) == 0);
    for (int i = 0; i < 3; ++i) REQUIRE(r.devx.raise(o.handle, 1) == 1);
    REQUIRE(r.devx.raise(o.handle, 2) == 1);
    event e;
    REQUIRE(e.read(r.events) == 8);
    REQUIRE(e.cookie() == 5);
    REQUIRE(r.devx.raise(o.handle, 1) == 1);
    REQUIRE(e.read(r.events) == 8);
    REQUIRE(e.cookie() == 6);
    REQUIRE(e.read(r.events) == 8);
    REQUIRE(e.cookie() == 5);
    REQUIRE(e.read(r.events) == -1);
    REQUIRE(errno == EAGAIN);
}

TEST_CASE("a lost event is reported once, and does not make the channel readable") {
    event_rig r(false);
    REQUIRE(r.subscribe(nullptr, {1}, 5) == 0);
    r.devx.lose_events(r.events, 2);
    REQUIRE(r.devx.raise(nullptr, 1) == 1);
    REQUIRE(r.devx.raise(nullptr, 1) == 1);
    REQUIRE(readiness(r.events->fd) == 0);
    REQUIRE(r.devx.raise(nullptr, 1) == 1);
    event e;
    REQUIRE(e.read(r.events) == -1);
    REQUIRE(errno == EOVERFLOW);
    REQUIRE(e.read(r.events) == 72);
    REQUIRE(e.read(r.events) == -1);
    REQUIRE(errno == EAGAIN);
}

TEST_CASE("events can go to an eventfd instead") {
    event_rig r(false);
    const object o = r.general();
    const int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    REQUIRE(mlx5dv_devx_subscribe_devx_event_fd(r.events, fd, o.handle, 3) == 0);
    REQUIRE(r.devx.raise(o.handle, 3) == 1);
    REQUIRE(r.devx.raise(o.handle, 3) == 1);
    std::uint64_t count = 0;
    REQUIRE(read(fd, &count, sizeof count) == 8);
    REQUIRE(count == 2);
    REQUIRE(readiness(r.events->fd) == 0);
    REQUIRE(mlx5dv_devx_subscribe_devx_event_fd(r.events, r.channel->fd, o.handle, 3) == EINVAL);
    close(fd);
    REQUIRE(mlx5dv_devx_subscribe_devx_event_fd(r.events, fd, o.handle, 3) == EBADF);
    REQUIRE(r.devx.raise(o.handle, 3) == 1); // the device has its own reference
}

TEST_CASE("a subscription counts in bytes and takes 16 known events at most") {
    event_rig r(false);
    std::array<std::uint16_t, 17> numbers{};
    const auto code = [&](std::uint16_t bytes) {
        return mlx5dv_devx_subscribe_devx_event(r.events, nullptr, bytes, numbers.data(), 0);
    };
    REQUIRE(code(0) == EINVAL);
    REQUIRE(code(3) == EINVAL);
    REQUIRE(code(34) == EINVAL);
    REQUIRE(code(32) == 0);
    REQUIRE(r.devx.raise(nullptr, 0) == 16);
    numbers[1] = 256;
    REQUIRE(code(4) == EINVAL);
    REQUIRE(code(2) == 0);
}
