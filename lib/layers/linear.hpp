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
  /// Of a layer that is split by outputs: neighbouring ranks that hold the same part.
  int replicas = 1;
  /// ParameterSpec::rows_per_head of the weight.
  std::int64_t rows_per_head = 1;
};

/// How the ranks of Axis::tp share a layer (Megatron-LM, arXiv 1909.08053).
enum class TpSplit : std::uint8_t {
  none,
  outputs,  // each has some outputs of the whole input: "column-parallel"
  inputs,   // each has a term of the sum: "row-parallel"
};

struct LinearOptions {
  std::int64_t in_features = 0;
  bool bias = false;
  double init_std = 0.02;
  TpSplit split = TpSplit::none;
};

class Linear {
 public:
  /// Declares <name>.weight [out, in] and, with bias, <name>.bias [out] for each output.
  Linear(ParameterStore& store, const std::vector<LinearOutput>& outputs,
         const LinearOptions& options);
  /// [rows, in] -> [rows, sum of out], outputs side by side. Of a split layer, this rank's inputs
  /// or outputs.
  Var forward(const OpCtx& ctx, const Var& x) const;
  const ParameterGroup& weight() const { return *weight_; }
  /// For the product alone, without what a split has around it.
  ops::LinearWeights weights() const { return {weight_, bias_, adds_bias_}; }

 private:
  const ParameterGroup* weight_;
  const ParameterGroup* bias_ = nullptr;
  TpSplit split_;
  bool adds_bias_;
};

}  // namespace llmtrain::layers
