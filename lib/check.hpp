#pragma once

// The six error conventions of the C interfaces below, one function for each, so that no call site decides.

#include <verbena/result.hpp>

#include <cerrno>
#include <concepts>
#include <cstdint>
#include <system_error>
#include <utility>

namespace verbena::detail {

inline std::error_code system_code(int value) noexcept { return {value, std::system_category()}; }
inline bool is(const error& e, int value) noexcept { return e.code() == system_code(value); }

/// Adds what helps: for ENOMEM the locked-memory limit and how to raise it.
error system_error_of(int value, const char* verb);

/// Calls a function that answers a pointer: NULL and `errno`. `errno` is cleared first, as some paths leave it alone.
template <class Call>
auto check_pointer(const char* verb, Call&& call) -> result<decltype(call())> {
    errno = 0;
    if (auto* pointer = call()) return pointer;
    return system_error_of(errno != 0 ? errno : EIO, verb);
}

/// 0, or an errno value; some providers answer it negative, and old ones -1 with `errno`.
inline int errno_value(int answer) noexcept {
    if (answer >= 0) return answer;
    return answer == -1 && errno != 0 ? errno : -answer;
}
template <std::invocable Call>
int errno_value(Call&& call) {
    errno = 0;
    return errno_value(call());
}
template <class Call>
result<void> check_errno_value(const char* verb, Call&& call) {
    if (const int code = detail::errno_value(std::forward<Call>(call))) return system_error_of(code, verb);
    return {};
}
/// For what is called too often to clear `errno` before.
inline std::error_code errno_code(int answer) noexcept { return system_code(errno_value(answer)); }

/// 0 or more, or -1 and `errno`. A short read answers -1 with a stale `errno`, hence the clearing.
template <class Call>
result<int> check_minus_one(const char* verb, Call&& call) {
    errno = 0;
    const int answer = call();
    if (answer >= 0) return answer;
    return system_error_of(errno != 0 ? errno : EIO, verb);
}

/// A count, or a negative number that is no errno: the queue cannot be polled any more.
template <class Call>
result<int> check_count(const char* verb, Call&& call) {
    const int answer = call();
    if (answer >= 0) return answer;
    return error(errc::queue_failed, verb);
}

/// liburing: a number, or a negative errno.
template <class Call>
result<int> check_negative_errno(const char* verb, Call&& call) {
    const int answer = call();
    if (answer >= 0) return answer;
    return system_error_of(-answer, verb);
}

/// The second layer inside success: a completion's status.
inline error completion_error(int status, const char* verb, std::uint32_t qp_num, std::uint32_t vendor_error) noexcept {
    return error(std::error_code(status, completion_category()), verb).with_completion(qp_num, vendor_error);
}

} // namespace verbena::detail
