#include "tests/memory/probe/report.hpp"

#include <algorithm>
#include <fstream>

#include <fmt/format.h>

#include "lib/base/units.hpp"

namespace llmtrain::memory_probe {

std::uint64_t resident_bytes() {
  std::ifstream status("/proc/self/status");
  std::uint64_t kib = 0;
  for (std::string key, line; status >> key; std::getline(status, line)) {
    if (key == "RssAnon:" || key == "RssShmem:") kib += std::stoull(line);
  }
  return kib * 1024;
}

void Findings::add(const std::string& what) {
  ++count_;
  fmt::print("VIOLATION {}\n", what);
}

void Findings::add_blocks(const std::string& when, const std::vector<Block>& blocks) {
  constexpr std::size_t kShown = 5;
  for (std::size_t i = 0; i < std::min(blocks.size(), kShown); ++i) {
    add(fmt::format("{}: outside the ledger {}", when, to_string(blocks[i])));
  }
  if (blocks.size() > kShown) {
    add(fmt::format("{}: {} more blocks", when, blocks.size() - kShown));
  }
}

void Findings::check_resident(const std::string& when, std::uint64_t resident,
                              std::uint64_t planned, std::uint64_t base) {
  const std::uint64_t expected = planned + base;
  const std::uint64_t distance = resident > expected ? resident - expected : expected - resident;
  const std::uint64_t allowed = planned / 10 + (64 << 20);
  if (distance <= allowed) return;
  add(fmt::format("{}: {} resident is {} {} than planned {} + base {}; allowed are {}", when,
                  format_bytes(resident), format_bytes(distance),
                  resident > expected ? "more" : "less", format_bytes(planned), format_bytes(base),
                  format_bytes(allowed)));
}

}  // namespace llmtrain::memory_probe
