#pragma once
/// LayerNorm and RMSNorm layers.

#include <string>

#include "lib/ops/ops.hpp"

namespace llmtrain::layers {

class Norm {
 public:
  /// Declares <name>.weight (ones, or zeros if it counts from one) and, with bias, <name>.bias
  /// (zeros), both [hidden].
  Norm(ParameterStore& store, const std::string& name, std::int64_t hidden, bool bias,
       const ops::NormOptions& options);

  Var forward(const OpCtx& ctx, const Var& x) const {
    return ops::norm(ctx, x, *weight_, bias_, options_);
  }
  /// The sum x + residual and its norm, in one pass.
  ops::NormResult forward(const OpCtx& ctx, const Var& x, const Var& residual) const {
    return ops::residual_norm(ctx, x, residual, *weight_, bias_, options_);
  }

 private:
  const ParameterGroup* weight_;
  const ParameterGroup* bias_ = nullptr;
  ops::NormOptions options_;
};

}  // namespace llmtrain::layers
