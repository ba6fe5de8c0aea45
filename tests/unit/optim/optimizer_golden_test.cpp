// Five steps of PyTorch's optimizers with clipping, weight decay and two groups; made by
// scripts/golden/optimizers.py.
#include <filesystem>
#include <fstream>
#include <set>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "tests/support/relative.hpp"
#include "tests/support/source_tree.hpp"
#include "tests/unit/optim/fixture.hpp"

namespace llmtrain::optim {

namespace {

using Json = nlohmann::json;

std::vector<ParameterSpec> specs() {
  return {{.name = "w", .shape = {3, 5}, .init = {}},
          {.name = "n", .shape = {7}, .role = ParameterRole::norm, .init = {}}};
}

void compare(const Json& golden, const Json& expected, const Json& c, const ParameterDTypes& dtypes,
             double tolerance) {
  const Rig rig(dtypes, specs());
  for (const auto& p : rig.store.all()) {
    set_values(p->master(), golden["initial"][p->name()]);
  }
  Json recipe = c["options"];
  recipe["name"] = c["name"];
  recipe["lr"] = golden["lr"];
  recipe["max_grad_norm"] = golden["max_grad_norm"];
  recipe["groups"] = {{{"match", "n"}, {"lr_scale", golden["lr_scale_of_n"]}}};
  OptimizerOptions options;
  read_options(options, recipe.dump());
  OptimizerSet set(rig.ctx, options, rig.store, rig.mesh);

  const std::size_t num_steps = golden["gradients"].size();
  const std::size_t first_expected = num_steps - expected["steps"].size();
  for (std::size_t i = 0; i < num_steps; ++i) {
    for (const auto& p : rig.store.all()) {
      set_values(p->grad(), golden["gradients"][i][p->name()]);
    }
    const StepResult result = run_step(rig, set, golden["lr_factors"][i].get<double>());
    if (i < first_expected) continue;
    const Json& after = expected["steps"][i - first_expected];
    CAPTURE(i);
    CHECK(result.grad_norm == test::relative(after["grad_norm"].get<double>(), tolerance));
    for (const auto& p : rig.store.all()) {
      CHECK(distance(values_of(p->master()), after[p->name()]) <= tolerance);
    }
  }
  CHECK(set.states().size() == expected["states"].size());
  for (const StateTensor& state : set.states()) {
    CAPTURE(state.name);
    CHECK(distance(values_of(state.tensor), expected["states"][state.name]) <= tolerance);
  }
}

}  // namespace

TEST_CASE("optimizers agree with PyTorch over five steps") {
  std::ifstream file(test_file("unit/optim/optimizers_golden.json"));
  const Json golden = Json::parse(file);
  for (const Json& c : golden["cases"]) {
    CAPTURE(c["name"]);
    CAPTURE(c["options"].dump());
    compare(golden, c["fp64"], c, kFp64, 1e-12);
    compare(golden, c["fp32"], c, kFp32, c["fp32_tolerance"]);
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
