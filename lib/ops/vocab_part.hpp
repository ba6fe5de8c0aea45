#pragma once

#include "kernels/loss.hpp"
#include "lib/param/parameter.hpp"

namespace llmtrain::ops {

/// The rows of an embedding or output head that this rank of Axis::tp holds; {} where it holds all.
inline kernels::VocabPart vocab_part(const ParameterGroup& table) {
  const Parameter& parameter = *table.members().front();
  const std::int64_t whole = parameter.global_shape()[0];
  if (parameter.box().shape[0] == whole) return {};
  return {.first = parameter.box().offset[0], .whole = whole};
}

}  // namespace llmtrain::ops
