#include "lib/models/rope.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "lib/base/require.hpp"
#include "lib/models/limits.hpp"

namespace llmtrain::models {

namespace {

// theta^(-2i/d)
std::vector<double> plain_frequencies(double theta, std::int64_t rotary_dim) {
  std::vector<double> frequencies(static_cast<std::size_t>(rotary_dim / 2));
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] =
        std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(rotary_dim));
  }
  return frequencies;
}

// Position interpolation (arXiv 2306.15595): every position counts 1 / factor.
RopeAngles linear_angles(const RopeScaling& scaling, const RopeShape& shape) {
  RopeAngles angles{plain_frequencies(shape.theta, shape.rotary_dim)};
  for (double& frequency : angles.frequencies) frequency /= scaling.factor;
  return angles;
}

// NTK-aware: only sequences beyond the original length are stretched, by a larger base.
RopeAngles dynamic_angles(const RopeScaling& scaling, const RopeShape& shape) {
  const double length = static_cast<double>(shape.max_position_embeddings);
  const double longest = std::max(static_cast<double>(shape.seq_len), length);
  const double dim = static_cast<double>(shape.rotary_dim);
  const double stretch = scaling.factor * longest / length - (scaling.factor - 1);
  const double theta = dim > 2 ? shape.theta * std::pow(stretch, dim / (dim - 2)) : shape.theta;
  return {plain_frequencies(theta, shape.rotary_dim)};
}

// Llama 3.1: short waves stay, long ones are interpolated, those between are blended.
RopeAngles llama3_angles(const RopeScaling& scaling, const RopeShape& shape) {
  const double length = static_cast<double>(scaling.original_max_position_embeddings);
  RopeAngles angles{plain_frequencies(shape.theta, shape.rotary_dim)};
  for (double& frequency : angles.frequencies) {
    const double turns = length * frequency / (2 * std::numbers::pi);  // within that length
    const double kept = std::clamp(
        (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor),
        0.0, 1.0);
    frequency = (1 - kept) * frequency / scaling.factor + kept * frequency;
  }
  return angles;
}

// YaRN (arXiv 2309.00071): as llama3, but blended along the components; probabilities are sharpened
// by the magnitude.
RopeAngles yarn_angles(const RopeScaling& scaling, const RopeShape& shape) {
  const double length = static_cast<double>(scaling.original_max_position_embeddings);
  const double dim = static_cast<double>(shape.rotary_dim);
  // The component that turns so often within the original length.
  const auto component = [&](double turns) {
    return dim * std::log(length / (turns * 2 * std::numbers::pi)) / (2 * std::log(shape.theta));
  };
  double low = component(scaling.beta_fast);
  double high = component(scaling.beta_slow);
  if (scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 1e-3;
  RopeAngles angles{plain_frequencies(shape.theta, shape.rotary_dim)};
  for (std::size_t i = 0; i < angles.frequencies.size(); ++i) {
    const double stretched = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    double& frequency = angles.frequencies[i];
    frequency = stretched * frequency / scaling.factor + (1 - stretched) * frequency;
  }
  angles.magnitude = scaling.attention_factor.value_or(0.1 * std::log(scaling.factor) + 1);
  return angles;
}

struct OriginalLength : recipe::Section {
  recipe::Key<std::optional<recipe::Count>> original_max_position_embeddings{
      this, "original_max_position_embeddings", std::nullopt,
      "length that the model was first trained on; null = max_position_embeddings",
      recipe::between(1, limits::kPositions) & recipe::unit("tokens")};

  void read_length(RopeScaling& scaling) const {
    if (!original_max_position_embeddings()) return;
    scaling.original_max_position_embeddings =
        static_cast<std::int64_t>(original_max_position_embeddings()->value);
  }
};

struct Llama3Options : OriginalLength {
  recipe::Key<double> low_freq_factor{
      this, "low_freq_factor", 1.0,
      "waves that turn at most so often within the original length are stretched",
      recipe::above(0)};
  recipe::Key<double> high_freq_factor{this, "high_freq_factor", 4.0,
                                       "waves that turn at least so often stay", recipe::above(0)};

  void validate(recipe::Issues& issues) const override {
    if (high_freq_factor() <= low_freq_factor()) {
      issues.add(high_freq_factor, "must be above low_freq_factor");
    }
  }
};

struct YarnOptions : OriginalLength {
  recipe::Key<double> beta_fast{this, "beta_fast", 32.0,
                                "components that turn at least so often within the original "
                                "length stay",
                                recipe::above(0)};
  recipe::Key<double> beta_slow{this, "beta_slow", 1.0,
                                "components that turn at most so often are stretched",
                                recipe::above(0)};
  recipe::Key<bool> truncate{this, "truncate", true,
                             "round the bounds of the blend to whole components"};
  recipe::Key<std::optional<double>> attention_factor{
      this, "attention_factor", std::nullopt,
      "factor of cosine and sine; null = 0.1 ln(factor) + 1", recipe::above(0)};

  void validate(recipe::Issues& issues) const override {
    if (beta_fast() <= beta_slow()) issues.add(beta_fast, "must be above beta_slow");
  }
};

void read_llama3(const recipe::Section& section, RopeScaling& scaling) {
  const auto& options = dynamic_cast<const Llama3Options&>(section);
  options.read_length(scaling);
  scaling.low_freq_factor = options.low_freq_factor();
  scaling.high_freq_factor = options.high_freq_factor();
}

void read_yarn(const recipe::Section& section, RopeScaling& scaling) {
  const auto& options = dynamic_cast<const YarnOptions&>(section);
  options.read_length(scaling);
  scaling.beta_fast = options.beta_fast();
  scaling.beta_slow = options.beta_slow();
  scaling.truncate = options.truncate();
  scaling.attention_factor = options.attention_factor();
}

}  // namespace

