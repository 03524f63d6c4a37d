#pragma once

#include <cstddef>
#include <span>

namespace verbena::mlx5 {

/// The output of an asynchronous query that the firmware did not refuse. A value, which does not own its bytes.
class response {
  public:
    /// For tests of who uses one.
    response(std::span<const std::byte> bytes, bool certain) noexcept : bytes_(bytes), certain_(certain) {}

    /// The outbox, in the caller's buffer.
    std::span<const std::byte> bytes() const noexcept { return bytes_; }
    /// False: every byte is zero. That may be the truth, or the command got lost: the kernel answers one that timed out
    /// or met a dying device with an outbox it never wrote, and says nothing of it (drivers/infiniband/hw/mlx5/devx.c).
    bool certain() const noexcept { return certain_; }

  private:
    std::span<const std::byte> bytes_;
    bool certain_;
};

} // namespace verbena::mlx5
