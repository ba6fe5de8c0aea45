#pragma once
/// A model for tests of config.json.

#include <string>

#include "lib/models/hf_config.hpp"

namespace llmtrain::models {

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

inline DecoderSpec llama_spec_for_test() {
  return spec_from_hf_config(R"({"model_type": "llama", "hidden_size": 48, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 20, "num_hidden_layers": 2,
    "vocab_size": 30, "attention_bias": true, "rope_theta": 12345.5, "rms_norm_eps": 1e-3})",
                             "test");
}

}  // namespace llmtrain::models
