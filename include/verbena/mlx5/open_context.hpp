#pragma once

#include <verbena/verbs/context.hpp>

#include <string_view>

namespace verbena::mlx5 {

/// Opens a device by name, for DEVX: where `context::open` gives a context without it, this fails. Errors as
/// `context::open`, and `unsupported`: the device is none of mlx5's, or device or kernel have no DEVX. *Thread-safe.*
/// Source: mlx5dv_open_device(3), with MLX5DV_CONTEXT_FLAGS_DEVX.
VERBENA_API result<context> open_context(std::string_view name);

} // namespace verbena::mlx5
