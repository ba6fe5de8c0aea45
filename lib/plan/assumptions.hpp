#pragma once
/// What a plan takes for granted: where the run differs, so does the plan.

#include <string>
#include <vector>

#include "lib/plan/plan.hpp"

namespace llmtrain::plan {

/// Of the memory of a layout in which data decide how many rows come to a rank; mostly none.
std::vector<std::string> assumptions_of_memory(const Plan& plan);
/// Of a step's time, over those of the profile.
std::vector<std::string> assumptions_of_time(const Plan& plan);

}  // namespace llmtrain::plan
