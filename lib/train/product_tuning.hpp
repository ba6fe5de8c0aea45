#pragma once
/// The algorithms that multiply a run's matrices on a GPU: timed once, and remembered.

#include <string>
#include <string_view>

#include "lib/plan/plan.hpp"
#include "lib/train/device.hpp"
#include "lib/train/peers.hpp"
#include "lib/train/recipe.hpp"

namespace llmtrain::train {

/// Chooses for the plan's products, in memory that the plan counts and that is free again
/// afterwards, before the engine takes its own: what `choices` says (of this function, kept in a
/// checkpoint), else what run.product_cache knows, else by timing. One line in the log. Returns the
/// choices that hold; as given on the CPU and with run.tune_products: false, where nothing happens.
/// Stopped, with what was timed in run.product_cache, when somebody asks to.
std::string tune_products(const Recipe& recipe, RunDevice& device, const plan::Plan& plan,
                          std::string_view choices);

/// The same for all ranks of a run, one after the other: each takes over what those before it have
/// chosen, so that ranks with the same products multiply alike and what rank 0 saves holds for all.
/// Collective.
std::string tune_products_in_turn(const Recipe& recipe, RunDevice& device, const plan::Plan& plan,
                                  const Peers& peers, std::string_view choices);

/// Takes choices over without timing anything, for whoever goes on with a run's weights.
void restore_product_choices(const Recipe& recipe, RunDevice& device, std::string_view choices);

}  // namespace llmtrain::train
