#pragma once

#include "../queue_pair_core.hpp"
#include "connection_manager_core.hpp"

#include <verbena/cm/connection.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace verbena::detail {

/// Behind `connection`. During the handshake it knows its queue pair, which tells when it goes; later it looks for it
/// by its identity.
class connection_core final : public identifier,
                              public queue_pair_user,
                              public std::enable_shared_from_this<connection_core> {
  public:
    using identifier::identifier;

    result<void> resolve(const socket_address& to);
    /// A peer's request, of which the library made `event.id`. From a drain.
    void requested(const rdma_cm_event& event);
    result<void> begin(bool accepts, queue_pair_core* pair, std::span<const std::byte> private_data);
    /// The handshake cannot succeed any more.
    void abandon(errc cause) noexcept;
    result<void> reject(std::span<const std::byte> private_data);
    /// Asks for the end, or only whether it can be waited for.
    result<void> leave(bool asks);
    result<void> move_to(const std::shared_ptr<connection_manager_core>& other);

    // For the waits.
    list<cancellable_wait>& waiters() noexcept { return waiters_; }
    bool resolved() const noexcept { return phase_ == phase::resolved; }
    bool established() const noexcept { return phase_ == phase::established; }
    bool ended() const noexcept { return phase_ == phase::ended; }
    /// If it failed or has ended.
    const error& why() const noexcept { return why_; }

    const std::string& device() const noexcept { return device_; }
    std::uint8_t port() const noexcept { return port_; }
    const socket_address& local() const noexcept { return local_; }
    const socket_address& peer() const noexcept { return peer_; }
    std::span<const std::byte> private_data() const noexcept { return private_data_; }

    // identifier, queue_pair_user
    void heard(const rdma_cm_event& event) noexcept override;
    void end(const error& why) noexcept override;
    void reactor_gone() noexcept override;
    void queue_pair_gone() noexcept override;

  private:
    enum class phase : std::uint8_t {
        address, ///< is resolved
        route,   ///< likewise
        resolved,
        requested, ///< by the peer
        connecting,
        accepting,
        established,
        ended,
        failed
    };

    result<void> check_pair(const char* verb, const queue_pair_core* pair) const;
    /// By what the two sides have agreed on.
    result<void> move_pair(const queue_pair_core& pair, ibv_qp_state state) const;
    result<void> ready_pair(const queue_pair_core& pair) const;
    void note_place();
    void note_data(const rdma_cm_event& event);
    void let_go() noexcept;
    void step(const result<void>& done, phase next) noexcept;
    void establish() noexcept;
    void disconnected() noexcept;
    void finish(phase last, const error& why) noexcept;
    void fail(const error& why) noexcept;

    phase phase_ = phase::address;
    std::uint8_t port_ = 0;
    bool asked_ = false; ///< by this side for the end
    error why_;
    std::string device_;
    socket_address local_;
    socket_address peer_;
    std::vector<std::byte> private_data_;
    queue_pair_core* pair_ = nullptr;     ///< during the handshake
    const void* pair_identity_ = nullptr; ///< from then on
    list<cancellable_wait> waiters_;
};

} // namespace verbena::detail
