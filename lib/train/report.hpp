#pragma once
/// The report of a run: one HTML file that needs nothing else, and its plain-text sibling.
///
/// Read from the run directory: metrics.jsonl, and where present run.json (facts, any nesting),
/// plan.json, samples.jsonl, resolved.yaml (formats in report_data.hpp).

#include <filesystem>
#include <string>
#include <string_view>

#include "lib/train/metrics.hpp"

namespace llmtrain::train {

/// Writes the report of `run_dir` to `html` (atomically). DataError for unusable input files.
void write_report(const std::filesystem::path& run_dir, const std::filesystem::path& html);

/// The facts embedded in a report as JSON: `summarize` of its run, read back. DataError when the
/// text is not such a report.
StepRecord read_report_facts(std::string_view html);

/// The loss curve in ASCII with the run's key figures, at most 80 columns wide.
std::string text_report(const std::filesystem::path& run_dir);

/// Key figures of two runs beside each other, where their losses part, and the recipe keys that
/// differ; at most 80 columns wide. Keys that this version does not know are left out, and named.
/// DataError for unusable input files.
std::string compare_runs(const std::filesystem::path& a, const std::filesystem::path& b);

}  // namespace llmtrain::train
