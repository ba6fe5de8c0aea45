#pragma once
/// Text from a model: prefill, then one token at a time through a KV cache.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "lib/data/tokenizer.hpp"
#include "lib/engine/engine.hpp"
#include "lib/train/recipe.hpp"

namespace llmtrain::train {

struct GenerateOptions {
  std::int64_t max_tokens = 100;
  /// 0 takes the most probable token.
  double temperature = 0.8;
  /// Keep the k most probable tokens; 0 = all.
  std::int64_t top_k = 0;
  /// Keep the most probable tokens whose probabilities add up to this.
  double top_p = 1.0;
  std::uint64_t seed = 0;
  /// Called once, when nothing is wrong and the text begins. May be empty.
  std::function<void()> on_start = nullptr;
  /// Called with the bytes of each new token. May be empty.
  std::function<void(std::string_view)> on_token = nullptr;
  /// Asked before each token; the text ends where it says true. May be empty.
  std::function<bool()> stop = nullptr;
};

/// Continues `prompt` until max_tokens, the end-of-document token, or the model's longest sequence.
/// Token i is drawn with the Philox word (seed, "sample", i): the same call gives the same text.
/// Returns the new text. RecipeError for options out of range or a prompt that is too long.
std::string generate(engine::Engine& engine, const data::Tokenizer& tokenizer,
                     std::string_view prompt, const GenerateOptions& options);

/// RecipeError, before anything was trained, for a text of eval.sample_prompts that leaves no room
/// for a token.
void check_prompts(const Recipe& recipe, const data::Tokenizer& tokenizer);

/// The index that `word` (uniform 32 bits) selects from `logits` under the options.
std::int32_t sample_token(std::span<const float> logits, const GenerateOptions& options,
                          std::uint32_t word);

}  // namespace llmtrain::train
