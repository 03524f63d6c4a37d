// Plain DEVX commands through libmlx5, nothing of the library, on the device fdevx0 of the guest: that it answers as
// mlx5dv_devx_*(3) say, and does what its parameters say.

#include "support/fdevx.hpp"
#include "support/network_order.hpp"

#include <infiniband/mlx5dv.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <future>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace {

using support::get;
using support::put;
using support::fdevx::ledger;
using support::fdevx::set;

struct failure {};

/// Also takes back what the parameters say: the destruction of a channel would wait for what is held.
[[noreturn]] void fail(int line, const char* condition) {
    std::fprintf(stderr, "plain_devx.cpp:%d: %s, errno %d\n", line, condition, errno);
    support::fdevx::reset();
    throw failure{};
}

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) fail(__LINE__, #condition);                                                                  \
    } while (false)

// ---- commands

constexpr std::uint16_t query_general = 0xa02, general_type = 0x13;

using command = std::array<std::uint8_t, 32>;
command make(std::uint16_t opcode, std::uint16_t type = 0) {
    command c{};
    put(&c[0], opcode, 2);
    put(&c[6], type, 2);
    return c;
}

struct context {
    ibv_context* handle = nullptr;

    context() {
        ibv_device** list = ibv_get_device_list(nullptr);
        CHECK(list != nullptr);
        for (ibv_device** at = list; *at != nullptr; ++at) {
            if (std::strcmp(ibv_get_device_name(*at), "fdevx0") != 0) continue;
            CHECK(mlx5dv_is_supported(*at));
            mlx5dv_context_attr attr{};
            attr.flags = MLX5DV_CONTEXT_FLAGS_DEVX;
            handle = mlx5dv_open_device(*at, &attr);
        }
        ibv_free_device_list(list);
        CHECK(handle != nullptr);
    }
    context(const context&) = delete;
    context& operator=(const context&) = delete;
    ~context() { ibv_close_device(handle); }
};

/// A general object, or a flow counter, whose queries are not throttled.
struct object {
    bool general;
    mlx5dv_devx_obj* handle;
    std::uint32_t id;

    explicit object(context& c, bool is_general = false) : general(is_general) {
        const command in = general ? make(0xa00, general_type) : make(0x939);
        std::array<std::uint8_t, 16> out{};
        handle = mlx5dv_devx_obj_create(c.handle, in.data(), in.size(), out.data(), out.size());
        CHECK(handle != nullptr && out[0] == 0);
        id = static_cast<std::uint32_t>(get(&out[8], 4));
        CHECK(id != 0);
    }
    object(const object&) = delete;
    object& operator=(const object&) = delete;
    ~object() { destroy(); }
    int destroy() { return handle != nullptr ? mlx5dv_devx_obj_destroy(std::exchange(handle, nullptr)) : 0; }

    command query(std::uint64_t number) const {
        command c = general ? make(query_general, general_type) : make(0x93b);
        put(&c[16], number, 8);
        put(&c[general ? 8 : 28], id, 4);
        return c;
    }
};

/// What a query is answered, if nothing went wrong.
bool right(const std::uint8_t* out, std::size_t bytes, const object& obj, std::uint64_t number,
           std::uint32_t modified = 0) {
    std::vector<std::uint8_t> expected(std::max<std::size_t>(bytes, 24));
    put(&expected[8], obj.id, 4);
    put(&expected[12], modified, 4);
    put(&expected[16], number, 8);
    for (std::size_t i = 24; i < bytes; ++i) expected[i] = static_cast<std::uint8_t>(number + i);
    return std::equal(out, out + bytes, expected.begin());
}

constexpr std::size_t most = 65535;

struct response {
    std::uint64_t wr_id;
    std::uint8_t out[most + 1];
};

struct channel {
    mlx5dv_devx_cmd_comp* handle;
    std::unique_ptr<response> last = std::make_unique<response>();

