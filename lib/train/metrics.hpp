#pragma once
/// What a run measured, one record per step, in `metrics.jsonl`: the source of every view (console,
/// TensorBoard, report).
///
/// One line is one JSON object: `{"step":12,"train/loss":3.25,"eval/loss":3.5}`. Keys read
/// `group/name`, units are in the name. A double is printed with the fewest digits that read back
/// to the same value and keeps a point or an exponent, so that equal records are equal bytes;
/// values that are not finite are the strings "nan", "inf" and "-inf".
///
/// Groups in kVolatileGroups hold what depends on the clock or on the machine's state. Everything
/// else is a pure function of recipe, binary and layout: two runs are compared by
/// `reproducible_line`.

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "lib/base/file.hpp"

namespace llmtrain::train {

using MetricValue = std::variant<double, std::int64_t, std::string>;

/// Keys that the console, TensorBoard and the report know by name. Other keys are stored and drawn
/// nowhere.
namespace metric {
inline constexpr std::string_view kLoss = "train/loss";            // nats per trained token
inline constexpr std::string_view kGradNorm = "train/grad_norm";   // before clipping
inline constexpr std::string_view kLearningRate = "optimizer/lr";  // of the first group
inline constexpr std::string_view kTokens = "train/tokens";        // trained since the run began
// Of the step's rows those that were trained, and of these the ends of documents.
inline constexpr std::string_view kTrainedShare = "train/trained_share";
inline constexpr std::string_view kTrainedEndShare = "train/trained_end_share";
inline constexpr std::string_view kEvalLoss = "eval/loss";  // nats per token
inline constexpr std::string_view kEvalPerplexity = "eval/perplexity";
inline constexpr std::string_view kEvalBitsPerByte = "eval/bits_per_byte";
inline constexpr std::string_view kPeakBytes =
    "memory/peak_bytes";  // of the ledger, up to this step
// Means over the steps since the last record, without evaluation and saving.
inline constexpr std::string_view kTokensPerSecond = "time/tokens_per_second";
inline constexpr std::string_view kMfu = "time/mfu";  // fraction, not percent
inline constexpr std::string_view kStepSeconds = "time/step_seconds";
inline constexpr std::string_view kElapsedSeconds =
    "time/elapsed_seconds";  // of training, all attempts
inline constexpr std::string_view kEtaSeconds = "time/eta_seconds";
/// Measured bytes of one ledger category: "memory/<category>_bytes".
inline constexpr std::string_view kMemoryPrefix = "memory/";
inline constexpr std::string_view kBytesSuffix = "_bytes";
}  // namespace metric

/// Groups whose values may differ between two runs of the same recipe.
inline constexpr std::array<std::string_view, 2> kVolatileGroups = {"time/", "host/"};

/// One line: a step (0 = before the first update) and its fields in the order in which they were
/// set.
struct StepRecord {
  std::int64_t step = 0;
  std::vector<std::pair<std::string, MetricValue>> fields;

  /// Appends the field, or replaces its value in place.
  void set(std::string_view key, MetricValue value);
  /// The value, or null.
  const MetricValue* find(std::string_view key) const;
  /// The value as a number (integers converted; "nan", "inf", "-inf" read back), if it is one.
  std::optional<double> number(std::string_view key) const;

  bool operator==(const StepRecord&) const = default;
};

/// The record as one line of JSON without the line's end.
std::string to_line(const StepRecord& record);
/// As to_line without the fields of the volatile groups.
std::string reproducible_line(const StepRecord& record);

/// The last step of which the file has a record, read from its end; 0 without a file or a record.
std::int64_t last_recorded_step(const std::filesystem::path& path);

/// Appends records to a file. One record is one write(2), so a killed process loses no record that
/// `write` returned from; `sync` makes them survive a power failure. All records of earlier steps
/// must be written and synced before a step's checkpoint is committed; those of the step itself are
/// in the checkpoint, and whoever resumes from it writes them again: then a resumed run neither
/// loses nor repeats a record, and no file speaks of a step whose save was due and did not happen.
class MetricsWriter {
 public:
  /// Starts an empty file, or, given the step of the checkpoint that the run resumes from, keeps
  /// the records before that step: its own, later ones and a torn last line are removed by an
  /// atomic replacement. A line among these that is no record goes, with what follows, into a file
  /// beside (put_torn_part_beside). StorageError.
  MetricsWriter(const std::filesystem::path& path, std::optional<std::int64_t> resumed_step);

  void write(const StepRecord& record);
  void sync() { file_.sync(); }

 private:
  File file_;
};

/// Parses the content of a metrics file. Bytes behind the last line's end (a torn write) are
/// ignored; any other line that is not a record is a DataError naming `name` and the line. A value
/// that is neither a number nor a string, as a later version may write one, is such an error, too;
/// where somebody takes the keys of these in `unknown`, they are left out instead.
std::vector<StepRecord> parse_metrics(std::string_view content, std::string_view name,
                                      std::set<std::string>* unknown = nullptr);
/// The records of a file, in file order; several may share a step.
std::vector<StepRecord> read_metrics(const std::filesystem::path& path,
                                     std::set<std::string>* unknown = nullptr);
/// DataError, naming both, unless the n-th line of a file is a record.
void check_metrics_line(std::string_view line, std::string_view name, std::size_t number);

}  // namespace llmtrain::train
