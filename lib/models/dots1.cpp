// dots.llm1 (arXiv 2506.05767): Qwen3's attention, and experts in the manner of DeepSeek-V3 (arXiv
// 2412.19437): sigmoid scores, a correction bias of the choice, groups, shared experts, and a plain
// MLP in the first blocks.
#include "lib/models/experts_keys.hpp"

namespace llmtrain::models {

namespace {

struct Dots1Options : ExpertsOptions {
  Dots1Options() : ExpertsOptions({"n_routed_experts", 128}, 6) {}

  recipe::Key<recipe::Count> moe_intermediate_size{this, "moe_intermediate_size", 1408,
                                                   "width of each expert",
                                                   recipe::between(1, limits::kIntermediateSize)};
  recipe::Key<recipe::Count> n_shared_experts{
      this, "n_shared_experts", 2, "as wide as so many experts is one that every token sees",
      recipe::between(1, limits::kExperts)};
  recipe::Key<recipe::Count> first_k_dense_replace{
      this, "first_k_dense_replace", 1, "first blocks, which have a plain MLP instead of experts",
      recipe::between(0, limits::kLayers)};
  recipe::Key<bool> norm_topk_prob{this, "norm_topk_prob", true,
                                   "weights of the chosen experts are shares of their scores' sum"};
  recipe::Key<double> routed_scaling_factor{this, "routed_scaling_factor", 2.5,
                                            "factor of those weights", recipe::above(0)};
  recipe::Key<recipe::Count> n_group{
      this, "n_group", 1,
      "groups of equally many experts, neighbours together, of which a token's experts are in "
      "topk_group: those with the largest sums of their two largest scores",
      recipe::between(1, limits::kExperts)};
  recipe::Key<recipe::Count> topk_group{this, "topk_group", 1, "groups that a token chooses from",
                                        recipe::between(1, limits::kExperts)};
  recipe::Key<double> bias_update_speed{
      this, "bias_update_speed", 0.0,
      "each step adds this to an expert's bias of the choice if fewer tokens than the mean chose "
      "it, and subtracts it if more did: balance without a loss; 0 = biases stay as they are",
      recipe::at_least(0)};
  recipe::Key<bool> attention_bias{this, "attention_bias", false,
                                   "biases in q, k, v and output projections"};

