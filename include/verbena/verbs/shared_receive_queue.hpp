#pragma once

#include <verbena/verbs/protection_domain.hpp>

namespace verbena {

namespace detail {
struct shared_receive_queue_state;
}

/// How large a shared receive queue is. Source: ibv_create_srq(3).
struct shared_receive_queue_options {
    std::uint32_t max_wr = 0;  ///< receives that may be posted at a time
    std::uint32_t max_sge = 1; ///< slices of one receive
    std::uint32_t limit = 0;   ///< fewer receives than this raise IBV_EVENT_SRQ_LIMIT_REACHED once; 0: never
};

/// Receives that several queue pairs draw from. Copies share it. *Reactor-bound*: it belongs to one reactor for life,
/// and its receiver alone posts to it.
class VERBENA_API shared_receive_queue {
  public:
    /// Errors: `invalid_argument`: a size of 0 or beyond the device's limit, a limit above max_wr; `unsupported`: the
    /// device has none; `resource`. Sources: ibv_create_srq(3), ibv_modify_srq(3).
    static result<shared_receive_queue> create(const protection_domain& domain,
                                               const shared_receive_queue_options& options);

    shared_receive_queue() noexcept = default;
    explicit operator bool() const noexcept { return state_ != nullptr; }

    /// As asked for; the device may hold more.
    std::uint32_t max_wr() const noexcept;
    std::uint32_t max_sge() const noexcept; ///< as asked for
    /// Arms the limit event anew. Errors: `invalid_argument`: a limit above max_wr; `unsupported`. Source:
    /// ibv_modify_srq(3).
    result<void> arm_limit(std::uint32_t limit) const;
    protection_domain domain() const noexcept;
    ibv_srq* native_handle() const noexcept;
    friend bool operator==(const shared_receive_queue&, const shared_receive_queue&) noexcept = default;

  private:
    friend struct detail::access;
    explicit shared_receive_queue(std::shared_ptr<detail::shared_receive_queue_state> state) noexcept
        : state_(std::move(state)) {}

    std::shared_ptr<detail::shared_receive_queue_state> state_;
};

} // namespace verbena
