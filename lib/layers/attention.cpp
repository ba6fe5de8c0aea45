#include "lib/layers/attention.hpp"

#include <algorithm>
#include <cmath>

#include "lib/base/refused_key.hpp"
#include "lib/base/require.hpp"
#include "lib/ops/sequence_parallel.hpp"

namespace llmtrain::layers {

namespace {

bool divides_heads(std::int64_t ranks, const ops::HeadLayout& heads) {
  const std::int64_t kv = heads.num_kv_heads;
  return heads.num_heads % ranks == 0 && (kv % ranks == 0 || ranks % kv == 0);
}

// "2" or "2 or 4": what divides the heads next to `ranks`, which does not.
std::string nearest_sizes(std::int64_t ranks, const ops::HeadLayout& heads) {
  std::int64_t below = ranks, above = ranks;
  while (!divides_heads(below, heads)) --below;
  while (above <= heads.num_heads && !divides_heads(above, heads)) ++above;
  return above > heads.num_heads ? fmt::format("{}", below) : fmt::format("{} or {}", below, above);
}

// Norms of single heads have the same weight for all; each rank knows the gradient by its own.
Placement shared_by_heads() {
  Placement placement;
  placement[Axis::tp].grad_partial = true;
  return placement;
}

Placement one_per_head() {
  Placement placement;
  placement[Axis::tp].split_dim = 0;
  return placement;
}

}  // namespace

LocalHeads local_heads(const ops::HeadLayout& heads, const Mesh& mesh) {
  const std::int64_t ranks = mesh.size(Axis::tp);
  if (!divides_heads(ranks, heads)) {
    throw RefusedKey("parallelism.tp",
                     fmt::format("{} cannot share {} heads and {} key/value heads evenly", ranks,
                                 heads.num_heads, heads.num_kv_heads),
                     nearest_sizes(ranks, heads) + " can");
  }
  const std::int64_t here = heads.num_heads / ranks;
  return {.heads = {.num_heads = here,
                    .num_kv_heads = std::max<std::int64_t>(1, heads.num_kv_heads / ranks),
                    .head_dim = heads.head_dim},
          .first_head = here * mesh.index(Axis::tp),
          .kv_replicas = static_cast<int>(std::max<std::int64_t>(1, ranks / heads.num_kv_heads))};
}

Attention::Attention(ParameterStore& store, const std::string& name, const AttentionConfig& config,
                     const ops::RopeTables* rope, const Tensor* alibi)
    : name_(name),
      rope_(rope),
      local_(local_heads(config.heads, store.mesh())),
      qkv_(store,
           {{name + ".q_proj", config.heads.q_cols(), 1, config.heads.head_dim},
            {name + ".k_proj", config.heads.kv_cols(), local_.kv_replicas, config.heads.head_dim},
            {name + ".v_proj", config.heads.kv_cols(), local_.kv_replicas}},
           {.in_features = config.hidden_size,
            .bias = config.qkv_bias,
            .init_std = config.init_std,
            .split = TpSplit::outputs}),
      qk_norm_eps_(config.qk_norm_eps),
      output_(store, {{name + ".o_proj", config.hidden_size}},
              {.in_features = config.heads.q_cols(),
               .bias = config.output_bias,
               .init_std = config.output_init_std,
               .split = TpSplit::inputs}),
      options_{.heads = local_.heads,
               .scale = config.scale != 0
                            ? config.scale
                            : 1.0 / std::sqrt(static_cast<double>(config.heads.head_dim)),
               .softcap = config.softcap,
               .alibi = alibi,
               .window = config.window,
               .dropout = config.dropout,
               .dropout_name = {},
               .first_head = local_.first_head,
               .heads_of_layer = config.heads.num_heads} {
  // Whether the ranks of Axis::sp that shall share heads can is known before there are any rows.
  if (const int sharers = store.mesh().shape().head_sharers(); sharers > 1) {
    ops::share_of(local_.heads, sharers);
  }
  if (config.sinks) {
    options_.sinks = &store.declare({.name = name + ".sinks",
                                     .shape = {config.heads.num_heads},
                                     .role = ParameterRole::bias,
                                     .init = {},
                                     .placement = one_per_head()});
  }
  if (!qk_norm_eps_) return;
  const auto declare = [&](const char* norm) {
    return &store.declare({.name = name + norm,
                           .shape = {config.heads.head_dim},
                           .role = ParameterRole::norm,
                           .init = {Initializer::Kind::ones},
                           .placement = shared_by_heads()});
  };
  q_norm_ = declare(".q_norm.weight");
  k_norm_ = declare(".k_norm.weight");
}

Var Attention::forward(const OpCtx& ctx, const Var& x, ops::KvCache* cache) const {
  Var qkv = qkv_.forward(ctx, x);
  const ops::HeadLayout& heads = options_.heads;
  if (qk_norm_eps_ && rope_ != nullptr) {
    qkv = ops::head_norm_rope(ctx, qkv, heads, *q_norm_, *k_norm_, *qk_norm_eps_, *rope_);
  } else if (qk_norm_eps_) {
    qkv = ops::head_norm(ctx, qkv, heads, *q_norm_, *k_norm_, *qk_norm_eps_);
  } else if (rope_ != nullptr) {
    qkv = ops::rope(ctx, qkv, heads, *rope_);
  }
  ops::AttentionOptions options = options_;
  options.dropout_name = name_;
  const Var mixed = cache != nullptr
                        ? Var{ops::cached_attention(ctx, qkv.tensor, options, *cache), -1, nullptr}
                        : ops::attention(ctx, qkv, options);
  qkv = {};
  return output_.forward(ctx, mixed);
}

}  // namespace llmtrain::layers
