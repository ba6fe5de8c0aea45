#pragma once
/// `require` and `fail`: checks that stay on in release builds, with format strings checked at
/// compile time. Host code only (fmt does not compile under nvcc).

#include <string>
#include <type_traits>

#include <fmt/format.h>

#include "lib/base/error.hpp"

namespace llmtrain {

/// Where a check stands in our source. (std::source_location is absent from clang 14's view of
/// libstdc++, and the fuzz targets are built with clang.)
struct SourceLine {
  const char* file;
  int line;
};

/// A compile-time checked format string that remembers where it was written.
template <class... Args>
struct LocatedFormat {
  fmt::format_string<Args...> text;
  SourceLine where;

  template <class S>
  consteval LocatedFormat(const S& s, const char* file = __builtin_FILE(),
                          int line = __builtin_LINE())
      : text(s), where{file, line} {}
};

namespace detail {
/// Appends "(file:line)" to internal errors only: users need the remedy, not our source position.
std::string located_message(std::string message, const SourceLine& where);
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
