#pragma once

#include <cstdint>
#include <limits>

namespace verbena::detail {

/// Interest in one file descriptor. Owned by the caller; must be removed, or its backend destroyed, before it dies.
class watch {
  public:
    watch() noexcept = default;
    watch(const watch&) = delete;
    watch& operator=(const watch&) = delete;

    /// Something happened: poll(2) event bits, several occurrences merged into one call. POLLERR, POLLHUP and POLLRDHUP
    /// come unasked, and are the end of what can come in: no other call for that can be relied on. POLLERR also says
    /// that the descriptor cannot be watched (any longer), with POLLNVAL if it is not open. Called from `collect` and
    /// `wait` only. It may add and remove any watch, and destroy this one once removed, but not call `collect` or
    /// `wait`. A call may come for what was taken already.
    virtual void ready(unsigned events) noexcept = 0;

    bool watching() const noexcept { return slot_ != no_slot; }

  protected:
    ~watch() = default;

  private:
    friend class wait_backend;
    static constexpr auto no_slot = std::numeric_limits<std::uint32_t>::max();

    std::uint32_t slot_ = no_slot;
};

} // namespace verbena::detail
