#include <verbena/mlx5/error.hpp>

#include <fmt/format.h>

namespace verbena::mlx5 {
namespace {

struct known_status {
    int value;
    const char* name;
    errc condition; ///< `errc{}`: none fits
};

// MLX5_CMD_STAT_* (include/linux/mlx5/device.h of the kernel).
constexpr known_status known[] = {
    {0x01, "internal error", {}},
    {0x02, "bad opcode", errc::unsupported},
    {0x03, "bad parameter", errc::invalid_argument},
    {0x04, "bad system state", {}},
    {0x05, "bad resource", errc::invalid_argument},
    {0x06, "resource busy", errc::in_use},
    {0x08, "limit exceeded", errc::resource},
    {0x09, "bad resource state", errc::invalid_argument},
    {0x0a, "bad index", errc::invalid_argument},
    {0x0f, "no resources", errc::resource},
    {0x10, "bad queue pair state", {}},
    {0x30, "bad packet", {}},
    {0x40, "bad size of outstanding completions", {}},
    {0x50, "bad input length", errc::invalid_argument},
    {0x51, "bad output length", errc::invalid_argument},
};

const known_status* find(int value) noexcept {
    for (const auto& one : known)
        if (one.value == value) return &one;
    return nullptr;
}

class devx_category_type final : public std::error_category {
  public:
    const char* name() const noexcept override { return "devx"; }
    std::string message(int value) const override {
        const auto* status = find(value);
        return fmt::format("the firmware refuses it: {}, status {:#04x}", status ? status->name : "unknown", value);
    }
    std::error_condition default_error_condition(int value) const noexcept override {
        const auto* status = find(value);
        if (status == nullptr || status->condition == errc{}) return {value, *this};
        return make_error_condition(status->condition);
    }
};

} // namespace

const std::error_category& devx_category() noexcept {
    static const devx_category_type category;
    return category;
}

} // namespace verbena::mlx5
