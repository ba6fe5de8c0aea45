#include "lib/models/decoder.hpp"

#include <cmath>

#include "lib/base/require.hpp"

namespace llmtrain::models {

namespace {

double output_std(const DecoderSpec& spec) {
  if (!spec.scaled_residual_init) return spec.init_std;
  return spec.init_std / std::sqrt(2.0 * static_cast<double>(spec.num_hidden_layers));
}

layers::AttentionConfig attention_config(const DecoderSpec& spec) {
  return {.hidden_size = spec.hidden_size,
          .heads = {spec.num_attention_heads, spec.num_key_value_heads, spec.head_dim},
          .qkv_bias = spec.qkv_bias,
          .output_bias = spec.attention_output_bias,
          .dropout = spec.attention_dropout,
          .init_std = spec.init_std,
          .output_init_std = output_std(spec)};
}

layers::MlpConfig mlp_config(const DecoderSpec& spec) {
  return {.hidden_size = spec.hidden_size,
          .intermediate_size = spec.intermediate_size,
          .activation = spec.activation,
          .gated = spec.gated_mlp,
          .bias = spec.mlp_bias,
          .init_std = spec.init_std,
          .output_init_std = output_std(spec)};
}

ParameterSpec embedding_spec(std::string name, std::int64_t rows, const DecoderSpec& spec) {
  return {.name = std::move(name),
          .shape = {rows, spec.hidden_size},
          .role = ParameterRole::embedding,
          .init = {Initializer::Kind::normal, spec.init_std}};
}

}  // namespace

DecoderBlock::DecoderBlock(ParameterStore& store, const DecoderSpec& spec, int layer,
                           const ops::RopeTables* rope)
    : name_(fmt::format("model.layers.{}", layer)),
      dropout_(spec.residual_dropout),
      input_norm_(store, name_ + ".input_layernorm", spec.hidden_size, spec.norm_bias, spec.norm),
      attention_(store, name_ + ".self_attn", attention_config(spec), rope),
      post_attention_norm_(store, name_ + ".post_attention_layernorm", spec.hidden_size,
                           spec.norm_bias, spec.norm),
      mlp_(store, name_ + ".mlp", mlp_config(spec)) {}

Var DecoderBlock::forward(const OpCtx& ctx, const Var& x, ops::KvCache* cache) const {
  Var h = input_norm_.forward(ctx, x);
  h = attention_.forward(ctx, h, cache);
  h = ops::dropout(ctx, h, dropout_, name_ + ".self_attn.residual");
  ops::NormResult after = post_attention_norm_.forward(ctx, h, x);
  h = mlp_.forward(ctx, after.y);
  after.y = {};
  h = ops::dropout(ctx, h, dropout_, name_ + ".mlp.residual");
  return ops::add(ctx, h, after.sum);
}

Decoder::Decoder(ParameterStore& store, const DecoderSpec& spec) : spec_(spec) {
  embedding_ = &store.declare(embedding_spec("model.embed_tokens.weight", spec.vocab_size, spec));
  if (spec.learned_positions) {
    positions_ = &store.declare(
        embedding_spec("model.embed_positions.weight", spec.max_position_embeddings, spec));
  }
  const ops::RopeTables* rope = spec.learned_positions ? nullptr : &rope_;
  for (int i = 0; i < spec.num_hidden_layers; ++i) {
    blocks_.push_back(std::make_unique<DecoderBlock>(store, spec, i, rope));
  }
  final_norm_ = std::make_unique<layers::Norm>(store, "model.norm", spec.hidden_size,
                                               spec.norm_bias, spec.norm);
  if (!spec.tie_word_embeddings) {
    head_ = &store.declare({.name = "lm_head.weight",
                            .shape = {spec.vocab_size, spec.hidden_size},
                            .role = ParameterRole::head,
                            .init = {Initializer::Kind::normal, spec.init_std}});
  }
}

namespace {

template <class T>
void write_angles(const ops::RopeTables& tables, std::int64_t positions, double theta) {
  const std::int64_t half = tables.rotary_dim / 2;
  std::vector<T> cosine(static_cast<std::size_t>(positions * half));
  std::vector<T> sine(cosine.size());
  for (std::int64_t p = 0; p < positions; ++p) {
    for (std::int64_t i = 0; i < half; ++i) {
      // The frequency is rounded to FP32 as in the models' own code, the angle is not.
      const auto frequency = static_cast<float>(
          std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(tables.rotary_dim)));
      const double angle = static_cast<double>(p) * frequency;
      cosine[static_cast<std::size_t>(p * half + i)] = static_cast<T>(std::cos(angle));
      sine[static_cast<std::size_t>(p * half + i)] = static_cast<T>(std::sin(angle));
    }
  }
  tables.cosine.device().copy_from_host(tables.cosine, std::as_bytes(std::span(cosine)));
  tables.sine.device().copy_from_host(tables.sine, std::as_bytes(std::span(sine)));
}

}  // namespace

void Decoder::allocate_tables(Device& device, DType compute) {
  if (spec_.learned_positions) return;
  const DType dtype = statistics_dtype(compute);
  const std::int64_t positions = spec_.max_position_embeddings;
  rope_.rotary_dim = spec_.head_dim;
  const Shape shape{positions, spec_.head_dim / 2};
  rope_.cosine = device.allocate(shape, dtype, Category::params, "rope cosine");
  rope_.sine = device.allocate(shape, dtype, Category::params, "rope sine");
  if (device.is_meta()) return;
  if (dtype == DType::f64) {
    write_angles<double>(rope_, positions, spec_.rope_theta);
  } else {
    write_angles<float>(rope_, positions, spec_.rope_theta);
  }
}

Var Decoder::embed(const OpCtx& ctx, const Tensor& ids) const {
  const Var x =
      positions_ == nullptr
          ? ops::embedding(ctx, ids, *embedding_)
          : ops::embedding_sum(ctx, ids, *embedding_, ctx.rows->embedding_position, *positions_);
  return ops::dropout(ctx, x, spec_.embedding_dropout, "model.embed");
}

Var Decoder::loss(const OpCtx& ctx, const Var& x, const Tensor& targets,
                  const Tensor& loss_sum) const {
  const Var h = final_norm_->forward(ctx, x);
  return ops::loss_head(ctx, h, head_weight(), targets, loss_sum,
                        {.num_classes = spec_.vocab_size});
}

Tensor Decoder::logits(const OpCtx& ctx, const Tensor& x) const {
  const Var h = final_norm_->forward(ctx, {x, -1, nullptr});
  return ops::logits(ctx, h.tensor, head_weight());
}

}  // namespace llmtrain::models
