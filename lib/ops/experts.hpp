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
  Tensor kept;     // of these, what the expert had room for; or undefined
  Tensor losses;   // kernels::RouterLosses, balance and z, summed over rows; FP64 [2]
  Tensor needed;   // kernels::AssignSlots::needed where room for rows is limited; or undefined
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
  /// An expert has room for this much of its even share of a sequence's choices
  /// (expert_capacity()), those with the largest scores, equal ones by position; the others add
  /// nothing. 0: for all of them.
  double capacity_factor = 0;
};

/// How many choices of a sequence of `tokens` tokens an expert has room for: the part `factor` of
/// the even share, tokens * top_k / experts, rounded up (GShard, arXiv 2006.16668). What a decimal
/// factor is off by does not count.
std::int64_t expert_capacity(double factor, std::int64_t tokens, std::int64_t top_k,
                             std::int64_t experts);

/// What a router says of each row: its experts, int32 [rows, k], -1 for one that has no room, and
/// their weights [rows, k] in the statistics dtype, in which room does not count.
struct Routes {
  Tensor expert;
  Var weight;
  /// Choices that an expert has room for in a sequence, where it is limited.
  std::optional<std::int64_t> capacity = {};
};
/// Logits x w^T, in FP32 whatever the dtype of x, and the choice that follows. x [rows, in], weight
/// group [E, in]. The backward also adds the gradients of the losses, once for all ranks of
/// Axis::tp, and to the counters; losses and `choices` see those without room, too. With
/// `capacity_factor` the rows must be whole sequences of RowMap::seq_len, or this rank's parts of
/// them: the ranks of Axis::sp then tell each other their choices.
Routes route(const OpCtx& ctx, const Var& x, const ParameterGroup& weight,
             const RouterOptions& options);

/// Choices sorted by expert (kernels::GroupByExpert).
struct SortedRows {
  Tensor offsets, source, place;
  /// How many of them are some expert's, where that is expected to be fewer than there is room for.
  std::optional<std::int64_t> expected = {};
  /// As in Routes.
  std::optional<std::int64_t> capacity = {};
};
SortedRows sort_by_expert(const OpCtx& ctx, const Tensor& expert, std::int64_t experts,
                          std::optional<std::int64_t> capacity = {});

/// Each row once for each of its experts, [rows, cols] -> [n, cols]. Its gradient's backward keeps
/// x alone and gathers again.
Var gather_rows(const OpCtx& ctx, const Var& x, const SortedRows& sorted);
/// y[p] = x_e(p) w_e^T of each sorted row's expert e. x [n, in], members of the group [E, out, in],
/// whose outputs lie side by side.
Var expert_linear(const OpCtx& ctx, const Var& x, const SortedRows& sorted,
                  const ParameterGroup& weight);
/// expert_linear(), of what experts' activation function reads. Recomputable as "up_proj".
Var expert_up_projection(const OpCtx& ctx, const Var& x, const SortedRows& sorted,
                         const ParameterGroup& weight);
/// Weights [rows, k] in the order of the sorted rows, [n, 1].
Var sort_weights(const OpCtx& ctx, const Var& weight, const SortedRows& sorted);
/// Each row of x [n, cols] times its weight [n, 1]. Keeps x alone for the products behind it.
Var scale_rows(const OpCtx& ctx, const Var& x, const Var& weight);
/// The sum of each row's sorted rows, in the order of its choices, [n, cols] -> [rows, cols].
Var combine_rows(const OpCtx& ctx, const Var& x, const SortedRows& sorted, std::int64_t rows);

}  // namespace llmtrain::ops
