#pragma once

#include <exception>
#include <memory>
#include <type_traits>
#include <utility>
#include <variant>

namespace verbena::detail {

/// What a coroutine ended with: nothing yet, a value (of type void, a reference, or any that moves), or an exception.
template <class T>
class outcome {
    using stored =
        std::conditional_t<std::is_void_v<T>, std::monostate,
                           std::conditional_t<std::is_reference_v<T>, std::add_pointer_t<T>, std::remove_const_t<T>>>;

  public:
    template <class... U>
    void set_value(U&&... value) {
        if constexpr (std::is_reference_v<T>)
            state_.template emplace<1>(std::addressof(value)...);
        else
            state_.template emplace<1>(std::forward<U>(value)...);
    }
    void set_exception(std::exception_ptr exception) noexcept { state_.template emplace<2>(std::move(exception)); }

    /// Takes over what `other` ended with; if moving the value throws, that exception.
    void take_over(outcome& other) noexcept {
        try {
            if (auto* value = std::get_if<1>(&other.state_))
                state_.template emplace<1>(std::move(*value));
            else
                set_exception(other.exception());
        } catch (...) {
            set_exception(std::current_exception());
        }
    }

    /// Null if it did not end with an exception.
    std::exception_ptr exception() const noexcept {
        const auto* thrown = std::get_if<2>(&state_);
        return thrown ? *thrown : nullptr;
    }

    /// Moves the value out, or throws the exception. Precondition: it has ended.
    T take() {
        if (const auto* thrown = std::get_if<2>(&state_)) std::rethrow_exception(*thrown);
        if constexpr (std::is_reference_v<T>)
            return static_cast<T>(**std::get_if<1>(&state_));
        else if constexpr (!std::is_void_v<T>)
            return std::move(*std::get_if<1>(&state_));
    }

  private:
    std::variant<std::monostate, stored, std::exception_ptr> state_;
};

} // namespace verbena::detail
