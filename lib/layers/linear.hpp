#pragma once
/// A linear layer, or several that read the same input and share one product.

#include <string>
#include <vector>

#include "lib/ops/ops.hpp"

namespace llmtrain::layers {

/// One output of a linear layer.
struct LinearOutput {
  std::string name;  // "model.layers.0.self_attn.q_proj"
  std::int64_t out_features = 0;
};

struct LinearOptions {
  std::int64_t in_features = 0;
  bool bias = false;
  double init_std = 0.02;
};

class Linear {
 public:
  /// Declares <name>.weight [out, in] and, with bias, <name>.bias [out] for each output.
  Linear(ParameterStore& store, const std::vector<LinearOutput>& outputs,
         const LinearOptions& options);
  /// [rows, in] -> [rows, sum of out], outputs side by side.
  Var forward(const OpCtx& ctx, const Var& x) const { return ops::linear(ctx, x, *weight_, bias_); }
  const ParameterGroup& weight() const { return *weight_; }
  ops::LinearWeights weights() const { return {weight_, bias_}; }

 private:
  const ParameterGroup* weight_;
  const ParameterGroup* bias_ = nullptr;
};

}  // namespace llmtrain::layers
