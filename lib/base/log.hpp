#pragma once
/// One-line messages for the user on standard error, prefixed by severity and, above rank 0, by
/// rank; and all of them, with the time, in a file of the rank's own.

#include <filesystem>
#include <string_view>

#include <fmt/format.h>

namespace llmtrain::log {

/// Set once at start-up; ranks other than 0 print warnings and errors only.
void set_rank(int rank);

/// From here on messages are appended to this file, too, also those of other ranks than 0 that are
/// not printed. One that cannot be opened is a warning; so is the first line that cannot be
/// written.
void open_file(const std::filesystem::path& path);
/// Into the file only: what is printed elsewhere.
void note(std::string_view message);

void write(std::string_view severity, std::string_view message);
/// On standard error alone: the disk that has the file may be what stands still.
void print(std::string_view severity, std::string_view message);

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
