#pragma once

#include <verbena/detail/export.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <system_error>

namespace verbena {

/// Portable conditions. Compare them with an error's code: `if (sent.error() == errc::connection_reset)`. A code keeps
/// what the system or the device said; a condition says what it means for a program.
enum class errc {
    invalid_argument = 1, ///< the call cannot be right, whatever the state: EINVAL, a size out of range
    resource,             ///< memory, descriptors or device objects have run out: ENOMEM, EMFILE, ENFILE
    unsupported,          ///< this device, kernel or build cannot: EOPNOTSUPP, ENOSYS
    attached,             ///< the completion queue or command channel belongs to a reactor already
    not_attached,         ///< the completion queue or command channel belongs to no reactor, or its reactor is gone
    in_use,               ///< another user holds it: EBUSY, EADDRINUSE, reserved capacity, hand posts beside awaits
    not_connected,        ///< the queue pair is not ready for this: RESET or INIT for a send
    closed,               ///< the object was closed or destroyed under the operation
    connection_reset,     ///< the queue pair failed; `error::root_cause()` names the first failure
    message_too_long,     ///< a message did not fit its receive buffer: IBV_WC_LOC_LEN_ERR, IBV_WC_REM_INV_REQ_ERR
    access_denied,        ///< key, bounds, rights or domain: IBV_WC_LOC_PROT_ERR, IBV_WC_REM_ACCESS_ERR, EACCES, EPERM
    peer_unreachable,     ///< no answer within the retries: IBV_WC_RETRY_EXC_ERR, EHOSTUNREACH
    receiver_not_ready,   ///< the peer posted no receive in time: IBV_WC_RNR_RETRY_EXC_ERR
    timed_out,            ///< a deadline passed
    stopped,              ///< a stop was requested
    device_removed,       ///< the device is gone: EIO, ENODEV, IBV_WC_FATAL_ERR
    wrong_thread,         ///< a reactor-bound object was used from another thread, or any in a fork of its process
    queue_failed,         ///< the completion queue cannot be polled any more
    not_found,            ///< no such device, port or address
    peer_lost,            ///< the peer gave no sign of life: `queue_pair_options::keepalive`
    connection_refused,   ///< the peer rejected the connection, or nobody listens there: ECONNREFUSED
    disconnected,         ///< the connection was ended, by the peer or by this side
};

/// "verbena": the category of `make_code` and of `errc` as conditions. Thread-safe.
VERBENA_API const std::error_category& error_category() noexcept;

/// Codes of this category are `ibv_wc_status` values. `default_error_condition` maps them to `errc`. Thread-safe.
/// Source: ibv_poll_cq(3).
VERBENA_API const std::error_category& completion_category() noexcept;

/// The code the library itself reports for a condition.
VERBENA_API std::error_code make_code(errc condition) noexcept;
/// The same as a condition, with which codes are compared.
VERBENA_API std::error_condition make_error_condition(errc condition) noexcept;

/// Why an operation failed: a code, the verb that failed, and what the device added. Copying one allocates nothing.
/// A value.
class VERBENA_API error {
  public:
    error() noexcept = default;
    /// `verb`: a string literal, which is kept by address.
    error(std::error_code code, const char* verb) noexcept : code_(code), verb_(verb) {}
    /// With `make_code(condition)`.
    error(errc condition, const char* verb) noexcept : code_(make_code(condition)), verb_(verb) {}

    /// What the system, the device or the library said; none of a default-constructed error.
    std::error_code code() const noexcept { return code_; }
    /// The verb or function that failed, a string literal: "ibv_create_cq".
    const char* verb() const noexcept { return verb_; }
    /// `ibv_wc.vendor_err` of a failed completion, the syndrome of a DEVX command that the firmware refused, the reason
    /// of a rejected connection, else 0.
    std::uint32_t vendor_error() const noexcept { return vendor_error_; }
    /// The queue pair a failed completion belongs to, else 0.
    std::uint32_t qp_num() const noexcept { return qp_num_; }
    /// The first failure of the queue pair, if this operation fell with it; else the same as `code()`.
    std::error_code root_cause() const noexcept { return root_cause_ ? root_cause_ : code_; }
    /// "verb: what happened", the note, the queue pair and the root cause where there are any.
    std::string message() const;

    /// Adds to the notes it has.
    error& with_note(std::string note);
    /// Sets what `qp_num` and `vendor_error` answer.
    error& with_completion(std::uint32_t qp_num, std::uint32_t vendor_error) noexcept {
        qp_num_ = qp_num;
        vendor_error_ = vendor_error;
        return *this;
    }
    /// Sets what `root_cause` answers.
    error& with_root_cause(std::error_code cause) noexcept {
        root_cause_ = cause;
        return *this;
    }

    /// Whether the code means that: `code() == condition`.
    friend bool operator==(const error& e, errc condition) noexcept {
        return e.code_ == make_error_condition(condition);
    }

  private:
    std::error_code code_;
    const char* verb_ = "";
    std::uint32_t vendor_error_ = 0;
    std::uint32_t qp_num_ = 0;
    std::error_code root_cause_;
    std::shared_ptr<const std::string> note_;
};

} // namespace verbena

template <>
struct std::is_error_condition_enum<verbena::errc> : std::true_type {};
