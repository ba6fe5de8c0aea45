#include "lib/train/generate.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "lib/base/philox.hpp"
#include "lib/base/require.hpp"
#include "lib/engine/decoder_session.hpp"

namespace llmtrain::train {

std::int32_t sample_token(std::span<const float> logits, const GenerateOptions& options,
                          std::uint32_t word) {
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  // Equal logits keep the order of their ids, so that the choice is a function of the values alone.
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
  });
  if (options.temperature == 0) return order.front();
  if (options.top_k > 0 && options.top_k < static_cast<std::int64_t>(order.size())) {
    order.resize(static_cast<std::size_t>(options.top_k));
  }
  const double largest = logits[static_cast<std::size_t>(order.front())];
  std::vector<double> weights;
  double total = 0;
  for (const std::int32_t id : order) {
    weights.push_back(
        std::exp((logits[static_cast<std::size_t>(id)] - largest) / options.temperature));
    total += weights.back();
  }
  if (!std::isfinite(total)) return order.front();  // a model of NaNs has no preference
  double kept = 0;
  std::size_t count = 0;
  while (count < weights.size() && kept < options.top_p * total) kept += weights[count++];
  double rest = unit_interval(word) * kept;
  for (std::size_t i = 0; i < count; ++i) {
    rest -= weights[i];
    if (rest < 0) return order[i];
  }
  return order[count - 1];
}

namespace {

// A document begins with its start token, or else with the end of the one before.
std::vector<std::int32_t> prompt_tokens(const data::Tokenizer& tokenizer, std::string_view prompt) {
  std::vector<std::int32_t> tokens;
  if (const auto start = tokenizer.bos_id() ? tokenizer.bos_id() : tokenizer.eos_id()) {
    tokens.push_back(*start);
  }
  tokenizer.encode(prompt, tokens);
  return tokens;
}

}  // namespace

void check_prompts(const Recipe& recipe, const data::Tokenizer& tokenizer) {
  const auto longest = recipe.model.spec().max_position_embeddings;
  for (const std::string& prompt : recipe.eval.sample_prompts()) {
    const std::size_t length = prompt_tokens(tokenizer, prompt).size();
    require<RecipeError>(
        length < static_cast<std::size_t>(longest),
        "{}: {}: a prompt has {} tokens, its start included; the model takes fewer "
        "than {}",
        recipe.eval.sample_prompts.where(), recipe.eval.sample_prompts.path(), length, longest);
  }
}

std::string generate(engine::Engine& engine, const data::Tokenizer& tokenizer,
                     std::string_view prompt, const GenerateOptions& options) {
  require<RecipeError>(options.temperature >= 0 && options.top_p > 0 && options.top_p <= 1 &&
                           options.top_k >= 0 && options.max_tokens >= 0,
                       "sampling needs temperature >= 0, 0 < top_p <= 1, top_k >= 0 and "
                       "max_tokens >= 0");
  std::vector<std::int32_t> tokens = prompt_tokens(tokenizer, prompt);
  const std::int64_t longest = engine.model().spec().max_position_embeddings;
  const auto length = static_cast<std::int64_t>(tokens.size());
  require<RecipeError>(length > 0 && length < longest,
                       "the prompt has {} tokens; the model takes fewer than {}", length, longest);
  engine::DecoderSession session(engine, std::min(longest, length + options.max_tokens));
  const PhiloxKey key = philox_key(options.seed, "sample", "");
  const auto classes = static_cast<std::size_t>(tokenizer.vocab_size());
  std::string text;
  if (options.on_start) options.on_start();
  for (std::int64_t i = 0; i < options.max_tokens && session.length() < longest; ++i) {
    if (options.stop && options.stop()) break;
    const std::vector<float> logits = session.append(tokens);
    const std::int32_t next = sample_token(std::span(logits).first(classes), options,
                                           philox_word(key, 0, static_cast<std::uint64_t>(i)));
    if (tokenizer.eos_id() == next) break;
    const std::string_view bytes = tokenizer.token_bytes(next);
    text += bytes;
    if (options.on_token) options.on_token(bytes);
    tokens = {next};
  }
  return text;
}

}  // namespace llmtrain::train
