// SPDX-License-Identifier: GPL-2.0 OR MIT
// An RDMA device of DEVX alone, for the guest of test/vm/run: libmlx5 takes it for one of its own. Its commands need no
// firmware, and what becomes of them is said by the module's parameters; test/README.md lists them.

#include <linux/eventfd.h>
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/poll.h>
#include <linux/slab.h>
#include <linux/version.h>
#include <linux/workqueue.h>
#include <rdma/ib_verbs.h>
#include <rdma/mlx5-abi.h>
#include <rdma/mlx5_user_ioctl_cmds.h>
#include <rdma/mlx5_user_ioctl_verbs.h>
#include <rdma/uverbs_ioctl.h>
#include <rdma/uverbs_std_types.h>
#include <rdma/uverbs_types.h>

#define UVERBS_MODULE_NAME fdevx
#include <rdma/uverbs_named_ioctl.h>

enum { header_bytes = 16, event_bytes = 64, max_events = 16, close_seconds = 60 };

struct fdevx_context {
    struct ib_ucontext ib;
    bool devx;
};

struct kind {
    u16 create, modify, query, destroy;
    u32 query_id_at;
    bool general;
};
static const struct kind kinds[] = {
    {0xa00, 0xa01, 0xa02, 0xa03, 8, true}, // general objects
    {0x939, 0, 0x93b, 0x93a, 28, false},   // flow counters
    {0x800, 0, 0, 0x801, 8, false},        // protection domains
};
// Capabilities, adapter, ISSI, ports, NOP; those from 0xb00 to 0xcff need no object either.
static const u16 general_commands[] = {0x100, 0x101, 0x10a, 0x750, 0x754, 0x760, 0x762, 0x80d};

struct object {
    const struct kind* kind;
    u16 type;
    u32 id, modified;
};

struct outcome {
    bool lost;
    u8 status;
    u32 syndrome;
};

struct command_channel {
    struct ib_uobject uobject; // first: the core allocates both together
    wait_queue_head_t changed;
    struct list_head unread;
    u32 unread_count, in_flight;
    u64 bytes_in_use; // of output, in flight or unread
    bool dead;
};

// An asynchronous query, on one of three lists: held, delayed, or its channel's unread ones.
struct query {
    struct list_head list;
    struct command_channel* channel;
    unsigned long due;
    u32 outlen;
    bool throttled;
    struct mlx5_ib_uapi_devx_async_cmd_hdr response; // and its output
};

struct event_channel {
    struct ib_uobject uobject;
    wait_queue_head_t changed;
    struct list_head list, subscriptions, unread; // unread: events, or subscriptions if the data is omitted
    bool omit_data, overflow, dead;
};

#define ENDED (~0u)

struct subscription {
    struct list_head list, unread;
    u32 object; // by its id; 0: unaffiliated, ENDED: the object is gone
    u16 event;
    u64 cookie;
    struct eventfd_ctx* eventfd;
};

struct event {
    struct list_head list;
    struct {
        u64 cookie;
        u8 data[event_bytes];
    } packet;
};

// The lock guards all below; nothing here runs in an interrupt.
static DEFINE_SPINLOCK(lock);
static struct ib_device* device;
static bool removed;
static u32 last_id, throttled;
static LIST_HEAD(held);    // in the order of issue
static LIST_HEAD(delayed); // in the order of their ends
static LIST_HEAD(event_channels);
static struct {
    u64 calls, accepted, completed, cancelled, read, dropped;
} ledger;

static unsigned int delay_ms, lose, lose_events, shuffle, throttle = 16, window = 1 << 20;
static bool hold, old_kernel;
static struct {
    unsigned int status, syndrome, count;
} refusal;
module_param(delay_ms, uint, 0644);
module_param(lose, uint, 0644);
module_param(lose_events, uint, 0644);
module_param(shuffle, uint, 0644);
module_param(throttle, uint, 0644);
module_param(window, uint, 0644);
module_param(old_kernel, bool, 0644);

// ---- commands, in network order

// What lies behind the end is 0.
static u64 get(const u8* in, u32 size, u32 at, u32 bytes) {
    u64 value = 0;
    u32 i;

    for (i = at; i < at + bytes; ++i) value = value << 8 | (i < size ? in[i] : 0);
    return value;
}

static void put(u8* out, u32 size, u32 at, u64 value, u32 bytes) {
    u32 i;

    for (i = 0; i < bytes && at + i < size; ++i) out[at + i] = value >> 8 * (bytes - 1 - i);
}

static struct outcome next_outcome(void) {
    struct outcome o = {};

    lockdep_assert_held(&lock);
    if (refusal.count) {
        --refusal.count;
        o.status = refusal.status;
        o.syndrome = refusal.syndrome;
    } else if (lose) {
        --lose;
        o.lost = true;
    }
    return o;
}

static void answer_query(u8* out, u32 size, const struct outcome* o, const struct object* obj, u64 number) {
    u32 i;

    if (o->lost) return;
    put(out, size, 0, o->status, 1);
    put(out, size, 4, o->syndrome, 4);
    if (o->status) return;
    put(out, size, 8, obj->id, 4);
    put(out, size, 12, obj->modified, 4);
    put(out, size, 16, number, 8);
    for (i = 24; i < size; ++i) out[i] = number + i;
}

