#pragma once
/// Model families: a row each, with its recipe keys and the decoder they describe.

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lib/models/decoder.hpp"
#include "lib/models/limits.hpp"
#include "lib/param/hf_layout.hpp"
#include "lib/recipe/section.hpp"

namespace llmtrain::models {

/// Keys that every family has, spelled as in a Hugging Face config.json.
struct CommonModelOptions : recipe::Section {
  recipe::Required<recipe::Count> vocab_size{
      this, "vocab_size", "tokens of the vocabulary; at least those of the tokenizer",
      recipe::between(2, limits::kVocabSize)};
  recipe::Required<recipe::Count> hidden_size{this, "hidden_size", "width of the residual stream",
                                              recipe::between(1, limits::kHiddenSize)};
  recipe::Required<recipe::Count> num_hidden_layers{this, "num_hidden_layers", "number of blocks",
                                                    recipe::between(1, limits::kLayers)};
  recipe::Required<recipe::Count> num_attention_heads{
      this, "num_attention_heads", "query heads of each block", recipe::between(1, limits::kHeads)};
  recipe::Key<std::optional<recipe::Count>> head_dim{
      this, "head_dim", std::nullopt, "width of a head; null = hidden_size / num_attention_heads",
      recipe::between(1, limits::kHeadDim)};
  recipe::Required<recipe::Count> max_position_embeddings{
      this, "max_position_embeddings", "longest sequence that the model can be given",
      recipe::between(1, limits::kPositions) & recipe::unit("tokens")};
  recipe::Key<double> initializer_range{
      this, "initializer_range", 0.02, "standard deviation of the first weights", recipe::above(0)};
  recipe::Key<bool> scaled_residual_init{
      this, "scaled_residual_init", true,
      "divide that deviation by sqrt(2 * layers) for projections into the residual stream"};

  void validate(recipe::Issues& issues) const override;
  /// What the keys above say; the family adds the rest.
  DecoderSpec common_spec() const;
  /// DecoderSpec::longest_sequence, from the keys that it depends on alone.
  virtual std::uint64_t longest_sequence() const { return max_position_embeddings(); }
  /// Issues of the keys that depend on how long the sequences of the training are.
  virtual void validate_sequences(recipe::Issues&, std::uint64_t /*seq_len*/) const {}
};

/// What config.json says beside the model itself.
struct HfExport {
  DType dtype = DType::f32;
  std::optional<std::int64_t> bos_token_id = {}, eos_token_id = {}, pad_token_id = {};
};

/// A row of the table of families.
struct Architecture {
  std::string_view name;  // Hugging Face's model_type
  std::string_view doc;
  std::unique_ptr<recipe::Section> (*options)();
  /// `options` is the row's own section.
  DecoderSpec (*spec)(const recipe::Section& options);

  /// Names and layout of transformers' weight file for this model.
  HfLayout (*hf_layout)(const DecoderSpec& spec);
  /// Text of transformers' config.json. RecipeError, naming the key, for a model that transformers
  /// cannot express.
  std::string (*hf_config)(const DecoderSpec& spec, const HfExport& options);
  /// The model of a config.json. `source` names it in messages; DataError, naming the key, for
  /// anything that this program would compute otherwise or not at all.
  DecoderSpec (*spec_from_hf_config)(std::string_view json, const std::string& source);
};

std::span<const Architecture> architectures();

/// The row that a config.json's model_type names; DataError if there is none.
const Architecture& hf_architecture(std::string_view json, const std::string& source);
/// The same row's spec_from_hf_config.
DecoderSpec spec_from_hf_config(std::string_view json, const std::string& source);
/// What differs between two models, their shapes included, by Hugging Face's keys: "rope_theta
/// 10000 and 500000"; empty if they compute the same.
std::string computed_difference(const DecoderSpec& a, const DecoderSpec& b);

/// The recipe's `model` section.
struct ModelSection : recipe::Section {
  recipe::Choice<Architecture> architecture{this, "architecture", architectures(), "",
                                            "model family"};
  recipe::Key<std::optional<std::string>> init_from{
      this, "init_from", std::nullopt,
      "Hugging Face directory (config.json and safetensors) of the first weights; the recipe must "
      "describe the same model; null = random"};
  DecoderSpec spec() const { return architecture().spec(*architecture.section()); }
};

// The rows, one file each.
extern const Architecture kGpt2;
extern const Architecture kLlama;
extern const Architecture kMistral;
extern const Architecture kQwen2;
extern const Architecture kQwen3;
extern const Architecture kGemma2;
extern const Architecture kMpt;
extern const Architecture kGptOssDense;
extern const Architecture kMixtral;
extern const Architecture kQwen3Moe;
extern const Architecture kDots1;

}  // namespace llmtrain::models
