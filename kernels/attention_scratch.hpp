#pragma once
/// Workspace of the CPU's attention kernels: block sizes and what lies where. The declared bound
/// and the kernels read the same figures here. They depend on shapes and threads only, never on the
/// instruction set.

#include <algorithm>
#include <cstdint>

namespace llmtrain::kernels {

/// Rows of a block of queries and of a block of keys. Results depend on it; threads do not matter.
inline constexpr std::int64_t kAttentionBlock = 64;

constexpr std::int64_t attention_blocks(std::int64_t rows) {
  return (rows + kAttentionBlock - 1) / kAttentionBlock;
}

/// Columns of a staged row: a multiple of the widest vector (16 floats).
constexpr std::int64_t attention_columns(std::int64_t head_dim) {
  return (head_dim + 15) / 16 * 16;
}

/// Blocks of queries that the forward takes together, so that keys are staged once for all of them.
inline constexpr std::int64_t kAttentionBlocksTogether = 4;

/// Floats that one thread of the forward uses: two matrices per block of queries (queries
/// transposed, output), keys and values, the tile of scores and that of dropout words.
constexpr std::int64_t attention_forward_floats(std::int64_t head_dim) {
  return kAttentionBlock *
         ((2 * kAttentionBlocksTogether + 2) * attention_columns(head_dim) + 2 * kAttentionBlock);
}

/// The same of the backward: eight matrices (keys, keys and values transposed, their gradients,
/// queries, gradient of the output, part of the queries' gradient), three tiles (probabilities,
/// their gradients, dropout words), and eight rows.
constexpr std::int64_t attention_backward_floats(std::int64_t head_dim) {
  return kAttentionBlock * (8 * attention_columns(head_dim) + 3 * kAttentionBlock);
}

/// What all threads of the backward share, in floats, each part rounded up to a cache line: delta
/// of every query row and head, a counter per block of queries, and (if dq is not FP32) the sum of
/// dq.
struct AttentionBackwardShared {
  std::int64_t delta_floats = 0;
  std::int64_t counter_floats = 0;
  std::int64_t dq_floats = 0;

  constexpr AttentionBackwardShared(std::int64_t sequences, std::int64_t tq, std::int64_t heads,
                                    std::int64_t head_dim, bool dq_is_fp32)
      : delta_floats(line(sequences * heads * tq)),
        counter_floats(line(sequences * heads * attention_blocks(tq))),
        dq_floats(dq_is_fp32 ? 0 : line(sequences * tq * heads * head_dim)) {}
  constexpr std::int64_t floats() const { return delta_floats + counter_floats + dq_floats; }

 private:
  static constexpr std::int64_t line(std::int64_t floats) { return (floats + 15) / 16 * 16; }
};

/// Elements (of the sum type) of the plain reference kernels: one row of scores; for the backward
/// the row of probabilities, of their gradients and of delta, over keys or over a group's queries.
constexpr std::int64_t reference_forward_elements(std::int64_t tk) { return tk; }
constexpr std::int64_t reference_backward_row(std::int64_t heads_per_group, std::int64_t tq,
                                              std::int64_t tk) {
  return std::max(tk, heads_per_group * tq);
}

}  // namespace llmtrain::kernels
