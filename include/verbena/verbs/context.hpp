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

    static gid from_native(const ibv_gid& native) noexcept;
    ibv_gid native() const noexcept;
    /// ::ffff:a.b.c.d, the form RoCE v2 over IPv4 has.
    bool is_ipv4_mapped() const noexcept;
    bool is_zero() const noexcept { return *this == gid{}; }
    friend bool operator==(const gid&, const gid&) noexcept = default;
};

enum class gid_type : std::uint8_t { infiniband, roce_v1, roce_v2 };

/// One valid entry of a port's GID table.
struct gid_entry {
    std::uint32_t index = 0;
    verbena::gid gid;
    gid_type type = gid_type::infiniband;
    std::uint32_t interface_index = 0; ///< of the network interface behind it, 0 where there is none
};

enum class link_layer : std::uint8_t { unspecified, infiniband, ethernet };

struct port_attributes {
    ibv_port_state state = IBV_PORT_NOP;
    link_layer link = link_layer::unspecified;
    std::uint32_t active_mtu = 0; ///< in bytes
    std::uint32_t max_mtu = 0;    ///< in bytes
    std::uint16_t lid = 0;        ///< InfiniBand only
    std::uint32_t max_message_bytes = 0;
    std::uint32_t gid_table_length = 0;

    bool active() const noexcept { return state == IBV_PORT_ACTIVE; }
};

/// An open RDMA device. Copies share it; it is closed when the last handle and the last object made from it are gone.
/// *Thread-safe.* A default-constructed handle is empty: it may be tested, assigned and destroyed.
class VERBENA_API context {
  public:
    /// The names of the devices present; none is no error. errc::unsupported: the kernel has no RDMA support loaded,
    /// the note says how to get it (ibv_get_device_list).
    static result<std::vector<std::string>> list();
    /// Opens a device by name. errc::not_found: there is none of that name, the note lists those there are, or
    /// there is no device at all. Where something is missing the note says what to do (ibv_open_device).
    static result<context> open(std::string_view name);
    /// Opens the first device that has an active port, else the first. Errors as `open`.
    static result<context> open_default();

    context() noexcept = default;
    explicit operator bool() const noexcept { return state_ != nullptr; }

    const std::string& name() const noexcept;
    /// As ibv_query_device answered when the device was opened.
    const ibv_device_attr& attributes() const noexcept;
    /// Ports count from 1. errc::not_found: no such port (ibv_query_port).
    result<port_attributes> port(std::uint8_t number) const;
    /// The valid entries of a port's GID table, by index (ibv_query_gid_table).
    result<std::vector<gid_entry>> gids(std::uint8_t port) const;

    ibv_context* native_handle() const noexcept;
    friend bool operator==(const context&, const context&) noexcept = default;

  private:
    friend struct detail::access;
    explicit context(std::shared_ptr<detail::context_state> state) noexcept : state_(std::move(state)) {}

    std::shared_ptr<detail::context_state> state_;
};

} // namespace verbena
