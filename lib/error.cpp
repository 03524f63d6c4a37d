#include <verbena/error.hpp>
#include <verbena/result.hpp>

#include <infiniband/verbs.h>

#include <fmt/format.h>

#include <cerrno>
#include <cstring>

namespace verbena {
namespace {

const char* describe(errc condition) noexcept {
    switch (condition) {
    case errc::invalid_argument: return "invalid argument";
    case errc::resource: return "out of a resource";
    case errc::unsupported: return "not supported here";
    case errc::attached: return "attached to a reactor already";
    case errc::not_attached: return "not attached to a reactor";
    case errc::in_use: return "in use";
    case errc::not_connected: return "the queue pair is not ready";
    case errc::closed: return "closed";
    case errc::connection_reset: return "the connection failed";
    case errc::message_too_long: return "the message does not fit its buffer";
    case errc::access_denied: return "access denied";
    case errc::peer_unreachable: return "the peer does not answer";
    case errc::receiver_not_ready: return "the peer has posted no receive";
    case errc::timed_out: return "timed out";
    case errc::stopped: return "stopped";
    case errc::device_removed: return "the device is gone";
    case errc::wrong_thread: return "used from a thread it does not belong to";
    case errc::queue_failed: return "the completion queue failed";
    case errc::not_found: return "not found";
    case errc::peer_lost: return "the peer gave no sign of life";
    case errc::connection_refused: return "the connection was refused";
    case errc::disconnected: return "the connection was ended";
    }
    return "unknown";
}

errc from_errno(int value) noexcept {
    switch (value) {
    case EINVAL:
    case ERANGE:
    case E2BIG:
    case EFAULT:
    case EMSGSIZE: return errc::invalid_argument;
    case ENOMEM:
    case EMFILE:
    case ENFILE:
    case ENOSPC:
    case EAGAIN: return errc::resource;
    case EOPNOTSUPP:
    case ENOSYS:
    case EPROTONOSUPPORT: return errc::unsupported;
    case EBUSY:
    case EADDRINUSE: return errc::in_use;
    case EACCES:
    case EPERM: return errc::access_denied;
    case ETIMEDOUT: return errc::timed_out;
    case EHOSTUNREACH:
    case ENETUNREACH: return errc::peer_unreachable;
    case EIO:
    case ENODEV: return errc::device_removed;
    case ENOENT:
    case EADDRNOTAVAIL: return errc::not_found;
    case ECONNREFUSED: return errc::connection_refused;
    default: return errc{};
    }
}

errc from_status(int value) noexcept {
    switch (value) {
    case IBV_WC_WR_FLUSH_ERR: return errc::connection_reset;
    case IBV_WC_LOC_LEN_ERR:
    case IBV_WC_REM_INV_REQ_ERR: return errc::message_too_long;
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_REM_ACCESS_ERR:
    case IBV_WC_LOC_ACCESS_ERR: return errc::access_denied;
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR: return errc::peer_unreachable;
    case IBV_WC_RNR_RETRY_EXC_ERR: return errc::receiver_not_ready;
    case IBV_WC_FATAL_ERR: return errc::device_removed;
    default: return errc{};
    }
}

class verbena_category_type final : public std::error_category {
  public:
    const char* name() const noexcept override { return "verbena"; }
    std::string message(int value) const override { return describe(static_cast<errc>(value)); }
    bool equivalent(const std::error_code& code, int condition) const noexcept override {
        const auto wanted = static_cast<errc>(condition);
        if (code.category() == *this) return code.value() == condition;
        if (code.category() == std::generic_category() || code.category() == std::system_category())
            return from_errno(code.value()) == wanted;
        if (code.category() == completion_category()) return from_status(code.value()) == wanted;
        return false;
    }
};

class completion_category_type final : public std::error_category {
  public:
    const char* name() const noexcept override { return "completion"; }
    std::string message(int value) const override { return ibv_wc_status_str(static_cast<ibv_wc_status>(value)); }
    std::error_condition default_error_condition(int value) const noexcept override {
        const auto condition = from_status(value);
        return condition == errc{} ? std::error_condition(value, *this) : make_error_condition(condition);
    }
};

} // namespace

const std::error_category& error_category() noexcept {
    static const verbena_category_type category;
    return category;
}

const std::error_category& completion_category() noexcept {
    static const completion_category_type category;
    return category;
}

std::error_code make_code(errc condition) noexcept { return {static_cast<int>(condition), error_category()}; }
std::error_condition make_error_condition(errc condition) noexcept {
    return {static_cast<int>(condition), error_category()};
}

error& error::with_note(std::string note) {
    if (note_) note = *note_ + "; " + note;
    note_ = std::make_shared<const std::string>(std::move(note));
    return *this;
}

std::string error::message() const {
    auto text = fmt::format("{}: {}", verb_, code_.message());
    if (note_) text += fmt::format(" ({})", *note_);
    if (qp_num_ == 0 && vendor_error_ != 0) text += fmt::format(" [vendor error {:#x}]", vendor_error_);
    if (qp_num_ != 0) text += fmt::format(" [queue pair {}, vendor error {:#x}]", qp_num_, vendor_error_);
    if (root_cause_ && root_cause_ != code_) text += fmt::format("; root cause: {}", root_cause_.message());
    return text;
}

namespace detail {
void throw_error(const error& e) {
    // std::system_error appends ": " and the code's own text, so that is taken out of ours.
    auto text = e.message();
    text.erase(std::strlen(e.verb()), 2 + e.code().message().size());
    throw std::system_error(e.code(), text);
}
} // namespace detail

} // namespace verbena
