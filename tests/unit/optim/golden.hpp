#pragma once
/// Goldens of optimizers: the parameters, the recipe, and how found values are held to kept ones.

#include <algorithm>
#include <map>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "tests/unit/optim/fixture.hpp"

namespace llmtrain::optim::golden {

using Json = nlohmann::json;
using Values = std::vector<double>;

/// FNV-1a, which goes on from `hash`.
inline void add_to(std::uint64_t& hash, std::span<const std::byte> bytes) {
  for (const std::byte b : bytes) hash = (hash ^ std::to_integer<std::uint64_t>(b)) * 0x100000001B3;
}
inline constexpr std::uint64_t kHashOfNothing = 0xCBF29CE484222325;

/// Matrices, and vectors as norms.
inline std::vector<ParameterSpec> specs(const Json& golden) {
  std::vector<ParameterSpec> all;
  for (const auto& [name, shape] : golden["shapes"].items()) {
    ParameterSpec& spec = all.emplace_back(ParameterSpec{.name = name, .init = {}});
    if (shape.size() == 1) {
      spec.shape = {shape[0].get<std::int64_t>()};
      spec.role = ParameterRole::norm;
    } else {
      spec.shape = {shape[0].get<std::int64_t>(), shape[1].get<std::int64_t>()};
      if (golden.contains("rows_per_head")) {
        spec.rows_per_head = golden["rows_per_head"].value(name, std::int64_t{1});
      }
    }
  }
  return all;
}

inline std::string recipe_of(const Json& golden, const Json& c) {
  Json recipe = c["options"];
  recipe["name"] = c["name"];
  recipe["lr"] = c.value("lr", golden["lr"]);
  recipe["max_grad_norm"] = golden["max_grad_norm"];
  recipe["no_decay"] = Json::array();
  const Json& groups = c.contains("groups") ? c["groups"] : golden["groups"];
  for (const auto& [name, settings] : groups.items()) {
    Json group = settings;
    group["match"] = name;
    recipe["groups"].push_back(group);
  }
  return recipe.dump();
}

inline double norm_of(const Values& values) {
  double squares = 0;
  for (const double x : values) squares += x * x;
  return std::sqrt(squares);
}

inline Values every(std::size_t stride, const Values& values) {
  Values some;
  for (std::size_t i = 0; i < values.size(); i += stride) some.push_back(values[i]);
  return some;
}

inline double distance(Values a, const Values& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) a[i] -= b[i];
  return norm_of(a);
}

/// Of all values, and of every so-many-th, together and each by itself. Rounding is relative to
/// `first`, too: what they began as, for a parameter may come close to zero, or what they are a
/// small rest of; and of a single one, which may be `of_one` times as far off, to a tenth of what
/// they are in the mean, of which a value near zero is the difference.
inline void check_kept(const Values& found, const Json& kept, std::size_t stride, double tolerance,
                       const Values& first = {}, double of_one = 4) {
  const Values sample = every(stride, found);
  const double norm = kept["norm"], size = std::max(norm_of(sample), norm_of(every(stride, first)));
  CHECK(std::abs(norm_of(found) - norm) <= tolerance * std::max(norm, norm_of(first)));
  CHECK(distance(kept["sample"], sample) <= tolerance * size);
  const Values expected = kept["sample"], begun = every(stride, first);
  double farthest = 0;  // in tolerances
  for (std::size_t i = 0; i < sample.size(); ++i) {
    const double mean = 0.1 * size / std::sqrt(static_cast<double>(sample.size()));
    const double own =
        std::max({std::abs(expected[i]), begun.empty() ? 0 : std::abs(begun[i]), mean});
    if (own > 0) farthest = std::max(farthest, std::abs(sample[i] - expected[i]) / own / tolerance);
  }
  CHECK(farthest <= of_one);
}

}  // namespace llmtrain::optim::golden
