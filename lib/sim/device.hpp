#pragma once

// One device and what programs create on it. Every object begins with its libibverbs counterpart, so that a pointer to
// one is a pointer to the other. A destroyed object rests in its device's graveyard with its magic number gone: a
// program that uses it once more gets an error instead of a crash.

#include "abi.hpp"
#include "event_file.hpp"
#include "hooks.hpp"
#include "keys.hpp"
#include "lock.hpp"
#include "queue.hpp"
#include "scheduler.hpp"

#include <verbena/sim/control.hpp>

#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

namespace verbena::sim {

struct device;
struct open_context;

constexpr std::uint32_t alive = 0x51a11fe5;
constexpr std::uint32_t dead = 0xdeadc0de;

constexpr int gid_count = 2;
constexpr std::uint32_t max_message = 1U << 31;
constexpr int comp_vectors = 2;

// ---- objects

struct domain : ibv_pd {
    std::uint32_t magic;
    std::uint32_t users; ///< regions, queue pairs, shared receive queues, address handles
};

struct address : ibv_ah {
    std::uint32_t magic;
    ibv_ah_attr attributes;
};

struct channel : ibv_comp_channel {
    std::uint32_t magic;
    std::unique_ptr<event_file> events = std::make_unique<event_file>(sizeof(std::uint64_t));
};

/// Behind its `ibv_cq` is the rest of an `ibv_cq_ex`, of which `start_poll` alone is there: it answers EOPNOTSUPP.
struct completion_queue : ibv_cq {
    std::array<std::byte, sizeof(ibv_cq_ex) - sizeof(ibv_cq)> extension{};
    std::uint32_t magic;
    device* dev;
    completion_ring ring;

    enum class arm_state : std::uint8_t { off, solicited, next };
    arm_state arm = arm_state::off;
    bool overrun = false; ///< mlx5: takes nothing more
    bool held = false;
    std::uint32_t users = 0; ///< queue pairs, each counted once per direction

    /// mlx5: the arm names the number of events taken; the device ignores one that repeats the number of its last
    /// event.
    std::uint32_t taken_events = 0;
    std::uint32_t fired_at = ~0U;

    std::uint32_t generated_events = 0; ///< those unread at the destruction are taken off again
    std::uint32_t generated_async = 0;
    std::vector<scheduler::id> events_on_way; ///< seeded

    // What the control wants.
    std::uint32_t events_to_drop = 0;
    std::uint32_t events_to_double = 0;
    std::optional<std::uint32_t> poll_failure; ///< entries consumed by the failing poll
};

struct shared_queue : ibv_srq {
    std::uint32_t magic;
    device* dev;
    receive_queue receives;
    std::uint32_t limit = 0;
    std::uint32_t users = 0;
    std::uint32_t generated_async = 0;
};

enum class obstacle : std::uint8_t { none, no_receive, no_answer };

struct queue_pair : ibv_qp {
    std::uint32_t magic;
    device* dev;
    domain* pd_state;
    completion_queue* send_queue_cq;
    completion_queue* recv_queue_cq;
    shared_queue* shared;
    receive_queue* receive_from; ///< its own, or the shared one
    send_queue sends;
    receive_queue receives;
    ibv_qp_init_attr init;
    ibv_qp_attr attr; ///< what was set
    bool all_signaled;
    bool mute = false;        ///< its device was removed
    bool reachable;           ///< the destination's GID is this fabric's
    bool own_failure = false; ///< it came into ERR by itself

    std::uint32_t next_psn = 0;     ///< of the next request
    std::uint32_t expected_psn = 0; ///< of the next message
    unsigned mtu_shift = 12;

    obstacle blocked = obstacle::none;
    receive_queue* waits_for = nullptr; ///< with `no_receive`
    scheduler::id deadline;
    scheduler::id run;                              ///< seeded: its next execution
    std::array<scheduler::time, 2> last_delivery{}; ///< seeded: sends, receives; completions of one queue stay in order

    std::optional<std::uint32_t> flush_budget; ///< flushes that the control still allows
    std::uint32_t generated_async = 0;
};

/// Memory that the device writes when a completion is delivered, and not before.
struct late_write {
    std::vector<ibv_sge> slices;
    std::vector<std::byte> bytes;
};

struct pending_completion {
    std::uint64_t id;
    completion_queue* cq;
    completion entry;
    late_write late;
    bool held;
    scheduler::id delivery;
};

// ---- contexts and the device

struct async_record {
    std::uint64_t element;
    std::uint32_t type;
    std::uint32_t reserved;
};

struct open_context : verbs_context {
    std::uint32_t magic;
    device* dev;
    bool removed = false; ///< the device was removed under it
    std::unique_ptr<event_file> async = std::make_unique<event_file>(sizeof(async_record));
    std::vector<channel*> channels;
    std::vector<queue_pair*> pairs;
    std::vector<completion_queue*> queues;
    std::vector<std::function<void()>> on_remove; ///< called with the lock held
    std::vector<std::function<void()>> on_close;  ///< called without
};

struct device_entry : ibv_device {
    device* dev;
};

/// What differs between providers. The numbers are those of facts B and D.
struct traits {
    sim::character character;
    const char* firmware;
    std::uint32_t vendor_id;
    std::uint32_t vendor_part_id;
    int max_cqe;
    int max_qp_wr;
    int max_sge;
    int max_srq_wr;
    std::uint32_t max_inline;
    ibv_cq_moderation_caps moderation;
};

struct device {
    device(const char* name, const traits& t, std::uint32_t index);

