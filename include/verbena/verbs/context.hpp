#pragma once

#include <verbena/result.hpp>

#include <infiniband/verbs.h>

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace verbena {

namespace detail {
struct access;
struct context_state;
} // namespace detail

/// A global identifier: a port's address. On RoCE it is an IPv6 address, or an IPv4 one mapped into it.
struct VERBENA_API gid {
    std::array<std::byte, 16> bytes{}; ///< in network order

    static gid from_native(const ibv_gid& native) noexcept; ///< the same bytes
    ibv_gid native() const noexcept;                        ///< the same bytes
    /// Whether it is an IPv4 address in an IPv6 one, the form that RoCE v2 over IPv4 has.
    bool is_ipv4_mapped() const noexcept;
    bool is_zero() const noexcept { return *this == gid{}; } ///< no entry of a GID table
    friend bool operator==(const gid&, const gid&) noexcept = default;
};

/// What an entry of a GID table is for.
enum class gid_type : std::uint8_t {
    infiniband, ///< InfiniBand
    roce_v1,    ///< RoCE in Ethernet frames, which is not routed
    roce_v2,    ///< RoCE in UDP over IP
};

/// One valid entry of a port's GID table. Source: ibv_query_gid_table(3).
struct gid_entry {
    std::uint32_t index = 0;              ///< in the table, counted from 0
    verbena::gid gid;                     ///< what it holds
    gid_type type = gid_type::infiniband; ///< what it is for
    std::uint32_t interface_index = 0;    ///< of the network interface behind it, 0 where there is none
};

/// What a port's link is. Source: ibv_query_port(3).
enum class link_layer : std::uint8_t {
    unspecified, ///< an old driver does not say: InfiniBand
    infiniband,  ///< addressed by LID
    ethernet,    ///< RoCE: addressed by GID
};

/// A port at the time it was asked. Source: ibv_query_port(3).
struct port_attributes {
    ibv_port_state state = IBV_PORT_NOP;       ///< of the link
    link_layer link = link_layer::unspecified; ///< what the link is
    std::uint32_t active_mtu = 0;              ///< in bytes
    std::uint32_t max_mtu = 0;                 ///< in bytes
    std::uint16_t lid = 0;                     ///< InfiniBand only
    std::uint32_t max_message_bytes = 0;       ///< the longest message of any kind
    std::uint32_t gid_table_length = 0;        ///< entries, valid or not

    /// Whether messages can be sent and received through it.
    bool active() const noexcept { return state == IBV_PORT_ACTIVE; }
};

/// An open RDMA device. Copies share it; it is closed when the last handle and the last object made from it are gone.
/// *Thread-safe.* A default-constructed handle is empty: it may be tested, assigned and destroyed.
class VERBENA_API context {
  public:
    /// The names of the devices present; none is no error. Errors: `unsupported`: the kernel has no RDMA support
    /// loaded, the note says how to get it. Source: ibv_get_device_list(3).
    static result<std::vector<std::string>> list();
    /// Opens a device by name. Errors: `not_found`: there is none of that name, the note lists those there are, or
    /// there is no device at all; `resource`. Where something is missing the note says what to do. Source:
    /// ibv_open_device(3).
    static result<context> open(std::string_view name);
    /// Opens the first device that has an active port, else the first. Errors as `open`.
    static result<context> open_default();

    context() noexcept = default;
    explicit operator bool() const noexcept { return state_ != nullptr; }

    const std::string& name() const noexcept; ///< of the device, as `open` takes it
    /// The device's limits when it was opened. Source: ibv_query_device(3).
    const ibv_device_attr& attributes() const noexcept;
    /// Asks the device; ports count from 1. Errors: `not_found`: no such port; `device_removed`. Source:
    /// ibv_query_port(3).
    result<port_attributes> port(std::uint8_t number) const;
    /// The valid entries of a port's GID table, by index; ports count from 1. Errors: as `port`. Source:
    /// ibv_query_gid_table(3).
    result<std::vector<gid_entry>> gids(std::uint8_t port) const;

    ibv_context* native_handle() const noexcept;
    friend bool operator==(const context&, const context&) noexcept = default;

  private:
    friend struct detail::access;
    explicit context(std::shared_ptr<detail::context_state> state) noexcept : state_(std::move(state)) {}

    std::shared_ptr<detail::context_state> state_;
};

} // namespace verbena
