#include "lib/models/architecture.hpp"

#include <array>

namespace llmtrain::models {

std::span<const Architecture> architectures() {
  static const std::array rows{kGpt2, kLlama};
  return rows;
}

void CommonModelOptions::validate(recipe::Issues& issues) const {
  if (!head_dim() && hidden_size() % num_attention_heads() != 0) {
    issues.add(num_attention_heads,
               fmt::format("{} heads do not divide hidden_size {}; choose another count or set "
                           "head_dim",
                           num_attention_heads().value, hidden_size().value));
  }
}

DecoderSpec CommonModelOptions::common_spec() const {
  DecoderSpec spec;
  spec.vocab_size = static_cast<std::int64_t>(vocab_size().value);
  spec.hidden_size = static_cast<std::int64_t>(hidden_size().value);
  spec.num_hidden_layers = static_cast<std::int64_t>(num_hidden_layers().value);
  spec.num_attention_heads = static_cast<std::int64_t>(num_attention_heads().value);
  spec.num_key_value_heads = spec.num_attention_heads;
  spec.head_dim = head_dim() ? static_cast<std::int64_t>(head_dim()->value)
                             : spec.hidden_size / spec.num_attention_heads;
  spec.max_position_embeddings = static_cast<std::int64_t>(max_position_embeddings().value);
  spec.init_std = initializer_range();
  spec.scaled_residual_init = scaled_residual_init();
  return spec;
}

}  // namespace llmtrain::models
