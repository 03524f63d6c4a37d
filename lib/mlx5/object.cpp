#include "../reactor_core.hpp"
#include "../verbs/verb.hpp"
#include "command.hpp"
#include "command_channel_core.hpp"
#include "devx_object.hpp"

#include <verbena/mlx5/general_command.hpp>
#include <verbena/mlx5/object.hpp>
#include <verbena/mlx5/open_context.hpp>

#include <infiniband/mlx5dv.h>

#include <cerrno>
#include <utility>

namespace verbena {
namespace detail {
namespace {

constexpr std::uint16_t create_general_object = 0xa00;
constexpr std::uint16_t query_general_object = 0xa02;
constexpr std::size_t type_at = 6; // of a general object, in its commands
constexpr std::size_t id_at = 8;   // likewise, and in the output of its creation

result<void> check_object(const devx_object* object, const char* verb) {
    if (object == nullptr) return error(errc::invalid_argument, verb).with_note("an empty object");
    if (object->context->process.forked()) return fork_error(verb);
    return {};
}

} // namespace

devx_object::~devx_object() {
    withdraw_queries();
    if (native) detail::destroy(*context, "mlx5dv_devx_obj_destroy", [&] { return mlx5dv_devx_obj_destroy(native); });
}

result<void> devx_object::destroy() {
    withdraw_queries();
    auto destroyed = check_errno_value("mlx5dv_devx_obj_destroy", [&] { return mlx5dv_devx_obj_destroy(native); });
    if (destroyed) native = nullptr;
    return destroyed;
}

void devx_object::withdraw_queries() noexcept {
    while (!queued.empty()) command_channel_core::withdraw(queued.front().query);
}

bool devx_object::is_general_query(std::span<const std::byte> command) const noexcept {
    return is_general && number_at<std::uint16_t>(command, 0) == query_general_object &&
           number_at<std::uint16_t>(command, type_at) == type && number_at<std::uint32_t>(command, id_at) == id;
}

} // namespace detail

namespace mlx5 {

object::object() noexcept = default;
object::object(std::unique_ptr<detail::devx_object> state) noexcept : state_(std::move(state)) {}
object::object(object&& other) noexcept = default;
object& object::operator=(object&& other) noexcept = default;
object::~object() = default;

result<object> object::create(const verbena::context& context, std::span<const std::byte> command,
                              std::span<std::byte> output) {
    constexpr auto verb = "mlx5dv_devx_obj_create";
    if (auto checked = detail::check_parent(context, verb, "context"); !checked) return checked.error();
    auto state = std::make_unique<detail::devx_object>();
    state->context = detail::access::state(context);
    const auto created = detail::execute(command, output, verb, [&] {
        state->native = mlx5dv_devx_obj_create(context.native_handle(), command.data(), command.size(), output.data(),
                                               output.size());
        return state->native != nullptr ? 0 : errno != 0 ? errno : EIO;
    });
    if (!created) return created.error();
    state->is_general = detail::number_at<std::uint16_t>(command, 0) == detail::create_general_object;
    state->type = detail::number_at<std::uint16_t>(command, detail::type_at);
    state->id = detail::number_at<std::uint32_t>(output, detail::id_at);
    return object(std::move(state));
}

result<void> object::destroy() {
    if (auto checked = detail::check_object(state_.get(), "mlx5dv_devx_obj_destroy"); !checked) return checked;
    auto destroyed = state_->destroy();
    if (destroyed) state_.reset();
    return destroyed;
}

result<void> object::query(std::span<const std::byte> command, std::span<std::byte> output) const {
    constexpr auto verb = "mlx5dv_devx_obj_query";
    if (auto checked = detail::check_object(state_.get(), verb); !checked) return checked;
    return detail::execute(command, output, verb, [&] {
        return mlx5dv_devx_obj_query(state_->native, command.data(), command.size(), output.data(), output.size());
    });
}

result<void> object::modify(std::span<const std::byte> command, std::span<std::byte> output) const {
    constexpr auto verb = "mlx5dv_devx_obj_modify";
    if (auto checked = detail::check_object(state_.get(), verb); !checked) return checked;
    return detail::execute(command, output, verb, [&] {
        return mlx5dv_devx_obj_modify(state_->native, command.data(), command.size(), output.data(), output.size());
    });
}

verbena::context object::context() const noexcept {
    return detail::access::make<verbena::context>(state_ ? state_->context : nullptr);
}
mlx5dv_devx_obj* object::native_handle() const noexcept { return state_ ? state_->native : nullptr; }

result<void> general_command(const context& context, std::span<const std::byte> command, std::span<std::byte> output) {
    constexpr auto verb = "mlx5dv_devx_general_cmd";
    if (auto checked = detail::check_parent(context, verb, "context"); !checked) return checked;
    return detail::execute(command, output, verb, [&] {
        return mlx5dv_devx_general_cmd(context.native_handle(), command.data(), command.size(), output.data(),
                                       output.size());
    });
}

result<context> open_context(std::string_view name) {
    return detail::open_context(name, "mlx5dv_open_device", [](ibv_device* device) {
        mlx5dv_context_attr attributes{};
        attributes.flags = MLX5DV_CONTEXT_FLAGS_DEVX;
        return mlx5dv_open_device(device, &attributes);
    });
}

} // namespace mlx5
} // namespace verbena
