#pragma once

#include <verbena/cm/socket_address.hpp>
#include <verbena/detail/cancellable_wait.hpp>
#include <verbena/verbs/queue_pair.hpp>

#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace verbena {

class connection_manager;

/// Of one side of a handshake.
struct connect_options {
    /// Told to the peer, at most 56 bytes with a request and 196 with its acceptance. Copied when the wait begins.
    std::span<const std::byte> private_data{};
};

namespace detail {
class connection_core;

/// The part of an awaiter of `connection::connect` and `accept` that the connection knows.
class handshake_wait : public cancellable_wait {
  public:
    VERBENA_API handshake_wait(connection_core* connection, queue_pair_core* pair, bool accepts,
                               std::span<const std::byte> private_data) noexcept;
    VERBENA_API ~handshake_wait();
    /// False: it cannot begin, or is over.
    VERBENA_API bool wait(std::coroutine_handle<> waiting);
    VERBENA_API result<void> finish();
    /// The handshake is abandoned at once, so that it cannot succeed after all.
    VERBENA_API void cancel(errc cause, list<ready_node>& woken) noexcept;

  private:
    std::shared_ptr<connection_core> connection_;
    queue_pair_core* pair_;
    bool accepts_;
    std::span<const std::byte> private_data_;
    result<void> outcome_;
};

/// Likewise of `disconnect`, which asks for the end, and of `disconnected`.
class disconnect_wait : public cancellable_wait {
  public:
    VERBENA_API disconnect_wait(connection_core* connection, bool asks) noexcept;
    VERBENA_API ~disconnect_wait();
    VERBENA_API bool wait(std::coroutine_handle<> waiting);
    VERBENA_API result<void> finish();

  private:
    std::shared_ptr<connection_core> connection_;
    bool asks_;
    result<void> outcome_;
};
} // namespace detail

/// Asks the peer for a connection of this queue pair, which is ready to send and to receive afterwards.
///
/// Completes when   the peer has accepted and the queue pair is connected.
/// In flight        one `connect` or `accept` of a connection.
/// Errors           `connection_refused`: the peer rejected, or nobody listens there; `vendor_error()` is the reason of
///                  the protocol (28: the peer's program, 8: nobody listens), `private_data()` what it said;
///                  `peer_unreachable`: no answer; `message_too_long`: private data, nothing was sent;
///                  `invalid_argument`: not an RC queue pair of the connection's device and port, or a connection that
///                  was not resolved by this side; `in_use`: a handshake goes on, or the queue pair is connected;
///                  `closed`: the queue pair, the connection or the manager was destroyed; `device_removed`;
///                  `not_attached`; `wrong_thread`; what ibv_modify_qp says.
/// Cancel safety    class 2: nothing was posted. A handshake whose wait is ended or destroyed is abandoned, and the
///                  peer told. As after any failure but those of the arguments, the connection can only be destroyed,
///                  and so can the queue pair, which may be half connected.
/// Thread           reactor-bound.
///
///     auto up = co_await with_timeout(peer.connect(qp, {.private_data = hello}), std::chrono::seconds{5});
class [[nodiscard]] connect_operation {
  public:
    using result_type = result<void>;

    class awaiter : public detail::handshake_wait {
      public:
        using handshake_wait::handshake_wait;
        bool await_ready() const noexcept { return false; }
        bool await_suspend(std::coroutine_handle<> waiting) { return wait(waiting); }
        result<void> await_resume() { return finish(); }
    };

    connect_operation(detail::connection_core* connection, detail::queue_pair_core* pair, bool accepts,
                      std::span<const std::byte> private_data) noexcept
        : connection_(connection), pair_(pair), private_data_(private_data), accepts_(accepts) {}
    awaiter operator co_await() && noexcept { return {connection_, pair_, accepts_, private_data_}; }

  private:
    detail::connection_core* connection_;
    detail::queue_pair_core* pair_;
    std::span<const std::byte> private_data_;
    bool accepts_;
};

/// Accepts the request with this queue pair; receives should be posted before. As `connect_operation`, but for
/// `connection_refused`: the peer has given up meanwhile. That it has vanished is told by `peer_unreachable`, after the
/// retries of the protocol, which take a minute: set a deadline.
using accept_operation = connect_operation;

