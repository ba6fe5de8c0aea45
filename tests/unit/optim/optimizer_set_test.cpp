#include "lib/optim/optimizer_set.hpp"

#include <algorithm>
#include <atomic>

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "lib/base/tree_sum.hpp"
#include "lib/comm/world.hpp"
#include "lib/recipe/keys.hpp"
#include "tests/support/relative.hpp"
#include "tests/support/thread_transport.hpp"
#include "tests/unit/optim/fixture.hpp"

namespace llmtrain::optim {

namespace {

class Launches final : public kernels::Recorder {
 public:
  void record(const kernels::LaunchRecord& launch) override {
    all.push_back(std::string(launch.name) + " " + std::to_string(launch.sizes[0]));
  }
  std::vector<std::string> all;
};

std::vector<ParameterSettings> settings_of(const std::string& yaml) {
  const Rig rig;
  OptimizerOptions options;
  read_options(options, yaml);
  return parameter_settings(options, 0.1, rig.store.all());
}

std::string refusal_of(const std::string& yaml) {
  try {
    settings_of(yaml);
  } catch (const RecipeError& e) {
    return e.what();
  }
  return "";
}

// lr_scale of the five parameters of small_model().
std::vector<double> lr_scales(const std::string& yaml) {
  std::vector<double> scales;
  for (const ParameterSettings& s : settings_of(yaml)) scales.push_back(s.lr_scale);
  return scales;
}

std::vector<double> decays(const std::string& yaml) {
  std::vector<double> values;
  for (const ParameterSettings& s : settings_of(yaml)) values.push_back(s.weight_decay);
  return values;
}

}  // namespace

TEST_CASE("the tree sum joins neighbours and passes an odd last term on") {
  std::vector<double> terms{1e16, 1.0, 1.0, 1.0, -1e16};
  CHECK(tree_sum(terms) == ((1e16 + 1.0) + (1.0 + 1.0)) + -1e16);
  std::vector<double> one{3};
  CHECK(tree_sum(one) == 3);
  CHECK(tree_sum({}) == 0);
}

TEST_CASE("norms and biases do not decay unless the recipe says otherwise") {
  // embedding, matrix, bias, matrix, norm
  CHECK(decays("{}") == std::vector<double>{0.1, 0.1, 0, 0.1, 0});
  CHECK(decays("no_decay: []") == std::vector<double>{0.1, 0.1, 0.1, 0.1, 0.1});
  CHECK(decays("no_decay: [embedding, '*.1.proj.*']") == std::vector<double>{0, 0.1, 0.1, 0, 0.1});
}

TEST_CASE("of several groups that match a parameter the last one alone decides") {
  const std::string groups =
      "groups:\n  - {match: 'blocks.*', lr_scale: 2, weight_decay: 0.5}\n"
      "  - {match: 'blocks.?.proj.bias', lr_scale: 3}\n  - {match: norm, weight_decay: 0.25}\n";
  CHECK(lr_scales(groups) == std::vector<double>{1, 2, 3, 2, 1});
  CHECK(decays(groups) == std::vector<double>{0.1, 0.5, 0, 0.5, 0.25});
}

TEST_CASE("a pattern that selects nothing is refused with its place and an example") {
  const std::string group = refusal_of("groups:\n  - match: 'block.*'\n");
  CHECK(group.find("test.yaml:2:") == 0);
  CHECK(group.find("groups.0.match: `block.*` selects no parameter") != std::string::npos);
  CHECK(group.find("model.embed.weight") != std::string::npos);
  CHECK(refusal_of("no_decay: [norm, layernorm]").find("`layernorm`") != std::string::npos);
  CHECK(refusal_of("no_decay: [norm, matrix, bias]").empty());
}

TEST_CASE("a role without parameters is fine in no_decay and refused as a group") {
  const Rig rig({}, {{.name = "w", .shape = {2, 2}, .init = {}}});
  OptimizerOptions defaults;
  read_options(defaults, "{}");
  CHECK(parameter_settings(defaults, 0.1, rig.store.all())[0].weight_decay == 0.1);

  OptimizerOptions with_group;
  read_options(with_group, "groups: [{match: bias}]");
  CHECK_THROWS_AS(parameter_settings(with_group, 0.1, rig.store.all()), RecipeError);
}

TEST_CASE("what no gradient trains is no pattern's, has no state, and no update touches it") {
  std::vector<ParameterSpec> specs = small_model();
  specs.push_back({.name = "gate.bias", .shape = {5}, .role = ParameterRole::bias});
  specs.back().trained = false;
  const Rig rig({}, std::move(specs));
  OptimizerOptions options;
  read_options(options, "{lr: 1.0, weight_decay: 0.5, no_decay: []}");
  OptimizerSet set(rig.ctx, options, rig.store, rig.mesh);
  for (const StateTensor& state : set.states()) CHECK(state.parameter->is_trained());
  for (const std::string& name : set.state_names()) CHECK(name.find("gate.bias") == name.npos);
  const Parameter& fixed = rig.store.find("gate.bias");
  set_values(fixed.compute(), {1, 2, 3, 4, 5});
  set.zero_grads(rig.ctx);
  set.launch_step(rig.ctx, scalars_of(rig, set, 1.0), {});
  CHECK(values_of(fixed.compute()) == std::vector<double>{1, 2, 3, 4, 5});
  CHECK(decision_of(set).grad_norm == 0);

  OptimizerOptions pattern;
  read_options(pattern, "{no_decay: ['gate.*']}");
  CHECK_THROWS_WITH_AS(parameter_settings(pattern, 0.1, rig.store.all()),
                       doctest::Contains("selects no parameter"), RecipeError);
}

TEST_CASE("clipping by norm follows PyTorch and leaves the gradients as they are") {
  const Rig rig(kFp64);
  OptimizerOptions options;
  read_options(options, "{name: sgd, lr: 1.0, max_grad_norm: 2.0}");
  OptimizerSet set(rig.ctx, options, rig.store, rig.mesh);
  const Parameter& p = rig.store.find("model.norm.weight");
  const auto before = values_of(p.master());
  set.zero_grads(rig.ctx);
  set_values(p.grad(), {3, 0, 0, 0, 0, 0, -4});

  const StepResult result = run_step(rig, set, 1.0);

  CHECK(result.grad_norm == 5);
  CHECK(result.clip_scale == 2.0 / (5.0 + 1e-6));
  CHECK(values_of(p.grad()) == std::vector<double>{3, 0, 0, 0, 0, 0, -4});
  CHECK(values_of(p.master())[0] == test::relative(before[0] - 3 * result.clip_scale));
  set_values(p.grad(), {0, 0, 1.5, 0, 0, 0, 0});
  CHECK(run_step(rig, set, 1.0).clip_scale == 1);
}

TEST_CASE("a loss that is not finite leaves everything as it was, to the bit") {
  const Rig rig;
  OptimizerOptions options;
  read_options(options, "{}");
  OptimizerSet set(rig.ctx, options, rig.store, rig.mesh);
  const Tensor loss =
      const_cast<Device&>(rig.device).allocate({1}, DType::f64, Category::activations, "loss");
  const Tensor scalars = scalars_of(rig, set, 1.0);
  rig.set_gradients(1, 1.0);
  set_values(loss, {2.5});
  set.launch_step(rig.ctx, scalars, loss);
  CHECK(decision_of(set).loss_sum == 2.5);
  const auto before = rig.contents(set);

  set_values(loss, {NAN});
  set.launch_step(rig.ctx, scalars, loss);
  CHECK(!step_result(decision_of(set)).finite);
  CHECK(set.progress().steps_taken == 1);
  CHECK(rig.contents(set) == before);
}

TEST_CASE("clipping by value comes before the norm and keeps a NaN") {
  const Rig rig;
  OptimizerOptions options;
  read_options(options, "{name: sgd, lr: 1.0, max_grad_norm: null, max_grad_value: 0.5}");
  OptimizerSet set(rig.ctx, options, rig.store, rig.mesh);
  const Parameter& p = rig.store.find("model.norm.weight");
  const auto before = values_of(p.master());
  set.zero_grads(rig.ctx);
  set_values(p.grad(), {3, 0.25, -7, 0, 0, 0, -INFINITY});

  const StepResult result = run_step(rig, set, 1.0);

  CHECK(result.grad_norm == test::relative(std::sqrt(3 * 0.25 + 0.0625)));
  CHECK(result.clip_scale == 1);
  const auto after = values_of(p.master());
  const std::vector<double> step{0.5, 0.25, -0.5, 0, 0, 0, -0.5};
  for (std::size_t i = 0; i < step.size(); ++i) {
    CHECK(after[i] == test::relative(before[i] - step[i]));
  }
  rig.set_gradients(1, 2.0);
  run_step(rig, set, 1.0);
  for (const auto& parameter : rig.store.all()) {
    const auto clipped = values_of(parameter->grad());
    CHECK(*std::max_element(clipped.begin(), clipped.end()) <= 0.5);
    CHECK(*std::min_element(clipped.begin(), clipped.end()) >= -0.5);
  }
  set_values(p.grad(), {NAN, 0, 0, 0, 0, 0, 0});
  CHECK(!run_step(rig, set, 1.0).finite);
}

TEST_CASE("the norm does not depend on the order in which parameters were declared") {
  std::vector<ParameterSpec> reversed = small_model();
  std::reverse(reversed.begin(), reversed.end());
  const Rig forward(kFp32);
  const Rig backward(kFp32, std::move(reversed));
  const GradientNorm a(const_cast<Device&>(forward.device), forward.store, forward.mesh);
  const GradientNorm b(const_cast<Device&>(backward.device), backward.store, backward.mesh);

  for (int step = 0; step < 50; ++step) {
    forward.set_gradients(step, 1.0);
    backward.set_gradients(step, 1.0);
    CHECK(values_of(a.squares(forward.ctx)) == values_of(b.squares(backward.ctx)));
  }
}

TEST_CASE("the norm counts every element once, on whichever ranks it lies") {
  const auto squares_on = [](Transport& transport, int ranks) {
    World world(transport);
    const Mesh mesh({.sizes = {1, ranks, 1, 1}}, world.place().rank, world_factory(world));
    Device device(make_cpu_memory(), 1 << 24);
    const Tensor staging = device.allocate({static_cast<std::int64_t>(kHostStagingBytes)},
                                           DType::u8, Category::comm, "staging");
    mesh.use_staging(staging);
    ParameterStore store(mesh);
    ParameterSpec split{.name = "b", .shape = {8, 3}, .init = {}};
    split.placement[Axis::tp].split_dim = 0;
    ParameterSpec shared{.name = "c", .shape = {4, 3}, .init = {}};  // by two ranks each
    shared.placement[Axis::tp] = {.split_dim = 0, .replicas = ranks == 4 ? 2 : 1};
    store.declare(split);
    store.declare({.name = "a", .shape = {5}, .role = ParameterRole::norm, .init = {}});
    store.declare(shared);
    store.allocate(device, {DType::f64, DType::f64, DType::f64}, true);
    for (const Parameter* p : store.local()) {
      double* g = p->grad().view().as<double>();
      for (std::int64_t i = 0; i < p->grad().numel(); ++i) {
        g[i] = static_cast<double>(1 + p->box().offset[0] * p->grad().cols() + i);
      }
    }
    const GradientNorm norm(device, store, mesh);
    kernels::KernelCtx ctx{.device = &device, .table = &kernels::cpu_table()};
    return values_of(norm.squares(ctx));
  };
  const auto sum_of_squares = [](int n) { return n * (n + 1) * (2 * n + 1) / 6; };
  const std::vector<double> expected{static_cast<double>(sum_of_squares(5)),
                                     static_cast<double>(sum_of_squares(24)),
                                     static_cast<double>(sum_of_squares(12))};
  for (const int ranks : {1, 2, 4}) {
    CAPTURE(ranks);
    std::atomic<int> wrong{0};
    testing::run_job(ranks, [&](Transport& t) { wrong += squares_on(t, ranks) != expected; });
    CHECK(wrong == 0);
  }
}

TEST_CASE("gradients are zero after zero_grads, and a new state is zero") {
  Rig rig;
  // Fresh pages are zero: the states must get memory that somebody used before.
  {
    const Tensor used = rig.device.allocate({1 << 16}, DType::f32, Category::workspace, "used");
    set_values(used, std::vector<double>(1 << 16, 7.0));
  }
  OptimizerOptions options;
  read_options(options, "{}");
  const OptimizerSet set(rig.ctx, options, rig.store, rig.mesh);
  rig.set_gradients(1, 1.0);

  set.zero_grads(rig.ctx);

  for (const auto& p : rig.store.all()) {
    CHECK(values_of(p->grad()) == std::vector<double>(p->grad().numel(), 0.0));
  }
  for (const StateTensor& state : set.states()) {
    CHECK(values_of(state.tensor) == std::vector<double>(state.tensor.numel(), 0.0));
  }
}

TEST_CASE("a new state is what its optimizer says, and what it is afterwards is not touched") {
  const Rig rig;
  OptimizerOptions options;
  read_options(options, "{name: adagrad, initial_accumulator_value: 0.25}");
  OptimizerSet set(rig.ctx, options, rig.store, rig.mesh);
  for (const StateTensor& state : set.states()) {
    CHECK(values_of(state.tensor) == std::vector<double>(state.tensor.numel(), 0.25));
  }
  set.zero_grads(rig.ctx);
  run_step(rig, set, 1.0);
  for (const StateTensor& state : set.states()) {
    CHECK(values_of(state.tensor) == std::vector<double>(state.tensor.numel(), 0.25));
  }
}

TEST_CASE("meta allocates and launches exactly what the CPU does") {
  for (const OptimizerRow& row : optimizer_table()) {
    CAPTURE(row.name);
    std::vector<std::vector<AllocationEvent>> traces;
    std::vector<std::vector<std::string>> launches;
    for (const bool meta : {false, true}) {
      Rig rig(kBf16, small_model(), meta ? make_meta_memory() : make_cpu_memory());
      Launches recorder;
      rig.ctx.recorder = &recorder;
      OptimizerOptions options;
      read_options(options, "{name: " + std::string(row.name) + ", max_grad_value: 1.0}");
      rig.device.ledger().start_trace();
      OptimizerSet set(rig.ctx, options, rig.store, rig.mesh);
      set.zero_grads(rig.ctx);
      run_step(rig, set, 1.0);
      traces.push_back(rig.device.ledger().stop_trace());
      launches.push_back(recorder.all);
    }
    CHECK(traces[0] == traces[1]);
    CHECK(launches[0] == launches[1]);
    CHECK(!launches[0].empty());
  }
}

TEST_CASE("states are held in the ledger as optimizer memory under their names") {
  Rig rig;
  OptimizerOptions options;
  read_options(options, "{name: adamw}");
  rig.device.ledger().start_trace();
  const OptimizerSet set(rig.ctx, options, rig.store, rig.mesh);
  const auto trace = rig.device.ledger().stop_trace();

  for (const StateTensor& state : set.states()) {
    CHECK(std::any_of(trace.begin(), trace.end(), [&](const AllocationEvent& event) {
      return event.tag == state.name && event.category == Category::optimizer && !event.is_free;
    }));
  }
  CHECK(rig.device.ledger().held_bytes(Category::optimizer) >=
        2 * sizeof(float) * static_cast<std::uint64_t>(rig.store.num_elements()));
}

TEST_CASE("nesterov without momentum or with dampening is refused") {
  OptimizerOptions options;
  CHECK_THROWS_AS(read_options(options, "{name: momentum, nesterov: true, dampening: 0.1}"),
                  RecipeError);
  CHECK_THROWS_AS(read_options(options, "{name: momentum, nesterov: true, momentum: 0}"),
                  RecipeError);
  CHECK_THROWS_AS(read_options(options, "{name: sgd, betas: [0.9, 0.9]}"), RecipeError);
  CHECK_THROWS_AS(read_options(options, "{betas: [0.9, 1.0]}"), RecipeError);
}

TEST_CASE("every key of the section is read by the set, whichever optimizer is chosen") {
  for (const OptimizerRow& row : optimizer_table()) {
    CAPTURE(row.name);
    const Rig rig;
    OptimizerOptions options;
    read_options(options,
                 "{name: " + std::string(row.name) + ", groups: [{match: norm, lr_scale: 2}]}");
    const OptimizerSet set(rig.ctx, options, rig.store, rig.mesh);
    CHECK(recipe::unread_keys(options) == std::vector<std::string>{});
    CHECK(recipe::declaration_mistakes(options) == std::vector<std::string>{});
  }
}

}  // namespace llmtrain::optim
