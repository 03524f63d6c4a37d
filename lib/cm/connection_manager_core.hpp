#pragma once

#include "../check.hpp"
#include "../process.hpp"
#include "../source.hpp"

#include <verbena/cm/connection_manager.hpp>
#include <verbena/detail/list.hpp>

#include <rdma/rdma_cma.h>

#include <memory>
#include <mutex>

namespace verbena::detail {

class connection_manager_core;
class reactor_core;

inline error empty_handle(const char* verb) { return error(errc::invalid_argument, verb).with_note("an empty handle"); }
/// Of the library, which answers -1 and `errno`.
template <class... Arguments, class... Given>
result<void> ask(const char* verb, int (*call)(Arguments...), Given... given) {
    auto answer = check_minus_one(verb, [&] { return call(given...); });
    if (!answer) return std::move(answer).error();
    return {};
}

/// Of an address here that no RDMA device has.
error local_address_error(const error& e);

/// An rdma_cm_id, of a connection or of a listener, and where its events go.
class identifier : public list_node {
  public:
    explicit identifier(std::shared_ptr<connection_manager_core> manager) noexcept;
    identifier(const identifier&) = delete;
    identifier& operator=(const identifier&) = delete;

    connection_manager_core& manager() const noexcept { return *manager_; }
    /// Ends its waits with `closed`, and hears of nothing any more.
    void close() noexcept;

    /// One of its events, which was acked already. Resumes nobody.
    virtual void heard(const rdma_cm_event& event) noexcept = 0;
    /// Nothing is heard any more. Who waits is woken.
    virtual void end(const error& why) noexcept = 0;
    /// Likewise, and nobody is woken.
    virtual void reactor_gone() noexcept = 0;

  protected:
    ~identifier() = default;

    result<void> open();
    /// What the library made for a request. From a drain.
    void adopt(rdma_cm_id* native) noexcept;
    void destroy() noexcept;
    void wake(list<cancellable_wait>& waiters) noexcept;

    std::shared_ptr<connection_manager_core> manager_;
    rdma_cm_id* native_ = nullptr; ///< until it is destroyed
};

/// Behind `connection_manager`: an event channel, which stays open as long as an identifier of it does.
class connection_manager_core final : public readable_source,
                                      public std::enable_shared_from_this<connection_manager_core> {
  public:
    connection_manager_core() = default;
    connection_manager_core(const connection_manager_core&) = delete;
    connection_manager_core& operator=(const connection_manager_core&) = delete;
    ~connection_manager_core();

    result<void> open();
    void close() noexcept;
    result<void> attach(reactor_core& reactor);
    /// Whether a call may be made, attached or not.
    result<void> usable(const char* verb) const;
    /// Whether something of it may be awaited.
    result<void> check(const char* verb) const;

    rdma_event_channel* native() const noexcept { return native_; }
    reactor_core* reactor() const noexcept { return reactor_; }
    const result<void>& life() const noexcept { return life_; }
    /// Any thread, under `mutex`: events have come that the descriptor need not report.
    void look_soon();

    // watch, readable_source
    void ready(unsigned events) noexcept override;
    int fd() const noexcept override { return native_->fd; }
    unsigned drain(unsigned budget) noexcept override;
    void reactor_gone() noexcept override;
    /// The library's own context tells by the channel.
    void device_lost(const context_state&) noexcept override {}

    const process_mark process;
    connection_manager_stats counters;
    /// `connection::move_to` brings connections from other threads, whose events must find them complete: this guards
    /// what is heard, the list below, the reactor, and whether this is closed.
    std::mutex mutex;
    list<identifier> identifiers; ///< all that are open

  private:
    std::unique_lock<std::mutex> hold() noexcept;
    bool read() noexcept;
    void end(const error& why) noexcept;

    rdma_event_channel* native_ = nullptr;
    reactor_core* reactor_ = nullptr;
    bool over_ = false; ///< the descriptor said that it has ended
    result<void> life_; ///< or why nothing comes any more
};

} // namespace verbena::detail
