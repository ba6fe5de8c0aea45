#pragma once
/// Mixtures of experts: routers, rows sorted by expert, and products of all experts at once.
/// Legend: E experts, of which each row chooses k; n = rows * k sorted rows.

#include "kernels/router.hpp"
#include "lib/ops/ops.hpp"

namespace llmtrain::ops {

/// What routers did in a step, for one layer: tensors of the device to which a micro-batch's
/// backward adds, on each rank what its own rows chose.
struct RouterCounters {
  Tensor choices;  // of each expert; statistics dtype [E]
  Tensor losses;   // kernels::RouterLosses, balance and z, summed over rows; FP64 [2]
};

struct RouterOptions {
  std::int64_t experts = 0;
  kernels::RouterRule rule;
  /// Added to the scores by which experts are chosen, not to their weights: [E] in the statistics
  /// dtype, or none. No gradient goes there.
  const ParameterGroup* bias = nullptr;
  /// Factors of the losses in the loss of a row.
  double balance = 0, z = 0;
  const RouterCounters* counters = nullptr;
};

/// What a router says of each row: its experts, int32 [rows, k], and their weights [rows, k] in the
/// statistics dtype.
struct Routes {
  Tensor expert;
  Var weight;
};
/// Logits x w^T, in FP32 whatever the dtype of x, and the choice that follows. x [rows, in], weight
/// group [E, in]. The backward also adds the gradients of the losses, once for all ranks of
/// Axis::tp, and to the counters.
Routes route(const OpCtx& ctx, const Var& x, const ParameterGroup& weight,
             const RouterOptions& options);

/// Choices sorted by expert (kernels::GroupByExpert).
struct SortedRows {
  Tensor offsets, source, place;
  /// How many of them are some expert's, where that is expected to be fewer than there is room for.
  std::optional<std::int64_t> expected = {};
};
SortedRows sort_by_expert(const OpCtx& ctx, const Tensor& expert, std::int64_t experts);

/// Each row once for each of its experts, [rows, cols] -> [n, cols]. Its gradient's backward keeps
/// x alone and gathers again.
Var gather_rows(const OpCtx& ctx, const Var& x, const SortedRows& sorted);
/// y[p] = x_e(p) w_e^T of each sorted row's expert e. x [n, in], members of the group [E, out, in],
/// whose outputs lie side by side.
Var expert_linear(const OpCtx& ctx, const Var& x, const SortedRows& sorted,
                  const ParameterGroup& weight);
/// Weights [rows, k] in the order of the sorted rows, [n, 1].
Var sort_weights(const OpCtx& ctx, const Var& weight, const SortedRows& sorted);
/// Each row of x [n, cols] times its weight [n, 1]. Keeps x alone for the products behind it.
Var scale_rows(const OpCtx& ctx, const Var& x, const Var& weight);
/// The sum of each row's sorted rows, in the order of its choices, [n, cols] -> [rows, cols].
Var combine_rows(const OpCtx& ctx, const Var& x, const SortedRows& sorted, std::int64_t rows);

}  // namespace llmtrain::ops
