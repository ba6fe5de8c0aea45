#pragma once
/// Of a report: what its reader has to know of the records themselves.

#include <cstdint>
#include <string>
#include <vector>

#include "lib/train/report_data.hpp"

namespace llmtrain::train {

/// Two steps with a training loss and none between them, though one is due there; the first may be
/// 0, before all.
struct StepGap {
  std::int64_t before = 0, after = 0;

  bool operator==(const StepGap&) const = default;
};

/// Where records lie further apart than `interval` steps, and than those around them: a run that
/// goes on may have another interval.
std::vector<StepGap> gaps_of(const std::vector<StepRecord>& records, std::int64_t interval);

/// Lines on gaps of the records, and on metrics that this version does not know; mostly none.
std::vector<std::string> notes_of(const RunData& run);

/// The same for the page.
std::string notes_section(const RunData& run);

}  // namespace llmtrain::train
