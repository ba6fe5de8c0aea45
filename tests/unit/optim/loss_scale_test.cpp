#include <cmath>
#include <fstream>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "lib/optim/optimizer_set.hpp"
#include "tests/support/source_tree.hpp"
#include "tests/unit/optim/fixture.hpp"

namespace llmtrain::optim {

TEST_CASE("gradients times the scale of the loss give the bits of those without") {
  for (const OptimizerRow& row : optimizer_table()) {
    const std::string_view name = row.name;
    CAPTURE(name);
    OptimizerOptions options;
    read_options(options,
                 fmt::format("{{name: {}, max_grad_norm: 0.5, max_grad_value: 0.7}}", name));
    const Rig plain_rig, scaled_rig;
    OptimizerSet plain(plain_rig.ctx, options, plain_rig.store, plain_rig.mesh);
    OptimizerSet scaled(scaled_rig.ctx, options, scaled_rig.store, scaled_rig.mesh,
                        LossScaling{.initial = 1024, .growth_interval = 2});
    for (int step = 1; step <= 5; ++step) {
      plain_rig.set_gradients(step, 1.0);
      scaled_rig.set_gradients(step, scaled.progress().loss_scale);
      const StepResult expected = run_step(plain_rig, plain, 1.0);
      const StepResult found = run_step(scaled_rig, scaled, 1.0);
      CHECK(found.grad_norm == expected.grad_norm);
      CHECK(found.clip_scale == expected.clip_scale);
      CHECK(found.loss_scale == std::ldexp(1024, (step - 1) / 2));
      CHECK(expected.loss_scale == 1);
    }
    for (std::size_t i = 0; i < plain.states().size(); ++i) {
      CHECK(bytes_of(scaled.states()[i].tensor) == bytes_of(plain.states()[i].tensor));
    }
    for (const auto& p : plain_rig.store.all()) {
      CHECK(bytes_of(scaled_rig.store.find(p->name()).master()) == bytes_of(p->master()));
    }
  }
}

TEST_CASE("an overflow halves the scale of the loss and changes nothing else") {
  const Rig rig;
  OptimizerOptions options;
  read_options(options, "{max_grad_value: 1.0}");  // which must not hide it
  OptimizerSet set(rig.ctx, options, rig.store, rig.mesh,
                   LossScaling{.initial = 64, .growth_interval = 2});
  CHECK(set.progress().loss_scale == 64);
  rig.set_gradients(1, 64.0);
  CHECK(run_step(rig, set, 1.0).finite);
  const auto before = rig.contents(set);
  const Parameter& p = rig.store.find("model.norm.weight");
  set_values(p.grad(), {0, 0, INFINITY, 0, 0, 0, 0});
  const StepResult result = run_step(rig, set, 1.0);
  CHECK_FALSE(result.finite);
  CHECK(result.overflowed);
  CHECK(result.loss_scale == 64);
  CHECK(set.progress().loss_scale == 32);
  CHECK(set.progress().steps_taken == 1);
  CHECK(rig.contents(set) == before);
}

TEST_CASE("the scale of the loss follows finite and infinite gradients as PyTorch's GradScaler") {
  std::ifstream file(test_file("unit/optim/loss_scale_golden.json"));
  const nlohmann::json golden = nlohmann::json::parse(file);
  REQUIRE(golden["cases"].size() == 5);
  for (const nlohmann::json& c : golden["cases"]) {
    const LossScaling scaling{.initial = c["init_scale"].get<double>(),
                              .growth_interval = c["growth_interval"].get<double>(),
                              .growth_factor = c["growth_factor"].get<double>(),
                              .backoff_factor = c["backoff_factor"].get<double>()};
    CAPTURE(scaling.growth_factor);
    const Rig rig(
        {}, {{.name = "model.norm.weight", .shape = {2}, .role = ParameterRole::norm, .init = {}}});
    OptimizerOptions options;
    read_options(options, "{name: sgd}");
    OptimizerSet set(rig.ctx, options, rig.store, rig.mesh, scaling);
    const Parameter& p = rig.store.find("model.norm.weight");
    std::int64_t taken = 0;
    for (std::size_t step = 0; step < c["finite"].size(); ++step) {
      CAPTURE(step);
      set_values(p.grad(), {1, c["finite"][step].get<int>() == 1 ? 1 : INFINITY});
      const StepResult result = run_step(rig, set, 1.0);
      CHECK(result.applied == (c["taken"][step].get<int>() == 1));
      taken += result.applied;
      const UpdateProgress progress = set.progress();
      CHECK(progress.loss_scale == c["scales"][step].get<double>());
      CHECK(progress.good_steps == c["good_steps"][step].get<std::int64_t>());
      CHECK(progress.steps_taken == taken);
    }
  }
}

TEST_CASE("a scale that goes on in another run moves by that run's factors and interval") {
  const Rig rig;
  OptimizerOptions options;
  read_options(options, "{}");
  OptimizerSet set(rig.ctx, options, rig.store, rig.mesh,
                   LossScaling{.initial = 64, .growth_interval = 3, .growth_factor = 8});
  // More good steps than the new interval has: it is over with the next one.
  set.set_progress({.steps_taken = 7, .loss_scale = 512, .good_steps = 5});
  rig.set_gradients(1, 512);
  run_step(rig, set, 1.0);
  CHECK(set.progress().loss_scale == 4096);
  CHECK(set.progress().good_steps == 0);
}

TEST_CASE("a scale that moves goes on from where it was, a fixed one is the recipe's") {
  const Rig rig;
  OptimizerOptions options;
  read_options(options, "{}");
  const UpdateProgress saved{.steps_taken = 7, .loss_scale = 512, .good_steps = 3};
  OptimizerSet moves(rig.ctx, options, rig.store, rig.mesh, LossScaling{});
  CHECK(moves.progress().loss_scale == 65536);
  moves.set_progress(saved);
  CHECK(moves.progress().steps_taken == 7);
  CHECK(moves.progress().loss_scale == 512);
  CHECK(moves.progress().good_steps == 3);
  OptimizerSet fixed(rig.ctx, options, rig.store, rig.mesh,
                     LossScaling{.initial = 128, .growth_interval = 0});
  fixed.set_progress(saved);
  CHECK(fixed.progress().steps_taken == 7);
  CHECK(fixed.progress().loss_scale == 128);
  OptimizerSet none(rig.ctx, options, rig.store, rig.mesh);
  none.set_progress(saved);
  CHECK(none.progress().loss_scale == 1);
}

}  // namespace llmtrain::optim
