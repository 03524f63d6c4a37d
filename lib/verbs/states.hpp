#pragma once

// What the public handles share. Every state owns one verbs object and keeps the parents it needs alive, so that no
// order of destruction can be wrong.

#include "../process.hpp"

#include <verbena/result.hpp>
#include <verbena/verbs/buffer_pool.hpp>
#include <verbena/verbs/completion.hpp>

#include <infiniband/verbs.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace verbena::detail {

class async_source;
class reactor_core;
class receiver_core;

/// Names an object in its verbs object's context pointer, and never another one of this process.
inline void* fresh_identity() noexcept {
    static std::atomic<std::uintptr_t> last{0};
    return reinterpret_cast<void*>(++last);
}

struct context_state {
    const process_mark process;    ///< of all that is made on it
    ibv_context* native = nullptr; ///< its async_fd is non-blocking
    ibv_device_attr attributes{};
    std::string name;

    std::atomic<bool> lost{false}; ///< the device is gone: no event is fetched any more
    std::mutex events_mutex;       ///< guards the reading of events, the list below, and the mail of who is in it
    std::vector<async_source*> event_sources; ///< of all reactors

    context_state() = default;
    context_state(const context_state&) = delete;
    context_state& operator=(const context_state&) = delete;
    ~context_state();

    /// Makes a call that may block on a thread of its own, which ends before the device is closed.
    void run_aside(std::function<void()> call);

  private:
    struct aside {
        std::function<void()> call;
        std::atomic<bool> ended{false};
        std::thread thread; ///< not joinable: there was none to be had
    };
    std::mutex aside_mutex_; ///< guards
    std::list<aside> aside_;
};

using device_opener = ibv_context* (*)(ibv_device*);
/// By name; `verb` is what the opener calls.
result<context> open_context(std::string_view name, const char* verb, device_opener open);

struct protection_domain_state {
    std::shared_ptr<context_state> context;
    ibv_pd* native = nullptr;

    protection_domain_state() = default;
    protection_domain_state(const protection_domain_state&) = delete;
    protection_domain_state& operator=(const protection_domain_state&) = delete;
    ~protection_domain_state();
};

struct memory_region_state {
    std::shared_ptr<protection_domain_state> domain;
    ibv_mr* native = nullptr;
    std::byte* begin = nullptr;
    std::size_t bytes = 0;
    void* owned = nullptr; ///< freed after the deregistration

    memory_region_state() = default;
    memory_region_state(const memory_region_state&) = delete;
    memory_region_state& operator=(const memory_region_state&) = delete;
    ~memory_region_state();
};

/// Counted by hand, without atomics, since pool and buffers belong to one thread.
struct buffer_pool_state {
    memory_region region;
    std::uint32_t buffer_bytes = 0;
    std::size_t stride = 0;
    std::size_t count = 0;
    std::vector<std::uint32_t> free; ///< a stack: the buffer used last is the one in the cache
    std::size_t references = 1;      ///< the pool and every buffer that is out
};

struct completion_channel_state {
    std::shared_ptr<context_state> context;
    ibv_comp_channel* native = nullptr;      ///< its fd is non-blocking
    std::atomic<const void*> owner{nullptr}; ///< the reactor it belongs to

    completion_channel_state() = default;
    completion_channel_state(const completion_channel_state&) = delete;
    completion_channel_state& operator=(const completion_channel_state&) = delete;
    ~completion_channel_state();
};

/// What a reactor puts on a queue attached to it. The two resize hooks are called on the reactor's thread with the
/// queue's mutex held.
class cq_attachment {
  public:
    virtual bool on_reactor_thread() const noexcept = 0;
    /// Take and ack what events are pending.
    virtual void about_to_resize() noexcept = 0;
    /// Resized or not: forget the arm, poll again.
    virtual void resized() noexcept = 0;

  protected:
    ~cq_attachment() = default;
};

