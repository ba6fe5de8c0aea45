#pragma once
/// A window of steps, looked at closely (`profiler` of the recipe): when each rank did what, for
/// ui.perfetto.dev, and a table of where the ranks' time went.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/trace.hpp"
#include "lib/train/peers.hpp"
#include "lib/train/profiler_section.hpp"

namespace llmtrain::train {

/// Where the time of the thread that makes the steps went on one rank, in seconds per step.
struct RankProfile {
  std::string host;
  double step = 0;
  double compute = 0, communication = 0, wait = 0, io = 0;
  std::uint64_t dropped_spans = 0;  // beyond trace::kMaxSpans, whose time counts as other
  double other() const { return step - compute - communication - wait - io; }
  /// What nobody else is to blame for.
  double busy() const { return step - communication - wait; }
};

RankProfile profile_of(const std::vector<trace::Span>& spans, std::string host, std::int64_t steps);

/// A line for each rank, which one the others wait for, and what is missing.
std::string profile_table(const std::vector<RankProfile>& ranks);

/// The spans of one rank as elements of a trace's `traceEvents`, joined by commas.
std::string trace_events(const std::vector<trace::Span>& spans, int rank, std::string_view host);

class Profiler {
 public:
  Profiler(const ProfilerSection& options, std::filesystem::path run_directory);

  /// Collective, before a step is launched: begins the window, or ends it. What is to be said of a
  /// window that has ended, on rank 0, which writes the trace.
  std::string before_step(std::int64_t step, const Peers& peers);
  /// Collective. Ends a window that is open; its last step was this one.
  std::string finish(std::int64_t last_step, const Peers& peers);

 private:
  std::optional<std::int64_t> first_;
  std::int64_t count_;
  std::filesystem::path directory_;
  std::optional<std::int64_t> began_;  // first step of the window that is open
};

}  // namespace llmtrain::train
