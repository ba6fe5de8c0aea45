#pragma once
/// What the report draws: the files of a run directory, read and checked.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/train/metrics.hpp"
#include "lib/train/sample.hpp"
#include "lib/train/starts.hpp"

namespace llmtrain::train {

/// Bytes of one ledger category: planned, and the largest that the metrics recorded.
struct CategoryBytes {
  std::string category;
  std::optional<std::uint64_t> planned;
  std::optional<std::uint64_t> measured;
};

struct RunData {
  std::string name;                 // run.json "name", else that of the directory
  std::vector<StepRecord> records;  // metrics.jsonl, required
  std::vector<std::pair<std::string, std::string>> facts;  // run.json, nested keys joined by '.'
  std::vector<std::pair<std::string, std::string>> plan;   // plan.json without "memory"
  std::vector<CategoryBytes>
      memory;                   // plan.json "memory.planned"; "memory/<category>_bytes" of metrics
  std::vector<Sample> samples;  // samples.jsonl
  std::string recipe;           // resolved.yaml
  std::vector<Start> starts;    // starts.jsonl
  std::vector<StepRecord> incidents;  // incidents.jsonl
  /// Keys of both whose values are neither numbers nor strings, as a later version may write them;
  /// the records do without.
  std::set<std::string> unknown_metrics;
};

/// DataError naming file (and line) when metrics.jsonl is missing or a file is not what it should
/// be; the other files are optional.
RunData load_run(const std::filesystem::path& run_dir);

struct Point {
  double x = 0;  // step
  double y = 0;
};

/// The finite values of a key by step, ascending; of several at one step the last.
std::vector<Point> series_of(const std::vector<StepRecord>& records, std::string_view key);

/// "run/<key>" for each fact, then "summary/<name>" for what the run reached: steps, records,
/// first_loss, last_loss, last_eval_loss, best_eval_loss, last_bits_per_byte, tokens,
/// step_seconds, tokens_per_second and mfu (medians), peak_bytes, starts, lost_steps,
/// elapsed_seconds. `step` is the last step.
StepRecord summarize(const RunData& run);

}  // namespace llmtrain::train
