#pragma once
/// Feed-forward blocks: plain (GPT-2) and gated (SwiGLU, GeGLU).

#include <string>

#include "lib/layers/linear.hpp"
#include "lib/ops/activations.hpp"

namespace llmtrain::layers {

struct MlpConfig {
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  kernels::Activation activation{};
  bool gated = false;
  bool bias = false;
  double init_std = 0.02;
  double output_init_std = 0.02;
};

class Mlp {
 public:
  /// Declares <name>.up_proj, <name>.down_proj and, gated, <name>.gate_proj; gate and up share one
  /// product. The ranks of Axis::tp share the intermediate columns.
  Mlp(ParameterStore& store, const std::string& name, const MlpConfig& config);
  /// [rows, hidden] -> [rows, hidden].
  Var forward(const OpCtx& ctx, const Var& x) const;
  /// This rank's term of that sum over Axis::tp, of what ops::copy_to_tp gave; for layers that add
  /// terms of their own before they reduce them.
  Var term(const OpCtx& ctx, const Var& x) const;

 private:
  kernels::Activation activation_;
  bool gated_;
  Linear in_;
  Linear out_;
};

}  // namespace llmtrain::layers
