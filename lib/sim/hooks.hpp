#pragma once

// What the control has asked for. The device looks here only while `device::slow` is set.

#include <verbena/sim/control.hpp>

#include <array>
#include <cerrno>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace verbena::sim {

struct device;

/// The same numbers on every platform and library, unlike the distributions of <random>.
class dice {
  public:
    dice() noexcept = default;
    explicit dice(std::uint64_t seed) noexcept : state_(seed) {}
    std::uint64_t next() noexcept;
    /// 0 to `most`.
    std::uint64_t up_to(std::uint64_t most) noexcept {
        return most == ~std::uint64_t{0} ? next() : next() % (most + 1);
    }

  private:
    std::uint64_t state_ = 0;
};

struct hooks {
    std::array<std::function<void(const point_reached&)>, point_count> points;
    std::multimap<std::string, fault, std::less<>> faults; ///< `call` counts down
    bool hold_all = false;
    bool redundant_arm_loses = false;
    bool write_late = false;
    bool seeded = false;
    seeded_options choices;
    dice random;

    std::chrono::nanoseconds delay() noexcept {
        return std::chrono::nanoseconds{random.up_to(static_cast<std::uint64_t>(choices.max_delay.count()))};
    }
};

/// Calls the function at `where`, if there is one, without the lock.
void reach(device& d, point where, ibv_cq* cq, ibv_qp* qp);

/// The fault of this call of `verb`, if it is to fail. Takes the lock. Every verb asks first, hot ones if `slow`.
std::optional<fault> fault_of(device& d, std::string_view verb);

/// What a verb with an int answer returns; `natural` says what its own convention is.
int answer(const fault& f, convention natural) noexcept;

} // namespace verbena::sim
