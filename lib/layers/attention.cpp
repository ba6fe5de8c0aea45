#include "lib/layers/attention.hpp"

#include <cmath>

namespace llmtrain::layers {

Attention::Attention(ParameterStore& store, const std::string& name, const AttentionConfig& config,
                     const ops::RopeTables* rope)
    : name_(name),
      rope_(rope),
      qkv_(store,
           {{name + ".q_proj", config.heads.q_cols()},
            {name + ".k_proj", config.heads.kv_cols()},
            {name + ".v_proj", config.heads.kv_cols()}},
           {.in_features = config.hidden_size,
            .bias = config.qkv_bias,
            .init_std = config.init_std}),
      output_(store, {{name + ".o_proj", config.hidden_size}},
              {.in_features = config.heads.q_cols(),
               .bias = config.output_bias,
               .init_std = config.output_init_std}),
      options_{.heads = config.heads,
               .scale = 1.0 / std::sqrt(static_cast<double>(config.heads.head_dim)),
               .window = config.window,
               .dropout = config.dropout,
               .dropout_name = {}} {}

Var Attention::forward(const OpCtx& ctx, const Var& x, ops::KvCache* cache) const {
  Var qkv = qkv_.forward(ctx, x);
  if (rope_ != nullptr) qkv = ops::rope(ctx, qkv, options_.heads, *rope_);
  ops::AttentionOptions options = options_;
  options.dropout_name = name_;
  const Var mixed = cache != nullptr
                        ? Var{ops::cached_attention(ctx, qkv.tensor, options, *cache), -1, nullptr}
                        : ops::attention(ctx, qkv, options);
  qkv = {};
  return output_.forward(ctx, mixed);
}

}  // namespace llmtrain::layers
