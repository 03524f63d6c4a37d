#include "devx.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <map>
#include <utility>

namespace verbena::sim {
namespace {

constexpr std::array object_kinds{
    object_kind{0xa00, 0xa01, 0xa02, 0xa03, 8, true, true}, // general objects
    object_kind{0x939, 0, 0x93b, 0x93a, 28, false, false},  // flow counters
    object_kind{0x800, 0, 0, 0x801, 8, false, false},       // protection domains
};

// Some that need no object: capabilities, adapter, ISSI, ports, NOP. Those from 0xb00 to 0xcff need none either.
constexpr std::array<std::uint16_t, 8> general_commands{0x100, 0x101, 0x10a, 0x750, 0x754, 0x760, 0x762, 0x80d};

constexpr std::size_t header_bytes = 16;
constexpr std::size_t max_command = 65535; // lengths are 16 bits wide in the kernel's interface
constexpr std::size_t max_events = 16;
constexpr std::size_t event_bytes = 64;

// ---- commands are in network order

using inbox = std::span<const std::byte>;
using outbox = std::span<std::byte>;

/// What lies behind the end is 0.
template <class T>
T get(inbox in, std::size_t at) {
    T value = 0;
    for (std::size_t i = at; i < at + sizeof(T); ++i)
        value = static_cast<T>(value << 8 | (i < in.size() ? std::to_integer<T>(in[i]) : T{0}));
    return value;
}

template <class T>
void put(outbox out, std::size_t at, T value) {
    for (std::size_t i = 0; i < sizeof(T) && at + i < out.size(); ++i)
        out[at + i] = static_cast<std::byte>(value >> 8 * (sizeof(T) - 1 - i));
}

std::uint16_t opcode_of(inbox in) { return get<std::uint16_t>(in, 0); }

void answer_header(outbox out, const outcome& o) {
    std::ranges::fill(out, std::byte{0});
    put<std::uint8_t>(out, 0, o.status);
    put<std::uint32_t>(out, 4, o.syndrome);
}

void answer_query(outbox out, const outcome& o, std::uint32_t id, std::uint32_t modified, std::uint64_t number) {
    answer_header(out, o);
    if (o.lost || o.status != 0) return;
    put<std::uint32_t>(out, 8, id);
    put<std::uint32_t>(out, 12, modified);
    put<std::uint64_t>(out, 16, number);
    for (std::size_t i = 24; i < out.size(); ++i) out[i] = static_cast<std::byte>(number + i);
}

std::uint64_t number_of(inbox in) { return get<std::uint64_t>(in, 16); }

// ---- what the kernel checks

int check_lengths(const void* in, std::size_t inlen, const void* out, std::size_t outlen) {
    if (inlen < header_bytes || inlen > max_command || outlen < header_bytes || outlen > max_command) return EINVAL;
    return in != nullptr && out != nullptr ? 0 : EFAULT;
}

/// No tunnel to another function of the device.
bool is_direct(inbox in) { return get<std::uint16_t>(in, 4) == 0; }

/// Whether the command is `opcode`, and on this object.
bool fits(const mlx5dv_devx_obj& obj, inbox in, std::uint16_t opcode, std::size_t id_at) {
    return opcode != 0 && opcode_of(in) == opcode && is_direct(in) && get<std::uint32_t>(in, id_at) == obj.id &&
           (!obj.kind->has_type || get<std::uint16_t>(in, 6) == obj.type);
}

/// The device of a context, or why there is none.
devx_device* devx_of(ibv_context* context, int& code) {
    if (context == nullptr || state_of(context)->magic != alive) {
        code = EINVAL;
        return nullptr;
    }
    devx_device* devx = devx_of(device_of(context));
    if (devx == nullptr) code = EOPNOTSUPP;
    return devx;
}

/// A synchronous command: `succeed` writes what lies behind the header, if the firmware has no objection.
template <class F>
int execute(devx_device& devx, outbox out, F succeed) {
    const outcome o = devx.next_outcome();
    if (o.lost) return ETIMEDOUT;
    answer_header(out, o);
    if (o.status != 0) return EREMOTEIO;
    succeed();
    return 0;
}

int check_eventfd(int fd) {
    if (::fcntl(fd, F_GETFD) < 0) return EBADF;
    char path[32];
    std::snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    char target[64] = {};
    if (::readlink(path, target, sizeof target - 1) < 0) return EINVAL;
    return std::string_view(target) == "anon_inode:[eventfd]" ? 0 : EINVAL;
}

int check_subscription(event_channel* channel, mlx5dv_devx_obj* obj) {
    if (!usable(channel) || (obj != nullptr && !usable(obj))) return EINVAL;
    if (channel->context == nullptr || !answers(*channel->context)) return EIO;
    return obj == nullptr || obj->context == channel->context ? 0 : EINVAL;
}

bool known_event(std::uint16_t event) { return event < 256; } // a byte of the event data

} // namespace

// ---- the device

devx_device* devx_of(device& d) {
    static const auto& devices = *[] {
        auto* list = new std::map<device*, devx_device*>;
        for (device* one : all_devices())
            if (one->is_mlx5()) list->emplace(one, new devx_device(*one));
        return list;
    }();
    const auto at = devices.find(&d);
    return at != devices.end() ? at->second : nullptr;
}

void devx_device::use(open_context& c) {
    if (std::ranges::find(contexts, &c) != contexts.end()) return;
    contexts.push_back(&c);
    c.on_remove.push_back([this, &c] { end(c); });
    c.on_close.push_back([this, &c] { close(c); });
}

outcome devx_device::next_outcome() {
    if (control.outcomes.empty()) return {};
    const outcome o = control.outcomes.front();
    control.outcomes.pop_front();
    return o;
}

void devx_device::complete(std::list<query>::iterator at) {
    query q = *at;
    queries.erase(at);
    dev.later.cancel(q.completion);
    if (q.throttled) --throttled;
    command_channel& channel = *q.channel;
    --channel.in_flight;
    ++channel.unread;
    ++counts.completed;
    std::vector<std::byte> packet(sizeof q.wr_id + q.outlen);
    std::memcpy(packet.data(), &q.wr_id, sizeof q.wr_id);
    answer_query(outbox(packet).subspan(sizeof q.wr_id), q.result, q.id, q.modified, q.number);
    channel.file.push(packet);
    changed.notify_all();
}

void devx_device::cancel(const command_channel& channel) {
    for (auto at = queries.begin(); at != queries.end();) {
        const auto one = at++;
        if (one->channel != &channel) continue;
        dev.later.cancel(one->completion);
        if (one->throttled) --throttled;
        --one->channel->in_flight;
        ++counts.cancelled;
        queries.erase(one);
    }
    changed.notify_all();
}

void devx_device::wait_until_idle(const command_channel& channel) {
    while (channel.in_flight > 0)
        // On the manual clock the wait itself lets the time pass: perhaps there is no other thread that would.
        if (!dev.later.step()) changed.wait(dev.lock);
}

void devx_device::end(open_context& c) {
    for (command_channel* channel : command_channels) {
        if (channel->context != &c) continue;
        cancel(*channel);
        counts.dropped += std::exchange(channel->unread, 0);
        channel->file.end();
    }
    for (event_channel* channel : event_channels)
        if (channel->context == &c) channel->file.end();
}

void devx_device::close(open_context& c) {
    const locked guard(dev);
    const auto busy = [&c](const command_channel* channel) { return channel->context == &c && channel->in_flight > 0; };
    for (auto at = command_channels.end();
         (at = std::ranges::find_if(command_channels, busy)) != command_channels.end();)
        wait_until_idle(**at);
    end(c);
    for (command_channel* channel : command_channels)
        if (channel->context == &c) channel->context = nullptr;
    for (event_channel* channel : event_channels)
        if (channel->context == &c) channel->context = nullptr;
    std::erase_if(objects, [&](mlx5dv_devx_obj* obj) {
        if (obj->context != &c) return false;
        obj->magic = dead;
        dev.bury([obj] { delete obj; });
        return true;
    });
    std::erase(contexts, &c);
}

std::size_t devx_device::raise(const mlx5dv_devx_obj* object, std::uint16_t event, std::span<const std::byte> data) {
    std::array<std::byte, sizeof(std::uint64_t) + event_bytes> packet{};
    const auto eqe = outbox(packet).subspan(sizeof(std::uint64_t));
    put<std::uint8_t>(eqe, 1, static_cast<std::uint8_t>(event));
    if (object != nullptr) put<std::uint32_t>(eqe, 28, object->id);
    std::ranges::copy(data, eqe.begin() + 32);
    std::size_t reached = 0;
    for (event_channel* channel : event_channels) {
        if (channel->context == nullptr || channel->context->removed) continue;
        for (subscription& s : channel->subscriptions) {
            if (s.ended || s.object != object || s.event != event) continue;
            ++reached;
            if (s.eventfd >= 0) {
                const std::uint64_t one = 1;
                [[maybe_unused]] const auto written = ::write(s.eventfd, &one, sizeof one);
            } else if (channel->omit_data) {
                if (std::exchange(s.pending, true)) continue;
                channel->unread.push_back(&s);
                channel->file.push(std::as_bytes(std::span(&s.cookie, 1)));
            } else if (channel->to_lose > 0) {
                --channel->to_lose;
                channel->overflow = true;
            } else {
                std::memcpy(packet.data(), &s.cookie, sizeof s.cookie);
                channel->file.push(packet);
            }
        }
    }
    return reached;
}

} // namespace verbena::sim

