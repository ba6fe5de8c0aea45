#pragma once
/// A feed-forward block of experts (arXiv 1701.06538), of which each token sees a few: gated MLPs
/// without biases, and a router. No token is dropped, none is padded.

#include <string>

#include "lib/ops/activations.hpp"
#include "lib/ops/experts.hpp"

namespace llmtrain::layers {

struct ExpertsConfig {
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;  // of each expert
  kernels::Activation activation{};
  ops::RouterOptions router;
  double init_std = 0.02;
  double output_init_std = 0.02;
};

class Experts {
 public:
  /// Declares <name>.gate.weight [E, hidden], the router's, and <name>.experts.{gate_proj,up_proj}
  /// .weight [E, intermediate, hidden] and <name>.experts.down_proj.weight [E, hidden,
  /// intermediate]. The ranks of Axis::tp share each expert's intermediate columns, those
  /// of Mesh::experts() the experts.
  Experts(ParameterStore& store, const std::string& name, const ExpertsConfig& config);
  /// [rows, hidden] -> [rows, hidden].
  Var forward(const OpCtx& ctx, const Var& x) const;

 private:
  kernels::Activation activation_;
  ops::RouterOptions router_;
  const ParameterGroup* gate_;
  const ParameterGroup* in_;
  const ParameterGroup* out_;
};

}  // namespace llmtrain::layers
