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

/// Ranks of Axis::sp have the rows of every sequence in parts. Where n groups share rows, each
/// attending with its own queries, a sequence is cut into 2n pieces and group g has pieces g and
/// 2n - 1 - g, so that all see equally many keys. The ranks of a group, who share heads, have as
/// many of its rows each, in their order.
class BatchRows {
 public:
  BatchRows() = default;
  BatchRows(const MeshShape& shape, int sp_index, std::int64_t seq_len);

  /// Samples [first, first + count) of the batch. Host memory of the result is this object's own
  /// until the next call.
  MicroBatch upload(Device& device, const StepBatch& batch, std::int64_t first, std::int64_t count,
                    bool one_document);

 private:
  /// What the groups' keys do.
  enum class Groups : std::uint8_t { one, gather, ring };

  bool shares_heads() const { return positions_.size() != group_positions_.size(); }
  /// `all_positions_` for `count` samples, as they go around.
  const std::vector<std::int32_t>& one_group_after_another(std::int64_t count);
  template <class T>
  const std::vector<T>& pick(std::vector<T>& to, const std::vector<std::int32_t>& positions,
                             std::int64_t first, std::int64_t count, const T* of_batch) const;

  std::int64_t seq_len_ = 0;
  Groups groups_ = Groups::one;
  std::vector<std::int32_t> positions_;        // of a sequence, on this rank
  std::vector<std::int32_t> group_positions_;  // of it and those that share heads with it
  std::vector<std::int32_t> all_positions_;    // of all groups, in their order
  std::vector<std::int64_t> ids_, samples_;
  std::vector<std::int32_t> values_;
};

}  // namespace llmtrain::engine