// The object's command is `opcode`, on this object, and for no other function of the device.
static bool fits(const struct object* obj, const u8* in, u32 size, u16 opcode, u32 id_at) {
    return opcode && get(in, size, 0, 2) == opcode && get(in, size, 4, 2) == 0 && get(in, size, id_at, 4) == obj->id &&
           (!obj->kind->general || get(in, size, 6, 2) == obj->type);
}

// As the driver: what the firmware refuses is -EREMOTEIO, with its outbox. Takes the next outcome; `obj` is queried,
// or else nothing but its id is answered if it is not null.
static int execute(struct uverbs_attr_bundle* attrs, u16 out_attr, const struct object* obj, bool query, u64 number) {
    const int size = uverbs_attr_get_len(attrs, out_attr);
    u8* const out = uverbs_zalloc(attrs, size);
    struct outcome o;
    int err;

    if (IS_ERR(out)) return PTR_ERR(out);
    spin_lock(&lock);
    o = next_outcome();
    spin_unlock(&lock);
    if (o.lost) return -ETIMEDOUT;
    if (query) {
        answer_query(out, size, &o, obj, number);
    } else {
        put(out, size, 0, o.status, 1);
        put(out, size, 4, o.syndrome, 4);
        if (obj && !o.status) put(out, size, 8, obj->id, 4);
    }
    err = uverbs_copy_to(attrs, out_attr, out, size);
    return err ?: (o.status ? -EREMOTEIO : 0);
}

// ---- asynchronous queries

// A position among the unread ones, drawn from `shuffle`, which is 0 or the state of a xorshift generator.
static struct list_head* position(struct command_channel* c) {
    struct list_head* at = &c->unread;
    u32 state = shuffle, back;

    if (!state) return at;
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    shuffle = state;
    for (back = state % (c->unread_count + 1); back; --back) at = at->prev;
    return at;
}

static void leave_flight(struct query* q) {
    list_del(&q->list);
    --q->channel->in_flight;
    if (q->throttled) --throttled;
}

static void complete_query(struct query* q) {
    struct command_channel* const c = q->channel;

    leave_flight(q);
    list_add_tail(&q->list, position(c));
    ++c->unread_count;
    ++ledger.completed;
    wake_up(&c->changed);
}

static void complete_delayed(struct work_struct* work);
static DECLARE_DELAYED_WORK(delayed_work, complete_delayed);

// The next end is awaited by one work item for all.
static void await_delayed(void) {
    struct query* const first = list_first_entry_or_null(&delayed, struct query, list);

    if (first) mod_delayed_work(system_wq, &delayed_work, time_after(first->due, jiffies) ? first->due - jiffies : 0);
}

static void complete_delayed(struct work_struct* work) {
    struct query *q, *next;

    spin_lock(&lock);
    list_for_each_entry_safe(q, next, &delayed, list) {
        if (time_after(q->due, jiffies)) break;
        complete_query(q);
    }
    await_delayed();
    spin_unlock(&lock);
}

static void delay_query(struct query* q) {
    struct query* before;

    q->due = jiffies + msecs_to_jiffies(delay_ms);
    list_for_each_entry_reverse(before, &delayed, list) {
        if (!time_after(before->due, q->due)) break;
    }
    list_add(&q->list, &before->list); // behind the head, if it is earlier than all
    await_delayed();
}

// Those of one channel, or all.
static void cancel_queries(struct list_head* list, struct command_channel* c) {
    struct query *q, *next;

    list_for_each_entry_safe(q, next, list, list) {
        if (c && q->channel != c) continue;
        leave_flight(q);
        wake_up(&q->channel->changed);
        ++ledger.cancelled;
        kvfree(q);
    }
}

static ssize_t command_channel_read(struct file* file, char __user* to, size_t size, loff_t* at) {
    struct command_channel* const c = file->private_data;
    struct query* q;
    ssize_t bytes;

    spin_lock(&lock);
    while (list_empty(&c->unread)) {
        const bool dead = c->dead;

        spin_unlock(&lock);
        if (file->f_flags & O_NONBLOCK) return -EAGAIN; // of a dead one, too: so does the driver
        if (dead) return -EIO;
        if (wait_event_interruptible(c->changed, !list_empty(&c->unread) || c->dead)) return -ERESTARTSYS;
        spin_lock(&lock);
    }
    q = list_first_entry(&c->unread, struct query, list);
    bytes = sizeof(q->response) + q->outlen;
    if (bytes > size) {
        spin_unlock(&lock);
        return -ENOSPC;
    }
    list_del(&q->list);
    --c->unread_count;
    c->bytes_in_use -= q->outlen;
    ++ledger.read;
    spin_unlock(&lock);
    if (copy_to_user(to, &q->response, bytes)) bytes = -EFAULT;
    kvfree(q);
    return bytes;
}

static __poll_t ready(bool readable, bool dead) {
    if (dead) return EPOLLIN | EPOLLRDNORM | EPOLLRDHUP;
    return readable ? EPOLLIN | EPOLLRDNORM : 0;
}

static __poll_t command_channel_poll(struct file* file, struct poll_table_struct* table) {
    struct command_channel* const c = file->private_data;
    __poll_t answer;

    poll_wait(file, &c->changed, table);
    spin_lock(&lock);
    answer = ready(!list_empty(&c->unread), c->dead);
    spin_unlock(&lock);
    return answer;
}

static const struct file_operations command_channel_operations = {
    .owner = THIS_MODULE,
    .read = command_channel_read,
    .poll = command_channel_poll,
    .release = uverbs_uobject_fd_release,
};

