#pragma once
/// Which rows of a micro-batch a rank has, and what the kernels read of them.

#include <cstdint>
#include <vector>

#include "lib/autograd/row_map.hpp"
#include "lib/engine/batch.hpp"
#include "lib/mesh/mesh.hpp"
#include "lib/tensor/device.hpp"

namespace llmtrain::engine {

/// Rows of a micro-batch on the device.
struct MicroBatch {
  RowMap rows;
  Tensor tokens, targets;
  std::vector<const void*> addresses() const;
};

/// Ranks of Axis::sp have the rows of every sequence in parts. Where each attends with its own
/// queries, a sequence is cut into twice as many pieces as ranks and rank r has pieces r and
/// 2n - 1 - r, so that all see equally many keys; where each has some of the heads, one piece.
class BatchRows {
 public:
  BatchRows() = default;
  BatchRows(const MeshShape& shape, int sp_index, std::int64_t seq_len);

  /// Samples [first, first + count) of the batch. Host memory of the result is this object's own
  /// until the next call.
  MicroBatch upload(Device& device, const StepBatch& batch, std::int64_t first, std::int64_t count,
                    bool one_document);

 private:
  bool in_parts() const { return positions_.size() != all_positions_.size(); }
  template <class T>
  const std::vector<T>& pick(std::vector<T>& to, const std::vector<std::int32_t>& positions,
                             std::int64_t first, std::int64_t count, const T* of_batch) const;

  std::int64_t seq_len_ = 0;
  bool in_order_ = true;
  bool keys_travel_ = false;                 // each rank's positions are a part of their own
  std::vector<std::int32_t> positions_;      // of a sequence, on this rank
  std::vector<std::int32_t> all_positions_;  // on all, in their order
  std::vector<std::int64_t> ids_, samples_;
  std::vector<std::int32_t> values_;
};

}  // namespace llmtrain::engine
