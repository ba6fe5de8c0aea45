#pragma once
/// The plan for people and for programs.

#include <string>

#include "lib/plan/plan.hpp"

namespace llmtrain::plan {

std::string to_text(const Plan& plan);
/// Bytes per category, FLOPs, launches; one JSON object.
std::string to_json(const Plan& plan);

}  // namespace llmtrain::plan
