#pragma once
/// Angles of rotary positions (arXiv 2104.09864), and the ways of stretching them beyond the length
/// that a model was first trained on. Names and defaults are those of Hugging Face's
/// `rope_scaling`.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/recipe/section.hpp"

namespace llmtrain::models {

/// What the ways need; each reads its own.
struct RopeScaling {
  std::string_view type = "default";                  // a name of rope_scalings()
  double factor = 1;                                  // how many times longer
  std::int64_t original_max_position_embeddings = 0;  // llama3, yarn
  double low_freq_factor = 1, high_freq_factor = 4;   // llama3
  double beta_fast = 32, beta_slow = 1;               // yarn
  bool truncate = true;                               // yarn
  std::optional<double> attention_factor = {};        // yarn; none = 0.1 ln(factor) + 1
  bool operator==(const RopeScaling&) const = default;

  /// Only `dynamic` goes beyond the model's length; the others have it in that length already.
  std::int64_t longest_sequence(std::int64_t max_position_embeddings) const {
    if (type != "dynamic") return max_position_embeddings;
    return static_cast<std::int64_t>(factor * static_cast<double>(max_position_embeddings));
  }
};

/// True for types that ask for the length of the first training.
bool has_original_length(std::string_view type);

/// "yarn, factor 4, ..." with what the type reads; "default".
std::string to_string(const RopeScaling& scaling);

/// What turns a head: component pair i of a row at position p by the angle p * frequencies[i],
/// cosine and sine multiplied by `magnitude`.
struct RopeAngles {
  std::vector<double> frequencies;  // [rotary_dim / 2]
  double magnitude = 1;
};

struct RopeShape {
  double theta = 10000;
  std::int64_t rotary_dim = 0;
  std::int64_t max_position_embeddings = 0;
  std::int64_t seq_len = 0;  // longest sequence that will come; only `dynamic` asks
};

struct RopeScalingRow {
  std::string_view name, doc;
  std::unique_ptr<recipe::Section> (*options)();
  /// Sets what the row's own section says; original_max_position_embeddings is set before.
  void (*read)(const recipe::Section& options, RopeScaling& scaling);
  RopeAngles (*angles)(const RopeScaling& scaling, const RopeShape& shape);
};

/// linear, dynamic, llama3, yarn.
std::span<const RopeScalingRow> rope_scalings();

/// Angles of a model, scaled or not.
RopeAngles rope_angles(const RopeScaling& scaling, const RopeShape& shape);

/// The recipe's section `model.rope_scaling`.
struct RopeScalingSection : recipe::Section {
  recipe::Choice<RopeScalingRow> rope_type{this, "rope_type", rope_scalings(), "",
                                           "how positions are stretched"};
  recipe::Required<double> factor{this, "factor", "how many times longer sequences become",
                                  recipe::at_least(1)};
  /// `max_position_embeddings` is the model's, and the original length where the recipe has none.
  RopeScaling value(std::int64_t max_position_embeddings) const;
};

}  // namespace llmtrain::models
