#pragma once
/// Hugging Face's config.json: strict reading, and writing.

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/models/architecture.hpp"

namespace llmtrain::models {

/// "sliding_attention" or "full_attention", layer by layer: transformers' `layer_types`.
std::vector<std::string> layer_types(const DecoderSpec& spec);

/// What to do about a value that no model has.
inline constexpr std::string_view kCorrect =
    "correct it, or take the file again from the model's publisher";
/// What to do about a value that some models have.
inline constexpr std::string_view kOtherModel = "choose a model that does without";

/// The object of a config.json. A key that is absent or null has transformers' default. Every other
/// key must have been asked for by finish(), or be one that transformers' base class or a publisher
/// writes and that, at its value, changes nothing in what a model computes. All errors are
/// DataErrors naming the file, the key and what to do.
class HfConfigReader {
 public:
  /// `source` names the file in messages.
  HfConfigReader(std::string_view json, std::string source);
  HfConfigReader(HfConfigReader&&) noexcept;
  ~HfConfigReader();

  bool has(std::string_view key);
  /// There, and null: where that means something else than absent.
  bool is_null(std::string_view key);
  /// An integer in [1, max].
  std::int64_t size(std::string_view key, std::int64_t max, std::int64_t fallback);
  /// An integer in [0, max].
  std::int64_t count(std::string_view key, std::int64_t max, std::int64_t fallback);
  double positive(std::string_view key, double fallback);
  double non_negative(std::string_view key, double fallback);
  /// In [0, 1).
  double probability(std::string_view key, double fallback);
  bool flag(std::string_view key, bool fallback);
  std::string text(std::string_view key, std::string_view fallback);
  /// A list of texts; empty if absent.
  std::vector<std::string> texts(std::string_view key);
  /// A list of integers in [0, max]; empty if absent.
  std::vector<std::int64_t> counts(std::string_view key, std::int64_t max);
  kernels::Activation activation(std::string_view key, std::string_view fallback);
  /// Base of RoPE, and how it is scaled, in transformers' spellings of version 4 (rope_theta,
  /// rope_scaling) and 5 (rope_parameters).
  double rope(double fallback, RopeScaling& scaling);

  /// The object at a key, to be read and finished like the whole; empty if absent.
  HfConfigReader object(std::string_view key);
  /// Refuses `layer_types` that are there and not the windows of `spec`, with this problem.
  void only_layer_types(const DecoderSpec& spec, std::string_view problem);
  /// Refuses every value but this JSON text.
  void only(std::string_view key, std::string_view json);
  /// Keys that change nothing here.
  void ignore(std::span<const std::string_view> keys);
  [[noreturn]] void refuse(std::string_view key, std::string_view problem,
                           std::string_view remedy = kCorrect) const;
  /// Refuses the first key that nobody asked for, unless its value means that something is off.
  void finish();

 private:
  std::int64_t integer(std::string_view key, std::int64_t min, std::int64_t max,
                       std::int64_t fallback);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Collects the keys of a config.json.
class HfConfigWriter {
 public:
  /// Starts with the keys that all families have.
  HfConfigWriter(std::string_view model_type, std::string_view class_name, const DecoderSpec& spec,
                 const HfExport& options);

  void set(const std::string& key, std::int64_t value);
  void set(const std::string& key, double value);
  void set(const std::string& key, bool value);
  void set(const std::string& key, std::string_view value);
  void set(const std::string& key, std::span<const std::string> values);
  void set(const std::string& key, std::span<const std::int64_t> values);
  void set_null(const std::string& key);
  /// An object of other keys' JSON texts.
  void set_object(const std::string& key, const std::map<std::string, std::string>& values);
  /// The number, or null where 0 stands for none.
  void set_or_null(const std::string& key, double value);
  void set_layer_types(const DecoderSpec& spec);
  /// Base and scaling, for transformers of version 4 and of version 5.
  void set_rope(const DecoderSpec& spec);
  std::string text() const;

 private:
  std::map<std::string, std::string> values_;  // JSON texts
};

}  // namespace llmtrain::models
