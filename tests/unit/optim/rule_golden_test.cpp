// Twenty steps of the authors' own optimizers with warm-up, clipping, weight decay and groups, on
// gradients some of which are zero, subnormal or huge; made by scripts/golden/optimizers.py,
// rule_optimizers.py, factored_optimizers.py and projected_optimizers.py.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string_view>

#include <doctest/doctest.h>

#include "tests/support/formula.hpp"
#include "tests/support/relative.hpp"
#include "tests/support/source_tree.hpp"
#include "tests/unit/optim/golden.hpp"

namespace llmtrain::optim {

namespace {

using golden::check_kept;
using golden::distance;
using golden::every;
using golden::Json;
using golden::norm_of;
using golden::recipe_of;
using golden::specs;
using golden::Values;

/// Of errors relative to the size of what is compared: norms of gradients; parameters; states that
/// are means, whose terms have signs and may cancel, or subspaces; those that are sums of squares;
/// and at least this of a single number, whose rounding no others even out.
struct Tolerance {
  double norms, parameters, means, squares, single = 0;

  double of_parameter(std::int64_t numel) const { return of(parameters, numel); }
  double of_state(std::string_view name, std::int64_t numel) const {
    for (const char* end : {"v", "v_max", "sum", "row", "column"}) {
      if (name.ends_with(end)) return squares;
    }
    return of(means, numel);
  }

