#include "lib/models/decoder.hpp"

#include <algorithm>
#include <cmath>

#include "lib/base/require.hpp"
#include "lib/models/parameter_names.hpp"

namespace llmtrain::models {

namespace {

double output_std(const DecoderSpec& spec) {
  if (!spec.scaled_residual_init) return spec.init_std;
  return spec.init_std / std::sqrt(2.0 * static_cast<double>(spec.num_hidden_layers));
}

ops::HeadLayout heads_of(const DecoderSpec& spec) {
  return {spec.num_attention_heads, spec.num_key_value_heads, spec.head_dim};
}

layers::AttentionConfig attention_config(const DecoderSpec& spec, int layer) {
  return {.hidden_size = spec.hidden_size,
          .heads = heads_of(spec),
          .qkv_bias = spec.qkv_bias,
          .output_bias = spec.attention_output_bias,
          .qk_norm_eps = spec.qk_norm ? std::optional(spec.norm.eps) : std::nullopt,
          .scale = spec.attention_scale,
          .softcap = spec.attention_softcap,
          .sinks = spec.attention_sinks,
          .window = spec.window_of(layer),
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

layers::ExpertsConfig experts_config(const DecoderSpec& spec, const ops::RouterCounters* counters) {
  const ExpertsSpec& experts = spec.experts;
  const auto blocks = static_cast<double>(spec.num_expert_layers());
  return {.hidden_size = spec.hidden_size,
          .intermediate_size = experts.intermediate_size,
          .shared_size = experts.num_shared * experts.intermediate_size,
          .activation = spec.activation,
          .router = {.experts = experts.num_experts,
                     .rule = experts.rule,
                     .balance = experts.aux_loss_coef / blocks,
                     .z = experts.z_loss_coef / blocks,
                     .counters = counters,
                     .capacity_factor = experts.capacity_factor},
          .correction_bias = experts.correction_bias,
          .init_std = spec.init_std,
          .output_init_std = output_std(spec)};
}

std::variant<layers::Mlp, layers::Experts> make_mlp(ParameterStore& store, const std::string& name,
                                                    const DecoderSpec& spec, int layer,
                                                    const ops::RouterCounters* counters) {
  if (spec.has_experts(layer)) return layers::Experts(store, name, experts_config(spec, counters));
  return layers::Mlp(store, name, mlp_config(spec));
}

layers::Norm norm_of(ParameterStore& store, const DecoderSpec& spec, const std::string& name) {
  return {store, name, spec.hidden_size, spec.norm_bias, spec.norm};
}

ParameterSpec table_spec(std::string name, std::int64_t rows, ParameterRole role,
                         const DecoderSpec& spec) {
  return {.name = std::move(name),
          .shape = {rows, spec.hidden_size},
          .role = role,
          .init = {Initializer::Kind::normal, spec.init_std}};
}

// The ranks of Axis::tp share the rows.
ParameterSpec vocabulary_spec(std::string_view name, ParameterRole role, const DecoderSpec& spec) {
  ParameterSpec table = table_spec(std::string(name), spec.vocab_size, role, spec);
  table.placement[Axis::tp] = {.split_dim = 0, .uneven = true};
  return table;
}

}  // namespace

bool DecoderSpec::has_experts(std::int64_t layer) const {
  return experts.num_experts > 0 && layer >= experts.first && (layer + 1) % experts.step == 0 &&
         std::ranges::find(experts.plain_layers, layer) == experts.plain_layers.end();
}

std::int64_t DecoderSpec::num_expert_layers() const {
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < num_hidden_layers; ++i) count += has_experts(i);
  return count;
}

DecoderBlock::DecoderBlock(ParameterStore& store, const DecoderSpec& spec, int layer,
                           const ops::RopeTables* rope, const Tensor* alibi,
                           const ops::RouterCounters* counters)
    : name_(fmt::format("model.layers.{}", layer)),
      dropout_(spec.residual_dropout),
      input_norm_(norm_of(store, spec, name_ + ".input_layernorm")),
      attention_(store, name_ + ".self_attn", attention_config(spec, layer), rope, alibi),
      mlp_norm_(norm_of(
          store, spec,
          name_ + (spec.post_norms ? ".pre_feedforward_layernorm" : ".post_attention_layernorm"))),
      mlp_(make_mlp(store, name_ + ".mlp", spec, layer, counters)) {
  if (!spec.post_norms) return;
  attention_output_norm_ = norm_of(store, spec, name_ + ".post_attention_layernorm");
  mlp_output_norm_ = norm_of(store, spec, name_ + ".post_feedforward_layernorm");
}

Var DecoderBlock::forward(const OpCtx& ctx, const Var& x, ops::KvCache* cache) const {
  Var h = input_norm_.forward(ctx, x);
  h = attention_.forward(ctx, h, cache);
  if (attention_output_norm_) h = attention_output_norm_->forward(ctx, h);
  h = ops::dropout(ctx, h, dropout_, name_ + ".self_attn.residual");
  ops::NormResult after = mlp_norm_.forward(ctx, h, x);
  const layers::Experts* with_experts = experts();
  h = with_experts != nullptr ? with_experts->forward(ctx, after.y, cache == nullptr)
                              : std::get<layers::Mlp>(mlp_).forward(ctx, after.y);
  after.y = {};
  if (mlp_output_norm_) h = mlp_output_norm_->forward(ctx, h);
  h = ops::dropout(ctx, h, dropout_, name_ + ".mlp.residual");
  return ops::add(ctx, h, after.sum);
}

namespace {

std::vector<int> ordered(int a, int b) { return {std::min(a, b), std::max(a, b)}; }

}  // namespace

Decoder::Decoder(ParameterStore& store, const DecoderSpec& spec, const DecoderPlaces& places)
    : spec_(spec), local_(layers::local_heads(heads_of(spec), store.mesh())) {
  const bool table_twice = spec.tie_word_embeddings && places.embedding != places.head;
  store.declare_on(table_twice ? ordered(places.embedding, places.head)
                               : std::vector{places.embedding});
  embedding_ = &store.declare(vocabulary_spec(kEmbeddingName, ParameterRole::embedding, spec));
  const auto end_unit = [&] { unit_ends_.push_back(store.local_groups().size()); };
  store.declare_on({places.embedding});
  if (spec.learned_positions) {
    positions_ =
        &store.declare(table_spec("model.embed_positions.weight", spec.max_position_embeddings,
                                  ParameterRole::embedding, spec));
  }
  end_unit();
  const ops::RopeTables* rope = spec.has_rope() ? &rope_ : nullptr;
  const Tensor* alibi = spec.alibi_bias_max > 0 ? &alibi_ : nullptr;
  router_counters_.resize(static_cast<std::size_t>(spec.num_expert_layers()));
  const ops::RouterCounters* counters = router_counters_.data();
  for (int i = 0; i < spec.num_hidden_layers; ++i) {
    if (!places.blocks.empty()) store.declare_on({places.blocks[static_cast<std::size_t>(i)]});
    blocks_.push_back(std::make_unique<DecoderBlock>(store, spec, i, rope, alibi,
                                                     spec.has_experts(i) ? counters++ : nullptr));
    end_unit();
  }
  store.declare_on({places.head});
  final_norm_ = std::make_unique<layers::Norm>(store, "model.norm", spec.hidden_size,
                                               spec.norm_bias, spec.norm);
  end_unit();
  if (!spec.tie_word_embeddings) {
    head_ = &store.declare(vocabulary_spec(kHeadName, ParameterRole::head, spec));
  }
  end_unit();
}

std::vector<std::vector<ParameterGroup*>> Decoder::units(const ParameterStore& store) const {
  std::vector<std::vector<ParameterGroup*>> units;
  const std::span<ParameterGroup* const> groups = store.local_groups();
  std::size_t begin = 0;
  for (const std::size_t end : unit_ends_) {
    units.emplace_back(groups.begin() + static_cast<std::ptrdiff_t>(begin),
                       groups.begin() + static_cast<std::ptrdiff_t>(end));
    begin = end;
  }
  if (head_ != nullptr) return units;
  for (ParameterGroup* group : groups) {
    if (group == embedding_) units.back().push_back(group);
  }
  return units;
}

namespace {

template <class T>
void write_angles(const ops::RopeTables& tables, std::int64_t positions, const RopeAngles& angles) {
  const std::int64_t half = tables.rotary_dim / 2;
  std::vector<T> cosine(static_cast<std::size_t>(positions * half));
  std::vector<T> sine(cosine.size());
  for (std::int64_t p = 0; p < positions; ++p) {
    for (std::int64_t i = 0; i < half; ++i) {
      // The frequency is rounded to FP32 as in the models' own code, the angle is not.
      const auto frequency = static_cast<float>(angles.frequencies[static_cast<std::size_t>(i)]);
      const double angle = static_cast<double>(p) * frequency;
      const auto at = static_cast<std::size_t>(p * half + i);
      cosine[at] = static_cast<T>(angles.magnitude * std::cos(angle));
      sine[at] = static_cast<T>(angles.magnitude * std::sin(angle));
    }
  }
  tables.cosine.device().copy_from_host(tables.cosine, std::as_bytes(std::span(cosine)));
  tables.sine.device().copy_from_host(tables.sine, std::as_bytes(std::span(sine)));
}

template <class T>
void write_values(const Tensor& tensor, const std::vector<double>& values) {
  const std::vector<T> narrow(values.begin(), values.end());
  tensor.device().copy_from_host(tensor, std::as_bytes(std::span(narrow)));
}

}  // namespace

std::vector<double> alibi_slopes(std::int64_t heads, double bias_max) {
  std::int64_t power = 1;
  while (power < heads) power *= 2;
  // Of a number of heads that is no power of two, every other slope of the next one comes first.
  std::vector<double> slopes;
  for (const std::int64_t first : {power == heads ? 0 : 1, 0}) {
    const std::int64_t step = power == heads ? 1 : 2;
    for (std::int64_t i = first; i < power; i += step) {
      slopes.push_back(
          std::exp2(-bias_max * static_cast<double>(i + 1) / static_cast<double>(power)));
    }
  }
  slopes.resize(static_cast<std::size_t>(heads));
  return slopes;
}

void Decoder::allocate_tables(Device& device, DType compute, std::int64_t seq_len) {
  const DType dtype = statistics_dtype(compute);
  if (spec_.alibi_bias_max > 0) {
    const std::int64_t here = local_.heads.num_heads;
    alibi_ = device.allocate({here}, dtype, Category::params, "ALiBi slopes");
    if (!device.is_meta()) {
      const auto all = alibi_slopes(spec_.num_attention_heads, spec_.alibi_bias_max);
      const auto first = all.begin() + local_.first_head;
      const std::vector<double> slopes(first, first + here);
      dtype == DType::f64 ? write_values<double>(alibi_, slopes)
                          : write_values<float>(alibi_, slopes);
    }
  }
  if (!spec_.has_rope()) return;
  const std::int64_t positions = std::max(spec_.max_position_embeddings, seq_len);
  rope_.rotary_dim = spec_.head_dim;
  const Shape shape{positions, spec_.head_dim / 2};
  rope_.cosine = device.allocate(shape, dtype, Category::params, "rope cosine");
  rope_.sine = device.allocate(shape, dtype, Category::params, "rope sine");
  if (device.is_meta()) return;
  const RopeAngles angles =
      rope_angles(spec_.rope_scaling, {.theta = spec_.rope_theta,
                                       .rotary_dim = rope_.rotary_dim,
                                       .max_position_embeddings = spec_.max_position_embeddings,
                                       .seq_len = seq_len});
  if (dtype == DType::f64) {
    write_angles<double>(rope_, positions, angles);
  } else {
    write_angles<float>(rope_, positions, angles);
  }
}

void Decoder::allocate_counters(Device& device, DType compute) {
  const auto blocks = static_cast<std::int64_t>(router_counters_.size());
  if (blocks == 0) return;
  router_choices_ = device.allocate({blocks, spec_.experts.num_experts}, statistics_dtype(compute),
                                    Category::activations, "choices of routers");
  router_losses_ =
      device.allocate({blocks, 2}, DType::f64, Category::activations, "losses of routers");
  if (spec_.experts.capacity_factor > 0) {
    router_kept_ = device.allocate(router_choices_.shape(), router_choices_.dtype(),
                                   Category::activations, "kept choices of routers");
  }
  for (std::int64_t i = 0; i < blocks; ++i) {
    router_counters_[static_cast<std::size_t>(i)] = {
        .choices = router_choices_.row_range(i, 1),
        .kept = router_kept_.defined() ? router_kept_.row_range(i, 1) : Tensor(),
        .losses = router_losses_.row_range(i, 1),
        .needed = {}};
  }
}

void Decoder::allocate_needed(Device& device) {
  const auto blocks = static_cast<std::int64_t>(router_counters_.size());
  router_needed_ =
      device.allocate({blocks, 1}, DType::f64, Category::activations, "room that experts needed");
  for (std::int64_t i = 0; i < blocks; ++i) {
    router_counters_[static_cast<std::size_t>(i)].needed = router_needed_.row_range(i, 1);
  }
}

void Decoder::balance_routers(const kernels::KernelCtx& ctx, const View& decision) const {
  const double speed = spec_.experts.bias_update_speed;
  if (speed == 0) return;
  for (const auto& block : blocks_) {
    if (block->experts() != nullptr) block->experts()->balance(ctx, decision, speed);
  }
}

Var Decoder::embed(const OpCtx& ctx, const Tensor& ids) const {
  Var x = positions_ == nullptr ? ops::embedding(ctx, ids, *embedding_)
                                : ops::embedding_sum(ctx, ids, *embedding_,
                                                     ctx.rows->embedding_position, *positions_);
  if (spec_.embedding_scale != 1) x = ops::scale(ctx, x, spec_.embedding_scale);
  return ops::dropout(ctx, x, spec_.embedding_dropout, "model.embed");
}

Var Decoder::loss(const OpCtx& ctx, const Var& x, const Tensor& targets, const Tensor& loss_sum,
                  ops::LossHeadOptions options) const {
  const Var h = ops::copy_to_tp(ctx, final_norm_->forward(ctx, x));
  options.num_classes = spec_.vocab_size;
  options.softcap = spec_.logit_softcap;
  return ops::loss_head(ctx, h, head_weight(), targets, loss_sum, options);
}

Tensor Decoder::logits(const OpCtx& ctx, const Tensor& x) const {
  const Var h = final_norm_->forward(ctx, {x, -1, nullptr});
  return ops::logits(ctx, h.tensor, head_weight(), spec_.logit_softcap);
}

}  // namespace llmtrain::models
