#pragma once
/// The cheapest activations to compute again so that the rest fits into a budget.

#include <cstdint>

#include "lib/engine/recompute.hpp"
#include "lib/plan/plan.hpp"
#include "lib/recipe/quantity.hpp"

namespace llmtrain::plan {

struct BudgetedRecompute {
  engine::RecomputePolicy policy;
  std::uint64_t budget_bytes = 0;
  /// Most that Category::activations takes on a rank in a step: with nothing computed again, and
  /// with the policy.
  std::uint64_t whole_bytes = 0, bytes = 0;
  /// What the policy adds to the work of a step, of the rank to which it adds most.
  double added_work = 0;

  /// Otherwise the policy computes all blocks again, and that is not enough.
  bool fits() const { return bytes <= budget_bytes; }
};

/// FLOP that count as much as a byte moved. Of a GPU (H100: 989 TFLOP/s of bf16, 3.35 TB/s) about
/// 300, of a CPU a few. It orders what is computed again, on every machine alike.
double flops_per_byte(DeviceKind device);

/// Plans steps with more and less computed again: of each block nothing, its norms, its
/// activation function, both, or all of it. Takes the choice with the least work, as far as blocks
/// are alike, that is within `budget`: bytes, or a share of what the fullest rank takes with nothing computed again. Blocks
/// near a rank's first stage are computed again first, because the backward comes to them when
/// those behind are free. The same for all ranks that differ along other axes than Axis::pp: what
/// ranks of a group compute again they compute together, and exchange for it.
/// `options.recompute` is ignored.
BudgetedRecompute recompute_within(engine::EngineOptions options, std::int64_t samples_per_step,
                                   engine::Target target, const recipe::SizeOrShare& budget);

/// "norm in blocks 0 to 11: 3.1 GiB of 4 GiB (8.2 GiB without), 2.1 % more work".
std::string to_string(const BudgetedRecompute& budgeted);

}  // namespace llmtrain::plan
