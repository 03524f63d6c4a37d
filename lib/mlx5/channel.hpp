#pragma once

// What command channels and event channels have in common.

#include "../check.hpp"
#include "../reactor_core.hpp"

namespace verbena::detail {

inline error empty_channel(const char* verb) {
    return error(errc::invalid_argument, verb).with_note("an empty channel");
}

/// `life`: why nothing comes from the channel any more; `present`: the reactor that it has.
inline result<void> attach_channel(readable_source& channel, const context_state& context, const result<void>& life,
                                   reactor_core*& present, reactor_core& reactor) {
    constexpr auto verb = "reactor::attach";
    if (!reactor.on_thread()) return reactor.refused(verb);
    if (context.process.forked()) return fork_error(verb);
    if (present != nullptr)
        return error(errc::attached, verb).with_note(present == &reactor ? "to this reactor" : "to another reactor");
    if (!life) return life;
    if (context.lost.load()) return error(errc::device_removed, verb);
    if (auto attached = reactor.attach(channel); !attached) return attached;
    present = &reactor;
    return {};
}

} // namespace verbena::detail