    explicit channel(context& c) : handle(mlx5dv_devx_create_cmd_comp(c.handle)) {
        CHECK(handle != nullptr);
        CHECK(::fcntl(handle->fd, F_SETFL, O_NONBLOCK) == 0);
    }
    channel(const channel&) = delete;
    channel& operator=(const channel&) = delete;
    ~channel() { destroy(); }
    void destroy() {
        if (handle != nullptr) mlx5dv_devx_destroy_cmd_comp(std::exchange(handle, nullptr));
    }

    int issue(const object& obj, std::uint64_t wr_id, std::size_t outlen = 64) {
        const command in = obj.query(3 * wr_id);
        return mlx5dv_devx_obj_query_async(obj.handle, in.data(), in.size(), outlen, wr_id, handle);
    }
    short ready(int timeout = 0) {
        pollfd p{.fd = handle->fd, .events = POLLIN | POLLRDHUP, .revents = 0};
        CHECK(::poll(&p, 1, timeout) >= 0);
        return p.revents;
    }
    int take(std::size_t bytes = sizeof(response)) {
        last->wr_id = ~std::uint64_t{0};
        std::memset(last->out, 0xee, sizeof last->out);
        return mlx5dv_devx_get_async_cmd_comp(handle, reinterpret_cast<mlx5dv_devx_async_cmd_hdr*>(last.get()), bytes);
    }
    /// The next response is this query's, right, and no longer.
    bool next(const object& obj, std::uint64_t wr_id, std::size_t outlen = 64) {
        return take() == 0 && last->wr_id == wr_id && right(last->out, outlen, obj, 3 * wr_id) &&
               last->out[outlen] == 0xee;
    }
    std::uint64_t next() {
        CHECK(take() == 0);
        return last->wr_id;
    }
};

struct event {
    std::uint64_t cookie;
    std::uint8_t data[64];
};

struct events {
    mlx5dv_devx_event_channel* handle;

    explicit events(context& c, bool omit_data = false)
        : handle(mlx5dv_devx_create_event_channel(c.handle,
                                                  omit_data ? MLX5DV_DEVX_CREATE_EVENT_CHANNEL_FLAGS_OMIT_EV_DATA
                                                            : static_cast<mlx5dv_devx_create_event_channel_flags>(0))) {
        CHECK(handle != nullptr);
        CHECK(::fcntl(handle->fd, F_SETFL, O_NONBLOCK) == 0);
    }
    events(const events&) = delete;
    events& operator=(const events&) = delete;
    ~events() { mlx5dv_devx_destroy_event_channel(handle); }

    int subscribe(const object* obj, std::vector<std::uint16_t> numbers, std::uint64_t cookie) {
        return mlx5dv_devx_subscribe_devx_event(handle, obj != nullptr ? obj->handle : nullptr,
                                                static_cast<std::uint16_t>(2 * numbers.size()), numbers.data(), cookie);
    }
    short ready() {
        pollfd p{.fd = handle->fd, .events = POLLIN | POLLRDHUP, .revents = 0};
        CHECK(::poll(&p, 1, 0) >= 0);
        return p.revents;
    }
    /// The bytes, or a negative errno.
    int take(event& to, std::size_t size = sizeof(event)) {
        to = {};
        const ssize_t got = mlx5dv_devx_get_event(handle, reinterpret_cast<mlx5dv_devx_async_event_hdr*>(&to), size);
        return got < 0 ? -errno : static_cast<int>(got);
    }
};

int raise_event(std::uint32_t id, unsigned number, std::uint64_t data = 0) {
    return set("raise", std::to_string(id) + ' ' + std::to_string(number) + ' ' + std::to_string(data));
}

// ---- what is checked