/// The end of the connection, told or asked for.
///
/// Completes when   `disconnected`: the peer has ended the connection, or this side has; `disconnect`: likewise, after
///                  it has asked the peer, who has answered or was given up after the retries of the protocol. At once
///                  if it has ended. By then the queue pair, if its operations are awaited on this reactor, is failing:
///                  what is outstanding ends with `connection_reset`, root cause `disconnected`. What arrived or was
///                  done before is delivered. `disconnect` waits for no send: drain before, or await
///                  them, since the peer stops receiving when it hears of it.
/// In flight        any number.
/// Errors           `not_connected`; why the handshake failed; `closed`: the connection or the manager was destroyed;
///                  `device_removed`; `not_attached`; `wrong_thread`.
/// Cancel safety    class 2; the peer has been asked all the same.
/// Thread           reactor-bound.
///
///     co_await peer.disconnected();
class [[nodiscard]] disconnect_operation {
  public:
    using result_type = result<void>;

    class awaiter : public detail::disconnect_wait {
      public:
        using disconnect_wait::disconnect_wait;
        bool await_ready() const noexcept { return false; }
        bool await_suspend(std::coroutine_handle<> waiting) { return wait(waiting); }
        result<void> await_resume() { return finish(); }
    };

    disconnect_operation(detail::connection_core* connection, bool asks) noexcept
        : connection_(connection), asks_(asks) {}
    awaiter operator co_await() && noexcept { return {connection_, asks_}; }

  private:
    detail::connection_core* connection_;
    bool asks_;
};
/// As `disconnect_operation`, without asking the peer.
using disconnected_operation = disconnect_operation;

/// A connection, made or being made, on either side: `connection_manager::resolve` gives one that may connect,
/// `connection_listener::next` one to accept or reject. It makes a queue pair of the user's ready and tells of its end;
/// what is sent goes over the queue pair alone. InfiniBand and RoCE.
///
/// Move-only, keeps what it needs of its manager. Reactor-bound, to its manager's reactor. Destroying it ends its waits
/// with `closed`, rejects a request that was not answered, and disconnects without waiting for the peer; the queue pair
/// is left as it is.
/// Source: rdma_connect(3), rdma_accept(3), rdma_reject(3), rdma_disconnect(3), rdma_migrate_id(3),
/// rdma_init_qp_attr(3).
class VERBENA_API connection {
  public:
    connection() noexcept;
    connection(connection&& other) noexcept;
    connection& operator=(connection&& other) noexcept;
    ~connection();
    explicit operator bool() const noexcept { return core_ != nullptr; }

    /// Where its queue pair is to be made: `context::open(device_name())`, port `port()`.
    std::string device_name() const;
    std::uint8_t port() const noexcept;            ///< of that device
    socket_address local_address() const noexcept; ///< of this side, with its port
    socket_address peer_address() const noexcept;  ///< of the other side, with its port
    /// What the peer sent last, with its request, its acceptance or its rejection. Padded with zeros to what the
    /// protocol carries: a length belongs into it. Valid until the peer sends again, or the connection is destroyed.
    std::span<const std::byte> private_data() const noexcept;

    /// See `connect_operation`. Source: rdma_connect(3).
    connect_operation connect(queue_pair& qp, const connect_options& options = {}) const noexcept;
    /// See `accept_operation`. Source: rdma_accept(3).
    accept_operation accept(queue_pair& qp, const connect_options& options = {}) const noexcept;
    /// Tells the peer no, with up to 148 bytes; afterwards the connection can only be destroyed.
    /// Errors: `message_too_long`, `invalid_argument`: it is no request that waits for an answer; as `connect`.
    result<void> reject(std::span<const std::byte> private_data = {}) const;
    /// See `disconnect_operation`. Source: rdma_disconnect(3).
    disconnect_operation disconnect() const noexcept { return {core_.get(), true}; }
    /// See `disconnect_operation`.
    disconnected_operation disconnected() const noexcept { return {core_.get(), false}; }

    /// Gives it to another manager, and so to the thread of that one's reactor, which alone may use it afterwards.
    /// Called on the thread it has belonged to; the other manager may be on any, and must live. To be done before its
    /// queue pair is connected: one that is awaited on the old reactor is not told of the end. Hand it on by moving it:
    /// nothing of it may be destroyed on the old thread.
    /// Errors: `in_use`: somebody waits for it; `invalid_argument`: an empty one; `closed`; `wrong_thread`;
    /// `not_attached`: one of the reactors is gone; why the connection failed or has ended.
    result<void> move_to(const connection_manager& other) const;

  private:
    friend struct detail::access;
    explicit connection(std::shared_ptr<detail::connection_core> core) noexcept;

    std::shared_ptr<detail::connection_core> core_;
};

} // namespace verbena