    device_entry entry{};
    traits kind;
    std::array<ibv_gid, gid_count> gids{};
    std::uint64_t guid; ///< in network order

    spin_lock lock; ///< guards all below and all objects
    scheduler later{lock};
    hooks control;
    std::uint64_t calls = 0;       ///< of `fault_of`
    std::atomic<bool> slow{false}; ///< any control is in use; the fast path looks at nothing else
    bool listed = true;

    number_table<region> regions{24, 8, 0};
    number_table<queue_pair> pairs{16, 0, 16};
    std::list<open_context*> contexts;
    std::vector<queue_pair*> blocked;      ///< in the order in which they met their obstacle
    std::list<pending_completion> pending; ///< held or scheduled, in the order of execution
    std::uint64_t last_pending = 0;
    std::vector<completion_queue*> overrun_queues; ///< to be dealt with when the running verb ends
    std::vector<queue_pair*> broken_pairs;         ///< likewise
    bool unsettled = false;                        ///< one of the two is not empty
    std::uint32_t last_handle = 0;
    ledger counts;

    // The dead. Bounded, so that long runs do not eat the memory.
    std::deque<std::function<void()>> graveyard;

    bool is_mlx5() const noexcept { return kind.character == character::mlx5; }
    void bury(std::function<void()> free_it);

    // transfer.cpp
    void advance(queue_pair& qp);   ///< executes what can be executed
    void schedule(queue_pair& qp);  ///< the same; seeded, later
    void fail_pair(queue_pair& qp); ///< to ERR by itself
    void enter_error(queue_pair& qp);
    void retry_blocked(std::uint32_t destination); ///< the state of that queue pair has changed
    void receive_posted(receive_queue& queue);
    void clear(queue_pair& qp); ///< RESET or destruction: purges everything of it
    void settle();              ///< deals with overruns and broken pairs; every verb and every action ends with it
    /// An action of the device, later.
    template <class F>
    scheduler::id act(std::chrono::nanoseconds delay, F f) {
        return later.add(delay, [this, f] {
            f();
            settle();
        });
    }

    // completion.cpp
    bool delayed(const completion_queue& cq) const noexcept {
        return slow && (cq.held || control.hold_all || control.seeded);
    }
    void complete(completion_queue& cq, const completion& c, late_write* late = nullptr);
    void delay(completion_queue& cq, const completion& c, late_write* late);
    const region* written_by(const ibv_sge& slice) const noexcept;
    void write(late_write& late) noexcept;
    void send_event(completion_queue& cq);
    void deliver(std::list<pending_completion>::iterator at);
    void push(completion_queue& cq, const completion& c);
    void notify(completion_queue& cq);
    void retire(const completion& c) noexcept;
    std::size_t release_pending(completion_queue* cq); ///< nullptr: of all

    // device.cpp
    void spend(std::chrono::nanoseconds time); ///< seeded: a verb takes time
    /// The unread events of an object that is destroyed.
    void forget_async(ibv_context* context, std::uint64_t element, std::uint32_t& generated);
    void raise(ibv_event_type type, ibv_context* context, void* element, std::uint32_t& generated);
    void remove();
};

/// All devices of the process, made once and never destroyed. VERBENA_SIM_DEVICES, a list of names, chooses.
std::vector<device*>& all_devices();

// ---- from the ABI to the objects

inline open_context* state_of(ibv_context* c) noexcept {
    return static_cast<open_context*>(
        reinterpret_cast<verbs_context*>(reinterpret_cast<std::byte*>(c) - offsetof(verbs_context, context)));
}
inline device& device_of(ibv_context* c) noexcept { return *state_of(c)->dev; }

/// What a program put into an enumeration, without the promise that it is one of its values.
template <class Enumeration>
unsigned number_of(const Enumeration& e) noexcept {
    unsigned number;
    static_assert(sizeof number == sizeof e);
    std::memcpy(&number, &e, sizeof number);
    return number;
}

template <class Object>
bool usable(Object* o) noexcept {
    return o != nullptr && o->magic == alive;
}
/// Whether commands reach the device: not after its removal, not on a closed context.
inline bool answers(const open_context& c) noexcept { return c.magic == alive && !c.removed; }

template <class T>
T* fail_with(int code) noexcept {
    errno = code;
    return nullptr;
}

/// The device's lock; what the verb left to be settled is settled before it is given back.
class locked {
  public:
    explicit locked(device& d) noexcept : device_(d) { device_.lock.lock(); }
    locked(const locked&) = delete;
    locked& operator=(const locked&) = delete;
    ~locked() {
        if (device_.unsettled) [[unlikely]]
            device_.settle();
        device_.lock.unlock();
    }

  private:
    device& device_;
};

} // namespace verbena::sim
