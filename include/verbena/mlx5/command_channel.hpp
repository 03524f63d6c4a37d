#pragma once

#include <verbena/detail/ready.hpp>
#include <verbena/mlx5/object.hpp>
#include <verbena/mlx5/response.hpp>
#include <verbena/verbs/work_request.hpp>

#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>

struct mlx5dv_devx_cmd_comp;

namespace verbena {

namespace detail {
class command_channel_core;
struct table_entry;

/// The part of an awaiter of `command_channel::query` that the channel knows.
class query_state : public ready_node {
  public:
    static constexpr bool ends_singly = true;

    query_state(command_channel_core* channel, devx_object* object, std::span<const std::byte> command,
                std::span<std::byte> output) noexcept
        : channel_(channel), object_(object), command_(command), output_(output) {}
    ~query_state() {
        if (waiting()) forget();
    }
    VERBENA_API void cancel(errc cause, list<ready_node>& woken) noexcept;

  protected:
    /// False: it has failed.
    VERBENA_API bool submit() noexcept;
    result<mlx5::response> finish() const {
        if (!outcome_) return outcome_.error();
        return mlx5::response(output_, certain_);
    }

  private:
    friend class command_channel_core;
    friend struct devx_object;
    struct object_link : list_node {
        explicit object_link(query_state& q) noexcept : query(q) {}
        query_state& query;
    };
    enum class stage : unsigned char { idle, queued, issued, done };

    bool waiting() const noexcept { return stage_ == stage::queued || stage_ == stage::issued; }
    VERBENA_API void forget() noexcept;

    command_channel_core* channel_;
    devx_object* object_;
    std::span<const std::byte> command_;
    std::span<std::byte> output_;
    table_entry* entry_ = nullptr; ///< while it is issued
    object_link of_object_{*this}; ///< linked while it is queued
    stage stage_ = stage::idle;
    bool certain_ = false;
    result<void> outcome_;
};

/// The same of `command_channel::close`.
class channel_close_state : public ready_node {
  public:
    explicit channel_close_state(command_channel_core* channel) noexcept : channel_(channel) {}

  protected:
    VERBENA_API bool submit() noexcept;
    result<void> outcome_;
    std::uint32_t missing_ = 0;

  private:
    friend class command_channel_core;
    command_channel_core* channel_;
};
} // namespace detail

namespace mlx5 {

/// A QUERY command. See `command_channel::query`.
///
/// Completes when   the response was read. A command that finds the channel's window full (1 MiB of output issued and
///                  not yet read) or the device throttled waits its turn, first in first out.
/// Gives            the outbox, written to the caller's buffer, and whether it can be trusted: `response::certain`.
/// In flight        any number, on one object and on many; the device completes them in any order.
/// Buffer lifetime  command and output until it ends; the output is written just before that.
/// Errors           the status of a refusal, in `devx_category()`, the output written; `invalid_argument`: a size, an
///                  object of another context, an opcode that is no query of this object; `unsupported`: this kernel
///                  cannot query general objects (0xa02) asynchronously (6.1 cannot; `object::query` can);
///                  `device_removed`; `closed`: the channel, or before the command was issued its object, was closed
///                  or destroyed; `not_attached`; `wrong_thread`; `resource`.
/// Cancel safety    class 3: it ends at once and alone, also where a coroutine is destroyed. The command goes on in the
///                  device, and takes its share of the window until its response is dropped and counted.
/// Thread           reactor-bound.
///
/// Source: mlx5dv_devx_obj_query_async(3).
///
///     std::array<std::byte, 512> output;
///     auto counters = co_await channel.query(object, command, output);
class [[nodiscard]] query_operation {
  public:
    using result_type = result<response>;

    class awaiter : public detail::query_state {
      public:
        using query_state::query_state;
        bool await_ready() const noexcept { return false; }
        bool await_suspend(std::coroutine_handle<> waiting) noexcept {
            continuation = waiting;
            return submit();
        }
        result<response> await_resume() { return finish(); }
    };

