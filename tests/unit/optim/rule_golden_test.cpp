// Twenty steps of the authors' own optimizers with warm-up, clipping, weight decay and groups, on
// gradients some of which are zero, subnormal or huge; made by scripts/golden/rule_optimizers.py
// factored_optimizers.py and projected_optimizers.py.
#include <fstream>

#include <doctest/doctest.h>

#include "tests/support/formula.hpp"
#include "tests/support/relative.hpp"
#include "tests/support/source_tree.hpp"
#include "tests/unit/optim/golden.hpp"

namespace llmtrain::optim {

namespace {

using golden::check_kept;
using golden::Json;
using golden::recipe_of;
using golden::specs;
using golden::Values;

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

void compare(const Json& golden, const Json& c, const Json& expected, const ParameterDTypes& dtypes,
             double tolerance) {
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
    CHECK(result.grad_norm == test::relative(expected["norms"][t].get<double>(), tolerance));
  }
  for (const auto& p : rig.store.all()) {
    CAPTURE(p->name());
    const std::string name(p->name());
    check_kept(values_of(p->master()), expected["parameters"][name], golden["strides"][name],
               tolerance, first[name]);
  }
  CHECK(set.states().size() == expected["states"].size());
  for (const StateTensor& state : set.states()) {
    CAPTURE(state.name);
    // A value for each row or column is thinned out less.
    const bool is_factor = state.tensor.numel() < state.parameter->global_shape().numel();
    const bool has_own = is_factor && golden.contains("vector_strides");
    const Json& strides = golden[has_own ? "vector_strides" : "strides"];
    const std::string name(state.parameter->name());
    const bool is_rest = state.name.ends_with("#error");
    check_kept(values_of(state.tensor), expected["states"][state.name], strides[name], tolerance,
               is_rest ? clipped[name] : Values{});
  }
}

}  // namespace

TEST_CASE("optimizers agree with their authors' code over twenty steps") {
  for (const char* name :
       {"rule_optimizers_golden.json", "factored_golden.json", "projected_golden.json"}) {
    std::ifstream file(test_file(std::string("unit/optim/") + name));
    const Json golden = Json::parse(file);
    for (const Json& c : golden["cases"]) {
      CAPTURE(c["name"]);
      CAPTURE(c["options"].dump());
      compare(golden, c, c["fp64"], kFp64, 1e-12);
      compare(golden, c, c["fp32"], kFp32, c.value("fp32_tolerance", 1e-6));
    }
  }
}

}  // namespace llmtrain::optim
