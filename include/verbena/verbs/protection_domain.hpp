#pragma once

#include <verbena/verbs/context.hpp>

namespace verbena {

namespace detail {
struct protection_domain_state;
}

/// What may be used together: memory, queue pairs, shared receive queues and address handles of one domain.
/// Copies share it. *Thread-safe.*
class VERBENA_API protection_domain {
  public:
    /// Errors: `invalid_argument`: the context is empty; `resource`. Source: ibv_alloc_pd(3).
    static result<protection_domain> create(const verbena::context& context);

    protection_domain() noexcept = default;
    explicit operator bool() const noexcept { return state_ != nullptr; }

    verbena::context context() const noexcept;
    ibv_pd* native_handle() const noexcept;
    friend bool operator==(const protection_domain&, const protection_domain&) noexcept = default;

  private:
    friend struct detail::access;
    explicit protection_domain(std::shared_ptr<detail::protection_domain_state> state) noexcept
        : state_(std::move(state)) {}

    std::shared_ptr<detail::protection_domain_state> state_;
};

} // namespace verbena
