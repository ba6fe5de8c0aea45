#pragma once
/// What every optimizer's keys begin with.

#include "lib/recipe/section.hpp"

namespace llmtrain::optim {

/// The keys of an optimizer's row of the table derive from it. `lr_of_authors` is what a recipe has
/// that says none.
struct UpdateOptions : recipe::Section {
  explicit UpdateOptions(double lr_of_authors)
      : lr(this, "lr", lr_of_authors, "peak learning rate", recipe::at_least(0)) {}

  recipe::Key<double> lr;
};

}  // namespace llmtrain::optim
