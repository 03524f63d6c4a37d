#pragma once

#include <verbena/error.hpp>

namespace verbena::mlx5 {

/// "devx": its codes are the status that the firmware put into the outbox of a command it refused, never 0. The error
/// that carries one has the syndrome in `error::vendor_error()`. `default_error_condition` maps the known ones to
/// `errc`: BAD_OP to `unsupported`; BAD_PARAM, BAD_RES, BAD_RES_STATE, BAD_INDEX, BAD_INP_LEN and BAD_OUTP_LEN to
/// `invalid_argument`; RES_BUSY to `in_use`; LIM_ERR and NO_RES to `resource`. *Thread-safe.*
/// Source: MLX5_CMD_STAT_* of the kernel's mlx5 driver.
VERBENA_API const std::error_category& devx_category() noexcept;

} // namespace verbena::mlx5
