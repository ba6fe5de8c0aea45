#pragma once
/// What a probe finds, and the resident memory that it holds against a plan.

#include <cstdint>
#include <string>
#include <vector>

#include "tests/memory/probe/interpose.hpp"

namespace llmtrain::memory_probe {

/// RssAnon + RssShmem of this process: what it holds, without its files.
std::uint64_t resident_bytes();

/// Collects violations; each is printed where it is found.
class Findings {
 public:
  void add(const std::string& what);
  /// A violation for each of the first blocks and one for the rest.
  void add_blocks(const std::string& when, const std::vector<Block>& blocks);
  /// `resident` against `planned + base`: neither more nor less than 10 % of planned + 64 MiB away.
  /// Less would mean that the plan counts memory that no step touches.
  void check_resident(const std::string& when, std::uint64_t resident, std::uint64_t planned,
                      std::uint64_t base);
  int count() const { return count_; }

 private:
  int count_ = 0;
};

}  // namespace llmtrain::memory_probe