using namespace verbena::sim;

extern "C" {

// ---- the device

bool mlx5dv_is_supported(ibv_device* entry) {
    return std::ranges::any_of(all_devices(), [entry](device* d) { return d->is_mlx5() && &d->entry == entry; });
}

ibv_context* mlx5dv_open_device(ibv_device* entry, mlx5dv_context_attr* attributes) {
    if (!mlx5dv_is_supported(entry)) return fail_with<ibv_context>(EOPNOTSUPP);
    if (const auto f = fault_of(*static_cast<device_entry*>(entry)->dev, "mlx5dv_open_device"))
        return fail_with<ibv_context>(f->value);
    if (attributes != nullptr && attributes->comp_mask != 0) return fail_with<ibv_context>(EINVAL);
    // libmlx5 asks for DEVX in every context, with the flag or without.
    return ibv_open_device(entry);
}

int mlx5dv_query_device(ibv_context* context, mlx5dv_context* attributes) {
    int code = 0;
    devx_device* devx = devx_of(context, code);
    if (devx == nullptr) return code;
    if (const auto f = fault_of(devx->dev, "mlx5dv_query_device")) return answer(*f, convention::positive_errno);
    attributes->version = 0;
    attributes->flags = MLX5DV_CONTEXT_FLAGS_CQE_V1;
    attributes->comp_mask = 0; // of what was asked for, nothing is known
    return 0;
}

int mlx5dv_devx_general_cmd(ibv_context* context, const void* in, size_t inlen, void* out, size_t outlen) {
    int code = 0;
    devx_device* devx = devx_of(context, code);
    if (devx == nullptr) return code;
    if (const auto f = fault_of(devx->dev, "mlx5dv_devx_general_cmd")) return answer(*f, convention::positive_errno);
    const locked guard(devx->dev);
    if (!answers(*state_of(context))) return EIO;
    if (const int wrong = check_lengths(in, inlen, out, outlen)) return wrong;
    const auto opcode = opcode_of({static_cast<const std::byte*>(in), inlen});
    if (std::ranges::find(general_commands, opcode) == general_commands.end() && (opcode < 0xb00 || opcode >= 0xd00))
        return EINVAL;
    return execute(*devx, {static_cast<std::byte*>(out), outlen}, [] {});
}

// ---- objects

mlx5dv_devx_obj* mlx5dv_devx_obj_create(ibv_context* context, const void* in, size_t inlen, void* out, size_t outlen) {
    int code = 0;
    devx_device* devx = devx_of(context, code);
    if (devx == nullptr) return fail_with<mlx5dv_devx_obj>(code);
    if (const auto f = fault_of(devx->dev, "mlx5dv_devx_obj_create")) return fail_with<mlx5dv_devx_obj>(f->value);
    const locked guard(devx->dev);
    open_context& c = *state_of(context);
    if (!answers(c)) return fail_with<mlx5dv_devx_obj>(EIO);
    if (const int wrong = check_lengths(in, inlen, out, outlen)) return fail_with<mlx5dv_devx_obj>(wrong);
    const inbox command(static_cast<const std::byte*>(in), inlen);
    const auto kind = std::ranges::find(object_kinds, opcode_of(command), &object_kind::create);
    if (kind == object_kinds.end() || !is_direct(command)) return fail_with<mlx5dv_devx_obj>(EINVAL);
    const outbox result(static_cast<std::byte*>(out), outlen);
    mlx5dv_devx_obj* made = nullptr;
    code = execute(*devx, result, [&] {
        const auto type = kind->has_type ? get<std::uint16_t>(command, 6) : std::uint16_t{0};
        made = new mlx5dv_devx_obj{alive, devx, &c, kind, type, ++devx->last_id, 0};
        put<std::uint32_t>(result, 8, made->id);
    });
    if (made == nullptr) return fail_with<mlx5dv_devx_obj>(code);
    devx->use(c);
    devx->objects.push_back(made);
    return made;
}

int mlx5dv_devx_obj_query(mlx5dv_devx_obj* obj, const void* in, size_t inlen, void* out, size_t outlen) {
    if (!usable(obj)) return EINVAL;
    devx_device& devx = *obj->devx;
    if (const auto f = fault_of(devx.dev, "mlx5dv_devx_obj_query")) return answer(*f, convention::positive_errno);
    const locked guard(devx.dev);
    if (!answers(*obj->context)) return EIO;
    if (const int wrong = check_lengths(in, inlen, out, outlen)) return wrong;
    const inbox command(static_cast<const std::byte*>(in), inlen);
    if (!fits(*obj, command, obj->kind->query, obj->kind->query_id_at)) return EINVAL;
    const outbox result(static_cast<std::byte*>(out), outlen);
    return execute(devx, result, [&] { answer_query(result, {}, obj->id, obj->modified, number_of(command)); });
}

int mlx5dv_devx_obj_modify(mlx5dv_devx_obj* obj, const void* in, size_t inlen, void* out, size_t outlen) {
    if (!usable(obj)) return EINVAL;
    devx_device& devx = *obj->devx;
    if (const auto f = fault_of(devx.dev, "mlx5dv_devx_obj_modify")) return answer(*f, convention::positive_errno);
    const locked guard(devx.dev);
    if (!answers(*obj->context)) return EIO;
    if (const int wrong = check_lengths(in, inlen, out, outlen)) return wrong;
    if (!fits(*obj, {static_cast<const std::byte*>(in), inlen}, obj->kind->modify, 8)) return EINVAL;
    return execute(devx, {static_cast<std::byte*>(out), outlen}, [obj] { ++obj->modified; });
}

int mlx5dv_devx_obj_destroy(mlx5dv_devx_obj* obj) {
    if (!usable(obj)) return EINVAL;
    devx_device& devx = *obj->devx;
    if (const auto f = fault_of(devx.dev, "mlx5dv_devx_obj_destroy")) return answer(*f, convention::positive_errno);
    const locked guard(devx.dev);
    // After a removal libmlx5 swallows the error, but not its errno.
    if (!answers(*obj->context)) errno = EIO;
    obj->magic = dead;
    for (event_channel* channel : devx.event_channels)
        for (subscription& s : channel->subscriptions)
            if (s.object == obj) s.ended = true;
    std::erase(devx.objects, obj);
    devx.dev.bury([obj] { delete obj; });
    return 0;
}

// ---- asynchronous queries

mlx5dv_devx_cmd_comp* mlx5dv_devx_create_cmd_comp(ibv_context* context) {
    int code = 0;
    devx_device* devx = devx_of(context, code);
    if (devx == nullptr) return fail_with<mlx5dv_devx_cmd_comp>(code);
    if (const auto f = fault_of(devx->dev, "mlx5dv_devx_create_cmd_comp"))
        return fail_with<mlx5dv_devx_cmd_comp>(f->value);
    const locked guard(devx->dev);
    open_context& c = *state_of(context);
    if (!answers(c)) return fail_with<mlx5dv_devx_cmd_comp>(EIO);
    auto channel = std::make_unique<command_channel>();
    if (channel->file.fd() < 0) return nullptr;
    channel->fd = channel->file.fd();
    channel->magic = alive;
    channel->devx = devx;
    channel->context = &c;
    devx->use(c);
    devx->command_channels.push_back(channel.get());
    return channel.release();
}

void mlx5dv_devx_destroy_cmd_comp(mlx5dv_devx_cmd_comp* cmd_comp) {
    auto* const channel = static_cast<command_channel*>(cmd_comp);
    if (!usable(channel)) return;
    devx_device& devx = *channel->devx;
    const locked guard(devx.dev);
    channel->magic = dead;
    devx.wait_until_idle(*channel);
    devx.counts.dropped += channel->unread;
    std::erase(devx.command_channels, channel);
    channel->file.close();
    channel->fd = -1;
    devx.dev.bury([channel] { delete channel; });
}

int mlx5dv_devx_obj_query_async(mlx5dv_devx_obj* obj, const void* in, size_t inlen, size_t outlen, uint64_t wr_id,
                                mlx5dv_devx_cmd_comp* cmd_comp) {
    auto* const channel = static_cast<command_channel*>(cmd_comp);
    if (!usable(obj) || !usable(channel)) return EINVAL;
    devx_device& devx = *obj->devx;
    if (const auto f = fault_of(devx.dev, "mlx5dv_devx_obj_query_async")) return answer(*f, convention::positive_errno);
    const locked guard(devx.dev);
    devx.dev.spend(devx.dev.control.choices.verb_time);
    if (!answers(*obj->context)) return EIO;
    if (channel->context != obj->context) return EBADF;
    if (outlen > max_command) return EINVAL;
    if (const int wrong = check_lengths(in, inlen, in, header_bytes)) return wrong;
    const inbox command(static_cast<const std::byte*>(in), inlen);
    if (!fits(*obj, command, obj->kind->query, obj->kind->query_id_at)) return EINVAL;
    if (channel->bytes_in_use + outlen > devx.control.window) return EAGAIN;
    const bool throttled = obj->kind->throttled;
    if (throttled && devx.control.old_kernel) return EINVAL;
    if (throttled && devx.throttled >= devx.control.throttle) return EBUSY;

    channel->bytes_in_use += outlen;
    ++channel->in_flight;
    devx.throttled += throttled;
    ++devx.counts.accepted;
    const auto at = devx.queries.insert(devx.queries.end(), query{.wr_id = wr_id,
                                                                  .channel = channel,
                                                                  .outlen = static_cast<std::uint16_t>(outlen),
                                                                  .result = devx.next_outcome(),
                                                                  .id = obj->id,
                                                                  .modified = obj->modified,
                                                                  .number = number_of(command),
                                                                  .throttled = throttled,
                                                                  .held = devx.control.hold,
                                                                  .completion = {}});
    if (at->held) return 0;
    auto delay = devx.control.delay;
    if (delay == delay.zero() && devx.dev.control.seeded) delay = devx.dev.control.delay();
    if (delay == delay.zero())
        devx.complete(at);
    else
        at->completion = devx.dev.act(delay, [&devx, at] {
            at->completion = {};
            devx.complete(at);
        });
    return 0;
}

int mlx5dv_devx_get_async_cmd_comp(mlx5dv_devx_cmd_comp* cmd_comp, mlx5dv_devx_async_cmd_hdr* response,
                                   size_t response_bytes) {
    auto* const channel = static_cast<command_channel*>(cmd_comp);
    if (!usable(channel)) return EBADF;
    devx_device& devx = *channel->devx;
    if (const auto f = fault_of(devx.dev, "mlx5dv_devx_get_async_cmd_comp"))
        return answer(*f, convention::positive_errno);
    {
        const locked guard(devx.dev);
        devx.dev.spend(devx.dev.control.choices.verb_time);
    }
    const auto got =
        channel->file.take(devx.dev.lock, response, response_bytes, ENOSPC, [&devx, channel](std::size_t bytes) {
            channel->bytes_in_use -= bytes - sizeof(std::uint64_t);
            --channel->unread;
            ++devx.counts.read;
        });
    return got < 0 ? errno : 0;
}

// ---- events

mlx5dv_devx_event_channel* mlx5dv_devx_create_event_channel(ibv_context* context,
                                                            mlx5dv_devx_create_event_channel_flags flags) {
    int code = 0;
    devx_device* devx = devx_of(context, code);
    if (devx == nullptr) return fail_with<mlx5dv_devx_event_channel>(code);
    if (const auto f = fault_of(devx->dev, "mlx5dv_devx_create_event_channel"))
        return fail_with<mlx5dv_devx_event_channel>(f->value);
    const locked guard(devx->dev);
    open_context& c = *state_of(context);
    if (!answers(c)) return fail_with<mlx5dv_devx_event_channel>(EIO);
    if ((static_cast<unsigned>(flags) & ~unsigned{MLX5DV_DEVX_CREATE_EVENT_CHANNEL_FLAGS_OMIT_EV_DATA}) != 0)
        return fail_with<mlx5dv_devx_event_channel>(EINVAL);
    auto channel = std::make_unique<event_channel>();
    if (channel->file.fd() < 0) return nullptr;
    channel->fd = channel->file.fd();
    channel->magic = alive;
    channel->devx = devx;
    channel->context = &c;
    channel->omit_data = flags == MLX5DV_DEVX_CREATE_EVENT_CHANNEL_FLAGS_OMIT_EV_DATA;
    devx->use(c);
    devx->event_channels.push_back(channel.get());
    return channel.release();
}

void mlx5dv_devx_destroy_event_channel(mlx5dv_devx_event_channel* event_channel_made) {
    auto* const channel = static_cast<event_channel*>(event_channel_made);
    if (!usable(channel)) return;
    devx_device& devx = *channel->devx;
    const locked guard(devx.dev);
    channel->magic = dead;
    std::erase(devx.event_channels, channel);
    for (const subscription& s : channel->subscriptions)
        if (s.eventfd >= 0) ::close(s.eventfd);
    channel->file.close();
    channel->fd = -1;
    devx.dev.bury([channel] { delete channel; });
}

int mlx5dv_devx_subscribe_devx_event(mlx5dv_devx_event_channel* event_channel_made, mlx5dv_devx_obj* obj,
                                     uint16_t events_sz, uint16_t events_num[], uint64_t cookie) {
    auto* const channel = static_cast<event_channel*>(event_channel_made);
    if (!usable(channel)) return EINVAL;
    devx_device& devx = *channel->devx;
    if (const auto f = fault_of(devx.dev, "mlx5dv_devx_subscribe_devx_event"))
        return answer(*f, convention::positive_errno);
    const locked guard(devx.dev);
    if (const int wrong = check_subscription(channel, obj)) return wrong;
    if (events_num == nullptr) return EFAULT;
    const std::size_t count = events_sz / sizeof(std::uint16_t); // bytes, not a count
    if (count == 0 || count > max_events || events_sz % sizeof(std::uint16_t) != 0) return EINVAL;
    const std::span events(events_num, count);
    if (!std::ranges::all_of(events, known_event)) return EINVAL;
    for (const std::uint16_t event : events)
        channel->subscriptions.push_back({.object = obj, .event = event, .cookie = cookie});
    return 0;
}

int mlx5dv_devx_subscribe_devx_event_fd(mlx5dv_devx_event_channel* event_channel_made, int fd, mlx5dv_devx_obj* obj,
                                        uint16_t event_num) {
    auto* const channel = static_cast<event_channel*>(event_channel_made);
    if (!usable(channel)) return EINVAL;
    devx_device& devx = *channel->devx;
    if (const auto f = fault_of(devx.dev, "mlx5dv_devx_subscribe_devx_event_fd"))
        return answer(*f, convention::positive_errno);
    const locked guard(devx.dev);
    if (const int wrong = check_subscription(channel, obj)) return wrong;
    if (!known_event(event_num)) return EINVAL;
    if (const int wrong = check_eventfd(fd)) return wrong;
    const int own = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0) return errno;
    channel->subscriptions.push_back({.object = obj, .event = event_num, .cookie = 0, .eventfd = own});
    return 0;
}

ssize_t mlx5dv_devx_get_event(mlx5dv_devx_event_channel* event_channel_made, mlx5dv_devx_async_event_hdr* event,
                              size_t event_bytes_wanted) {
    auto* const channel = static_cast<event_channel*>(event_channel_made);
    if (!usable(channel)) {
        errno = EBADF;
        return -1;
    }
    devx_device& devx = *channel->devx;
    if (const auto f = fault_of(devx.dev, "mlx5dv_devx_get_event")) return answer(*f, convention::minus_one_and_errno);
    {
        const locked guard(devx.dev);
        devx.dev.spend(devx.dev.control.choices.verb_time);
        // The loss is told first, even if there are events; it does not make the descriptor readable.
        if (std::exchange(channel->overflow, false)) {
            errno = EOVERFLOW;
            return -1;
        }
    }
    return channel->file.take(devx.dev.lock, event, event_bytes_wanted, EINVAL, [channel](std::size_t) {
        if (!channel->omit_data) return;
        channel->unread.front()->pending = false;
        channel->unread.pop_front();
    });
}

} // extern "C"
