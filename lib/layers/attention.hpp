#pragma once
/// Multi-head, grouped-query and multi-query self-attention.

#include <optional>
#include <string>

#include "lib/layers/linear.hpp"

namespace llmtrain::layers {

struct AttentionConfig {
  std::int64_t hidden_size = 0;
  ops::HeadLayout heads;
  bool qkv_bias = false;
  bool output_bias = false;
  /// Epsilon of RMSNorms over each head of q and k before RoPE; none = no such norms.
  std::optional<double> qk_norm_eps = {};
  double scale = 0;         // of the scores; 0 = 1 / sqrt(head_dim)
  double softcap = 0;       // of the scores; 0 = none
  bool sinks = false;       // a score per head that takes probability and has no value
  std::int64_t window = 0;  // 0 = whole document
  double dropout = 0;
  double init_std = 0.02;
  double output_init_std = 0.02;
};

/// The heads of a layer that one rank of Axis::tp has.
struct LocalHeads {
  ops::HeadLayout heads;
  std::int64_t first_head = 0;
  /// Neighbouring ranks that share a key/value head, where there are fewer of them than ranks.
  int kv_replicas = 1;
};
/// RecipeError, with the nearest sizes that divide, when the heads do not come out even.
LocalHeads local_heads(const ops::HeadLayout& heads, const Mesh& mesh);

class Attention {
 public:
  /// Declares <name>.{q,k,v,o}_proj; q, k and v share one product. With qk_norm_eps also
  /// <name>.{q,k}_norm.weight [head_dim]; with sinks <name>.sinks [heads]. Tables that the model's
  /// positions do not need are null; the others outlive the layer. The ranks of Axis::tp share the
  /// heads; slopes of ALiBi are of those here.
  Attention(ParameterStore& store, const std::string& name, const AttentionConfig& config,
            const ops::RopeTables* rope, const Tensor* alibi = nullptr);

  /// [rows, hidden] -> [rows, hidden]. With a cache (one sequence, no tape) the new rows also see
  /// the cached ones and are appended.
  Var forward(const OpCtx& ctx, const Var& x, ops::KvCache* cache = nullptr) const;

 private:
  std::string name_;
  const ops::RopeTables* rope_;
  LocalHeads local_;
  Linear qkv_;
  std::optional<double> qk_norm_eps_;
  const ParameterGroup* q_norm_ = nullptr;
  const ParameterGroup* k_norm_ = nullptr;
  Linear output_;
  ops::AttentionOptions options_;
};

}  // namespace llmtrain::layers