struct completion_queue_state {
    const process_mark process;
    std::shared_ptr<context_state> context;
    std::shared_ptr<completion_channel_state> channel; ///< may be null
    ibv_cq* native = nullptr;                          ///< its cq_context is this state
    std::uint32_t min_capacity = 0;
    std::atomic<std::uint32_t> capacity{0};          ///< native->cqe, which a resize writes while others read
    std::atomic<bool> failed{false};                 ///< ibv_poll_cq has answered less than 0
    std::atomic<cq_attachment*> attachment{nullptr}; ///< nullptr: polled by hand

    std::mutex mutex;           ///< guards `reserved`, and one resize at a time
    std::uint32_t reserved = 0; ///< entries promised to queue pairs and shared receive queues
    // The thread of the reactor that has the channel owns these.
    std::uint32_t unacked_events = 0; ///< got, not yet acked
    bool owes_event = false;          ///< of an arm that was forgotten; a detach does not disarm the queue

    completion_queue_state() = default;
    completion_queue_state(const completion_queue_state&) = delete;
    completion_queue_state& operator=(const completion_queue_state&) = delete;
    ~completion_queue_state();

    /// Grows the queue where the device can. errc::resource, naming the sizes, where it cannot; errc::wrong_thread when
    /// attached and called elsewhere.
    result<void> reserve(std::uint32_t entries);
    void release(std::uint32_t entries) noexcept;
    /// errc::in_use below `reserved`; EINVAL by the device below the unpolled entries.
    result<void> resize(std::size_t entries);

  private:
    result<void> check_thread() const;
    result<void> resize_locked(std::size_t entries);
};

struct shared_receive_queue_state {
    std::shared_ptr<protection_domain_state> domain;
    ibv_srq* native = nullptr;
    std::uint32_t max_wr = 0;          ///< asked for, not granted
    std::uint32_t max_sge = 0;         ///< asked for, not granted
    receiver_core* receiver = nullptr; ///< the only one that posts; the queue keeps its buffers
    const reactor_core* reactor = nullptr;
    /// Its depth is reserved once in each receive completion queue, however many queue pairs share that.
    std::vector<std::pair<std::shared_ptr<completion_queue_state>, std::size_t>> users;

    /// A queue pair that receives into `queue` came or went.
    result<void> join(const std::shared_ptr<completion_queue_state>& queue);
    void leave(const completion_queue_state& queue) noexcept;
    /// Whether all its receive completion queues are attached to this reactor.
    bool belongs_to(const reactor_core& candidate) const noexcept;

    shared_receive_queue_state() = default;
    shared_receive_queue_state(const shared_receive_queue_state&) = delete;
    shared_receive_queue_state& operator=(const shared_receive_queue_state&) = delete;
    ~shared_receive_queue_state();
};

struct address_handle_state {
    std::shared_ptr<protection_domain_state> domain;
    ibv_ah* native = nullptr;

    address_handle_state() = default;
    address_handle_state(const address_handle_state&) = delete;
    address_handle_state& operator=(const address_handle_state&) = delete;
    ~address_handle_state();
};

/// The way from a public handle to its state and back.
struct access {
    template <class Handle>
    static const auto& state(const Handle& handle) noexcept {
        return handle.state_;
    }
    template <class Handle, class State>
    static Handle make(std::shared_ptr<State> state) noexcept {
        return Handle(std::move(state));
    }
    /// Takes the duty to call `release_pool_buffer` from the buffer.
    static pool_token release(pool_buffer&& buffer) noexcept { return buffer.release(); }
    /// For tests: with a clock and a backend of their own.
    template <class Reactor, class Core>
    static Reactor make_reactor(std::unique_ptr<Core> core) {
        return Reactor(std::move(core));
    }
    template <class Handle>
    static auto* core(const Handle& handle) noexcept {
        return handle.core_.get();
    }
};

inline ibv_wc* native(poll_slot* slots) noexcept { return reinterpret_cast<ibv_wc*>(slots); }
inline ibv_sge* native(memory_slice* slices) noexcept { return reinterpret_cast<ibv_sge*>(slices); }

} // namespace verbena::detail