void objects() {
    context c;
    object a(c, true), b(c, true), counter(c);
    std::array<std::uint8_t, 64> out{};
    const auto query = [&out](const object& of, const command& in) {
        return mlx5dv_devx_obj_query(of.handle, in.data(), in.size(), out.data(), out.size());
    };
    CHECK(a.id != b.id);
    CHECK(query(a, a.query(7)) == 0 && right(out.data(), out.size(), a, 7));
    CHECK(query(counter, counter.query(8)) == 0 && right(out.data(), out.size(), counter, 8));
    CHECK(query(a, b.query(7)) == EINVAL);
    CHECK(query(counter, a.query(7)) == EINVAL);

    command modify = a.query(0);
    put(&modify[0], 0xa01, 2);
    CHECK(mlx5dv_devx_obj_modify(a.handle, modify.data(), modify.size(), out.data(), out.size()) == 0);
    CHECK(query(a, a.query(9)) == 0 && right(out.data(), out.size(), a, 9, 1));
    CHECK(mlx5dv_devx_obj_modify(b.handle, modify.data(), modify.size(), out.data(), out.size()) == EINVAL);

    const command unknown = make(0x1);
    CHECK(mlx5dv_devx_obj_create(c.handle, unknown.data(), unknown.size(), out.data(), out.size()) == nullptr);
    CHECK(errno == EINVAL);
    CHECK(a.destroy() == 0 && counter.destroy() == 0);
}

void general_commands() {
    context c;
    std::array<std::uint8_t, 16> out{};
    const auto run = [&](std::uint16_t opcode) {
        const command in = make(opcode);
        out.fill(0xee);
        return mlx5dv_devx_general_cmd(c.handle, in.data(), in.size(), out.data(), out.size());
    };
    CHECK(run(0x101) == 0 && out == (std::array<std::uint8_t, 16>{}));
    CHECK(run(query_general) == EINVAL);
    CHECK(set("refuse", "5 0x1234abcd 1") == 0 && set("lose", 1) == 0);
    CHECK(run(0x101) == EREMOTEIO && out[0] == 5 && get(&out[4], 4) == 0x1234abcd);
    CHECK(run(0x101) == ETIMEDOUT);
    CHECK(run(0x101) == 0);
}

void asynchronous_queries() {
    context c;
    object a(c, true), counter(c);
    channel q(c);
    CHECK(q.ready() == 0 && q.take() == EAGAIN);
    CHECK(q.issue(a, 1) == 0 && q.issue(counter, 2, 0) == 0 && q.issue(counter, 3, most) == 0);
    CHECK(q.ready() == POLLIN);
    CHECK(q.take(71) == ENOSPC && q.ready() == POLLIN);
    CHECK(q.next(a, 1) && q.next(counter, 2, 0) && q.next(counter, 3, most));
    CHECK(q.ready() == 0 && q.take() == EAGAIN);

    CHECK(q.issue(counter, 4, most + 1) == EINVAL);
    const command wrong = a.query(1);
    CHECK(mlx5dv_devx_obj_query_async(counter.handle, wrong.data(), wrong.size(), 64, 1, q.handle) == EINVAL);
    context other;
    channel foreign(other);
    CHECK(foreign.issue(a, 5) == EBADF);
    CHECK(q.take() == EAGAIN);
}

void refusals() {
    context c;
    object a(c, true);
    channel q(c);
    CHECK(set("refuse", "2 0xdeadbeef 2") == 0 && set("lose", 1) == 0);
    for (std::uint64_t i = 0; i < 4; ++i) CHECK(q.issue(a, i) == 0);
    for (std::uint64_t i = 0; i < 2; ++i)
        CHECK(q.next() == i && q.last->out[0] == 2 && get(&q.last->out[4], 4) == 0xdeadbeef);
    CHECK(q.next() == 2 && std::all_of(q.last->out, q.last->out + 64, [](int byte) { return byte == 0; }));
    CHECK(q.next(a, 3));
    CHECK(set("refuse", "0 1 1") == EINVAL);
}

void delays() {
    context c;
    object a(c, true);
    channel q(c);
    CHECK(set("delay_ms", 20) == 0);
    for (std::uint64_t i = 0; i < 3; ++i) CHECK(q.issue(a, i) == 0);
    for (std::uint64_t i = 0; i < 3; ++i) CHECK(q.ready(-1) == POLLIN && q.next(a, i));

    // The destruction of a channel waits for what is in flight; that of an object does not.
    CHECK(q.issue(a, 3) == 0);
    CHECK(a.destroy() == 0);
    const ledger before;
    q.destroy();
    const ledger after;
    CHECK(after.cancelled == before.cancelled && after.read == before.read);
    CHECK(after.completed == after.accepted && after.dropped == before.dropped + 1);
    CHECK(set("delay_ms", 0) == 0);
}

