#pragma once
/// Where in a run the stages of data.stages begin.

#include <cstdint>
#include <vector>

#include "lib/train/recipe.hpp"

namespace llmtrain::train {

/// The first sample of each stage. recipe::RefusedValue for one that does not begin behind the one
/// before it, or behind 2^60 tokens. The recipe is a mixture and says how long it trains.
std::vector<std::uint64_t> stage_starts(const Recipe& recipe);

/// Warns of the stages that begin when the run is over.
void warn_of_unreached_stages(const Recipe& recipe);

}  // namespace llmtrain::train