static int UVERBS_HANDLER(MLX5_IB_METHOD_DEVX_ASYNC_CMD_FD_ALLOC)(struct uverbs_attr_bundle* attrs) {
    struct command_channel* const c = container_of(
        uverbs_attr_get_uobject(attrs, MLX5_IB_ATTR_DEVX_ASYNC_CMD_FD_ALLOC_HANDLE), struct command_channel, uobject);

    init_waitqueue_head(&c->changed);
    INIT_LIST_HEAD(&c->unread);
    return 0;
}

// Waits for what is in flight, as the driver does, but no longer than the firmware has time for a command.
static void command_channel_destroy(struct ib_uobject* uobject, enum rdma_remove_reason why) {
    struct command_channel* const c = container_of(uobject, struct command_channel, uobject);
    struct query *q, *next;

    spin_lock(&lock);
    c->dead = true;
    wake_up(&c->changed);
    spin_unlock(&lock);
    wait_event_timeout(c->changed, !READ_ONCE(c->in_flight), close_seconds * HZ);
    spin_lock(&lock);
    cancel_queries(&held, c);
    cancel_queries(&delayed, c);
    list_for_each_entry_safe(q, next, &c->unread, list) {
        list_del(&q->list);
        ++ledger.dropped;
        kvfree(q);
    }
    spin_unlock(&lock);
}

// ---- objects

static bool has_devx(struct uverbs_attr_bundle* attrs) {
    // A method without an object has set no context yet.
    struct ib_ucontext* const c = ib_uverbs_get_ucontext(attrs);

    return !IS_ERR(c) && container_of(c, struct fdevx_context, ib)->devx;
}

static struct object* object_of(struct uverbs_attr_bundle* attrs, u16 attr) {
    return uverbs_attr_get_uobject(attrs, attr)->object;
}

static int UVERBS_HANDLER(MLX5_IB_METHOD_DEVX_OTHER)(struct uverbs_attr_bundle* attrs) {
    const u8* const in = uverbs_attr_get_alloced_ptr(attrs, MLX5_IB_ATTR_DEVX_OTHER_CMD_IN);
    const u16 opcode = get(in, header_bytes, 0, 2);
    bool known = opcode >= 0xb00 && opcode < 0xd00;
    size_t i;

    for (i = 0; i < ARRAY_SIZE(general_commands); ++i) known = known || general_commands[i] == opcode;
    if (!has_devx(attrs) || !known) return -EINVAL;
    return execute(attrs, MLX5_IB_ATTR_DEVX_OTHER_CMD_OUT, NULL, false, 0);
}

static int UVERBS_HANDLER(MLX5_IB_METHOD_DEVX_OBJ_CREATE)(struct uverbs_attr_bundle* attrs) {
    const u8* const in = uverbs_attr_get_alloced_ptr(attrs, MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_IN);
    struct ib_uobject* const uobject = uverbs_attr_get_uobject(attrs, MLX5_IB_ATTR_DEVX_OBJ_CREATE_HANDLE);
    const struct kind* kind = NULL;
    struct object* obj;
    size_t i;
    int err;

    for (i = 0; i < ARRAY_SIZE(kinds); ++i)
        if (kinds[i].create == get(in, header_bytes, 0, 2)) kind = &kinds[i];
    if (!has_devx(attrs) || !kind || get(in, header_bytes, 4, 2)) return -EINVAL;
    obj = kzalloc(sizeof(*obj), GFP_KERNEL);
    if (!obj) return -ENOMEM;
    obj->kind = kind;
    obj->type = kind->general ? get(in, header_bytes, 6, 2) : 0;
    spin_lock(&lock);
    obj->id = ++last_id;
    spin_unlock(&lock);
    err = execute(attrs, MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_OUT, obj, false, 0);
    if (err)
        kfree(obj);
    else
        uobject->object = obj;
    return err;
}

static int object_destroy(struct ib_uobject* uobject, enum rdma_remove_reason why, struct uverbs_attr_bundle* attrs) {
    struct object* const obj = uobject->object;
    struct event_channel* c;
    struct subscription* s;

    spin_lock(&lock);
    list_for_each_entry(c, &event_channels, list)
        list_for_each_entry(s, &c->subscriptions, list) if (s->object == obj->id) s->object = ENDED;
    spin_unlock(&lock);
    kfree(obj);
    return 0;
}

static int UVERBS_HANDLER(MLX5_IB_METHOD_DEVX_OBJ_QUERY)(struct uverbs_attr_bundle* attrs) {
    const struct object* const obj = object_of(attrs, MLX5_IB_ATTR_DEVX_OBJ_QUERY_HANDLE);
    const u8* const in = uverbs_attr_get_alloced_ptr(attrs, MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_IN);
    const u32 size = uverbs_attr_get_len(attrs, MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_IN);

    if (!has_devx(attrs) || !fits(obj, in, size, obj->kind->query, obj->kind->query_id_at)) return -EINVAL;
    return execute(attrs, MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_OUT, obj, true, get(in, size, 16, 8));
}

static int UVERBS_HANDLER(MLX5_IB_METHOD_DEVX_OBJ_MODIFY)(struct uverbs_attr_bundle* attrs) {
    struct object* const obj = object_of(attrs, MLX5_IB_ATTR_DEVX_OBJ_MODIFY_HANDLE);
    const u8* const in = uverbs_attr_get_alloced_ptr(attrs, MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_IN);
    const u32 size = uverbs_attr_get_len(attrs, MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_IN);
    int err;

    if (!has_devx(attrs) || !fits(obj, in, size, obj->kind->modify, 8)) return -EINVAL;
    err = execute(attrs, MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_OUT, NULL, false, 0);
    if (!err) ++obj->modified; // the core lets nobody else have the object
    return err;
}