void orders() {
    context c;
    object counter(c);
    channel q(c), other(c);
    CHECK(set("hold", 1) == 0);
    for (std::uint64_t i = 0; i < 5; ++i) CHECK((i == 2 ? other : q).issue(counter, i) == 0);
    CHECK(q.ready() == 0);
    for (const std::uint64_t i : {3, 0}) CHECK(set("release", i) == 0 && q.ready() == POLLIN && q.next(counter, i));
    CHECK(set("release", 0) == ENOENT && q.ready() == 0 && other.ready() == 0);
    CHECK(set("release", "oldest") == 0 && q.next(counter, 1) && q.ready() == 0);
    CHECK(set("hold", 0) == 0);
    CHECK(q.next(counter, 4) && other.next(counter, 2));
    CHECK(set("release", "oldest") == ENOENT);

    const auto drawn = [&] {
        CHECK(set("shuffle", 5) == 0);
        for (std::uint64_t i = 0; i < 64; ++i) CHECK(q.issue(counter, i) == 0);
        CHECK(set("shuffle", 0) == 0);
        std::vector<std::uint64_t> order(64);
        for (std::uint64_t& i : order) i = q.next();
        return order;
    };
    std::vector<std::uint64_t> order = drawn(), sorted(64);
    CHECK(order == drawn());
    std::iota(sorted.begin(), sorted.end(), 0);
    CHECK(order != sorted && std::is_permutation(order.begin(), order.end(), sorted.begin()));
}

void windows() {
    context c;
    object counter(c);
    channel q(c), other(c);
    CHECK(set("hold", 1) == 0);
    for (std::uint64_t i = 0; i < 16; ++i) CHECK(q.issue(counter, i, most) == 0);
    CHECK(q.issue(counter, 16, most) == EAGAIN && q.issue(counter, 16, 16) == 0);
    CHECK(q.issue(counter, 17, 1) == EAGAIN && q.issue(counter, 17, 0) == 0);
    CHECK(other.issue(counter, 1, most) == 0);
    CHECK(set("hold", 0) == 0);
    CHECK(q.issue(counter, 18, 1) == EAGAIN); // room comes back when it is read
    CHECK(q.next(counter, 0, most));
    CHECK(q.issue(counter, 18, most) == 0);
    for (std::uint64_t i = 1; i < 19; ++i) CHECK(q.next() == i);

    CHECK(set("window", 100) == 0);
    CHECK(q.issue(counter, 1, 64) == 0 && q.issue(counter, 2, 64) == EAGAIN && q.issue(counter, 2, 36) == 0);
    CHECK(set("window", 1 << 20) == 0);
}

void throttles() {
    context c;
    object a(c, true), counter(c);
    channel q(c), other(c);
    CHECK(set("hold", 1) == 0 && set("throttle", 2) == 0);
    CHECK(q.issue(a, 1) == 0 && other.issue(a, 2) == 0);
    CHECK(q.issue(a, 3) == EBUSY && other.issue(a, 3) == EBUSY && q.issue(counter, 4) == 0);
    CHECK(set("release", 2) == 0 && q.issue(a, 3) == 0); // what is unread holds nobody up
    CHECK(set("hold", 0) == 0 && set("throttle", 0) == 0);
    CHECK(q.issue(a, 5) == EBUSY);
    CHECK(set("throttle", 16) == 0 && q.issue(a, 5) == 0);

    CHECK(set("old_kernel", 1) == 0);
    CHECK(q.issue(a, 6) == EINVAL && q.issue(counter, 6) == 0);
    CHECK(set("old_kernel", 0) == 0);
    for (const std::uint64_t i : {1, 4, 3, 5, 6}) CHECK(q.next() == i);
}

