#include "lib/optim/parameter_groups.hpp"

#include <algorithm>
#include <array>
#include <fnmatch.h>

#include "lib/base/require.hpp"

namespace llmtrain::optim {

namespace {

bool is_role(const std::string& selector) {
  constexpr std::array kRoles{ParameterRole::matrix, ParameterRole::embedding, ParameterRole::head,
                              ParameterRole::norm, ParameterRole::bias};
  return std::any_of(kRoles.begin(), kRoles.end(),
                     [&](ParameterRole role) { return to_string(role) == selector; });
}

bool selects(const std::string& selector, const Parameter& parameter) {
  if (!parameter.is_trained()) return false;
  return is_role(selector) ? to_string(parameter.role()) == selector
                           : fnmatch(selector.c_str(), parameter.name().c_str(), 0) == 0;
}

// Calls visit(index) for each selected parameter and returns their number.
template <class Visit>
int for_each_selected(const std::string& selector,
                      std::span<const std::unique_ptr<Parameter>> parameters, const Visit& visit) {
  int count = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!selects(selector, *parameters[i])) continue;
    visit(i);
    ++count;
  }
  return count;
}

[[noreturn]] void selects_nothing(const recipe::Entry& entry, const std::string& selector,
                                  std::span<const std::unique_ptr<Parameter>> parameters) {
  throw recipe::RefusedValue(
      entry, fmt::format("`{}` selects no parameter", selector),
      fmt::format("write a role, matrix, embedding, head, norm or bias, or a pattern of names like "
                  "{}",
                  parameters.empty() ? "model.norm.weight" : parameters.front()->name()));
}

}  // namespace

std::vector<ParameterSettings> parameter_settings(
    const OptimizerOptions& options, double weight_decay,
    std::span<const std::unique_ptr<Parameter>> parameters) {
  std::vector<double> decay(parameters.size(), weight_decay);
  for (const std::string& selector : options.no_decay()) {
    const int count = for_each_selected(selector, parameters, [&](std::size_t i) { decay[i] = 0; });
    if (count == 0 && !is_role(selector)) selects_nothing(options.no_decay, selector, parameters);
  }

  std::vector<ParameterSettings> settings(parameters.size());
  for (std::size_t i = 0; i < settings.size(); ++i) settings[i].weight_decay = decay[i];
  for (std::size_t g = 0; g < options.groups.size(); ++g) {
    const GroupOptions& group = options.groups[g];
    const int count = for_each_selected(group.match(), parameters, [&](std::size_t i) {
      settings[i] = {.lr_scale = group.lr_scale(),
                     .weight_decay = group.weight_decay().value_or(decay[i])};
    });
    if (count == 0) selects_nothing(group.match, group.match(), parameters);
  }
  return settings;
}

}  // namespace llmtrain::optim