// In the order of the driver's checks.
static int refusal_of(const struct command_channel* c, const struct object* obj, u16 outlen) {
    if (removed) return -EIO;
    if (c->bytes_in_use + outlen > window) return -EAGAIN;
    if (obj->kind->general && old_kernel) return -EINVAL;
    if (obj->kind->general && throttled >= throttle) return -EBUSY;
    return 0;
}

static int UVERBS_HANDLER(MLX5_IB_METHOD_DEVX_OBJ_ASYNC_QUERY)(struct uverbs_attr_bundle* attrs) {
    const struct object* const obj = object_of(attrs, MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_HANDLE);
    struct command_channel* const c = container_of(uverbs_attr_get_uobject(attrs, MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_FD),
                                                   struct command_channel, uobject);
    const u8* const in = uverbs_attr_get_alloced_ptr(attrs, MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_CMD_IN);
    const u32 size = uverbs_attr_get_len(attrs, MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_CMD_IN);
    struct outcome o;
    struct query* q;
    u16 outlen;
    int err;

    if (!has_devx(attrs) || !fits(obj, in, size, obj->kind->query, obj->kind->query_id_at)) return -EINVAL;
    err = uverbs_get_const(&outlen, attrs, MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_OUT_LEN);
    if (err) return err;
    q = kvzalloc(sizeof(*q) + outlen, GFP_KERNEL);
    if (!q) return -ENOMEM;
    q->channel = c;
    q->outlen = outlen;
    q->throttled = obj->kind->general;
    err = uverbs_copy_from(&q->response.wr_id, attrs, MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_WR_ID);
    if (err) {
        kvfree(q);
        return err;
    }
    spin_lock(&lock);
    ++ledger.calls;
    err = refusal_of(c, obj, outlen);
    if (!err) {
        ++ledger.accepted;
        c->bytes_in_use += outlen;
        ++c->in_flight;
        if (q->throttled) ++throttled;
        o = next_outcome();
        answer_query(q->response.out_data, outlen, &o, obj, get(in, size, 16, 8));
        if (hold) {
            list_add_tail(&q->list, &held);
        } else if (delay_ms) {
            delay_query(q);
        } else {
            INIT_LIST_HEAD(&q->list);
            complete_query(q);
        }
    }
    spin_unlock(&lock);
    if (err) kvfree(q);
    return err;
}

// ---- events

static ssize_t event_channel_read(struct file* file, char __user* to, size_t size, loff_t* at) {
    struct event_channel* const c = file->private_data;
    const size_t bytes = c->omit_data ? sizeof(u64) : sizeof(((struct event*)NULL)->packet);
    struct event* e = NULL;
    struct subscription* s;
    u64 cookie;
    int err;

    spin_lock(&lock);
    if (c->overflow) {
        c->overflow = false;
        spin_unlock(&lock);
        return -EOVERFLOW;
    }
    while (list_empty(&c->unread)) {
        const bool dead = c->dead;

        spin_unlock(&lock);
        if (file->f_flags & O_NONBLOCK) return -EAGAIN;
        if (dead) return -EIO;
        if (wait_event_interruptible(c->changed, !list_empty(&c->unread) || c->dead)) return -ERESTARTSYS;
        spin_lock(&lock);
    }
    if (size < bytes) {
        spin_unlock(&lock);
        return -EINVAL;
    }
    if (c->omit_data) {
        s = list_first_entry(&c->unread, struct subscription, unread);
        list_del_init(&s->unread);
        cookie = s->cookie;
    } else {
        e = list_first_entry(&c->unread, struct event, list);
        list_del(&e->list);
    }
    spin_unlock(&lock);
    err = copy_to_user(to, e ? (void*)&e->packet : (void*)&cookie, bytes);
    kfree(e);
    return err ? -EFAULT : bytes;
}

static __poll_t event_channel_poll(struct file* file, struct poll_table_struct* table) {
    struct event_channel* const c = file->private_data;
    __poll_t answer;

    poll_wait(file, &c->changed, table);
    spin_lock(&lock);
    answer = ready(!list_empty(&c->unread), c->dead); // an overflow alone does not show
    spin_unlock(&lock);
    return answer;
}

static const struct file_operations event_channel_operations = {
    .owner = THIS_MODULE,
    .read = event_channel_read,
    .poll = event_channel_poll,
    .release = uverbs_uobject_fd_release,
};

static int UVERBS_HANDLER(MLX5_IB_METHOD_DEVX_ASYNC_EVENT_FD_ALLOC)(struct uverbs_attr_bundle* attrs) {
    struct event_channel* const c = container_of(
        uverbs_attr_get_uobject(attrs, MLX5_IB_ATTR_DEVX_ASYNC_EVENT_FD_ALLOC_HANDLE), struct event_channel, uobject);
    u32 flags;
    const int err = uverbs_get_flags32(&flags, attrs, MLX5_IB_ATTR_DEVX_ASYNC_EVENT_FD_ALLOC_FLAGS,
                                       MLX5_IB_UAPI_DEVX_CR_EV_CH_FLAGS_OMIT_DATA);

    if (err) return err;
    init_waitqueue_head(&c->changed);
    INIT_LIST_HEAD(&c->subscriptions);
    INIT_LIST_HEAD(&c->unread);
    c->omit_data = flags & MLX5_IB_UAPI_DEVX_CR_EV_CH_FLAGS_OMIT_DATA;
    spin_lock(&lock);
    list_add_tail(&c->list, &event_channels);
    spin_unlock(&lock);
    return 0;
}