    query_operation(detail::command_channel_core* channel, detail::devx_object* object,
                    std::span<const std::byte> command, std::span<std::byte> output) noexcept
        : channel_(channel), object_(object), command_(command), output_(output) {}
    awaiter operator co_await() && noexcept { return {channel_, object_, command_, output_}; }

  private:
    detail::command_channel_core* channel_;
    detail::devx_object* object_;
    std::span<const std::byte> command_;
    std::span<std::byte> output_;
};
static_assert(std::is_trivially_copyable_v<query_operation>);

/// The end of a channel. See `command_channel::close`.
///
/// Completes when   every command that the device had has been answered, after 100 ms at most, and the channel is shut.
/// Gives            how many were not answered: they end with `closed`, and a thread of the context's waits for them.
/// In flight        any number.
/// Errors           `invalid_argument`: an empty channel; `wrong_thread`.
/// Cancel safety    class 2, but no limit ends it; destroying the coroutine only stops waiting.
/// Thread           reactor-bound.
class [[nodiscard]] close_operation {
  public:
    using result_type = result<drain_report>;

    class awaiter : public detail::channel_close_state {
      public:
        using channel_close_state::channel_close_state;
        bool await_ready() const noexcept { return false; }
        bool await_suspend(std::coroutine_handle<> waiting) noexcept {
            continuation = waiting;
            return submit();
        }
        result<drain_report> await_resume() const {
            if (!outcome_) return outcome_.error();
            return drain_report{missing_};
        }
    };

    explicit close_operation(detail::command_channel_core* channel) noexcept : channel_(channel) {}
    awaiter operator co_await() && noexcept { return awaiter(channel_); }

  private:
    detail::command_channel_core* channel_;
};

/// How a command channel is made.
struct command_channel_options {
    std::size_t max_response; ///< the longest output of a query, in bytes: 16 to 65,535
};

/// Counters since the channel was made.
struct command_channel_stats {
    std::uint64_t issue_calls = 0; ///< mlx5dv_devx_obj_query_async, accepted or not
    std::uint64_t responses = 0;   ///< read
    std::uint64_t late = 0;        ///< of those, of queries that had been cancelled
    std::uint64_t foreign = 0;     ///< of those, of commands that were not issued here
    std::uint64_t outstanding = 0; ///< commands of which no response was read yet
};

/// Where firmware queries are answered. A reactor reads it from `reactor::attach` on; the buffer that it reads into is
/// allocated once.
///
/// Move-only, keeps its context open. Reactor-bound once it is attached, before that one thread at a time. Destroying
/// it ends its queries with `closed`, and never waits for the device: with commands outstanding a thread closes the
/// descriptor, and ends before the context is closed, so that whoever drops that last may wait.
/// Source: mlx5dv_devx_create_cmd_comp(3).
class VERBENA_API command_channel {
  public:
    /// The descriptor is made non-blocking. Errors: `unsupported`: no DEVX; `invalid_argument`: an empty context, or a
    /// size out of range; `resource`; `device_removed`.
    static result<command_channel> create(const verbena::context& context, const command_channel_options& options);

    command_channel() noexcept;
    command_channel(command_channel&& other) noexcept;
    command_channel& operator=(command_channel&& other) noexcept;
    ~command_channel();
    explicit operator bool() const noexcept { return core_ != nullptr; }

    /// Sends a QUERY command for this object; command and output have 16 bytes at least.
    query_operation query(const object& object, std::span<const std::byte> command,
                          std::span<std::byte> output) const noexcept {
        return {core_.get(), object.state_.get(), command, output};
    }
    /// From now on queries fail with `closed`; those that wait their turn end so.
    close_operation close() noexcept { return close_operation(core_.get()); }

    command_channel_stats stats() const noexcept; ///< up to now
    verbena::context context() const noexcept;
    /// Not to issue queries on: their responses would be dropped, and one longer than `max_response` ends the channel.
    mlx5dv_devx_cmd_comp* native_handle() const noexcept;

  private:
    friend struct detail::access;
    explicit command_channel(std::unique_ptr<detail::command_channel_core> core) noexcept;

    std::unique_ptr<detail::command_channel_core> core_;
};

} // namespace mlx5
} // namespace verbena
