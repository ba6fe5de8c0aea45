#pragma once
/// Bytes that a rank sends in a step by the formulas of papers, from what a recipe says alone: no
/// plan, no placement of tensors and no collective of the product is asked. Given are the order of
/// a schedule's actions and which blocks are computed again.

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lib/comm/communicator.hpp"
#include "lib/engine/engine.hpp"

namespace llmtrain::test {

struct TextbookRun {
  engine::EngineOptions options;  // the recipe's values
  MeshShape mesh;
  int micro_batches = 1;  // of a data rank, in a step
  /// Of each block with experts, choices of the rank's tokens in a step whose experts are on other
  /// ranks; empty: as many of every expert.
  std::vector<double> rows_elsewhere = {};
};

/// Bytes by kind of collective and name of the group of ranks.
using SentVolumes = std::map<std::pair<Collective, std::string>, double>;

/// Of the rank with this place along tp and pp, on average over the data ranks (dp x sp), who may
/// own more and less of what ZeRO divides, and over the ranks of a group that adds up what these do
/// not divide.
SentVolumes textbook_volumes(const TextbookRun& run, int tp_index, int pp_index);

}  // namespace llmtrain::test
