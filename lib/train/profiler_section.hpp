#pragma once
/// `profiler` of the recipe.

#include <optional>

#include "lib/recipe/load.hpp"

namespace llmtrain::train {

struct ProfilerSection : recipe::Section {
  recipe::Key<std::optional<recipe::Count>> first_step{
      this, "first_step", std::nullopt,
      "first of the steps that are traced, into profile/ of the run's directory; null = none",
      recipe::at_least(1)};
  recipe::Key<std::optional<recipe::Count>> num_steps{this, "num_steps", std::nullopt,
                                                      "with first_step: how many; null = 3",
                                                      recipe::between(1, 10'000)};
  void validate(recipe::Issues& issues) const override;
};

}  // namespace llmtrain::train