 private:
  double of(double all, std::int64_t numel) const {
    return numel == 1 ? std::max(all, single) : all;
  }
};
constexpr Tolerance kFp64Tolerance{1e-12, 1e-12, 1e-12, 1e-12};
// Both iterate in bf16, but round sums of products at other places: 6e-4 of a parameter, 0.023 of
// one that is a single number.
constexpr Tolerance kNarrowTolerance{5e-7, 2.5e-3, 1.5e-6, 7e-7, 0.1};

/// About four times what was measured, in units of 2^-23, and no less than a rounding.
Tolerance fp32_tolerance(const Json& c) {
  struct Ulps {
    double parameters, means, squares;
  };
  static const std::map<std::string, Ulps> kUlps{
      {"adamw", {4, 9, 6}},      {"adam", {4, 9, 6}},       {"sgd", {1, 0, 0}},
      {"momentum", {1.5, 6, 0}}, {"nesterov", {1.5, 4, 0}}, {"adagrad", {1.5, 0, 3}},
      {"rmsprop", {4, 15, 9}},   {"amsgrad", {4, 7, 4}},    {"adam_mini", {4, 8, 4}},
      {"lion", {1, 7, 0}},       {"adafactor", {10, 8, 5}}, {"came", {12, 12, 7}},
      {"sm3", {6, 10, 3}},       {"muon", {14, 12, 4}},     {"galore", {14, 25, 12}},
      {"ldadamw", {8, 0, 0}},  // of states see below
  };
  const Ulps& ulps = kUlps.at(c["name"]);
  constexpr double kUlp = 0x1p-23;
  return {4 * kUlp, ulps.parameters * kUlp, ulps.means * kUlp, ulps.squares * kUlp, 30 * kUlp};
}

Values gradient_of(const Json& golden, const Parameter& p, std::size_t t) {
  const std::string name(p.name());
  const Json& scales = golden["gradient_scales"];
  const auto values = test::formula_weights(fmt::format("{} gradient {}", name, t),
                                            p.global_shape().numel(), 0, scales[t % scales.size()]);
  Values g(values.begin(), values.end());
  const Json& huge_steps = golden["huge_steps"];
  const bool huge = t % huge_steps[0].get<std::size_t>() == huge_steps[1].get<std::size_t>();
  for (std::size_t i = 0; i < g.size(); ++i) {
    const std::int32_t kind = test::formula_below(name + " kind", golden["special"], i);
    if (kind == 0) g[i] = 0;
    if (kind == 1) g[i] = golden["subnormal"];
    if (kind == 2 && huge) g[i] = golden["huge"];
  }
  return g;
}

/// Of what is kept of a state. One with a value for each row or column is thinned out less.
std::size_t stride_of(const Json& golden, const StateTensor& state) {
  const bool is_factor = state.tensor.numel() < state.parameter->global_shape().numel();
  const bool has_own = is_factor && golden.contains("vector_strides");
  return golden[has_own ? "vector_strides" : "strides"][std::string(state.parameter->name())];
}

/// The gradient that an error is a rest of, or nothing.
Values whole_of(const StateTensor& state, const std::map<std::string, Values>& gradients) {
  return state.name.ends_with("#error") ? gradients.at(std::string(state.parameter->name()))
                                        : Values{};
}

/// How far `sample`, every so-many-th of a state, is from that of FP64, beside the root mean square
/// of all of it, or of what it is a rest of.
double off(const Values& sample, const Json& exact, std::int64_t numel, const Values& whole) {
  const double norm = std::max(exact["norm"].get<double>(), norm_of(whole));
  const double apart = distance(sample, exact["sample"]);
  return apart == 0 ? 0 : apart / norm * std::sqrt(static_cast<double>(numel) / sample.size());
}

/// LDAdam's authors multiply three matrices in FP32 and factor that, which carries a rounding the
/// farther the more dims there are: of 64 up to 280 x 2^-23. So FP32 has to be as near to what
/// their code makes in FP64 as their FP32 is, whose farthest state is off by half of what is
/// allowed.
void check_states_as_exact(const Json& golden, const Json& c, const OptimizerSet& set,
                           const std::map<std::string, Values>& gradients) {
  const auto exact = [&](const StateTensor& s) { return c["fp64"]["states"][s.name]; };
  double theirs = 0;
  for (const StateTensor& s : set.states()) {
    const Values sample = c["fp32"]["states"][s.name]["sample"];
    theirs = std::max(theirs, off(sample, exact(s), s.tensor.numel(), whole_of(s, gradients)));
  }
  for (const StateTensor& s : set.states()) {
    CAPTURE(s.name);
    const Values sample = every(stride_of(golden, s), values_of(s.tensor));
    CHECK(off(sample, exact(s), s.tensor.numel(), whole_of(s, gradients)) <= 2 * theirs);
  }
}

void compare(const Json& golden, const Json& c, const Json& expected, const ParameterDTypes& dtypes,
             const Tolerance& tolerance) {
  const Rig rig(dtypes, specs(golden));
  std::map<std::string, Values> first, clipped;
  for (const auto& p : rig.store.all()) {
    const auto values = test::formula_weights(p->name(), p->global_shape().numel(), 0, 1);
    first[p->name()].assign(values.begin(), values.end());
    set_values(p->master(), first[p->name()]);
  }
  OptimizerOptions options;
  read_options(options, recipe_of(golden, c));
  OptimizerSet set(rig.ctx, options, rig.store, rig.mesh);
  for (std::size_t t = 0; t < golden["lr_factors"].size(); ++t) {
    for (const auto& p : rig.store.all()) set_values(p->grad(), gradient_of(golden, *p, t));
    const StepResult result = run_step(rig, set, golden["lr_factors"][t].get<double>());
    REQUIRE(result.applied);
    for (const auto& p : rig.store.all()) {
      clipped[p->name()] = values_of(p->grad());
      for (double& g : clipped[p->name()]) g *= result.clip_scale;
    }
    CHECK(result.grad_norm == test::relative(expected["norms"][t].get<double>(), tolerance.norms));
  }
  const bool is_projected = c["name"] == "galore" || c["name"] == "ldadamw";
  const double of_one = dtypes.master == DType::f64 && !is_projected ? 1 : 4;
  for (const auto& p : rig.store.all()) {
    CAPTURE(p->name());
    const std::string name(p->name());
    check_kept(values_of(p->master()), expected["parameters"][name], golden["strides"][name],
               tolerance.of_parameter(p->global_shape().numel()), first[name], of_one);
  }
  CHECK(set.states().size() == expected["states"].size());
  if (c["name"] == "ldadamw" && dtypes.master == DType::f32) {
    return check_states_as_exact(golden, c, set, clipped);
  }
  for (const StateTensor& state : set.states()) {
    CAPTURE(state.name);
    check_kept(values_of(state.tensor), expected["states"][state.name], stride_of(golden, state),
               tolerance.of_state(state.name, state.tensor.numel()), whole_of(state, clipped),
               of_one);
  }
}

}  // namespace

TEST_CASE("optimizers agree with their authors' code over twenty steps") {
  for (const char* name : {"optimizers_golden.json", "rule_optimizers_golden.json",
                           "factored_golden.json", "projected_golden.json"}) {
    std::ifstream file(test_file(std::string("unit/optim/") + name));
    const Json golden = Json::parse(file);
    for (const Json& c : golden["cases"]) {
      CAPTURE(c["name"]);
      CAPTURE(c["options"].dump());
      compare(golden, c, c["fp64"], kFp64, kFp64Tolerance);
      compare(golden, c, c["fp32"], kFp32, fp32_tolerance(c));
      if (!c.contains("bf16")) continue;
      for (const ParameterDTypes& narrow : {kBf16, kFp16}) {
        compare(golden, c, c["bf16"], narrow, kNarrowTolerance);
      }
    }
  }
}

TEST_CASE("every optimizer is compared with somebody else's code") {
  std::set<std::string> compared;
  for (const char* name :
       {"optimizers_golden.json", "rule_optimizers_golden.json", "factored_golden.json",
        "projected_golden.json", "eight_bit_golden.json", "q_galore_golden.json"}) {
    std::ifstream file(test_file(std::filesystem::path("unit/optim") / name));
    const Json golden = Json::parse(file);
    for (const Json& c : golden["cases"]) compared.insert(c["name"].get<std::string>());
  }
  for (const OptimizerRow& row : optimizer_table()) {
    CAPTURE(row.name);
    CHECK(compared.contains(std::string(row.name)));
  }
}

}  // namespace llmtrain::optim
