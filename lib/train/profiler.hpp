#pragma once
/// A window of steps, looked at closely (`profiler` of the recipe): when each rank did what, for
/// ui.perfetto.dev, and tables of where the ranks' time went. What begins before the window or ends
/// behind it, on whatever thread, is in neither.

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/trace.hpp"
#include "lib/train/peers.hpp"
#include "lib/train/profiler_section.hpp"

namespace llmtrain::train {

/// What the thread that makes the steps is at. Computing activations again is of the backward;
/// micro-batches and stages are added up.
enum class StepPhase : std::uint8_t { forward, backward, update, save, evaluation, other };
inline constexpr std::size_t kNumStepPhases = 6;

/// Where the time of the thread that makes the steps went on one rank, in seconds per step.
struct RankTimes {
  double step = 0;
  double compute = 0, communication = 0, wait = 0, io = 0;  // in steps
  double saves = 0;                 // files between steps, without waiting for other ranks
  std::uint64_t dropped_spans = 0;  // beyond trace::kMaxSpans, whose time counts as other
  /// Of each StepPhase, in steps and between them, without exchanges and waiting.
  std::array<double, kNumStepPhases> phases{};

  double of(StepPhase phase) const { return phases.at(static_cast<std::size_t>(phase)); }
  double other() const { return step - compute - communication - wait - io; }
  /// What nobody else is to blame for.
  double busy() const { return step - communication - wait + saves; }
};

struct RankProfile {
  std::string host;
  RankTimes times;
};

/// Of all steps that the spans have: those that a run made again after a way back are more than
/// the numbers between the first and the last one.
RankTimes times_of(const std::vector<trace::Span>& spans);

/// A line for each rank by what it did and another by phases, in milliseconds per step; which rank
/// the others wait for, and what is missing.
std::string profile_table(const std::vector<RankProfile>& ranks);

/// The spans of one rank as elements of a trace's `traceEvents`, joined by commas; `threads` as
/// trace::thread_names() gives them.
std::string trace_events(const std::vector<trace::Span>& spans,
                         const std::map<std::uint32_t, std::string>& threads, int rank,
                         std::string_view host);

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
