#pragma once
/// Hugging Face's config.json: strict reading, and writing.

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "lib/models/architecture.hpp"

namespace llmtrain::models {

/// The object of a config.json. A key that is absent or null has transformers' default. Every other
/// key must have been asked for by finish(), or be one that transformers' base class writes and
/// that changes nothing in what a model computes. All errors are DataErrors naming the file and the
/// key.
class HfConfigReader {
 public:
  /// `source` names the file in messages.
  HfConfigReader(std::string_view json, std::string source);
  ~HfConfigReader();

  bool has(std::string_view key);
  /// An integer in [1, max].
  std::int64_t size(std::string_view key, std::int64_t max, std::int64_t fallback);
  double positive(std::string_view key, double fallback);
  /// In [0, 1).
  double probability(std::string_view key, double fallback);
  bool flag(std::string_view key, bool fallback);
  std::string text(std::string_view key, std::string_view fallback);
  kernels::Activation activation(std::string_view key, std::string_view fallback);
  /// Base of RoPE without scaling, in transformers' spellings of version 4 (rope_theta,
  /// rope_scaling) and 5 (rope_parameters).
  double rope_theta(double fallback);

  /// Refuses every value but this JSON text.
  void only(std::string_view key, std::string_view json);
  /// Keys that change nothing here.
  void ignore(std::span<const std::string_view> keys);
  [[noreturn]] void refuse(std::string_view key, std::string_view problem) const;
  /// Refuses the first key that nobody asked for.
  void finish() const;

 private:
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
  /// For transformers of version 4 and of version 5.
  void set_rope_theta(double theta);
  std::string text() const;

 private:
  std::map<std::string, std::string> values_;  // JSON texts
};

}  // namespace llmtrain::models
