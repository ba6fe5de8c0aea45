#pragma once
/// Small engines in fp64 from a recipe text.

#include <string>
#include <vector>

#include "tests/support/engine_recipe.hpp"

namespace llmtrain::test {

/// Families with learned positions, RoPE and ALiBi, with windows, caps and sinks, and with weights
/// large enough for every token to matter.
inline constexpr std::string_view kSmallModels[] = {
    "architecture: gpt2, vocab_size: 31, hidden_size: 12, num_hidden_layers: 2, "
    "num_attention_heads: 2, initializer_range: 0.4",
    "architecture: llama, vocab_size: 31, hidden_size: 12, intermediate_size: 20, head_dim: 8, "
    "num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2, "
    "initializer_range: 0.4",
    "architecture: qwen2, vocab_size: 31, hidden_size: 12, intermediate_size: 20, "
    "num_hidden_layers: 2, num_attention_heads: 2, sliding_window: 4, max_window_layers: 1, "
    "initializer_range: 0.4",
    "architecture: gemma2, vocab_size: 31, hidden_size: 12, intermediate_size: 20, head_dim: 8, "
    "num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2, sliding_window: 4, "
    "query_pre_attn_scalar: 6, attn_logit_softcapping: 2, final_logit_softcapping: 3, "
    "initializer_range: 0.4",
    "architecture: mpt, vocab_size: 31, hidden_size: 12, num_hidden_layers: 2, "
    "num_attention_heads: 3, initializer_range: 0.4",
    "architecture: gpt_oss_dense, vocab_size: 31, hidden_size: 12, intermediate_size: 20, "
    "num_hidden_layers: 2, num_attention_heads: 2, sliding_window: 4, initializer_range: 0.4"};
inline constexpr std::int64_t kSmallLength = 10;

class SmallEngine {
 public:
  explicit SmallEngine(std::string_view model) {
    const std::string text = "recipe: 1\nmodel: {" + std::string(model) +
                             ", max_position_embeddings: 16}\n"
                             "training: {seq_len: 10, micro_batch_size: 2, global_batch_size: 4, "
                             "max_steps: 10}\n"
                             "precision: {compute: fp64}\n"
                             "optimizer: {lr: 1.0e-3, max_grad_norm: null}\n";
    recipe::load(recipe_, {.file = "test.yaml", .text = text});
    device_ = std::make_unique<Device>(make_cpu_memory(), std::uint64_t{1} << 28);
    engine_ = std::make_unique<engine::Engine>(
        engine::EnginePlace{.device = device_.get(), .table = &kernels::cpu_table()}, options());
    engine_->initialize();
  }
  engine::EngineOptions options() const { return recipe_.options(7); }
  Device& device() { return *device_; }
  engine::Engine* operator->() { return engine_.get(); }
  engine::Engine& operator*() { return *engine_; }

 private:
  EngineRecipe recipe_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<engine::Engine> engine_;
};

/// One document per sample, from row 0 on; each token is the target of the one before it, and rows
/// behind the document are untrained.
inline engine::StepBatch small_batch(const std::vector<std::vector<std::int32_t>>& samples) {
  engine::StepBatch batch;
  batch.resize(static_cast<std::int64_t>(samples.size()), kSmallLength);
  for (std::size_t s = 0; s < samples.size(); ++s) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(kSmallLength); ++i) {
      const std::size_t at = s * static_cast<std::size_t>(kSmallLength) + i;
      const bool inside = i < samples[s].size();
      const bool trained = i + 1 < samples[s].size();
      batch.tokens[at] = inside ? samples[s][i] : 0;
      batch.targets[at] = trained ? samples[s][i + 1] : -1;
      batch.doc_begin[at] = 0;
      batch.positions[at] = static_cast<std::int32_t>(i);
      batch.trained_tokens += trained;
    }
  }
  return batch;
}

}  // namespace llmtrain::test