static void free_subscription(struct subscription* s) {
    if (s->eventfd) eventfd_ctx_put(s->eventfd);
    kfree(s);
}

static void event_channel_destroy(struct ib_uobject* uobject, enum rdma_remove_reason why) {
    struct event_channel* const c = container_of(uobject, struct event_channel, uobject);
    struct subscription *s, *next_s;
    struct event *e, *next_e;

    spin_lock(&lock);
    c->dead = true;
    list_del(&c->list);
    if (!c->omit_data) {
        list_for_each_entry_safe(e, next_e, &c->unread, list) kfree(e);
    }
    INIT_LIST_HEAD(&c->unread);
    wake_up(&c->changed);
    spin_unlock(&lock);
    list_for_each_entry_safe(s, next_s, &c->subscriptions, list) free_subscription(s);
}

// All of the list, or none.
static int UVERBS_HANDLER(MLX5_IB_METHOD_DEVX_SUBSCRIBE_EVENT)(struct uverbs_attr_bundle* attrs) {
    struct event_channel* const c = container_of(
        uverbs_attr_get_uobject(attrs, MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_FD_HANDLE), struct event_channel, uobject);
    const u16* const events = uverbs_attr_get_alloced_ptr(attrs, MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_TYPE_NUM_LIST);
    const int count =
        uverbs_attr_ptr_get_array_size(attrs, MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_TYPE_NUM_LIST, sizeof(u16));
    const bool redirected = uverbs_attr_is_valid(attrs, MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_FD_NUM);
    struct subscription *s, *next;
    u64 cookie = 0;
    u32 id = 0;
    LIST_HEAD(made);
    int err = 0, fd = -1, i;

    if (count < 0) return count;
    if (!has_devx(attrs) || count > max_events || (redirected && count > 1)) return -EINVAL;
    if (uverbs_attr_is_valid(attrs, MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_OBJ_HANDLE))
        id = object_of(attrs, MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_OBJ_HANDLE)->id;
    if (uverbs_attr_is_valid(attrs, MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_COOKIE))
        err = uverbs_copy_from(&cookie, attrs, MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_COOKIE);
    if (!err && redirected) err = uverbs_copy_from(&fd, attrs, MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_FD_NUM);
    for (i = 0; i < count && !err; ++i) {
        s = events[i] < 256 ? kzalloc(sizeof(*s), GFP_KERNEL) : NULL; // a byte of the event data
        if (!s) {
            err = events[i] < 256 ? -ENOMEM : -EINVAL;
            break;
        }
        s->object = id;
        s->event = events[i];
        s->cookie = cookie;
        INIT_LIST_HEAD(&s->unread);
        list_add_tail(&s->list, &made);
        if (!redirected) continue;
        s->eventfd = eventfd_ctx_fdget(fd);
        if (IS_ERR(s->eventfd)) {
            err = PTR_ERR(s->eventfd);
            s->eventfd = NULL;
        }
    }
    if (err) {
        list_for_each_entry_safe(s, next, &made, list) free_subscription(s);
        return err;
    }
    spin_lock(&lock);
    list_splice_tail(&made, &c->subscriptions);
    spin_unlock(&lock);
    return 0;
}

static void deliver(struct event_channel* c, struct subscription* s, u64 number) {
    struct event* e = NULL;

    if (s->eventfd) {
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 8, 0)
        eventfd_signal(s->eventfd);
#else
        eventfd_signal(s->eventfd, 1);
#endif
        return;
    }
    if (c->omit_data) {
        if (!list_empty(&s->unread)) return;
        list_add_tail(&s->unread, &c->unread);
    } else {
        if (lose_events)
            --lose_events;
        else
            e = kzalloc(sizeof(*e), GFP_ATOMIC);
        if (!e) {
            c->overflow = true;
            return;
        }
        e->packet.cookie = s->cookie;
        put(e->packet.data, event_bytes, 1, s->event, 1);
        put(e->packet.data, event_bytes, 28, s->object, 4);
        put(e->packet.data, event_bytes, 32, number, 8);
        list_add_tail(&e->list, &c->unread);
    }
    wake_up(&c->changed);
}

// ---- the parameters that do something when they are written

static int raise_set(const char* text, const struct kernel_param* parameter) {
    struct event_channel* c;
    struct subscription* s;
    unsigned int id, event;
    u64 number = 0;
    bool reached = false;

    if (sscanf(text, "%u %i %llu", &id, &event, &number) < 2) return -EINVAL;
    spin_lock(&lock);
    list_for_each_entry(c, &event_channels, list) {
        list_for_each_entry(s, &c->subscriptions, list) {
            if (s->object != id || s->event != event) continue;
            deliver(c, s, number);
            reached = true;
        }
    }
    spin_unlock(&lock);
    return reached ? 0 : -ENOENT;
}
static const struct kernel_param_ops raise_operations = {.set = raise_set};
module_param_cb(raise, &raise_operations, NULL, 0200);

