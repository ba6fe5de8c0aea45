#pragma once
/// The recipe section `optimizer`.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/optim/optimizer.hpp"
#include "lib/optim/update_options.hpp"
#include "lib/recipe/section.hpp"

namespace llmtrain::optim {

/// Exceptions for some parameters. A selector is a role (matrix, embedding, head, norm, bias) or a
/// pattern of names in which * stands for any text and ? for one character.
struct GroupOptions : recipe::Section {
  recipe::Required<std::string> match{
      this, "match", "which parameters: a role, or a pattern of names (*, ?)", recipe::not_empty()};
  recipe::Key<double> lr_scale{this, "lr_scale", 1.0, "factor on their learning rate",
                               recipe::at_least(0)};
  recipe::Key<std::optional<double>> weight_decay{
      this, "weight_decay", std::nullopt, "their weight decay; null: as if the group did not match",
      recipe::at_least(0)};
};

/// Noise on each gradient element, clipped, of the variance eta / (1 + t)^gamma in the t-th update,
/// counted from 0 ("Adding Gradient Noise Improves Learning for Very Deep Networks", arXiv
/// 1511.06807).
struct GradientNoiseOptions : recipe::Section {
  recipe::Required<double> eta{this, "eta", "variance of the noise in the first update",
                               recipe::above(0)};
  recipe::Key<double> gamma{this, "gamma", 0.55,
                            "update t, counted from 0, has the variance eta / (1 + t)^gamma",
                            recipe::between(0, 10)};
};

/// In which type states are kept that belong to one element each.
enum class StateType : std::uint8_t { of_master, bf16 };

struct OptimizerOptions : recipe::Section {
  OptimizerChoice name{this, "name", optimizer_table(), "adamw", "update rule"};
  recipe::Key<StateType> state_dtype{
      this, "state_dtype", StateType::of_master,
      "type of the states: fp32, which is the masters' (in fp64 runs fp64), or bf16, rounded by "
      "chance",
      recipe::one_of<StateType>({{"fp32", StateType::of_master}, {"bf16", StateType::bf16}})};
  recipe::Key<std::optional<double>> max_grad_norm{
      this, "max_grad_norm", 1.0,
      "gradients with a larger global norm are scaled down; null: never", recipe::above(0)};
  recipe::Key<std::optional<double>> max_grad_value{
      this, "max_grad_value", std::nullopt,
      "each gradient element is clipped to +- this before the norm; null: never", recipe::above(0)};
  recipe::OptionalSub<GradientNoiseOptions> gradient_noise{
      this, "gradient_noise", "normal noise on each gradient element, behind clipping"};
  recipe::Key<std::vector<std::string>> no_decay{
      this,
      "no_decay",
      {"norm", "bias"},
      "parameters without weight decay: roles or name patterns"};
  recipe::List<GroupOptions> groups{this, "groups",
                                    "exceptions for some parameters; the last match wins"};

  /// The peak learning rate; the key is one of the selected row's, whose default is its own.
  double lr() const { return name.as<UpdateOptions>().lr(); }

  void validate(recipe::Issues& issues) const override;
};

}  // namespace llmtrain::optim
