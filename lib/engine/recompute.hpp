#pragma once
/// What the backward pass computes again instead of keeping it.

#include <cstdint>
#include <string>
#include <vector>

#include "lib/autograd/op_ctx.hpp"

namespace llmtrain::engine {

struct BlockRecompute {
  /// All of the block, from its input; it then has no `ops`.
  bool whole = false;
  /// These operations of it.
  RecomputedOps ops;

  bool operator==(const BlockRecompute&) const = default;
};

struct RecomputePolicy {
  /// Blocks of the whole model in their order; behind the last entry nothing is computed again.
  std::vector<BlockRecompute> blocks;
  /// Neighbours that are computed again as a whole are so many together, which keeps the input of
  /// the first one alone. A stage's first block begins anew.
  int segment = 1;
  /// Operations outside of blocks: the final norm.
  RecomputedOps outside;

  const BlockRecompute& block(int i) const;

  static RecomputePolicy whole_blocks(std::int64_t num_blocks, std::int64_t every = 1);
  static RecomputePolicy segments_of_sqrt(std::int64_t num_blocks);
  static RecomputePolicy operations(std::int64_t num_blocks, const RecomputedOps& ops);
};

/// "blocks 0 to 3 whole; norm in blocks 4 to 11; activation in blocks 4 to 6"; "nothing".
std::string to_string(const RecomputePolicy& policy);

}  // namespace llmtrain::engine
