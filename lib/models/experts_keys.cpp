#include "lib/models/experts_keys.hpp"

#include <cmath>

namespace llmtrain::models {

void ExpertsOptions::validate(recipe::Issues& issues) const {
  LlamaLikeOptions::validate(issues);
  if (num_experts_per_tok() > num_experts()) {
    issues.add(num_experts_per_tok,
               fmt::format("more than the {} experts that there are", num_experts().value));
  }
}

void ExpertsOptions::validate_sequences(recipe::Issues& issues, std::uint64_t seq_len) const {
  if (!capacity_factor() || num_experts_per_tok() > num_experts()) return;
  const auto tokens = static_cast<std::int64_t>(seq_len);
  const auto chosen = static_cast<std::int64_t>(num_experts_per_tok().value);
  const auto experts = static_cast<std::int64_t>(num_experts().value);
  if (ops::expert_capacity(*capacity_factor(), tokens, chosen, experts) < tokens) return;
  const double largest =
      static_cast<double>(experts * (tokens - 1)) / static_cast<double>(chosen * tokens);
  issues.add(
      capacity_factor,
      fmt::format("does nothing: an expert has room for all {} tokens of a sequence", tokens),
      fmt::format("leave it out, or take {:g} or less", std::floor(100 * largest) / 100));
}

DecoderSpec ExpertsOptions::experts_spec() const {
  DecoderSpec spec = llama_like_spec();
  ExpertsSpec& experts = spec.experts;
  experts.num_experts = static_cast<std::int64_t>(num_experts().value);
  experts.rule.top_k = static_cast<std::int64_t>(num_experts_per_tok().value);
  experts.aux_loss_coef = router_aux_loss_coef();
  experts.z_loss_coef = router_z_loss_coef();
  experts.capacity_factor = capacity_factor().value_or(0);
  return spec;
}

void read_experts(HfConfigReader& config, const ExpertsDefaults& absent, DecoderSpec& spec) {
  ExpertsSpec& experts = spec.experts;
  // Version 5 of transformers writes num_local_experts for all families.
  const std::string_view key =
      config.has("num_local_experts") ? "num_local_experts" : absent.count_key;
  experts.num_experts = config.size(key, limits::kExperts, absent.num_experts);
  experts.rule.top_k =
      config.size("num_experts_per_tok", limits::kExperts, absent.num_experts_per_tok);
  if (experts.rule.top_k > experts.num_experts) {
    config.refuse("num_experts_per_tok",
                  fmt::format("more than the {} experts that there are", experts.num_experts));
  }
  experts.aux_loss_coef = config.non_negative("router_aux_loss_coef", 0.001);
  config.flag("output_router_logits", false);
}

void write_experts(HfConfigWriter& config, std::string_view count_key, const DecoderSpec& spec) {
  config.set(std::string(count_key), spec.experts.num_experts);
  config.set("num_experts_per_tok", spec.experts.rule.top_k);
  config.set("router_aux_loss_coef", spec.experts.aux_loss_coef);
  config.set("output_router_logits", false);
}

}  // namespace llmtrain::models
