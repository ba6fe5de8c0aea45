#pragma once
/// One-line messages for the user on standard error, prefixed by severity and, above rank 0, by
/// rank.

#include <string_view>

#include <fmt/format.h>

namespace llmtrain::log {

/// Set once at start-up; ranks other than 0 print warnings and errors only.
void set_rank(int rank);

void write(std::string_view severity, std::string_view message);

template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  write("", fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void warning(fmt::format_string<Args...> format, Args&&... args) {
  write("warning: ", fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  write("error: ", fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace llmtrain::log
