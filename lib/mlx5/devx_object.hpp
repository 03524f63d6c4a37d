#pragma once

#include "../verbs/states.hpp"

#include <verbena/detail/list.hpp>
#include <verbena/mlx5/command_channel.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace verbena::detail {

/// Behind `mlx5::object`: it stays where it is when the handle moves.
struct devx_object {
    std::shared_ptr<context_state> context;
    mlx5dv_devx_obj* native = nullptr;
    bool is_general = false; ///< made by CREATE_GENERAL_OBJECT, with
    std::uint16_t type = 0;
    std::uint32_t id = 0;
    list<query_state::object_link> queued; ///< its queries that wait in a channel

    devx_object() = default;
    devx_object(const devx_object&) = delete;
    devx_object& operator=(const devx_object&) = delete;
    ~devx_object();

    result<void> destroy();
    /// Whether the command is QUERY_GENERAL_OBJECT, and for this object.
    bool is_general_query(std::span<const std::byte> command) const noexcept;

  private:
    void withdraw_queries() noexcept;
};

} // namespace verbena::detail