static int hold_set(const char* text, const struct kernel_param* parameter) {
    struct query *q, *next;
    int err;

    spin_lock(&lock);
    err = param_set_bool(text, parameter);
    if (!err && !hold) list_for_each_entry_safe(q, next, &held, list) complete_query(q);
    spin_unlock(&lock);
    return err;
}
static const struct kernel_param_ops hold_operations = {.set = hold_set, .get = param_get_bool};
module_param_cb(hold, &hold_operations, &hold, 0644);

static int release_set(const char* text, const struct kernel_param* parameter) {
    struct query* q;
    u64 wr_id = 0;
    const bool oldest = sysfs_streq(text, "oldest");
    int err = oldest ? 0 : kstrtou64(text, 0, &wr_id);

    if (err) return err;
    err = -ENOENT;
    spin_lock(&lock);
    list_for_each_entry(q, &held, list) {
        if (!oldest && q->response.wr_id != wr_id) continue;
        complete_query(q);
        err = 0;
        break;
    }
    spin_unlock(&lock);
    return err;
}
static const struct kernel_param_ops release_operations = {.set = release_set};
module_param_cb(release, &release_operations, NULL, 0200);

static int refuse_set(const char* text, const struct kernel_param* parameter) {
    unsigned int status, syndrome, count = 1;

    if (sscanf(text, "%i %i %u", &status, &syndrome, &count) < 2 || !status || status > 255) return -EINVAL;
    spin_lock(&lock);
    refusal.status = status;
    refusal.syndrome = syndrome;
    refusal.count = count;
    spin_unlock(&lock);
    return 0;
}
static const struct kernel_param_ops refuse_operations = {.set = refuse_set};
module_param_cb(refuse, &refuse_operations, NULL, 0200);

static int ledger_get(char* text, const struct kernel_param* parameter) {
    int bytes;

    spin_lock(&lock);
    bytes = sprintf(text, "%llu %llu %llu %llu %llu %llu\n", ledger.calls, ledger.accepted, ledger.completed,
                    ledger.cancelled, ledger.read, ledger.dropped);
    spin_unlock(&lock);
    return bytes;
}
static const struct kernel_param_ops ledger_operations = {.get = ledger_get};
module_param_cb(ledger, &ledger_operations, NULL, 0444);

static void remove_device(void) {
    struct ib_device* gone;

    spin_lock(&lock);
    gone = device;
    device = NULL;
    removed = true;
    cancel_queries(&held, NULL);
    cancel_queries(&delayed, NULL);
    spin_unlock(&lock);
    if (!gone) return;
    ib_unregister_device(gone);
    ib_dealloc_device(gone);
}

// ---- the interface that libmlx5 knows

// clang-format off
#define OBJECT(attr, access) UVERBS_ATTR_IDR(attr, MLX5_IB_OBJECT_DEVX_OBJ, access, UA_MANDATORY)
#define COMMAND_CHANNEL(attr, access) UVERBS_ATTR_FD(attr, MLX5_IB_OBJECT_DEVX_ASYNC_CMD_FD, access, UA_MANDATORY)
#define EVENT_CHANNEL(attr, access) UVERBS_ATTR_FD(attr, MLX5_IB_OBJECT_DEVX_ASYNC_EVENT_FD, access, UA_MANDATORY)
#define INBOX(attr) UVERBS_ATTR_PTR_IN(attr, UVERBS_ATTR_MIN_SIZE(header_bytes), UA_MANDATORY, UA_ALLOC_AND_COPY)
#define OUTBOX(attr) UVERBS_ATTR_PTR_OUT(attr, UVERBS_ATTR_MIN_SIZE(header_bytes), UA_MANDATORY)

DECLARE_UVERBS_NAMED_METHOD(MLX5_IB_METHOD_DEVX_OTHER,
    INBOX(MLX5_IB_ATTR_DEVX_OTHER_CMD_IN),
    OUTBOX(MLX5_IB_ATTR_DEVX_OTHER_CMD_OUT));
DECLARE_UVERBS_NAMED_METHOD(MLX5_IB_METHOD_DEVX_SUBSCRIBE_EVENT,
    EVENT_CHANNEL(MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_FD_HANDLE, UVERBS_ACCESS_READ),
    UVERBS_ATTR_IDR(MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_OBJ_HANDLE, MLX5_IB_OBJECT_DEVX_OBJ, UVERBS_ACCESS_READ,
                    UA_OPTIONAL),
    UVERBS_ATTR_PTR_IN(MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_TYPE_NUM_LIST, UVERBS_ATTR_MIN_SIZE(sizeof(u16)),
                       UA_MANDATORY, UA_ALLOC_AND_COPY),
    UVERBS_ATTR_PTR_IN(MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_COOKIE, UVERBS_ATTR_TYPE(u64), UA_OPTIONAL),
    UVERBS_ATTR_PTR_IN(MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_FD_NUM, UVERBS_ATTR_TYPE(u32), UA_OPTIONAL));
DECLARE_UVERBS_GLOBAL_METHODS(MLX5_IB_OBJECT_DEVX,
    &UVERBS_METHOD(MLX5_IB_METHOD_DEVX_OTHER),
    &UVERBS_METHOD(MLX5_IB_METHOD_DEVX_SUBSCRIBE_EVENT));

DECLARE_UVERBS_NAMED_METHOD(MLX5_IB_METHOD_DEVX_OBJ_CREATE,
    OBJECT(MLX5_IB_ATTR_DEVX_OBJ_CREATE_HANDLE, UVERBS_ACCESS_NEW),
    INBOX(MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_IN),
    OUTBOX(MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_OUT));
