#include <verbena/verbs/protection_domain.hpp>

#include "states.hpp"
#include "verb.hpp"

namespace verbena {

detail::protection_domain_state::~protection_domain_state() {
    if (native) destroy(*context, "ibv_dealloc_pd", [&] { return ibv_dealloc_pd(native); });
}

result<protection_domain> protection_domain::create(const verbena::context& context) {
    if (auto checked = detail::check_parent(context, "ibv_alloc_pd", "context"); !checked) return checked.error();
    auto state = std::make_shared<detail::protection_domain_state>();
    state->context = detail::access::state(context);
    auto native = detail::check_pointer("ibv_alloc_pd", [&] { return ibv_alloc_pd(state->context->native); });
    if (!native) return native.error();
    state->native = *native;
    return protection_domain(std::move(state));
}

verbena::context protection_domain::context() const noexcept {
    return detail::access::make<verbena::context>(state_ ? state_->context : nullptr);
}
ibv_pd* protection_domain::native_handle() const noexcept { return state_ ? state_->native : nullptr; }

} // namespace verbena
