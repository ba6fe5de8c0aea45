#pragma once
/// Bytes that a rank sends in a step by the formulas of papers, from the numbers of a layout alone.

#include <map>
#include <string>
#include <utility>

#include "lib/mesh/mesh.hpp"

namespace llmtrain::test {

/// A decoder in FP32 with RMS norms, gated MLPs or experts, and no biases, and the ranks that train
/// it. Every number divides by the ranks that share it, but for the vocabulary and key/value heads.
struct TextbookLayout {
  MeshShape mesh;
  int zero = 0;
  std::string schedule = "1f1b";
  int stages_per_rank = 1;
  bool recomputes_blocks = false;
  int micro_batches = 4;  // of a data rank
  int blocks = 4;
  int kv_heads = 8;
  bool tied = false;
  int experts = 0;

  static constexpr int kSequences = 2;  // of a micro-batch
  static constexpr int kLength = 64;
  static constexpr int kHidden = 48, kIntermediate = 80, kExpertIntermediate = 16;
  static constexpr int kHeads = 8, kHeadDim = 8;
  static constexpr int kVocabulary = 65;
  static constexpr int kExpertsPerToken = 2;
};

/// Bytes, and how many more it may be.
struct SentVolume {
  double bytes = 0, slack = 0;
};
/// By kind of collective and name of the group of ranks.
using SentVolumes = std::map<std::pair<Collective, std::string>, SentVolume>;

/// Of the rank with this place along tp and pp, on average over the data ranks (dp x sp), who may
/// own more and less of what ZeRO divides.
SentVolumes textbook_volumes(const TextbookLayout& layout, int tp_index, int pp_index);

}  // namespace llmtrain::test
