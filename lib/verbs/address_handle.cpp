#include <verbena/verbs/address_handle.hpp>

#include "states.hpp"
#include "verb.hpp"

#include <fmt/format.h>

#include <cstring>

namespace verbena {
namespace {

constexpr auto verb = "ibv_create_ah";

result<std::shared_ptr<detail::address_handle_state>> create_native(const protection_domain& domain,
                                                                    ibv_ah_attr attributes) {
    auto state = std::make_shared<detail::address_handle_state>();
    state->domain = detail::access::state(domain);
    auto native = detail::check_pointer(verb, [&] { return ibv_create_ah(state->domain->native, &attributes); });
    if (!native) return native.error();
    state->native = *native;
    return state;
}

} // namespace

detail::address_handle_state::~address_handle_state() {
    if (native) destroy(*domain->context, "ibv_destroy_ah", [&] { return ibv_destroy_ah(native); });
}

result<address_handle> address_handle::create(const protection_domain& domain, const address_vector& address) {
    if (auto checked = detail::check_parent(domain, verb, "protection domain"); !checked) return checked.error();
    auto port = domain.context().port(address.port);
    if (!port) return port.error();
    if (!address.destination && port->link == link_layer::ethernet)
        return error(errc::invalid_argument, verb)
            .with_note(fmt::format("port {} is an Ethernet port: the destination needs a GID", address.port));
    if (!address.destination && address.lid == 0)
        return error(errc::invalid_argument, verb).with_note("the destination has neither GID nor LID");
    if (address.destination && address.gid_index >= port->gid_table_length)
        return error(errc::invalid_argument, verb)
            .with_note(fmt::format("gid_index is {}, but port {} has {} GIDs", address.gid_index, address.port,
                                   port->gid_table_length));
    ibv_ah_attr attributes{};
    attributes.port_num = address.port;
    attributes.dlid = address.lid;
    attributes.sl = address.service_level;
    if (address.destination) {
        attributes.is_global = 1;
        attributes.grh.dgid = address.destination->native();
        attributes.grh.sgid_index = address.gid_index;
        attributes.grh.hop_limit = address.hop_limit;
        attributes.grh.traffic_class = address.traffic_class;
        attributes.grh.flow_label = address.flow_label;
    }
    auto state = create_native(domain, attributes);
    if (!state) return state.error();
    return address_handle(*std::move(state));
}

result<address_handle> address_handle::create(const protection_domain& domain, const work_completion& received,
                                              std::span<const std::byte> grh, std::uint8_t port) {
    constexpr auto init = "ibv_init_ah_from_wc";
    if (auto checked = detail::check_parent(domain, init, "protection domain"); !checked) return checked.error();
    if (!received.is_receive())
        return error(errc::invalid_argument, init).with_note("the completion is not that of a successful receive");
    if (received.has_grh() && grh.size() < grh_bytes)
        return error(errc::invalid_argument, init)
            .with_note(fmt::format("a global route header has {} bytes, not {}", grh_bytes, grh.size()));
    auto attributes_of_port = domain.context().port(port);
    if (!attributes_of_port) return attributes_of_port.error();
    ibv_wc completion = received.native();
    ibv_grh header{};
    if (received.has_grh()) std::memcpy(&header, grh.data(), grh_bytes);
    ibv_ah_attr attributes{};
    // It answers 0 or a negative number of no fixed meaning; what it looks for is the local GID that the message named.
    if (ibv_init_ah_from_wc(domain.context().native_handle(), port, &completion, &header, &attributes) != 0)
        return error(errc::not_found, init).with_note("the header names no GID of this port");
    auto state = create_native(domain, attributes);
    if (!state) return state.error();
    return address_handle(*std::move(state));
}

protection_domain address_handle::domain() const noexcept {
    return detail::access::make<protection_domain>(state_ ? state_->domain : nullptr);
}
ibv_ah* address_handle::native_handle() const noexcept { return state_ ? state_->native : nullptr; }

} // namespace verbena
