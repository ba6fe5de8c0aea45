#pragma once
/// Names of parameters that every decoder has, as checkpoints know them.

#include <string_view>

namespace llmtrain::models {

/// The table of embeddings, and that of an output head of its own; tied tables are the former.
inline constexpr std::string_view kEmbeddingName = "model.embed_tokens.weight";
inline constexpr std::string_view kHeadName = "lm_head.weight";

}  // namespace llmtrain::models
