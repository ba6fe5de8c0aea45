#pragma once
/// The parameters of one tensor of a Hugging Face file, stacked along `out`.

#include <vector>

#include "lib/checkpoint/box.hpp"
#include "lib/param/hf_layout.hpp"
#include "lib/param/parameter.hpp"

namespace llmtrain::checkpoint {

struct HfStack {
  const HfTensor* tensor = nullptr;
  std::vector<const Parameter*> members;
  std::int64_t out = 0;  // rows of all members
  std::int64_t in = 1;
  bool is_vector = false;

  Dims file_shape() const;
  /// Index in the file of element [i, j] of the stack.
  std::size_t index(std::int64_t i, std::int64_t j) const {
    return static_cast<std::size_t>(tensor->transposed ? j * out + i : i * in + j);
  }
};

/// One per tensor of the layout. InternalError unless they have each parameter of the store once.
std::vector<HfStack> hf_stacks(const ParameterStore& store, const HfLayout& layout);

}  // namespace llmtrain::checkpoint
