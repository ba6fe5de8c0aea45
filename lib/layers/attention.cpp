#include "lib/layers/attention.hpp"

#include <cmath>

namespace llmtrain::layers {

Attention::Attention(ParameterStore& store, const std::string& name, const AttentionConfig& config,
                     const ops::RopeTables* rope, const Tensor* alibi)
    : name_(name),
      rope_(rope),
      qkv_(store,
           {{name + ".q_proj", config.heads.q_cols()},
            {name + ".k_proj", config.heads.kv_cols()},
            {name + ".v_proj", config.heads.kv_cols()}},
           {.in_features = config.hidden_size,
            .bias = config.qkv_bias,
            .init_std = config.init_std}),
      qk_norm_eps_(config.qk_norm_eps),
      output_(store, {{name + ".o_proj", config.hidden_size}},
              {.in_features = config.heads.q_cols(),
               .bias = config.output_bias,
               .init_std = config.output_init_std}),
      options_{.heads = config.heads,
               .scale = config.scale != 0
                            ? config.scale
                            : 1.0 / std::sqrt(static_cast<double>(config.heads.head_dim)),
               .softcap = config.softcap,
               .alibi = alibi,
               .window = config.window,
               .dropout = config.dropout,
               .dropout_name = {}} {
  if (config.sinks) {
    options_.sinks = &store.declare({.name = name + ".sinks",
                                     .shape = {config.heads.num_heads},
                                     .role = ParameterRole::bias,
                                     .init = {}});
  }
  if (!qk_norm_eps_) return;
  const auto declare = [&](const char* norm) {
    return &store.declare({.name = name + norm,
                           .shape = {config.heads.head_dim},
                           .role = ParameterRole::norm,
                           .init = {Initializer::Kind::ones}});
  };
  q_norm_ = declare(".q_norm.weight");
  k_norm_ = declare(".k_norm.weight");
}

Var Attention::forward(const OpCtx& ctx, const Var& x, ops::KvCache* cache) const {
  Var qkv = qkv_.forward(ctx, x);
  if (qk_norm_eps_) {
    qkv = ops::head_norm(ctx, qkv, options_.heads, *q_norm_, *k_norm_, *qk_norm_eps_);
  }
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
