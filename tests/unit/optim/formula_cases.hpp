#pragma once
/// Every row of the optimizer table with its formula.

#include "tests/unit/optim/formulas.hpp"
#include "tests/unit/optim/projected_formulas.hpp"
#include "tests/unit/optim/q_galore_formula.hpp"

namespace llmtrain::optim {

/// `options` are the numbers that the formula is written with; states are those of tables, matrices
/// and vectors.
struct Case {
  std::string name, options;
  std::vector<std::string> states;
  Formula formula;
  std::vector<std::string> matrix_states = states;
  double fp32_tolerance = 2e-6;
  double initial_state = 0;
  std::vector<std::string> vector_states = states;

  const std::vector<std::string>& states_of(const Parameter& p) const {
    if (p.global_shape().rank() == 1) return vector_states;
    return p.role() == ParameterRole::matrix ? matrix_states : states;
  }
};

/// A formula whose own decay is nowhere, with what shrinks p before the step or after it.
template <Formula formula>
void decays_before(Values& p, Values g, States& states, const Step& s) {
  shrink(p, s);
  formula(p, g, states, {.lr = s.lr, .weight_decay = 0, .t = s.t, .parameter = s.parameter});
}
template <Formula formula>
void decays_after(Values& p, Values g, States& states, const Step& s) {
  formula(p, g, states, {.lr = s.lr, .weight_decay = 0, .t = s.t, .parameter = s.parameter});
  shrink(p, s);
}

/// Decay on the other side of the step than the authors have it, and of `q_galore` on one side for
/// all.
inline std::vector<Case> cases_of_other_order() {
  const std::string after = "betas: [0.8, 0.9]\neps: 1.0e-6\ndecay_order: after\n";
  const std::string coded = "min_8bit_size: 0\n";
  const std::string of_subspaces = "betas: [0.8, 0.9]\neps: 1.0e-6\nrank: 2\n";
  const std::string of_codes = of_subspaces +
                               "update_proj_gap: 1\nqueue_size: 2\ncos_threshold: -1\n"
                               "scale: 0.5\n";
  return {
      {"adamw", after, {"m", "v"}, &decays_after<adamw_formula>},
      {"adam_mini", after, {"m", "v"}, &decays_after<adam_mini_formula>},
      {.name = "muon",
       .options = after + "momentum: 0.8\nns_steps: 3\n",
       .states = {"m", "v"},
       .formula = &decays_after<muon_formula>,
       .matrix_states = {"momentum"},
       .fp32_tolerance = 2e-5},
      {.name = "adafactor",
       .options = "decay_rate: 0.7\nclip_threshold: 0.5\ndecay_order: after\n",
       .states = {"row", "column"},
       .formula = &decays_after<adafactor_formula<false>>,
       .vector_states = {"column"}},
      {.name = "adafactor",
       .options = "decay_rate: 0.7\nclip_threshold: 0.5\nbeta1: 0.8\ndecay_order: after\n",
       .states = {"row", "column", "m"},
       .formula = &decays_after<adafactor_formula<true>>,
       .vector_states = {"column", "m"}},
      {.name = "came",
       .options = "betas: [0.8, 0.9, 0.95]\neps: [1e-20, 1e-10]\nclip_threshold: 0.5\n"
                  "decay_order: after\n",
       .states = {"m", "row", "column", "residual_row", "residual_column"},
       .formula = &decays_after<came_formula>,
       .fp32_tolerance = 1e-5,
       .vector_states = {"m", "column"}},
      {.name = "sm3",
       .options = "momentum: 0.8\ndecay_order: after\n",
       .states = {"row", "column", "m"},
       .formula = &decays_after<sm3_formula<true>>,
       .vector_states = {"column", "m"}},
      {"adamw_8bit", after, {"m", "v"}, &decays_after<adamw_formula>},
      {.name = "adamw_8bit",
       .options = after + coded,
       .states = {"m", "m_scale", "v", "v_scale"},
       .formula = &decays_after<adamw_8bit_formula>,
       .fp32_tolerance = 1e-2},
      {.name = "galore",
       .options = of_subspaces + "update_proj_gap: 3\nscale: 0.5\ndecay_order: before\n",
       .states = {"m", "v"},
       .formula = &decays_before<galore_formula>,
       .matrix_states = {"projector", "m", "v"},
       .fp32_tolerance = 2e-5},
      {.name = "ldadamw",
       .options = of_subspaces + "rho: 0.6\ndecay_order: after\n",
       .states = {"m", "v"},
       .formula = &decays_after<ldadamw_formula<true>>,
       .matrix_states = {"projector", "m", "v", "error"},
       .fp32_tolerance = 2e-5},
      {.name = "q_galore",
       .options = of_codes + "proj_bits: null\ndecay_order: before\n",
       .states = {"m", "v"},
       .formula = &decays_before<q_galore_formula<false>>,
       .matrix_states = {"projector", "leading_vector", "similarities", "gap", "m", "v"},
       .fp32_tolerance = 2e-5},
      {.name = "q_galore",
       .options = of_codes + "proj_bits: 5\nproj_group_size: 7\ndecay_order: after\n" + coded,
       .states = {"m", "m_scale", "v", "v_scale"},
       .formula = &decays_after<q_galore_formula<true>>,
       .matrix_states = {"projector", "projector_scale", "projector_zero", "leading_vector",
                         "similarities", "gap", "m", "m_scale", "v", "v_scale"},
       .fp32_tolerance = 1e-2},
  };
}

inline std::vector<Case> cases_of_authors_order() {
  return {
      {"adamw", "betas: [0.8, 0.9]\neps: 1.0e-6\n", {"m", "v"}, &adamw_formula},
      {"adam", "betas: [0.8, 0.9]\neps: 1.0e-6\n", {"m", "v"}, &adam_formula},
      {"sgd", "", {}, &sgd_formula},
      {"momentum", "momentum: 0.8\ndampening: 0.25\n", {"momentum"}, &momentum_formula},
      {"momentum", "momentum: 0.8\nnesterov: true\n", {"momentum"}, &nesterov_formula},
      {.name = "muon",
       .options = "betas: [0.8, 0.9]\neps: 1.0e-6\nmomentum: 0.8\nns_steps: 3\n",
       .states = {"m", "v"},
       .formula = &muon_formula,
       .matrix_states = {"momentum"},
       .fp32_tolerance = 2e-5},
      {.name = "galore",
       .options = "betas: [0.8, 0.9]\neps: 1.0e-6\nrank: 2\nupdate_proj_gap: 3\nscale: 0.5\n",
       .states = {"m", "v"},
       .formula = &galore_formula,
       .matrix_states = {"projector", "m", "v"},
       .fp32_tolerance = 2e-5},
      {.name = "ldadamw",
       .options = "betas: [0.8, 0.9]\neps: 1.0e-6\nrank: 2\nrho: 0.6\n",
       .states = {"m", "v"},
       .formula = &ldadamw_formula<true>,
       .matrix_states = {"projector", "m", "v", "error"},
       .fp32_tolerance = 2e-5},
      {.name = "ldadamw",
       .options = "betas: [0.8, 0.9]\neps: 1.0e-6\nrank: 2\nrho: 0.6\nerror_feedback: false\n",
       .states = {"m", "v"},
       .formula = &ldadamw_formula<false>,
       .matrix_states = {"projector", "m", "v"},
       .fp32_tolerance = 2e-5},
      {.name = "q_galore",
       .options = "betas: [0.8, 0.9]\neps: 1.0e-6\nrank: 2\nupdate_proj_gap: 1\nqueue_size: 2\n"
                  "cos_threshold: -1\nscale: 0.5\nproj_bits: null\n",
       .states = {"m", "v"},
       .formula = &q_galore_formula<false>,
       .matrix_states = {"projector", "leading_vector", "similarities", "gap", "m", "v"},
       .fp32_tolerance = 2e-5},
      {.name = "q_galore",
       .options = "betas: [0.8, 0.9]\neps: 1.0e-6\nrank: 2\nupdate_proj_gap: 1\nqueue_size: 2\n"
                  "cos_threshold: -1\nscale: 0.5\nproj_bits: 5\nproj_group_size: 7\n"
                  "min_8bit_size: 0\n",
       .states = {"m", "m_scale", "v", "v_scale"},
       .formula = &q_galore_formula<true>,
       .matrix_states = {"projector", "projector_scale", "projector_zero", "leading_vector",
                         "similarities", "gap", "m", "m_scale", "v", "v_scale"},
       .fp32_tolerance = 1e-2},
      {"nesterov", "momentum: 0.8\n", {"momentum"}, &nesterov_formula},
      {.name = "adam_mini",
       .options = "betas: [0.8, 0.9]\neps: 1.0e-6\n",
       .states = {"m", "v"},
       .formula = &adam_mini_formula},
      {.name = "adafactor",
       .options = "decay_rate: 0.7\nclip_threshold: 0.5\n",
       .states = {"row", "column"},
       .formula = &adafactor_formula<false>,
       .vector_states = {"column"}},
      {.name = "adafactor",
       .options = "decay_rate: 0.7\nclip_threshold: 0.5\nbeta1: 0.8\n",
       .states = {"row", "column", "m"},
       .formula = &adafactor_formula<true>,
       .vector_states = {"column", "m"}},
      {.name = "came",
       .options = "betas: [0.8, 0.9, 0.95]\neps: [1e-20, 1e-10]\nclip_threshold: 0.5\n",
       .states = {"m", "row", "column", "residual_row", "residual_column"},
       .formula = &came_formula,
       .fp32_tolerance = 1e-5,
       .vector_states = {"m", "column"}},
      {.name = "sm3",
       .options = "momentum: 0.8\n",
       .states = {"row", "column", "m"},
       .formula = &sm3_formula<true>,
       .vector_states = {"column", "m"}},
      {.name = "sm3",
       .options = "momentum: 0\n",
       .states = {"row", "column"},
       .formula = &sm3_formula<false>,
       .vector_states = {"column"}},
      {"adagrad", "lr_decay: 0.5\neps: 1.0e-6\n", {"sum"}, &adagrad_formula},
      {.name = "adagrad",
       .options = "lr_decay: 0.5\neps: 1.0e-6\ninitial_accumulator_value: 0.25\n",
       .states = {"sum"},
       .formula = &adagrad_formula,
       .initial_state = 0.25},
      {"rmsprop", "alpha: 0.9\neps: 1.0e-6\n", {"v"}, &rmsprop_formula<false, false>},
      {"rmsprop",
       "alpha: 0.9\neps: 1.0e-6\nmomentum: 0.8\n",
       {"v", "momentum"},
       &rmsprop_formula<false, true>},
      {"rmsprop",
       "alpha: 0.9\neps: 1.0e-6\ncentered: true\n",
       {"v", "m"},
       &rmsprop_formula<true, false>},
      {"rmsprop",
       "alpha: 0.9\neps: 1.0e-6\ncentered: true\nmomentum: 0.8\n",
       {"v", "m", "momentum"},
       &rmsprop_formula<true, true>},
      {"amsgrad",
       "betas: [0.8, 0.9]\neps: 1.0e-6\n",
       {"m", "v", "v_max"},
       &amsgrad_formula<Decay::in_gradient>},
      {"amsgrad",
       "betas: [0.8, 0.9]\neps: 1.0e-6\ndecoupled: true\n",
       {"m", "v", "v_max"},
       &amsgrad_formula<Decay::before>},
      {"amsgrad",
       "betas: [0.8, 0.9]\neps: 1.0e-6\ndecoupled: true\ndecay_order: after\n",
       {"m", "v", "v_max"},
       &amsgrad_formula<Decay::after>},
      {"lion", "betas: [0.8, 0.9]\n", {"m"}, &lion_formula<Decay::before>},
      {"lion", "betas: [0.8, 0.9]\ndecay_order: after\n", {"m"}, &lion_formula<Decay::after>},
      // What is too small keeps whole states; a number between two codes may round to either.
      {"adamw_8bit", "betas: [0.8, 0.9]\neps: 1.0e-6\n", {"m", "v"}, &adamw_formula},
      {"lion_8bit", "betas: [0.8, 0.9]\n", {"m"}, &lion_formula<Decay::before>},
      {.name = "adamw_8bit",
       .options = "betas: [0.8, 0.9]\neps: 1.0e-6\nmin_8bit_size: 0\n",
       .states = {"m", "m_scale", "v", "v_scale"},
       .formula = &adamw_8bit_formula,
       .fp32_tolerance = 1e-2},
      {.name = "lion_8bit",
       .options = "betas: [0.8, 0.9]\nmin_8bit_size: 0\ndecay_order: after\n",
       .states = {"m", "m_scale"},
       .formula = &lion_8bit_formula<Decay::after>,
       .fp32_tolerance = 1e-2},
  };
}

inline const std::vector<Case>& cases() {
  static const std::vector<Case> kCases = [] {
    std::vector<Case> all = cases_of_authors_order();
    const std::vector<Case> others = cases_of_other_order();
    all.insert(all.end(), others.begin(), others.end());
    return all;
  }();
  return kCases;
}

}  // namespace llmtrain::optim
