#pragma once

#include <verbena/verbs/context.hpp>

#include <cstddef>
#include <span>

namespace verbena::mlx5 {

/// Executes a firmware command that needs no object, such as QUERY_HCA_CAP, and returns when it is done. Command and
/// output are the inbox and the outbox of the device's manual, of 16 to 65,535 bytes each, in network order.
/// Errors: the status of a refusal, in `devx_category()`, with the output written; `invalid_argument`: a size, or an
/// opcode that is none of these; `unsupported`: no DEVX; `timed_out`; `device_removed`. *Thread-safe*; blocks for as
/// long as the firmware takes.
/// Source: mlx5dv_devx_general_cmd(3).
VERBENA_API result<void> general_command(const context& context, std::span<const std::byte> command,
                                         std::span<std::byte> output);

} // namespace verbena::mlx5
