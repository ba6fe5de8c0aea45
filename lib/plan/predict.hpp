#pragma once
/// Time of a planned step on a measured machine.

#include <string>
#include <vector>

#include "lib/plan/fma_peak.hpp"
#include "lib/plan/hardware_profile.hpp"
#include "lib/plan/pipeline.hpp"

namespace llmtrain::plan {

/// Seconds of one launch of the group. RecipeError naming the kernel when the profile has no times
/// for it.
double predict(const HardwareProfile& profile, const LaunchGroup& group);

struct KernelTime {
  std::string name;  // kernel and element type; products with their form
  std::int64_t count = 0;
  double seconds = 0;
  DType dtype = DType::f32;  // of the first operand
  kernels::Cost cost;        // of all these launches together
};

/// Collectives of one kind over one group.
struct CollectiveTime {
  Collective kind = Collective::barrier;
  std::string group;  // "dp*sp"
  int ranks = 1;
  std::string link;  // "node", "fabric"; "" where collectives were measured
  std::int64_t count = 0;
  double sent_bytes = 0;
  double seconds = 0;
};

struct StepPrediction {
  double seconds = 0;
  double tokens_per_second = 0;
  /// Model FLOP per second over `peak_flops`; 0 when the peak is unknown.
  double mfu = 0;
  double peak_flops = 0;
  std::vector<KernelTime> kernels;  // longest first
  std::vector<CollectiveTime> collectives;
  /// Of the step, in which no kernel of this rank runs because it waits for collectives; waiting
  /// for other stages of a pipeline is not among them.
  double exposed_seconds = 0;
  /// Of a pipeline: when every rank runs its actions.
  std::optional<parallel::Simulation> pipeline;
  /// inner_costs() of what its actions take.
  parallel::ActionCosts stage_costs = {};
};

/// Seconds of one call of the group. RecipeError when the profile knows no way between ranks.
double predict(const HardwareProfile& profile, const CollectiveGroup& group);

/// A pass's by kind and group, in the order of their first calls; without a profile, without times.
std::vector<CollectiveTime> collectives_of(const PassPlan& pass, const HardwareProfile* profile);

/// Launches one after the other; on a GPU collectives go on behind them, one at a time, until the
/// step waits for them. On a CPU they take the time of the cores that compute. MFU counts against
/// the peak of `compute`. Of a plan with stages `pipeline` has all ranks: the step is what they
/// take for their actions together, and the longest that one of them takes for the rest.
StepPrediction predict_step(const Plan& plan, const HardwareProfile& profile, DType compute,
                            const PipelinePlan* pipeline = nullptr);

/// What of a run decides its time beside the plan.
struct RunShape {
  DeviceKind device = DeviceKind::cpu;
  int threads = 0;  // of the CPU; 0 for a GPU
  DType compute = DType::f32;
  /// Optimizer steps and the tokens that they take together; 0 when only the data decides.
  std::int64_t steps = 0;
  std::uint64_t tokens = 0;
  /// Time that ends the run if the steps do not; 0 when there is none.
  double max_seconds = 0;
};

/// Times of a planned run on a measured machine.
struct PlannedTime {
  StepPrediction step;
  RunShape run;
  /// From the first step to the last, without evaluation and saving, or until time ends the run; 0
  /// when only the data decides.
  double run_seconds = 0;
  /// File that the times come from.
  std::string source;
};

/// The same run on a machine whose multiply-adds reach `now` on average, because others use it too:
/// all times grow as the mean falls below the profile's peak. MFU counts against that peak still.
/// Nothing changes where the peak is unknown.
PlannedTime at_rate(PlannedTime time, const FmaRate& now);

/// RecipeError when the profile is another device's, was measured with another number of threads or
/// ranks, or lacks a kernel.
PlannedTime planned_time(const Plan& plan, const HardwareProfile& profile, const RunShape& run,
                         std::string source, const PipelinePlan* pipeline = nullptr);

/// "matmul forward bf16", "norm_forward fp32": the row of a table that a launch belongs to.
std::string table_row(std::string_view name, DType dtype, const std::array<std::int64_t, 4>& sizes);

/// A peak, FLOP per second.
struct PeakFlops {
  double flops = 0;
  DType compute = DType::f32;
  int threads = 0;  // 0 for a GPU
};

/// What MFU is, in words: "12.3M model FLOP per token x tokens/s / 234 GFLOP/s (FMA peak of fp32, 2
/// threads)".
std::string mfu_formula(const Plan& plan, const PeakFlops& peak);

}  // namespace llmtrain::plan
