#pragma once

#include "wait_backend.hpp"

#include <verbena/detail/list.hpp>

namespace verbena::detail {

struct context_state;

/// What a reactor serves: something that is drained while it is busy and armed before it sleeps.
class source {
  public:
    /// Readable when there is something to drain and it was armed; -1: it can only be polled.
    virtual int fd() const noexcept = 0;
    /// Takes what is there; answers how much. Less than the budget means that it is empty now.
    virtual unsigned drain(unsigned budget) noexcept = 0;
    /// Asks for an event. It must be drained once more before sleeping. False: nothing was newly armed.
    virtual bool arm() noexcept = 0;
    /// The descriptor reported its end: everyone who waits for it must be told.
    virtual void fail() noexcept = 0;

  protected:
    ~source() = default;
};

/// One that is drained only after its descriptor was reported: it puts itself on the reactor's list, in `ready`, and
/// anew if its budget did not suffice.
class readable_source : public watch, public list_node {
  public:
    virtual int fd() const noexcept = 0;
    /// False: it calls `reactor_core::watch` when it must be told, and until then puts itself on the list.
    virtual bool watched_from_the_start() const noexcept { return true; }
    virtual unsigned drain(unsigned budget) noexcept = 0;
    /// Resumes nobody. It is neither called nor watched any more.
    virtual void reactor_gone() noexcept = 0;
    virtual void device_lost(const context_state& context) noexcept = 0;

  protected:
    ~readable_source() = default;
};

} // namespace verbena::detail
