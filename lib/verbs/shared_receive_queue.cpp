#include <verbena/verbs/shared_receive_queue.hpp>

#include "../completion_pump.hpp"
#include "../receiver_core.hpp"
#include "states.hpp"
#include "verb.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace verbena {
namespace {

result<void> check_size(const char* what, std::uint32_t size, int limit, const std::string& device) {
    if (size != 0 && size <= static_cast<std::uint32_t>(limit)) return {};
    return error(errc::invalid_argument, "ibv_create_srq")
        .with_note(fmt::format("{} is {}, but {} takes 1 to {}", what, size, device, limit));
}

} // namespace

detail::shared_receive_queue_state::~shared_receive_queue_state() {
    if (native) destroy(*domain->context, "ibv_destroy_srq", [&] { return ibv_destroy_srq(native); });
    if (receiver) receiver->queue_gone();
}

result<void> detail::shared_receive_queue_state::join(const std::shared_ptr<completion_queue_state>& queue) {
    for (auto& [used, count] : users)
        if (used == queue) {
            ++count;
            return {};
        }
    users.reserve(users.size() + 1); // before the other one may throw
    if (auto reserved = queue->reserve(max_wr); !reserved) return reserved;
    users.emplace_back(queue, 1);
    return {};
}

void detail::shared_receive_queue_state::leave(const completion_queue_state& queue) noexcept {
    const auto user = std::find_if(users.begin(), users.end(), [&](const auto& u) { return u.first.get() == &queue; });
    if (--user->second > 0) return;
    user->first->release(max_wr);
    users.erase(user);
}

bool detail::shared_receive_queue_state::belongs_to(const reactor_core& candidate) const noexcept {
    if (reactor != nullptr && reactor != &candidate) return false;
    return std::all_of(users.begin(), users.end(), [&](const auto& user) {
        const auto* attached = static_cast<const attached_queue*>(user.first->attachment.load());
        return attached != nullptr && &attached->reactor() == &candidate;
    });
}

result<shared_receive_queue> shared_receive_queue::create(const protection_domain& domain,
                                                          const shared_receive_queue_options& options) {
    constexpr auto verb = "ibv_create_srq";
    if (auto checked = detail::check_parent(domain, verb, "protection domain"); !checked) return checked.error();
    auto state = std::make_shared<detail::shared_receive_queue_state>();
    state->domain = detail::access::state(domain);
    const auto& device = *state->domain->context;
    if (device.attributes.max_srq <= 0)
        return error(errc::unsupported, verb).with_note(device.name + " has no shared receive queues");
    auto checked = check_size("max_wr", options.max_wr, device.attributes.max_srq_wr, device.name);
    if (checked) checked = check_size("max_sge", options.max_sge, device.attributes.max_srq_sge, device.name);
    if (!checked) return checked.error();
    ibv_srq_init_attr attributes{};
    attributes.srq_context = detail::fresh_identity();
    attributes.attr.max_wr = options.max_wr;
    attributes.attr.max_sge = options.max_sge;
    auto native = detail::check_pointer(verb, [&] { return ibv_create_srq(state->domain->native, &attributes); });
    if (!native) return native.error();
    state->native = *native;
    state->max_wr = options.max_wr;
    state->max_sge = options.max_sge;
    shared_receive_queue queue(std::move(state));
    // Creation ignores the limit (man ibv_create_srq).
    if (options.limit != 0)
        if (auto armed = queue.arm_limit(options.limit); !armed) return armed.error();
    return queue;
}

std::uint32_t shared_receive_queue::max_wr() const noexcept { return state_->max_wr; }
std::uint32_t shared_receive_queue::max_sge() const noexcept { return state_->max_sge; }

result<void> shared_receive_queue::arm_limit(std::uint32_t limit) const {
    if (!state_) return detail::no_parent("ibv_modify_srq", "shared receive queue");
    if (state_->domain->context->process.forked()) return detail::fork_error("ibv_modify_srq");
    if (limit > state_->max_wr)
        return error(errc::invalid_argument, "ibv_modify_srq")
            .with_note(fmt::format("a limit of {} is above max_wr, {}", limit, state_->max_wr));
    ibv_srq_attr attributes{};
    attributes.srq_limit = limit;
    return detail::check_errno_value("ibv_modify_srq",
                                     [&] { return ibv_modify_srq(state_->native, &attributes, IBV_SRQ_LIMIT); });
}

protection_domain shared_receive_queue::domain() const noexcept {
    return detail::access::make<protection_domain>(state_ ? state_->domain : nullptr);
}
ibv_srq* shared_receive_queue::native_handle() const noexcept { return state_ ? state_->native : nullptr; }

} // namespace verbena
