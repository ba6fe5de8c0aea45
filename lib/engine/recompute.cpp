#include "lib/engine/recompute.hpp"

#include <cmath>
#include <functional>

#include <fmt/format.h>

namespace llmtrain::engine {

const BlockRecompute& RecomputePolicy::block(int i) const {
  static const BlockRecompute kNothing;
  const auto at = static_cast<std::size_t>(i);
  return at < blocks.size() ? blocks[at] : kNothing;
}

RecomputePolicy RecomputePolicy::whole_blocks(std::int64_t num_blocks, std::int64_t every) {
  RecomputePolicy policy;
  for (std::int64_t i = 0; i < num_blocks; ++i) {
    policy.blocks.push_back({.whole = i % every == 0, .ops = {}});
  }
  return policy;
}

RecomputePolicy RecomputePolicy::segments_of_sqrt(std::int64_t num_blocks) {
  RecomputePolicy policy = whole_blocks(num_blocks);
  policy.segment = static_cast<int>(std::ceil(std::sqrt(static_cast<double>(num_blocks))));
  return policy;
}

RecomputePolicy RecomputePolicy::operations(std::int64_t num_blocks, const RecomputedOps& ops) {
  RecomputePolicy policy;
  policy.blocks.assign(static_cast<std::size_t>(num_blocks), {.whole = false, .ops = ops});
  policy.outside = ops;
  return policy;
}

namespace {

// "block 3", "blocks 0 to 3, 7 to 9"; empty where there is none.
std::string ranges(const RecomputePolicy& policy,
                   const std::function<bool(const BlockRecompute&)>& selects) {
  std::string text;
  int count = 0;
  const int end = static_cast<int>(policy.blocks.size());
  for (int begin = 0; begin < end;) {
    int behind = begin;
    while (behind < end && selects(policy.block(behind))) ++behind;
    if (behind > begin) {
      text += fmt::format("{}{}", text.empty() ? "" : ", ", begin);
      if (behind - begin > 1) text += fmt::format(" to {}", behind - 1);
      count += behind - begin;
    }
    begin = behind + 1;
  }
  return count == 0 ? text : fmt::format("block{} {}", count == 1 ? "" : "s", text);
}

}  // namespace

std::string to_string(const RecomputePolicy& policy) {
  std::string text;
  const auto add = [&](std::string part) {
    text += fmt::format("{}{}", text.empty() ? "" : "; ", part);
  };
  if (const auto whole = ranges(policy, [](const auto& b) { return b.whole; }); !whole.empty()) {
    add(whole + " whole");
  }
  RecomputedOps ops;
  for (const BlockRecompute& block : policy.blocks) ops.insert(block.ops.begin(), block.ops.end());
  for (const std::string& op : ops) {
    add(op + " in " + ranges(policy, [&](const auto& b) { return b.ops.contains(op); }));
  }
  return text.empty() ? "nothing" : text;
}

}  // namespace llmtrain::engine
