#pragma once
/// What a person watches: one aligned line per step and, on a terminal only, a progress bar below
/// it.

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "lib/train/metrics.hpp"

namespace llmtrain::train {

struct ConsoleOptions {
  std::FILE* out = stdout;  // borrowed
  /// Draw a progress bar, which rewrites its line with carriage returns. Without it the output has
  /// nothing but whole lines.
  bool progress_bar = false;
  /// Steps of the whole run; 0 when another limit (time, tokens) ends it.
  std::int64_t total_steps = 0;
  /// What MFU means here, e.g. "6 N + 12 L H S FLOP per token / 212 GFLOP/s (measured fp32 peak)".
  std::string mfu_formula;
};

/// True if `out` is a terminal that understands control sequences.
bool is_terminal(std::FILE* out);

/// The column titles over `step_line`s of the same `total_steps`.
std::string step_titles(std::int64_t total_steps);
/// Step, loss, gradient norm, learning rate, tokens/s, MFU, memory, ETA; "-" for what is absent.
std::string step_line(const StepRecord& record, std::int64_t total_steps);
/// Loss, perplexity and bits per byte of an evaluation, as far as the record has them.
std::string eval_line(const StepRecord& record, std::int64_t total_steps);
/// "[####......]  40%  note", exactly `width` columns or fewer; `fraction` is clamped to [0, 1].
std::string progress_bar(double fraction, std::string_view note, int width);

/// The console of rank 0; other ranks have none. When nobody reads it any more, or its disk is
/// full, it says so once in the log and prints no more: a run does not end for that.
class Console {
 public:
  explicit Console(ConsoleOptions options);
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  /// The MFU formula, once, and the column titles.
  void header();
  /// A step line if the record has a loss, an evaluation line if it has one.
  void record(const StepRecord& record);
  /// Any other line, e.g. where a checkpoint was saved.
  void message(std::string_view line);
  /// Moves the progress bar; without one, nothing.
  void progress(double fraction, std::string_view note);

 private:
  void print_line(std::string_view line);
  void draw(std::string_view bar);
  void write(std::string_view text);

  ConsoleOptions options_;
  std::string bar_;  // as it stands on the terminal
  bool lost_ = false;
};

}  // namespace llmtrain::train
