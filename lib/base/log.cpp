#include "lib/base/log.hpp"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <unistd.h>

namespace llmtrain::log {

namespace {

std::atomic<int> g_rank{0};
std::atomic<int> g_file{-1};
std::atomic<bool> g_is_whole{true};

// "2026-11-24 20:14:08.123", in UTC as the logs of several machines.
std::string now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
  const std::time_t seconds = ms / 1000;
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  return fmt::format("{:04}-{:02}-{:02} {:02}:{:02}:{:02}.{:03}", utc.tm_year + 1900,
                     utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec, ms % 1000);
}

// One write as a rule, so that lines of several threads do not mix.
bool append(int file, std::string_view line) {
  while (!line.empty()) {
    const ssize_t written = ::write(file, line.data(), line.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    line.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

}  // namespace

void set_rank(int rank) { g_rank = rank; }

void open_file(const std::filesystem::path& path) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0) warning("{}: no log of this rank: {}", path.string(), std::strerror(errno));
  if (const int before = g_file.exchange(file); before >= 0) ::close(before);
}

void print(std::string_view severity, std::string_view message) {
  const int rank = g_rank;
  if (rank != 0 && severity.empty()) return;
  const std::string line = rank == 0 ? fmt::format("{}{}\n", severity, message)
                                     : fmt::format("[rank {}] {}{}\n", rank, severity, message);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

void note(std::string_view message) {
  const int file = g_file;
  if (file < 0) return;
  if (append(file, fmt::format("{} {}\n", now(), message))) return;
  const char* const reason = std::strerror(errno);
  if (!g_is_whole.exchange(false)) return;
  print("warning: ", fmt::format("the log of this rank lacks lines from here on: {}", reason));
}

void write(std::string_view severity, std::string_view message) {
  note(fmt::format("{}{}", severity, message));
  print(severity, message);
}

}  // namespace llmtrain::log
