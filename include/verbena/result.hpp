#pragma once

#include <verbena/error.hpp>

#include <concepts>
#include <optional>
#include <system_error>
#include <type_traits>
#include <utility>
#include <variant>

namespace verbena {

template <class T>
class result;

namespace detail {
[[noreturn]] VERBENA_API void throw_error(const error& e);

template <class T>
inline constexpr bool is_result = false;
template <class T>
inline constexpr bool is_result<result<T>> = true;
} // namespace detail

/// A value or an `error`: a strict subset of C++23's `std::expected<T, error>`. `value()` throws `std::system_error`
/// whose text names the verb, and of an rvalue it returns by value, so that `for (auto x : f().value())` is safe.
/// A value, of the thread word of its T.
template <class T>
class [[nodiscard]] result {
  public:
    using value_type = T;              ///< as of `std::expected`
    using error_type = verbena::error; ///< as of `std::expected`

    /// Success: a T made from `value`.
    template <class U = T>
        requires std::constructible_from<T, U> && (!detail::is_result<std::remove_cvref_t<U>>) &&
                 (!std::same_as<std::remove_cvref_t<U>, verbena::error>)
    constexpr explicit(!std::convertible_to<U, T>) result(U&& value)
        : state_(std::in_place_index<0>, std::forward<U>(value)) {}
    /// Failure.
    result(verbena::error e) noexcept : state_(std::in_place_index<1>, std::move(e)) {}

    bool has_value() const noexcept { return state_.index() == 0; } ///< whether it succeeded
    explicit operator bool() const noexcept { return has_value(); } ///< whether it succeeded

    /// @{
    /// The value. Precondition: `has_value()`.
    T& operator*() & noexcept { return *std::get_if<0>(&state_); }
    const T& operator*() const& noexcept { return *std::get_if<0>(&state_); }
    T&& operator*() && noexcept { return std::move(*std::get_if<0>(&state_)); }
    T* operator->() noexcept { return std::get_if<0>(&state_); }
    const T* operator->() const noexcept { return std::get_if<0>(&state_); }
    /// @}

    /// @{
    /// The value; throws `std::system_error` with the code and the message of the error if there is none.
    T& value() & {
        require();
        return **this;
    }
    const T& value() const& {
        require();
        return **this;
    }
    T value() && {
        require();
        return std::move(**this);
    }
    /// @}
    /// The value, or `other` if there is none.
    template <class U>
    T value_or(U&& other) && {
        return has_value() ? std::move(**this) : static_cast<T>(std::forward<U>(other));
    }

    /// Precondition: `!has_value()`.
    const verbena::error& error() const& noexcept { return *std::get_if<1>(&state_); }
    /// Precondition: `!has_value()`.
    verbena::error error() && noexcept { return std::move(*std::get_if<1>(&state_)); }

  private:
    void require() const {
        if (!has_value()) detail::throw_error(*std::get_if<1>(&state_));
    }

    std::variant<T, verbena::error> state_;
};

/// Success, or an `error`. A value.
template <>
class [[nodiscard]] result<void> {
  public:
    using value_type = void;           ///< as of `std::expected`
    using error_type = verbena::error; ///< as of `std::expected`

    /// Success.
    result() noexcept {} // not defaulted, which would clear the room of the error first
    /// Failure.
    result(verbena::error e) noexcept : error_(std::move(e)) {}

    bool has_value() const noexcept { return !error_; }             ///< whether it succeeded
    explicit operator bool() const noexcept { return has_value(); } ///< whether it succeeded
    void operator*() const noexcept {}                              ///< nothing, for templates
    /// Throws `std::system_error` with the code and the message of the error if it failed.
    void value() const {
        if (error_) detail::throw_error(*error_);
    }
    /// Precondition: `!has_value()`.
    const verbena::error& error() const& noexcept { return *error_; }
    /// Precondition: `!has_value()`.
    verbena::error error() && noexcept { return *std::move(error_); }

  private:
    std::optional<verbena::error> error_; // success constructs none
};

} // namespace verbena
