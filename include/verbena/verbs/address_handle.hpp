#pragma once

#include <verbena/verbs/completion.hpp>
#include <verbena/verbs/protection_domain.hpp>

#include <optional>
#include <span>

namespace verbena {

namespace detail {
struct address_handle_state;
}

/// A destination: by GID (RoCE always, InfiniBand across subnets), by LID (InfiniBand), or both.
struct address_vector {
    std::optional<gid> destination{}; ///< the peer's GID
    std::uint8_t gid_index = 0;       ///< the local entry to send from; means nothing without a destination
    std::uint8_t hop_limit = 64;      ///< routers it may pass
    std::uint8_t traffic_class = 0;   ///< of the global route: the DSCP and ECN bits of RoCE v2
    std::uint32_t flow_label = 0;     ///< of the global route, 20 bits
    std::uint16_t lid = 0;            ///< the peer's LID
    std::uint8_t service_level = 0;   ///< 0 to 15
    std::uint8_t port = 1;            ///< the local port
};

/// A destination of UD sends. Copies share it. It must outlive the completion of every send that names it: a device may
/// look it up after the post. *Thread-safe*, as it never changes.
class VERBENA_API address_handle {
  public:
    /// The bytes before a UD message where the global route header lies.
    static constexpr std::size_t grh_bytes = 40;

    /// Errors: `not_found`: no such port, or no route to the GID; `invalid_argument`: neither GID nor LID, a port on
    /// Ethernet without a GID, or a `gid_index` beyond the table; `resource`. Source: ibv_create_ah(3).
    static result<address_handle> create(const protection_domain& domain, const address_vector& address);
    /// The way back to the sender of a received UD message: its completion, and the first 40 bytes of its buffer.
    /// Errors: `invalid_argument`: no successful receive, or fewer bytes; `not_found`: no such port, or none of its
    /// GIDs is the one that the message was sent to; `resource`. Sources: ibv_init_ah_from_wc(3), ibv_create_ah(3).
    static result<address_handle> create(const protection_domain& domain, const work_completion& received,
                                         std::span<const std::byte> grh, std::uint8_t port = 1);

    address_handle() noexcept = default;
    explicit operator bool() const noexcept { return state_ != nullptr; }

    protection_domain domain() const noexcept;
    ibv_ah* native_handle() const noexcept;
    friend bool operator==(const address_handle&, const address_handle&) noexcept = default;

  private:
    friend struct detail::access;
    explicit address_handle(std::shared_ptr<detail::address_handle_state> state) noexcept : state_(std::move(state)) {}

    std::shared_ptr<detail::address_handle_state> state_;
};

} // namespace verbena
