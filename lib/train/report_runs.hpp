#pragma once
/// Of a report: what was planned beside what was measured, the starts and bad steps of a run, and
/// two runs side by side.

#include <filesystem>
#include <string>
#include <string_view>

#include "lib/train/report_data.hpp"

namespace llmtrain::train {

/// What stands in place of planned times, with the remedy; empty where they are known, or none was
/// measured beside a plan.
std::string_view unplanned_times(const RunData& run, const StepRecord& facts);

/// Step time, speed, MFU and peak memory, planned and measured; empty where nothing has both.
std::string planned_section(const RunData& run, const StepRecord& facts);

/// A row for each step that did not count, in the order in which they came.
std::string incidents_section(const RunData& run);

/// A row for each start, if there were several: when, where, from which checkpoint, steps lost.
std::string starts_section(const RunData& run);

}  // namespace llmtrain::train
