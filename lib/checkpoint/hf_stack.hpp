#pragma once
/// The parameters of one tensor of a Hugging Face file, stacked along `out`.

#include <optional>
#include <vector>

#include "lib/checkpoint/box.hpp"
#include "lib/param/hf_layout.hpp"
#include "lib/param/parameter.hpp"

namespace llmtrain::checkpoint {

/// What a rank has of one matrix: rows and columns of it, and where they begin in its box.
struct MatrixPart {
  std::int64_t row = 0, rows = 1, col = 0, cols = 1;
  std::int64_t first = 0;
  std::int64_t numel() const { return rows * cols; }
};

struct HfStack {
  const HfTensor* tensor = nullptr;
  std::vector<const Parameter*> members;
  std::int64_t out = 0;  // rows of all members
  std::int64_t in = 1;
  bool is_vector = false;

  /// Rows of one of the members.
  static std::int64_t rows_of(const Parameter& member);
  /// This rank's part of a member's matrix; nothing where it has none of it.
  std::optional<MatrixPart> part_of(const Parameter& member) const;
  Dims file_shape() const;
  /// Index in the file of element [i, j] of the stack.
  std::size_t index(std::int64_t i, std::int64_t j) const {
    return static_cast<std::size_t>(tensor->transposed ? j * out + i : i * in + j);
  }
};

/// One per tensor of the layout. InternalError unless they have each parameter of the store, or each
/// of its experts, once.
std::vector<HfStack> hf_stacks(const ParameterStore& store, const HfLayout& layout);

}  // namespace llmtrain::checkpoint
