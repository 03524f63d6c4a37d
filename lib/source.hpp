#pragma once

#include "wait_backend.hpp"

#include <verbena/detail/list.hpp>

namespace verbena::detail {

struct context_state;

/// What a reactor drains after its descriptor was reported, and not before: it puts itself on the reactor's list, in
/// `ready`, and anew if its budget did not suffice.
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