DECLARE_UVERBS_NAMED_METHOD_DESTROY(MLX5_IB_METHOD_DEVX_OBJ_DESTROY,
    OBJECT(MLX5_IB_ATTR_DEVX_OBJ_DESTROY_HANDLE, UVERBS_ACCESS_DESTROY));
DECLARE_UVERBS_NAMED_METHOD(MLX5_IB_METHOD_DEVX_OBJ_MODIFY,
    OBJECT(MLX5_IB_ATTR_DEVX_OBJ_MODIFY_HANDLE, UVERBS_ACCESS_WRITE),
    INBOX(MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_IN),
    OUTBOX(MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_OUT));
DECLARE_UVERBS_NAMED_METHOD(MLX5_IB_METHOD_DEVX_OBJ_QUERY,
    OBJECT(MLX5_IB_ATTR_DEVX_OBJ_QUERY_HANDLE, UVERBS_ACCESS_READ),
    INBOX(MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_IN),
    OUTBOX(MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_OUT));
DECLARE_UVERBS_NAMED_METHOD(MLX5_IB_METHOD_DEVX_OBJ_ASYNC_QUERY,
    OBJECT(MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_HANDLE, UVERBS_ACCESS_READ),
    INBOX(MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_CMD_IN),
    UVERBS_ATTR_CONST_IN(MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_OUT_LEN, u16, UA_MANDATORY),
    COMMAND_CHANNEL(MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_FD, UVERBS_ACCESS_READ),
    UVERBS_ATTR_PTR_IN(MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_WR_ID, UVERBS_ATTR_TYPE(u64), UA_MANDATORY));
DECLARE_UVERBS_NAMED_OBJECT(MLX5_IB_OBJECT_DEVX_OBJ,
    UVERBS_TYPE_ALLOC_IDR(object_destroy),
    &UVERBS_METHOD(MLX5_IB_METHOD_DEVX_OBJ_CREATE),
    &UVERBS_METHOD(MLX5_IB_METHOD_DEVX_OBJ_DESTROY),
    &UVERBS_METHOD(MLX5_IB_METHOD_DEVX_OBJ_MODIFY),
    &UVERBS_METHOD(MLX5_IB_METHOD_DEVX_OBJ_QUERY),
    &UVERBS_METHOD(MLX5_IB_METHOD_DEVX_OBJ_ASYNC_QUERY));

DECLARE_UVERBS_NAMED_METHOD(MLX5_IB_METHOD_DEVX_ASYNC_CMD_FD_ALLOC,
    COMMAND_CHANNEL(MLX5_IB_ATTR_DEVX_ASYNC_CMD_FD_ALLOC_HANDLE, UVERBS_ACCESS_NEW));
DECLARE_UVERBS_NAMED_OBJECT(MLX5_IB_OBJECT_DEVX_ASYNC_CMD_FD,
    UVERBS_TYPE_ALLOC_FD(sizeof(struct command_channel), command_channel_destroy, &command_channel_operations,
                         "[devx_async_cmd]", O_RDONLY),
    &UVERBS_METHOD(MLX5_IB_METHOD_DEVX_ASYNC_CMD_FD_ALLOC));

DECLARE_UVERBS_NAMED_METHOD(MLX5_IB_METHOD_DEVX_ASYNC_EVENT_FD_ALLOC,
    EVENT_CHANNEL(MLX5_IB_ATTR_DEVX_ASYNC_EVENT_FD_ALLOC_HANDLE, UVERBS_ACCESS_NEW),
    UVERBS_ATTR_FLAGS_IN(MLX5_IB_ATTR_DEVX_ASYNC_EVENT_FD_ALLOC_FLAGS,
                         enum mlx5_ib_uapi_devx_create_event_channel_flags, UA_MANDATORY));
DECLARE_UVERBS_NAMED_OBJECT(MLX5_IB_OBJECT_DEVX_ASYNC_EVENT_FD,
    UVERBS_TYPE_ALLOC_FD(sizeof(struct event_channel), event_channel_destroy, &event_channel_operations,
                         "[devx_async_event]", O_RDONLY),
    &UVERBS_METHOD(MLX5_IB_METHOD_DEVX_ASYNC_EVENT_FD_ALLOC));

static const struct uapi_definition definitions[] = {
    UAPI_DEF_CHAIN_OBJ_TREE_NAMED(MLX5_IB_OBJECT_DEVX),
    UAPI_DEF_CHAIN_OBJ_TREE_NAMED(MLX5_IB_OBJECT_DEVX_OBJ),
    UAPI_DEF_CHAIN_OBJ_TREE_NAMED(MLX5_IB_OBJECT_DEVX_ASYNC_CMD_FD),
    UAPI_DEF_CHAIN_OBJ_TREE_NAMED(MLX5_IB_OBJECT_DEVX_ASYNC_EVENT_FD),
    {},
};
// clang-format on

static int query_device(struct ib_device* ib, struct ib_device_attr* attr, struct ib_udata* udata) {
    memset(attr, 0, sizeof(*attr));
    attr->max_pd = 1024;
    return 0;
}

static int query_port(struct ib_device* ib, u32 port, struct ib_port_attr* attr) {
    attr->state = IB_PORT_ACTIVE;
    attr->phys_state = IB_PORT_PHYS_STATE_LINK_UP;
    attr->max_mtu = attr->active_mtu = IB_MTU_1024;
    attr->active_width = IB_WIDTH_1X;
    attr->active_speed = IB_SPEED_SDR;
    attr->gid_tbl_len = attr->pkey_tbl_len = 1;
    return 0;
}

