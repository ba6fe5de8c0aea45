// MPT (MosaicML 2023), as transformers computes it: GPT-2 without biases, with the distance between
// query and key as a bias of their score (ALiBi, arXiv 2108.12409) instead of learned positions.
#include "lib/base/require.hpp"
#include "lib/models/architecture.hpp"
#include "lib/models/hf_config.hpp"
#include "lib/ops/activations.hpp"

namespace llmtrain::models {

namespace {

// What transformers' MPT has whatever its config.json says.
constexpr std::int64_t kExpansion = 4;
constexpr std::int64_t kBiasMax = 8;

struct MptOptions : CommonModelOptions {
  recipe::Key<std::optional<recipe::Count>> intermediate_size{
      this, "intermediate_size", std::nullopt, "width of the MLP; null = 4 * hidden_size",
      recipe::between(1, limits::kIntermediateSize)};
  recipe::Key<double> layer_norm_epsilon{this, "layer_norm_epsilon", 1e-5,
                                         "added to the variance in LayerNorm", recipe::above(0)};
  recipe::Key<recipe::Count> alibi_bias_max{this, "alibi_bias_max", recipe::Count{kBiasMax},
                                            "the slopes of the heads fall to 2^-alibi_bias_max",
                                            recipe::between(1, 64)};
  recipe::Key<double> attn_pdrop{
      this, "attn_pdrop", 0.0,
      "dropout on attention probabilities and on what joins the residual stream",
      recipe::at_least(0) & recipe::below(1)};
  recipe::Key<bool> tie_word_embeddings{this, "tie_word_embeddings", true,
                                        "use the token embedding as the output head"};
};

// What every MPT has.
void set_mpt(DecoderSpec& spec) {
  spec.norm.kind = kernels::NormKind::layer_norm;
  spec.activation = kernels::Activation::gelu;
  spec.intermediate_size = kExpansion * spec.hidden_size;
}

DecoderSpec mpt_spec(const recipe::Section& section) {
  const auto& options = dynamic_cast<const MptOptions&>(section);
  DecoderSpec spec = options.common_spec();
  set_mpt(spec);
  if (options.intermediate_size()) {
    spec.intermediate_size = static_cast<std::int64_t>(options.intermediate_size()->value);
  }
  spec.norm.eps = options.layer_norm_epsilon();
  spec.alibi_bias_max = static_cast<double>(options.alibi_bias_max().value);
  spec.attention_dropout = spec.residual_dropout = options.attn_pdrop();
  spec.tie_word_embeddings = options.tie_word_embeddings();
  return spec;
}

HfLayout mpt_hf_layout(const DecoderSpec& spec) {
  HfLayout layout;
  layout.prefix = "transformer.";
  const auto add = [&](const std::string& name, std::vector<std::string> ours) {
    for (std::string& one : ours) one += ".weight";
    layout.tensors.push_back({"transformer." + name + ".weight", std::move(ours), false});
  };
  add("wte", {"model.embed_tokens"});
  for (int i = 0; i < spec.num_hidden_layers; ++i) {
    const std::string theirs = fmt::format("blocks.{}.", i);
    const std::string ours = fmt::format("model.layers.{}.", i);
    const std::string attention = ours + "self_attn.";
    add(theirs + "norm_1", {ours + "input_layernorm"});
    add(theirs + "attn.Wqkv", {attention + "q_proj", attention + "k_proj", attention + "v_proj"});
    add(theirs + "attn.out_proj", {attention + "o_proj"});
    add(theirs + "norm_2", {ours + "post_attention_layernorm"});
    add(theirs + "ffn.up_proj", {ours + "mlp.up_proj"});
    add(theirs + "ffn.down_proj", {ours + "mlp.down_proj"});
  }
  add("norm_f", {"model.norm"});
  if (spec.tie_word_embeddings) {
    layout.copies = {{"lm_head.weight", "transformer.wte.weight"}};
  } else {
    layout.tensors.push_back({"lm_head.weight", {"lm_head.weight"}, false});
  }
  return layout;
}

std::string mpt_hf_config(const DecoderSpec& spec, const HfExport& options) {
  require<RecipeError>(spec.head_dim * spec.num_attention_heads == spec.hidden_size,
                       "model.head_dim: transformers' MPT has hidden_size / num_attention_heads = "
                       "{} / {}, not {}",
                       spec.hidden_size, spec.num_attention_heads, spec.head_dim);
  require<RecipeError>(spec.intermediate_size == kExpansion * spec.hidden_size,
                       "model.intermediate_size: transformers' MPT has {}, not {}",
                       kExpansion * spec.hidden_size, spec.intermediate_size);
  require<RecipeError>(spec.alibi_bias_max == kBiasMax,
                       "model.alibi_bias_max: transformers' MPT has {}, whatever its config says",
                       kBiasMax);
  HfConfigWriter config("mpt", "MptForCausalLM", spec, options);
  config.set("d_model", spec.hidden_size);
  config.set("expansion_ratio", kExpansion);
  config.set("layer_norm_epsilon", spec.norm.eps);
  config.set("max_seq_len", spec.max_position_embeddings);
  config.set("n_heads", spec.num_attention_heads);
  config.set("n_layers", spec.num_hidden_layers);
  config.set("no_bias", true);
  std::map<std::string, std::string> attention{
      {"alibi", "true"},
      {"alibi_bias_max", fmt::format("{}", kBiasMax)},
      {"attn_pdrop", fmt::format("{}", spec.attention_dropout)}};
  if (spec.attention_scale != 0)
    attention["softmax_scale"] = fmt::format("{}", spec.attention_scale);
  config.set_object("attn_config", attention);
  return config.text();
}

// Keys that transformers' code does not read.
constexpr std::string_view kUnread[] = {
    "auto_map",        "emb_pdrop", "embedding_fraction", "init_config",    "init_device",
    "learned_pos_emb", "norm_type", "resid_pdrop",        "tokenizer_name", "verbose"};
constexpr std::string_view kUnreadOfAttention[] = {"attn_impl", "attn_uses_sequence_id"};

void read_attention(HfConfigReader config, DecoderSpec& spec) {
  config.only("alibi", "true");
  config.only("attn_type", R"("multihead_attention")");
  config.only("clip_qkv", "null");
  config.only("prefix_lm", "false");
  config.only("qk_ln", "false");
  config.ignore(kUnreadOfAttention);
  config.only("alibi_bias_max", "8");
  spec.alibi_bias_max = kBiasMax;
  spec.attention_dropout = spec.residual_dropout = config.probability("attn_pdrop", 0);
  if (config.has("softmax_scale")) spec.attention_scale = config.positive("softmax_scale", 1);
  config.finish();
}

// Absent keys have the defaults of transformers' MptConfig.
DecoderSpec mpt_from_hf_config(std::string_view json, const std::string& source) {
  HfConfigReader config(json, source);
  DecoderSpec spec;
  spec.vocab_size = config.size("vocab_size", limits::kVocabSize, 50368);
  spec.hidden_size = config.size("d_model", limits::kHiddenSize, 2048);
  spec.num_hidden_layers = config.size("n_layers", limits::kLayers, 24);
  spec.num_attention_heads = config.size("n_heads", limits::kHeads, 16);
  spec.num_key_value_heads = spec.num_attention_heads;
  if (spec.hidden_size % spec.num_attention_heads != 0) {
    config.refuse("n_heads", fmt::format("does not divide d_model {}", spec.hidden_size));
  }
  spec.head_dim = spec.hidden_size / spec.num_attention_heads;
  spec.max_position_embeddings = config.size("max_seq_len", limits::kPositions, 2048);
  set_mpt(spec);
  spec.norm.eps = config.positive("layer_norm_epsilon", 1e-5);
  spec.tie_word_embeddings = config.flag("tie_word_embeddings", true);
  spec.init_std = config.positive("initializer_range", 0.02);
  config.only("expansion_ratio", "4");
  config.only("logit_scale", "null");
  config.only("no_bias", "true");
  config.ignore(kUnread);
  read_attention(config.object("attn_config"), spec);
  config.finish();
  return spec;
}

}  // namespace

const Architecture kMpt{"mpt",
                        "MPT: GPT-2 without biases, with ALiBi",
                        &recipe::section_of<MptOptions>,
                        &mpt_spec,
                        &mpt_hf_layout,
                        &mpt_hf_config,
                        &mpt_from_hf_config};

}  // namespace llmtrain::models
