#include "lib/tensor/shape.hpp"

#include "lib/base/require.hpp"

namespace llmtrain {

Shape::Shape(std::span<const std::int64_t> dims) {
  require(dims.size() <= kMaxRank, "a shape has at most {} dims, {} given", kMaxRank, dims.size());
  for (const std::int64_t d : dims) {
    require(d >= 0, "negative dim {}", d);
    dims_[rank_++] = d;
  }
}

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (int i = 0; i < shape.rank(); ++i) text += fmt::format("{}{}", i == 0 ? "" : ", ", shape[i]);
  return text + "]";
}

}  // namespace llmtrain