void events_with_data() {
    context c;
    object a(c), b(c);
    events e(c);
    event got;
    CHECK(e.subscribe(&a, {1, 2}, 11) == 0 && e.subscribe(nullptr, {9}, 22) == 0);
    CHECK(e.ready() == 0 && e.take(got) == -EAGAIN);
    CHECK(raise_event(b.id, 1) == ENOENT && raise_event(a.id, 3) == ENOENT && raise_event(0, 1) == ENOENT);
    CHECK(raise_event(a.id, 2, 0x0102030405060708) == 0 && raise_event(0, 9) == 0);
    CHECK(e.ready() == POLLIN && e.take(got, 71) == -EINVAL);
    CHECK(e.take(got) == 72 && got.cookie == 11 && got.data[1] == 2 && get(&got.data[28], 4) == a.id);
    CHECK(get(&got.data[32], 8) == 0x0102030405060708);
    CHECK(e.take(got) == 72 && got.cookie == 22 && got.data[1] == 9 && get(&got.data[28], 4) == 0);
    CHECK(e.ready() == 0);

    CHECK(e.subscribe(&b, std::vector<std::uint16_t>(17, 1), 1) == EINVAL && e.subscribe(&b, {1, 256}, 1) == EINVAL);
    CHECK(raise_event(b.id, 1) == ENOENT);
    CHECK(a.destroy() == 0);
    CHECK(raise_event(a.id, 1) == ENOENT);
}

void events_without_data() {
    context c;
    object a(c);
    events e(c, true);
    event got;
    CHECK(e.subscribe(&a, {1}, 11) == 0 && e.subscribe(&a, {2}, 22) == 0);
    CHECK(raise_event(a.id, 2) == 0 && raise_event(a.id, 1) == 0 && raise_event(a.id, 2) == 0);
    CHECK(e.take(got, 8) == 8 && got.cookie == 22);
    CHECK(e.take(got, 8) == 8 && got.cookie == 11);
    CHECK(e.take(got, 8) == -EAGAIN);
    CHECK(raise_event(a.id, 2) == 0 && e.take(got, 8) == 8 && got.cookie == 22);
    CHECK(raise_event(a.id, 2) == 0); // left unread
}

void events_to_an_eventfd() {
    context c;
    object a(c);
    events e(c);
    event got;
    std::uint64_t count = 0;
    const int fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    CHECK(fd >= 0);
    CHECK(mlx5dv_devx_subscribe_devx_event_fd(e.handle, fd, a.handle, 1) == 0);
    CHECK(mlx5dv_devx_subscribe_devx_event_fd(e.handle, e.handle->fd, a.handle, 1) == EINVAL);
    CHECK(raise_event(a.id, 1) == 0 && raise_event(a.id, 1) == 0);
    CHECK(::read(fd, &count, sizeof count) == sizeof count && count == 2);
    CHECK(e.ready() == 0 && e.take(got) == -EAGAIN);
    ::close(fd);
}

void lost_events() {
    context c;
    object a(c);
    events e(c);
    event got;
    CHECK(e.subscribe(&a, {1}, 11) == 0);
    CHECK(set("lose_events", 2) == 0);
    for (std::uint64_t i = 0; i < 2; ++i) CHECK(raise_event(a.id, 1, i) == 0);
    CHECK(e.ready() == 0); // the loss alone does not show
    CHECK(raise_event(a.id, 1, 2) == 0 && e.ready() == POLLIN);
    CHECK(e.take(got) == -EOVERFLOW);
    CHECK(e.take(got) == 72 && get(&got.data[32], 8) == 2);
    CHECK(e.take(got) == -EAGAIN);
}

