#pragma once
/// Multi-head, grouped-query and multi-query self-attention.

#include <string>

#include "lib/layers/linear.hpp"

namespace llmtrain::layers {

struct AttentionConfig {
  std::int64_t hidden_size = 0;
  ops::HeadLayout heads;
  bool qkv_bias = false;
  bool output_bias = false;
  std::int64_t window = 0;  // 0 = whole document
  double dropout = 0;
  double init_std = 0.02;
  double output_init_std = 0.02;
};

class Attention {
 public:
  /// Declares <name>.{q,k,v,o}_proj; q, k and v share one product. `rope` is null for models with
  /// learned positions, and outlives the layer.
  Attention(ParameterStore& store, const std::string& name, const AttentionConfig& config,
            const ops::RopeTables* rope);

  /// [rows, hidden] -> [rows, hidden]. With a cache (one sequence, no tape) the new rows also see
  /// the cached ones and are appended.
  Var forward(const OpCtx& ctx, const Var& x, ops::KvCache* cache = nullptr) const;

 private:
  std::string name_;
  const ops::RopeTables* rope_;
  Linear qkv_;
  Linear output_;
  ops::AttentionOptions options_;
};

}  // namespace llmtrain::layers
