#include "lib/base/log.hpp"

#include <atomic>
#include <cstdio>

namespace llmtrain::log {

namespace {
std::atomic<int> g_rank{0};
}

void set_rank(int rank) { g_rank = rank; }

void write(std::string_view severity, std::string_view message) {
  const int rank = g_rank;
  if (rank != 0 && severity.empty()) return;
  const std::string line = rank == 0 ? fmt::format("{}{}\n", severity, message)
                                     : fmt::format("[rank {}] {}{}\n", rank, severity, message);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace llmtrain::log
