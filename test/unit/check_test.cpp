// Invariant: whichever way a C function reports its failure, the error carries its code and verb, and a stale errno is
// never taken for one.

#include "support/catch.hpp"

#include "check.hpp"

#include <infiniband/verbs.h>

#include <sys/resource.h>

#include <cerrno>
#include <functional>
#include <string>

namespace vb = verbena;
namespace detail = verbena::detail;

namespace {

constexpr int poison = 77;
constexpr auto verb = "the_verb";

/// A C function: what it answers, and the errno it leaves behind, if it touches it.
struct c_function {
    int answer;
    int sets = 0;

    int operator()() const {
        if (sets != 0) errno = sets;
        return answer;
    }
};

using convention = std::error_code (*)(const c_function&);

template <class T>
std::error_code checked(const vb::result<T>& result) {
    if (result) return {};
    CHECK(result.error().verb() == verb);
    CHECK(result.error().message().find("the_verb: ") == 0);
    return result.error().code();
}

std::error_code pointer(const c_function& f) {
    return checked(detail::check_pointer(verb, [&]() -> const c_function* { return f() == 0 ? nullptr : &f; }));
}
std::error_code errno_value(const c_function& f) { return checked(detail::check_errno_value(verb, f)); }
std::error_code minus_one(const c_function& f) { return checked(detail::check_minus_one(verb, f)); }
std::error_code count(const c_function& f) { return checked(detail::check_count(verb, f)); }
std::error_code negative_errno(const c_function& f) { return checked(detail::check_negative_errno(verb, f)); }

std::error_code of(int value) { return {value, std::system_category()}; }

struct row {
    const char* name;
    convention check;
    c_function function;
    std::error_code expected;
};

const row table[] = {
    {"a pointer", pointer, {1}, {}},
    {"NULL with errno", pointer, {0, ENOMEM}, of(ENOMEM)},
    {"NULL without errno", pointer, {0}, of(EIO)},

    {"0", errno_value, {0}, {}},
    {"0 that touched errno", errno_value, {0, EAGAIN}, {}},
    {"positive errno", errno_value, {EBUSY}, of(EBUSY)},
    {"positive errno that touched errno", errno_value, {EBUSY, EAGAIN}, of(EBUSY)},
    {"negative errno", errno_value, {-EINVAL}, of(EINVAL)},
    {"-1 with errno for an errno value", errno_value, {-1, EMFILE}, of(EMFILE)},
    {"-2 is -ENOENT", errno_value, {-2}, of(ENOENT)},

    {"0 of -1 or not", minus_one, {0}, {}},
    {"a number of -1 or not", minus_one, {5}, {}},
    {"-1 with errno", minus_one, {-1, EAGAIN}, of(EAGAIN)},
    {"-1 of a short read", minus_one, {-1}, of(EIO)},

    {"no completions", count, {0}, {}},
    {"completions", count, {3}, {}},
    {"-1 of a count", count, {-1, EINVAL}, vb::make_code(vb::errc::queue_failed)},
    {"-2 of a count", count, {-2}, vb::make_code(vb::errc::queue_failed)},

    {"0 of a ring", negative_errno, {0}, {}},
    {"a number of a ring", negative_errno, {7}, {}},
    {"negative errno of a ring", negative_errno, {-ETIME}, of(ETIME)},
    {"-1 of a ring is -EPERM", negative_errno, {-1, EAGAIN}, of(EPERM)},
};

} // namespace

TEST_CASE("the error conventions") {
    for (const auto& row : table) {
        INFO(row.name);
        errno = poison;
        const auto code = row.check(row.function);
        CHECK(code == row.expected);
        CHECK(code.value() != poison);
    }
}

TEST_CASE("a success gives the answer") {
    int object = 0;
    CHECK(detail::check_pointer(verb, [&] { return &object; }).value() == &object);
    CHECK(detail::check_minus_one(verb, [] { return 4; }).value() == 4);
    CHECK(detail::check_count(verb, [] { return 5; }).value() == 5);
    CHECK(detail::check_negative_errno(verb, [] { return 6; }).value() == 6);
}

TEST_CASE("the layer inside success: a completion's status") {
    errno = poison;
    const auto e = detail::completion_error(IBV_WC_REM_ACCESS_ERR, verb, 17, 0x88);
    CHECK(e == vb::errc::access_denied);
    CHECK(e.code() == std::error_code(IBV_WC_REM_ACCESS_ERR, vb::completion_category()));
    CHECK(e.qp_num() == 17);
    CHECK(e.vendor_error() == 0x88);
    CHECK(e.verb() == verb);
}

TEST_CASE("ENOMEM names the limit of locked memory, its value and how to raise it") {
    rlimit before{};
    REQUIRE(getrlimit(RLIMIT_MEMLOCK, &before) == 0);
    const auto text_with = [&](rlim_t limit) {
        const rlimit wanted{.rlim_cur = limit, .rlim_max = before.rlim_max};
        if (setrlimit(RLIMIT_MEMLOCK, &wanted) != 0) return std::string();
        auto text = detail::system_error_of(ENOMEM, verb).message();
        setrlimit(RLIMIT_MEMLOCK, &before);
        return text;
    };
    const auto text = text_with(32 * 1024);
    for (const auto* part : {"the_verb: ", "RLIMIT_MEMLOCK", "32 KiB", "ulimit -l", "limits.conf", "LimitMEMLOCK="})
        CHECK(text.find(part) != std::string::npos);
    if (before.rlim_max == RLIM_INFINITY) CHECK(text_with(RLIM_INFINITY).find("unlimited") != std::string::npos);
    CHECK(detail::system_error_of(EINVAL, verb).message().find("MEMLOCK") == std::string::npos);
}