std::span<const RopeScalingRow> rope_scalings() {
  static constexpr std::array kRows{
      RopeScalingRow{"linear", "every position counts 1 / factor", nullptr, nullptr,
                     &linear_angles},
      RopeScalingRow{"dynamic", "a larger base for sequences beyond max_position_embeddings",
                     nullptr, nullptr, &dynamic_angles},
      RopeScalingRow{"llama3", "long waves are stretched, short ones stay",
                     &recipe::section_of<Llama3Options>, &read_llama3, &llama3_angles},
      RopeScalingRow{"yarn", "slow components are stretched, fast ones stay, attention is sharper",
                     &recipe::section_of<YarnOptions>, &read_yarn, &yarn_angles}};
  return kRows;
}

RopeAngles rope_angles(const RopeScaling& scaling, const RopeShape& shape) {
  if (scaling.type == "default") return {plain_frequencies(shape.theta, shape.rotary_dim)};
  for (const RopeScalingRow& row : rope_scalings()) {
    if (row.name == scaling.type) return row.angles(scaling, shape);
  }
  fail("no way to scale RoPE is called {}", scaling.type);
}

bool has_original_length(std::string_view type) { return type == "llama3" || type == "yarn"; }

RopeScaling RopeScalingSection::value(std::int64_t max_position_embeddings) const {
  RopeScaling scaling{.type = rope_type().name, .factor = factor()};
  if (has_original_length(scaling.type)) {
    scaling.original_max_position_embeddings = max_position_embeddings;
  }
  if (rope_type().read != nullptr) rope_type().read(*rope_type.section(), scaling);
  return scaling;
}

std::string to_string(const RopeScaling& scaling) {
  if (scaling.type == "default") return "default";
  std::string text = fmt::format("{}, factor {}", scaling.type, scaling.factor);
  if (has_original_length(scaling.type)) {
    text += fmt::format(", from {} positions", scaling.original_max_position_embeddings);
  }
  if (scaling.type == "llama3") {
    text += fmt::format(", {} to {} turns", scaling.low_freq_factor, scaling.high_freq_factor);
  }
  if (scaling.type == "yarn") {
    text += fmt::format(", {} to {} turns{}", scaling.beta_slow, scaling.beta_fast,
                        scaling.truncate ? "" : ", not truncated");
    if (scaling.attention_factor) text += fmt::format(", magnitude {}", *scaling.attention_factor);
  }
  return text;
}

}  // namespace llmtrain::models
