#pragma once
/// Which of a model's products take operands of eight bits, and why the others do not.

#include <span>
#include <string>
#include <vector>

#include "lib/param/parameter.hpp"

namespace llmtrain {

/// A product with a weight, or several that share one (q, k, v; gate, up).
struct LayerPrecision {
  std::string name;  // of the (first) weight
  bool is_linear = true;
  bool is_quantized = false;
  /// "first block", "last block", "precision.fp8.exclude", "head", "router", "experts"; of what is
  /// quantized "inner block" or "precision.fp8.include".
  std::string why;
};

/// Of the whole model, in the order of declaration, whatever ranks have: linear layers of all
/// blocks but the first and the last are quantized, with `include` those too that its patterns
/// (fnmatch) select by the names of their weights, without those of `exclude`. RefusedKey for a
/// pattern that selects no linear layer; it says what it does select, and why that is not
/// quantized.
std::vector<LayerPrecision> layer_precisions(const ParameterStore& store,
                                             const std::vector<std::string>& include,
                                             const std::vector<std::string>& exclude);

/// For people: how many linear layers are quantized, and by reasons what is not.
std::string summary_of(std::span<const LayerPrecision> layers);

}  // namespace llmtrain
