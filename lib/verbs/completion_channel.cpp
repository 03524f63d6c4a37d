#include <verbena/verbs/completion_channel.hpp>

#include "states.hpp"
#include "verb.hpp"

namespace verbena {

detail::completion_channel_state::~completion_channel_state() {
    if (native) destroy(*context, "ibv_destroy_comp_channel", [&] { return ibv_destroy_comp_channel(native); });
}

result<completion_channel> completion_channel::create(const verbena::context& context) {
    if (auto checked = detail::check_parent(context, "ibv_create_comp_channel", "context"); !checked)
        return checked.error();
    auto state = std::make_shared<detail::completion_channel_state>();
    state->context = detail::access::state(context);
    auto native = detail::check_pointer("ibv_create_comp_channel",
                                        [&] { return ibv_create_comp_channel(state->context->native); });
    if (!native) return native.error();
    state->native = *native;
    // The kernel opens it blocking and close-on-exec. An event may be deleted between poll and read.
    if (auto set = detail::set_non_blocking(state->native->fd); !set) return set.error();
    return completion_channel(std::move(state));
}

verbena::context completion_channel::context() const noexcept {
    return detail::access::make<verbena::context>(state_ ? state_->context : nullptr);
}
int completion_channel::fd() const noexcept { return state_ ? state_->native->fd : -1; }
ibv_comp_channel* completion_channel::native_handle() const noexcept { return state_ ? state_->native : nullptr; }

} // namespace verbena