  void validate(recipe::Issues& issues) const override;
  DecoderSpec dots1_spec() const;
};

// What is wrong with groups, of two experts at least, from which so many are chosen.
std::string problem_of_groups(const ExpertsSpec& experts) {
  const kernels::RouterRule& rule = experts.rule;
  if (rule.groups == 1) return "";
  if (experts.num_experts % rule.groups != 0 || experts.num_experts / rule.groups < 2) {
    return fmt::format("{} groups do not divide {} experts into groups of two or more", rule.groups,
                       experts.num_experts);
  }
  if (rule.kept_groups * (experts.num_experts / rule.groups) < rule.top_k) {
    return fmt::format("{} of {} groups have fewer than {} experts to choose", rule.kept_groups,
                       rule.groups, rule.top_k);
  }
  return "";
}

void Dots1Options::validate(recipe::Issues& issues) const {
  ExpertsOptions::validate(issues);
  if (first_k_dense_replace() >= num_hidden_layers()) {
    issues.add(first_k_dense_replace,
               "no block has experts; lower it, or choose architecture "
               "qwen3");
  }
  if (topk_group() > n_group()) {
    issues.add(topk_group,
               fmt::format("more than the {} groups that there are (n_group)", n_group().value));
  } else if (n_group() > 1 && topk_group() == n_group()) {
    issues.add(n_group, "does nothing: all groups are kept; lower topk_group, or set both to 1");
  } else if (const std::string problem = problem_of_groups(dots1_spec().experts);
             !problem.empty()) {
    issues.add(n_group, problem);
  }
}

// What the family has and no key says.
void set_dots1(DecoderSpec& spec) {
  spec.qk_norm = true;
  spec.experts.rule.scores = kernels::RouterScores::sigmoid;
  spec.experts.correction_bias = true;
}

DecoderSpec Dots1Options::dots1_spec() const {
  DecoderSpec spec = experts_spec();
  set_dots1(spec);
  spec.qkv_bias = spec.attention_output_bias = attention_bias();
  ExpertsSpec& experts = spec.experts;
  experts.intermediate_size = static_cast<std::int64_t>(moe_intermediate_size().value);
  experts.num_shared = static_cast<std::int64_t>(n_shared_experts().value);
  experts.first = static_cast<std::int64_t>(first_k_dense_replace().value);
  experts.bias_update_speed = bias_update_speed();
  experts.rule.normalize = norm_topk_prob();
  experts.rule.scale = routed_scaling_factor();
  experts.rule.groups = static_cast<std::int64_t>(n_group().value);
  experts.rule.kept_groups = static_cast<std::int64_t>(topk_group().value);
  return spec;
}

DecoderSpec dots1_spec(const recipe::Section& section) {
  return dynamic_cast<const Dots1Options&>(section).dots1_spec();
}

std::string dots1_hf_config(const DecoderSpec& spec, const HfExport& options) {
  const ExpertsSpec& experts = spec.experts;
  HfConfigWriter config = write_llama_like("dots1", "Dots1ForCausalLM", spec, options);
  config.set("attention_bias", spec.qkv_bias);
  config.set("first_k_dense_replace", experts.first);
  config.set_layer_types(spec);
  config.set("max_window_layers", spec.num_hidden_layers);
  config.set("moe_intermediate_size", experts.intermediate_size);
  config.set("n_group", experts.rule.groups);
  config.set("n_routed_experts", experts.num_experts);
  config.set("n_shared_experts", experts.num_shared);
  config.set("norm_topk_prob", experts.rule.normalize);
  config.set("num_experts_per_tok", experts.rule.top_k);
  config.set("output_router_logits", false);
  config.set("routed_scaling_factor", experts.rule.scale);
  config.set_null("sliding_window");
  config.set("topk_group", experts.rule.kept_groups);
  return config.text();
}

void read_dots1_experts(HfConfigReader& config, DecoderSpec& spec) {
  ExpertsSpec& experts = spec.experts;
  const auto required = [&](std::string_view key, std::int64_t max) {
    if (!config.has(key)) config.refuse(key, "missing: transformers has no default for it");
    return config.size(key, max, 1);
  };
  experts.num_experts = required("n_routed_experts", limits::kExperts);
  experts.num_shared = required("n_shared_experts", limits::kExperts);
  experts.rule.top_k = required("num_experts_per_tok", limits::kExperts);
  if (experts.rule.top_k > experts.num_experts) {
    config.refuse("num_experts_per_tok",
                  fmt::format("more than the {} experts that there are", experts.num_experts));
  }
  experts.intermediate_size = config.size("moe_intermediate_size", limits::kIntermediateSize, 1408);
  experts.first = config.count("first_k_dense_replace", limits::kLayers, 0);
  if (experts.first >= spec.num_hidden_layers) {
    config.refuse("first_k_dense_replace", "no block has experts", "choose a model of type qwen3");
  }
  experts.rule.normalize = config.flag("norm_topk_prob", false);
  experts.rule.scale = config.positive("routed_scaling_factor", 1);
  experts.rule.groups = config.size("n_group", limits::kExperts, 1);
  experts.rule.kept_groups = config.size("topk_group", limits::kExperts, 1);
  if (experts.rule.kept_groups > experts.rule.groups) {
    config.refuse("topk_group", "more than the groups that there are (n_group)");
  }
  const std::string problem = problem_of_groups(experts);
  if (!problem.empty()) config.refuse("n_group", problem);
  config.flag("output_router_logits", false);
  // What published files say of the same, in two spellings, and transformers does not read.
  const std::string scores = config.text("scoring_func", "sigmoid");
  if (scores != "sigmoid" && scores != "noaux_tc") {
    config.refuse("scoring_func", "routers of this family have sigmoids", kOtherModel);
  }
  config.only("moe_layer_freq", "1");
}

DecoderSpec dots1_from_hf_config(std::string_view json, const std::string& source) {
  HfConfigReader config(json, source);
  // Null means as many as query heads.
  const std::optional<std::int64_t> kv_heads =
      config.is_null("num_key_value_heads") ? std::nullopt : std::optional<std::int64_t>(32);
  DecoderSpec spec = read_llama_like(config, {.vocab_size = 152064,
                                              .hidden_size = 4608,
                                              .intermediate_size = 10944,
                                              .num_hidden_layers = 62,
                                              .num_key_value_heads = kv_heads});
  set_dots1(spec);
  spec.qkv_bias = spec.attention_output_bias = config.flag("attention_bias", false);
  read_dots1_experts(config, spec);
  const bool windowed = !config.is_null("sliding_window");
  config.size("sliding_window", limits::kPositions, 4096);
  if (config.count("max_window_layers", limits::kLayers, 62) < spec.num_hidden_layers && windowed) {
    config.refuse("sliding_window", "windows of this family are not implemented", kOtherModel);
  }
  config.only_layer_types(spec, "windows of this family are not implemented");
  config.finish();
  return spec;
}

}  // namespace

const Architecture kDots1{"dots1",
                          "dots.llm1: Qwen3's attention and experts as DeepSeek-V3 has them",
                          &recipe::section_of<Dots1Options>,
                          &dots1_spec,
                          &llama_like_hf_layout,
                          &dots1_hf_config,
                          &dots1_from_hf_config};

}  // namespace llmtrain::models
