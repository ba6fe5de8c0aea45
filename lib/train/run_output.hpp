#pragma once
/// Where a run is seen: metrics.jsonl, TensorBoard, samples.jsonl, the console. Of rank 0; others
/// have none.

#include <filesystem>
#include <optional>
#include <string_view>

#include "lib/train/console.hpp"
#include "lib/train/metrics.hpp"
#include "lib/train/run_directory.hpp"
#include "lib/train/tensorboard.hpp"

namespace llmtrain::train {

struct RunOutputOptions {
  std::filesystem::path directory;
  std::optional<std::int64_t> resumed_step;
  bool tensorboard = true;
  ConsoleOptions console;
};

class RunOutput {
 public:
  /// Opens the files; those of a run that resumes end at its step (MetricsWriter,
  /// TensorBoardWriter, keep_samples), and lines that are none stop nobody.
  explicit RunOutput(const RunOutputOptions& options);

  /// The titles of the console's columns.
  void header() { console_.header(); }
  /// What the disk does not take of metrics.jsonl is said, and from then on it is written no more:
  /// false, also of what comes later. Whoever trains saves then, with what was not written, and
  /// stops. TensorBoard's files and samples are not worth that: what they lack is said.
  bool write(const StepRecord& record);
  /// After the records of a step.
  void flush();
  /// Makes records survive a loss of power, or has_failed().
  void sync();
  /// Of metrics.jsonl.
  bool has_failed() const { return failed_; }
  void add_sample(const Sample& sample);
  void message(std::string_view line) { console_.message(line); }
  void progress(double fraction, std::string_view note) { console_.progress(fraction, note); }

 private:
  void show(const Sample& sample);
  /// What is written to metrics.jsonl; false where it is not.
  template <class Write>
  bool keep(const Write& write);
  /// What is written for TensorBoard, which has no more where it is not.
  template <class Draw>
  void draw(const Draw& draw);

  std::filesystem::path directory_;
  MetricsWriter metrics_;
  std::optional<TensorBoardWriter> tensorboard_;
  Console console_;
  bool failed_ = false;
};

}  // namespace llmtrain::train