// A port of raw packets: the core starts no connection manager and no management on it.
static int get_port_immutable(struct ib_device* ib, u32 port, struct ib_port_immutable* immutable) {
    immutable->core_cap_flags = RDMA_CORE_CAP_PROT_RAW_PACKET;
    immutable->gid_tbl_len = immutable->pkey_tbl_len = 1;
    return 0;
}

static enum rdma_link_layer get_link_layer(struct ib_device* ib, u32 port) { return IB_LINK_LAYER_ETHERNET; }

static int query_gid(struct ib_device* ib, u32 port, int index, union ib_gid* gid) {
    memset(gid, 0, sizeof(*gid));
    return 0;
}

static int query_pkey(struct ib_device* ib, u32 port, u16 index, u16* pkey) {
    *pkey = 0xffff;
    return 0;
}

static int alloc_pd(struct ib_pd* pd, struct ib_udata* udata) {
    struct mlx5_ib_alloc_pd_resp response = {.pdn = 1};

    return udata ? ib_copy_to_udata(udata, &response, min(sizeof(response), udata->outlen)) : 0;
}

static int dealloc_pd(struct ib_pd* pd, struct ib_udata* udata) { return 0; }

static int alloc_ucontext(struct ib_ucontext* context, struct ib_udata* udata) {
    struct mlx5_ib_alloc_ucontext_req_v2 request = {};
    struct mlx5_ib_alloc_ucontext_resp response = {
        .qp_tab_size = 1024,
        .bf_reg_size = 512,
        .tot_bfregs = 0, // then the library maps no doorbells
        .cache_line_size = 64,
        .max_sq_desc_sz = 1024,
        .max_rq_desc_sz = 512,
        .max_send_wqebb = 32768,
        .max_recv_wr = 32768,
        .max_srq_recv_wr = 32768,
        .num_ports = 1,
        .cqe_version = 1,
        .log_uar_size = PAGE_SHIFT,
        .num_uars_per_page = 1,
    };
    const int err = ib_copy_from_udata(&request, udata, min(sizeof(request), udata->inlen));

    if (err) return err;
    container_of(context, struct fdevx_context, ib)->devx = request.flags & MLX5_IB_ALLOC_UCTX_DEVX;
    response.response_length = min(sizeof(response), udata->outlen);
    return ib_copy_to_udata(udata, &response, response.response_length);
}

// What is left of a context to free is nothing; that the second one is there allows a removal in use.
static void dealloc_ucontext(struct ib_ucontext* context) {}
static void disassociate_ucontext(struct ib_ucontext* context) {}

static int no_mmap(struct ib_ucontext* context, struct vm_area_struct* area) { return -EINVAL; }

static const struct ib_device_ops operations = {
    .owner = THIS_MODULE,
    .driver_id = RDMA_DRIVER_MLX5,
    .uverbs_abi_ver = MLX5_IB_UVERBS_ABI_VERSION,
    .query_device = query_device,
    .query_port = query_port,
    .get_port_immutable = get_port_immutable,
    .get_link_layer = get_link_layer,
    .query_gid = query_gid,
    .query_pkey = query_pkey,
    .alloc_pd = alloc_pd,
    .dealloc_pd = dealloc_pd,
    .alloc_ucontext = alloc_ucontext,
    .dealloc_ucontext = dealloc_ucontext,
    .disassociate_ucontext = disassociate_ucontext,
    .mmap = no_mmap,
    INIT_RDMA_OBJ_SIZE(ib_ucontext, fdevx_context, ib),
    .size_ib_pd = sizeof(struct ib_pd),
};

struct fdevx {
    struct ib_device ib;
};

static int insert_device(void) {
    struct fdevx* made;
    int err;

    if (device) return 0;
    made = ib_alloc_device(fdevx, ib);
    if (!made) return -ENOMEM;
    ib_set_device_ops(&made->ib, &operations);
    made->ib.node_type = RDMA_NODE_IB_CA;
    made->ib.phys_port_cnt = 1;
    made->ib.num_comp_vectors = 1;
    made->ib.node_guid = cpu_to_be64(0x0200000000000002);
    made->ib.driver_def = definitions;
    removed = false; // no command of the old device runs any more
    err = ib_register_device(&made->ib, "fdevx%d", NULL);
    if (err)
        ib_dealloc_device(&made->ib);
    else
        device = &made->ib;
    return err;
}

// The core lets one parameter of a module be written at a time.
static int remove_set(const char* text, const struct kernel_param* parameter) {
    remove_device();
    return 0;
}
static const struct kernel_param_ops remove_operations = {.set = remove_set};
module_param_cb(remove, &remove_operations, NULL, 0200);

static int insert_set(const char* text, const struct kernel_param* parameter) { return insert_device(); }
static const struct kernel_param_ops insert_operations = {.set = insert_set};
module_param_cb(insert, &insert_operations, NULL, 0200);

static int __init start(void) { return insert_device(); }

static void __exit end(void) {
    remove_device();
    cancel_delayed_work_sync(&delayed_work);
}

module_init(start);
module_exit(end);
MODULE_DESCRIPTION("A device of mlx5's DEVX interface without hardware, for tests");
MODULE_LICENSE("Dual MIT/GPL");
