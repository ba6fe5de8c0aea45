#pragma once
/// `require` and `fail`: checks that stay on in release builds, with format strings checked at
/// compile time. Host code only (fmt does not compile under nvcc).

#include <source_location>
#include <type_traits>

#include <fmt/format.h>

#include "lib/base/error.hpp"

namespace llmtrain {

/// A compile-time checked format string that remembers where it was written.
template <class... Args>
struct LocatedFormat {
  fmt::format_string<Args...> text;
  std::source_location where;

  template <class S>
  consteval LocatedFormat(const S& s,
                          std::source_location w = std::source_location::current())
      : text(s), where(w) {}
};

namespace detail {
/// Appends "(file:line)" to internal errors only: users need the remedy, not our source position.
std::string located_message(std::string message, const std::source_location& where);
}  // namespace detail

/// Throws E with the formatted message.
template <class E = InternalError, class... Args>
[[noreturn]] void fail(LocatedFormat<std::type_identity_t<Args>...> format, Args&&... args) {
  std::string message = fmt::format(format.text, std::forward<Args>(args)...);
  if constexpr (std::is_same_v<E, InternalError>) {
    message = detail::located_message(std::move(message), format.where);
  }
  throw E(message);
}

/// Throws E with the formatted message unless `condition` holds. Arguments are evaluated always.
template <class E = InternalError, class... Args>
void require(bool condition, LocatedFormat<std::type_identity_t<Args>...> format, Args&&... args) {
  if (!condition) [[unlikely]] {
    fail<E, Args...>(format, std::forward<Args>(args)...);
  }
}

}  // namespace llmtrain