void many() {
    context c;
    object counter(c);
    channel q(c);
    constexpr std::uint64_t count = 20000, depth = 256;
    const ledger before;
    std::vector<bool> seen(count);
    CHECK(set("shuffle", 1) == 0);
    for (std::uint64_t issued = 0, done = 0; done < count; ++done) {
        while (issued < count && issued < done + depth) CHECK(q.issue(counter, issued++) == 0);
        const std::uint64_t i = q.next();
        CHECK(i < count && !seen[i] && right(q.last->out, 64, counter, 3 * i));
        seen[i] = true;
    }
    CHECK(set("shuffle", 0) == 0);
    const ledger after;
    CHECK(after.calls - before.calls == count && after.accepted - before.accepted == count);
    CHECK(after.read - before.read == count && after.cancelled == before.cancelled);
    CHECK(q.take() == EAGAIN);
}

void removal() {
    context c;
    object a(c), b(c);
    channel q(c), idle(c), blocking(c);
    events e(c), blocking_events(c);
    event got;
    CHECK(e.subscribe(&a, {1}, 1) == 0 && raise_event(a.id, 1) == 0);
    CHECK(q.issue(a, 0) == 0); // left unread
    CHECK(set("hold", 1) == 0);
    for (std::uint64_t i = 1; i < 40; ++i) CHECK(q.issue(a, i) == 0);
    CHECK(set("hold", 0) == 0 && set("hold", 1) == 0);
    for (std::uint64_t i = 40; i < 80; ++i) CHECK(q.issue(a, i) == 0);
    CHECK(::fcntl(blocking.handle->fd, F_SETFL, 0) == 0 && ::fcntl(blocking_events.handle->fd, F_SETFL, 0) == 0);
    auto read = std::async(std::launch::async, [&] { return blocking.take(); });
    auto read_event = std::async(std::launch::async, [&] {
        event none;
        return blocking_events.take(none);
    });
    const ledger before;
    CHECK(set("remove", 1) == 0);
    const ledger after;
    CHECK(after.cancelled - before.cancelled == 40 && after.dropped - before.dropped == 40);
    CHECK(after.accepted == after.completed + after.cancelled && after.completed == after.read + after.dropped);
    CHECK(read.get() == EIO && read_event.get() == -EIO);
    for (channel* one : {&q, &idle}) CHECK(one->ready(-1) == (POLLIN | POLLRDHUP) && one->take() == EAGAIN);
    CHECK(e.ready() == (POLLIN | POLLRDHUP) && e.take(got) == -EAGAIN);
    CHECK(q.issue(a, 80) == EIO && b.destroy() == 0);
    CHECK(mlx5dv_devx_create_cmd_comp(c.handle) == nullptr && errno == EIO);
    ibv_async_event fatal; // waits for it
    CHECK(ibv_get_async_event(c.handle, &fatal) == 0 && fatal.event_type == IBV_EVENT_DEVICE_FATAL);
    ibv_ack_async_event(&fatal);

    // It comes back, and for those who open it anew only.
    CHECK(set("hold", 0) == 0 && set("insert", 1) == 0 && set("insert", 1) == 0);
    CHECK(q.issue(a, 81) == EIO && q.take() == EAGAIN);
    context anew;
    object counter(anew);
    channel third(anew);
    CHECK(third.issue(counter, 1) == 0 && third.next(counter, 1));
}

struct check {
    const char* name;
    void (*run)();
};
constexpr check checks[] = {
    {"objects are created, queried, modified and destroyed", objects},
    {"general commands", general_commands},
    {"asynchronous queries", asynchronous_queries},
    {"commands that are refused or lost", refusals},
    {"commands that take their time", delays},
    {"completions in the order that the test chooses", orders},
    {"the window of a channel", windows},
    {"the throttle of the device", throttles},
    {"events with data", events_with_data},
    {"events without data", events_without_data},
    {"events to an eventfd", events_to_an_eventfd},
    {"lost events", lost_events},
    {"many queries in flight, in random order", many},
    {"removal of the device, and its return", removal},
};

} // namespace

int main() {
    int passed = 0, failed = 0;
    for (const check& one : checks) {
        bool good = true;
        try {
            one.run();
        } catch (const failure&) {
            good = false;
        }
        ++(good ? passed : failed);
        std::printf("%s  devx: %s\n", good ? "pass" : "FAIL", one.name);
        std::fflush(stdout);
    }
    std::printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed == 0 ? 0 : 1;
}
