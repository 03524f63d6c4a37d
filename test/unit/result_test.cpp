// Invariant: a result holds a value or an error; what it does not hold it never gives.

#include "support/catch.hpp"

#include <verbena/result.hpp>

#include <memory>
#include <string>
#include <type_traits>
#include <vector>

namespace vb = verbena;

namespace {

vb::result<std::vector<int>> numbers(bool ok) {
    if (ok) return std::vector{1, 2, 3};
    return vb::error(vb::errc::closed, "a_verb").with_note("a note");
}

template <class F>
std::system_error thrown_by(F&& f) {
    try {
        f();
    } catch (const std::system_error& e) {
        return e;
    }
    FAIL("nothing was thrown");
    throw 0;
}

} // namespace

static_assert(!std::is_default_constructible_v<vb::result<int>>);
static_assert(std::is_same_v<decltype(numbers(true).value()), std::vector<int>>, "a range-for over it would dangle");
static_assert(std::is_nothrow_move_constructible_v<vb::result<std::unique_ptr<int>>>);
static_assert(!std::is_convertible_v<vb::result<int>, bool>);

TEST_CASE("a result with a value") {
    auto result = numbers(true);
    REQUIRE(result);
    CHECK(result.has_value());
    CHECK(result->size() == 3);
    CHECK((*result)[0] == 1);
    CHECK(result.value().size() == 3);
    int sum = 0;
    for (int n : numbers(true).value()) sum += n;
    CHECK(sum == 6);
    CHECK(numbers(true).value_or(std::vector{9}).size() == 3);
    CHECK(numbers(false).value_or(std::vector{9}).size() == 1);
}

TEST_CASE("a result with an error throws it by name, and says nothing twice") {
    const auto result = numbers(false);
    REQUIRE(!result);
    CHECK(result.error() == vb::errc::closed);
    const auto thrown = thrown_by([&] { (void)result.value(); });
    CHECK(thrown.code() == vb::errc::closed);
    CHECK(std::string(thrown.what()) == "a_verb (a note): closed");
    CHECK(thrown_by([] { (void)numbers(false).value(); }).code() == vb::errc::closed);
}

TEST_CASE("a result of nothing") {
    vb::result<void> fine;
    CHECK(fine);
    CHECK_NOTHROW(fine.value());
    vb::result<void> failed = vb::error(vb::errc::stopped, "run");
    CHECK(!failed);
    CHECK(failed.error() == vb::errc::stopped);
    CHECK(std::string(thrown_by([&] { failed.value(); }).what()) == "run: stopped");
}

TEST_CASE("a result may be move-only") {
    vb::result<std::unique_ptr<int>> result = std::make_unique<int>(5);
    auto owner = std::move(result).value();
    CHECK(*owner == 5);
    vb::result<std::unique_ptr<int>> other = std::move(owner);
    CHECK(**other == 5);
    CHECK(*(*std::move(other)) == 5);
}

TEST_CASE("an error goes from one result to another") {
    const auto forward = []() -> vb::result<int> {
        auto inner = numbers(false);
        if (!inner) return std::move(inner).error();
        return 1;
    };
    CHECK(forward().error().message() == "a_verb: closed (a note)");
}
