#pragma once
/// The plan for people and for programs.

#include <optional>
#include <string>

#include "lib/plan/predict.hpp"

namespace llmtrain::plan {

/// Without times, says how to get them.
std::string to_text(const Plan& plan, const std::optional<PlannedTime>& time);
/// Bytes per category, FLOPs, launches, and times if given; one JSON object.
std::string to_json(const Plan& plan, const std::optional<PlannedTime>& time);

}  // namespace llmtrain::plan
