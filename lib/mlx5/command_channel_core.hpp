#pragma once

#include "../operation_table.hpp"
#include "../source.hpp"
#include "../verbs/states.hpp"

#include <verbena/detail/timer.hpp>
#include <verbena/mlx5/command_channel.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace verbena::detail {

class reactor_core;

/// Behind `mlx5::command_channel`: which query a response belongs to, who waits to be issued, and the end.
/// While somebody waits, a response is outstanding or the retry timer runs: both issue who can be.
class command_channel_core final : public readable_source {
  public:
    command_channel_core(std::shared_ptr<context_state> context, std::size_t max_response);
    result<void> open();
    ~command_channel_core();

    const std::shared_ptr<context_state>& context() const noexcept { return context_; }
    mlx5dv_devx_cmd_comp* native() const noexcept { return native_; }
    mlx5::command_channel_stats stats() const noexcept;

    result<void> attach(reactor_core& reactor);

    /// False: it has failed.
    bool submit(query_state& query) noexcept;
    void cancel(query_state& query, errc cause, list<ready_node>& woken) noexcept;
    /// Its awaiter dies.
    static void forget(query_state& query) noexcept;
    /// The object of a queued query dies.
    static void withdraw(query_state& query) noexcept;
    /// False: it is closed, or cannot be.
    bool close(channel_close_state& waiting) noexcept;

    // watch, readable_source
    void ready(unsigned events) noexcept override;
    int fd() const noexcept override;
    bool watched_from_the_start() const noexcept override { return false; }
    unsigned drain(unsigned budget) noexcept override;
    void reactor_gone() noexcept override;
    void device_lost(const context_state& context) noexcept override;

  private:
    enum class issuing { accepted, failed, later };
    using stage = query_state::stage;

    class alarm final : public timer {
      public:
        alarm(command_channel_core& core, void (command_channel_core::*call)() noexcept) noexcept
            : core_(core), call_(call) {}
        void expired() noexcept override { (core_.*call_)(); }

      private:
        command_channel_core& core_;
        void (command_channel_core::*call_)() noexcept;
    };

    bool takes(const query_state& query) const noexcept;
    /// Why it is not taken.
    error refusal_of(const query_state& query) const;
    inline issuing issue(query_state& query) noexcept;
    issuing not_issued(query_state& query, table_entry& entry, int code) noexcept;
    void issue_waiting() noexcept;
    void retry_later() noexcept;
    inline void deliver() noexcept;
    /// From now on the descriptor is read when it was reported, and not before.
    void watch() noexcept;
    /// Both its lists, and its table entry, are left; the entry stays until the response comes.
    static void take_out(query_state& query) noexcept;
    /// Its outcome is set, if it has failed.
    void finish(query_state& query) noexcept;
    void fail(query_state& query, const error& why) noexcept;
    void fail_queued(const error& why) noexcept;
    void fail_all(const error& why) noexcept;
    /// Nothing comes from the descriptor any more.
    void end(const error& why) noexcept;
    void shut() noexcept;
    void start(alarm& one, std::chrono::nanoseconds from_now) noexcept;
    void stop(alarm& one) noexcept;

    static constexpr std::chrono::milliseconds first_retry{1};

    std::shared_ptr<context_state> context_;
    mlx5dv_devx_cmd_comp* native_ = nullptr; ///< from `open` until it is shut
    std::size_t max_response_;
    std::unique_ptr<std::byte[]> buffer_; ///< for one response
    reactor_core* reactor_ = nullptr;
    operation_table table_;
    list<ready_node> issued_; ///< these two of queries
    list<ready_node> queued_;
    list<ready_node> closers_;
    alarm retry_{*this, &command_channel_core::issue_waiting};
    alarm last_moment_{*this, &command_channel_core::shut};
    std::chrono::milliseconds retry_delay_ = first_retry;
    mlx5::command_channel_stats stats_;
    bool closing_ = false;
    bool over_ = false; ///< the descriptor said that it has ended
    result<void> life_; ///< or why nothing comes any more
};

} // namespace verbena::detail
