#pragma once
/// Model families: a row each, with its recipe keys and the decoder they describe.

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lib/models/decoder.hpp"
#include "lib/recipe/section.hpp"

namespace llmtrain::models {

/// Keys that every family has, spelled as in a Hugging Face config.json.
struct CommonModelOptions : recipe::Section {
  recipe::Required<recipe::Count> vocab_size{
      this, "vocab_size", "tokens of the vocabulary; at least those of the tokenizer",
      recipe::between(2, 1 << 30)};
  recipe::Required<recipe::Count> hidden_size{this, "hidden_size", "width of the residual stream",
                                              recipe::between(1, 1 << 20)};
  recipe::Required<recipe::Count> num_hidden_layers{this, "num_hidden_layers", "number of blocks",
                                                    recipe::between(1, 4096)};
  recipe::Required<recipe::Count> num_attention_heads{this, "num_attention_heads",
                                                      "query heads of each block",
                                                      recipe::between(1, 1 << 16)};
  recipe::Key<std::optional<recipe::Count>> head_dim{
      this, "head_dim", std::nullopt,
      "width of a head; null = hidden_size / num_attention_heads", recipe::between(1, 1 << 16)};
  recipe::Required<recipe::Count> max_position_embeddings{
      this, "max_position_embeddings", "longest sequence that the model can be given",
      recipe::between(1, 1 << 30) & recipe::unit("tokens")};
  recipe::Key<double> initializer_range{this, "initializer_range", 0.02,
                                        "standard deviation of the first weights",
                                        recipe::above(0)};
  recipe::Key<bool> scaled_residual_init{
      this, "scaled_residual_init", true,
      "divide that deviation by sqrt(2 * layers) for projections into the residual stream"};

  void validate(recipe::Issues& issues) const override;
  /// What the keys above say; the family adds the rest.
  DecoderSpec common_spec() const;
};

/// A row of the table of families.
struct Architecture {
  std::string_view name;  // Hugging Face's model_type
  std::string_view doc;
  std::unique_ptr<recipe::Section> (*options)();
  /// `options` is the row's own section.
  DecoderSpec (*spec)(const recipe::Section& options);
};

std::span<const Architecture> architectures();

/// The recipe's `model` section.
struct ModelSection : recipe::Section {
  recipe::Choice<Architecture> architecture{this, "architecture", architectures(), "",
                                            "model family"};
  DecoderSpec spec() const { return architecture().spec(*architecture.section()); }
};

// The rows, one file each.
extern const Architecture kGpt2;
extern const Architecture kLlama;

}  // namespace llmtrain::models
