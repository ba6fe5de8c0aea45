#pragma once
/// A recipe whose engine is made at once.

#include <string_view>

namespace llmtrain::train {

inline constexpr std::string_view kTinyRecipe = R"(
recipe: 1
model: {architecture: gpt2, vocab_size: 300, hidden_size: 8, num_hidden_layers: 1,
        num_attention_heads: 2, max_position_embeddings: 8}
tokenizer: {type: bytes}
data: {sources: [{path: none.txt}]}
training: {seq_len: 8, global_batch_size: 1, max_steps: 10}
)";

}  // namespace llmtrain::train
