#pragma once

#include "handout.hpp"
#include "verbs/states.hpp"
#include "wait_backend.hpp"

#include <verbena/async_event.hpp>
#include <verbena/detail/list.hpp>

#include <cstdint>
#include <memory>
#include <vector>

namespace verbena::detail {

class async_source;
class reactor_core;

/// The queue behind an `event_stream`. Reactor-bound.
class event_stream_core : public list_node, public std::enable_shared_from_this<event_stream_core> {
  public:
    explicit event_stream_core(std::shared_ptr<async_source> source) noexcept;

    std::uint64_t dropped() const noexcept { return dropped_; }
    bool on_thread() const noexcept;
    error misuse(const char* verb) const;

    void push(const async_event& event);
    void add_dropped(std::uint64_t count) noexcept { dropped_ += count; }
    /// Nothing comes any more. What waits is resumed, unless the reactor is gone.
    void end(errc cause) noexcept;
    void close() noexcept;

    // From the waits.
    handout<async_event>& events() noexcept { return events_; }
    bool ended() const noexcept { return ended_; }
    error end_error() const { return error(cause_, "event_stream::next"); }
    void wake_next() noexcept;

  private:
    std::shared_ptr<async_source> source_; ///< null once it is closed
    handout<async_event> events_;
    std::uint64_t dropped_ = 0;
    bool ended_ = false;
    errc cause_ = errc::closed;
};

/// One reactor's share in the asynchronous events of one context, as long as it has a queue attached or a stream. All
/// that share a context watch its descriptor: whoever wakes reads for all (`context_state::events_mutex`).
class async_source final : public watch, public std::enable_shared_from_this<async_source> {
  public:
    /// An event, resolved before it was acked. The element may be gone: nothing here is dereferenced.
    struct notice {
        async_event event;
        const void* identity; ///< the element's context pointer
        friend bool operator==(const notice&, const notice&) noexcept = default;
    };

    async_source(reactor_core& reactor, std::shared_ptr<context_state> context);
    ~async_source();

    const context_state& context() const noexcept { return *context_; }
    /// Null once the reactor is gone.
    reactor_core* reactor() const noexcept { return reactor_; }
    list<event_stream_core>& streams() noexcept { return streams_; }

    result<void> start(wait_backend& backend);
    void ready(unsigned events) noexcept override;
    /// Reacts to what others have read for this reactor. Resumes nobody. Also before a queue is attached, since what
    /// lies here may name one that had the same address.
    void serve() noexcept;
    void reactor_gone() noexcept;

  private:
    /// With `over`: the descriptor says that this was the last.
    void read(bool over) noexcept;
    void keep(const notice& n);
    void react(const notice& n) noexcept;
    void leave() noexcept;

    reactor_core* reactor_;
    std::shared_ptr<context_state> context_;
    list<event_stream_core> streams_;
    bool ended_ = false;
    std::vector<notice> served_; ///< was the mail, at the last look
    std::vector<notice> mail_;   ///< guarded by the context's mutex, as is
    std::uint64_t repeated_ = 0; ///< how many were not kept, since the mail is long and holds their like
};

} // namespace verbena::detail
