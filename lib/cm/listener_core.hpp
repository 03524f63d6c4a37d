#pragma once

#include "../handout.hpp"
#include "connection_core.hpp"

#include <verbena/cm/connection_listener.hpp>

#include <cstdint>
#include <memory>

namespace verbena::detail {

/// Behind `connection_listener`. The kernel gives its backlog back as soon as a request is read, so that the listener
/// itself bounds what nobody has taken.
class listener_core final : public identifier, public std::enable_shared_from_this<listener_core> {
  public:
    listener_core(std::shared_ptr<connection_manager_core> manager, std::uint32_t backlog) noexcept;

    result<void> listen(const socket_address& at);
    void close() noexcept;
    const socket_address& local() const noexcept { return local_; }

    // For the waits.
    handout<std::shared_ptr<connection_core>>& requests() noexcept { return requests_; }
    const result<void>& life() const noexcept { return life_; }
    void wake_next() noexcept;

    // identifier
    void heard(const rdma_cm_event& event) noexcept override;
    void end(const error& why) noexcept override;
    void reactor_gone() noexcept override;

  private:
    void refuse(rdma_cm_id* request) noexcept;

    std::uint32_t backlog_;
    bool said_ = false; ///< that one was refused
    socket_address local_;
    handout<std::shared_ptr<connection_core>> requests_;
    result<void> life_; ///< or why none comes any more
};

} // namespace verbena::detail
