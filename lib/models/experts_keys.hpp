#pragma once
/// Keys of families with experts.

#include "lib/models/llama_like.hpp"

namespace llmtrain::models {

/// A key of the number of experts, whose name and default are the family's.
struct ExpertCount {
  std::string_view key;
  std::uint64_t fallback;
};

struct ExpertsOptions : LlamaLikeOptions {
  /// `chosen` is the default of num_experts_per_tok.
  ExpertsOptions(const ExpertCount& experts, std::uint64_t chosen)
      : experts_(experts), chosen_(chosen) {}

 private:
  ExpertCount experts_;  // before the members that they name
  std::uint64_t chosen_;

 public:
  recipe::Key<recipe::Count> num_experts{this, experts_.key, recipe::Count{experts_.fallback},
                                         "experts of each block that has them",
                                         recipe::between(1, limits::kExperts)};
  recipe::Key<recipe::Count> num_experts_per_tok{
      this, "num_experts_per_tok", recipe::Count{chosen_}, "experts that each token sees",
      recipe::between(1, limits::kExperts)};
  recipe::Key<double> router_aux_loss_coef{
      this, "router_aux_loss_coef", 0.001,
      "factor of the load-balancing loss of each sequence, E * sum of each expert's share of the "
      "choices per token and its mean probability, in the mean over blocks; 0 = none",
      recipe::at_least(0)};
  recipe::Key<double> router_z_loss_coef{
      this, "router_z_loss_coef", 0.0,
      "factor of the mean squared logsumexp of the routers' logits; 0 = none", recipe::at_least(0)};

  recipe::Key<std::optional<double>> capacity_factor{
      this, "capacity_factor", std::nullopt,
      "an expert sees this part of its even share of each sequence's choices at most, rounded up, "
      "those with the largest scores; tokens go without the others, but where text is generated; "
      "null = no limit",
      recipe::above(0)};

  void validate(recipe::Issues& issues) const override;
  void validate_sequences(recipe::Issues& issues, std::uint64_t seq_len) const override;
  /// What the keys above say, with softmax routers; the family adds the rest.
  DecoderSpec experts_spec() const;
};

/// The same keys of config.json, but for z losses, which it does not know.
struct ExpertsDefaults {
  std::string_view count_key;
  std::int64_t num_experts;
  std::int64_t num_experts_per_tok;
};
void read_experts(HfConfigReader& config, const ExpertsDefaults& absent, DecoderSpec& spec);
void write_experts(HfConfigWriter& config, std::string_view count_key, const DecoderSpec& spec);

}  // namespace llmtrain::models
