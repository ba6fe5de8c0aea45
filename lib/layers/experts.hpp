#pragma once
/// A feed-forward block of experts (arXiv 1701.06538), of which each token sees a few: gated MLPs
/// without biases, and a router. No token is padded, and none is dropped unless
/// RouterOptions::capacity_factor says so. Beside them there may be one that every token sees
/// (DeepSeekMoE, arXiv 2401.06066).

#include <optional>
#include <string>

#include "lib/layers/mlp.hpp"
#include "lib/ops/activations.hpp"
#include "lib/ops/experts.hpp"

namespace llmtrain::layers {

struct ExpertsConfig {
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;  // of each expert
  std::int64_t shared_size = 0;        // of the one that every token sees; 0: there is none
  kernels::Activation activation{};
  ops::RouterOptions router;
  /// The router has a correction bias, which decides which experts are chosen and no weight.
  bool correction_bias = false;
  double init_std = 0.02;
  double output_init_std = 0.02;
};

class Experts {
 public:
  /// Declares <name>.gate.weight [E, hidden], the router's, and <name>.experts.{gate_proj,up_proj}
  /// .weight [E, intermediate, hidden] and <name>.experts.down_proj.weight [E, hidden,
  /// intermediate]. The ranks of Axis::tp share each expert's intermediate columns, those
  /// of Mesh::experts() the experts. With a correction bias <name>.gate.e_score_correction_bias
  /// [E], which no gradient trains; with a shared expert the Mlp <name>.shared_experts.
  Experts(ParameterStore& store, const std::string& name, const ExpertsConfig& config);
  /// [rows, hidden] -> [rows, hidden]. Of sequences that are not whole, as those behind a KV cache,
  /// no token is dropped.
  Var forward(const OpCtx& ctx, const Var& x, bool whole_sequences = true) const;
  /// Moves the correction bias, where there is one on this rank, by kernels::BalanceRouter as the
  /// counters say, which hold the choices of a whole step.
  void balance(const kernels::KernelCtx& ctx, const View& decision, double speed) const;

 private:
  kernels::Activation activation_;
  ops::RouterOptions router_;
  const ParameterGroup* gate_;
  const ParameterGroup* in_;
  const ParameterGroup* out_;
  std::optional<Mlp> shared_;
};

}  // namespace llmtrain::layers
