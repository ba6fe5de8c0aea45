#pragma once
/// Of a report: how tensors were distributed when they were last looked at.

#include <optional>
#include <string>
#include <vector>

#include "lib/train/report_data.hpp"

namespace llmtrain::train {

/// Tokens of a step at which noise and gradient would be as large (arXiv 1812.06162), from the
/// means over all records that have a sample; nothing where these say nothing.
std::optional<double> noise_scale(const std::vector<StepRecord>& records);

/// Tables of the tensors of each kind in the last record that has them; mostly nothing.
std::string diagnostics_section(const RunData& run);

}  // namespace llmtrain::train
