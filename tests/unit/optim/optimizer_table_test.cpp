// Every row of the optimizer table against its formula, written out in double.
#include <map>
#include <set>

#include <doctest/doctest.h>

#include "lib/tensor/split_master.hpp"
#include "tests/support/relative.hpp"
#include "tests/unit/optim/fixture.hpp"
#include "tests/unit/optim/formula_cases.hpp"

namespace llmtrain::optim {

namespace {

constexpr double kWeightDecay = 0.1;

// Settings that the groups of the recipe below give.
ParameterSettings expected_settings(const Parameter& p) {
  ParameterSettings s{.lr_scale = 1, .weight_decay = kWeightDecay};
  if (p.role() == ParameterRole::norm) s.weight_decay = 0;
  if (p.role() == ParameterRole::bias) s.weight_decay = 0.2;
  if (p.name().starts_with("blocks.1.")) s.lr_scale = 0.5;
  if (p.role() == ParameterRole::embedding) s.weight_decay = 0.3;
  return s;
}

std::string recipe_of(const Case& c, const std::string& max_grad_norm) {
  return "name: " + c.name + "\nlr: 0.05\nweight_decay: 0.1\nmax_grad_norm: " + max_grad_norm +
         "\ngroups:\n  - {match: 'blocks.1.*', lr_scale: 0.5}\n"
         "  - {match: embedding, weight_decay: 0.3}\n  - {match: bias, weight_decay: 0.2}\n" +
         c.options;
}

struct Reference {
  std::map<std::string, Values> parameters;
  std::map<std::string, States> states;

  Reference(const Rig& rig, const Case& c) {
    for (const auto& p : rig.store.all()) {
      parameters[p->name()] = values_of(p->master());
      for (const auto& s : c.states_of(*p))
        states[p->name()][s].resize(parameters[p->name()].size(), c.initial_state);
    }
  }

  double step(const Rig& rig, const Case& c, double lr, double max_norm, int t) {
    double squares = 0;
    for (const auto& p : rig.store.all()) {
      for (const double g : values_of(p->grad())) squares += g * g;
    }
    const double norm = std::sqrt(squares);
    const double scale = std::min(1.0, max_norm / (norm + 1e-6));
    for (const auto& p : rig.store.all()) {
      const ParameterSettings s = expected_settings(*p);
      Values g = values_of(p->grad());
      for (double& x : g) x *= scale;
      c.formula(
          parameters[p->name()], g, states[p->name()],
          {.lr = lr * s.lr_scale, .weight_decay = s.weight_decay, .t = t, .parameter = p.get()});
    }
    return norm;
  }
};

void compare_with_formula(const Case& c, const ParameterDTypes& dtypes, double max_norm,
                          double tolerance, int steps = 4) {
  const Rig rig(dtypes);
  OptimizerOptions options;
  read_options(options, recipe_of(c, std::isinf(max_norm) ? "null" : std::to_string(max_norm)));
  OptimizerSet set(rig.ctx, options, rig.store, rig.mesh);
  Reference reference(rig, c);

  int clipped = 0;
  for (int t = 1; t <= steps; ++t) {
    rig.set_gradients(t, t % 2 == 0 ? 0.01 : 1.0);
    const double factor = 1.0 / t;
    const double norm = reference.step(rig, c, 0.05 * factor, max_norm, t);
    const StepResult result = run_step(rig, set, factor);
    CHECK(result.finite);
    CHECK(result.lr == test::relative(0.05 * factor, 1e-15));
    CHECK(result.grad_norm == test::relative(norm, tolerance));
    clipped += result.clip_scale < 1;
  }

  CHECK(clipped == (std::isinf(max_norm) ? 0 : steps / 2));
  CHECK(set.progress().steps_taken == steps);
  for (const auto& p : rig.store.all()) {
    CAPTURE(p->name());
    CHECK(distance(values_of(p->master()), reference.parameters[p->name()]) < tolerance);
  }
  std::size_t at = 0;
  for (const auto& p : rig.store.all()) {
    for (const std::string& name : c.states_of(*p)) {
      REQUIRE(at < set.states().size());
      const StateTensor& state = set.states()[at++];
      CAPTURE(state.name);
      CHECK(state.name == p->name() + "#" + name);
      CHECK(state.parameter == p.get());
      const Values& expected = reference.states[p->name()][name];
      REQUIRE(state.tensor.numel() == std::ssize(expected));
      if (state.tensor.numel() == p->box().shape.numel()) {
        CHECK(state.tensor.shape() == p->box().shape);
      }
      CHECK(distance(values_of(state.tensor), expected) < tolerance);
    }
  }
  CHECK(at == set.states().size());
}

}  // namespace

TEST_CASE("every row of the optimizer table has a formula here") {
  for (const OptimizerRow& row : optimizer_table()) {
    CAPTURE(row.name);
    CHECK(std::any_of(cases().begin(), cases().end(),
                      [&](const Case& c) { return c.name == row.name; }));
    CHECK(!row.doc.empty());
  }
}

TEST_CASE("an optimizer follows its formula with groups, weight decay and clipping") {
  for (const Case& c : cases()) {
    for (const double max_norm : {0.5, static_cast<double>(INFINITY)}) {
      CAPTURE(c.name);
      CAPTURE(c.options);
      CAPTURE(max_norm);
      compare_with_formula(c, kFp64, max_norm, 1e-12);
      compare_with_formula(c, kFp32, max_norm, c.fp32_tolerance);
    }
  }
}

TEST_CASE("an optimizer whose weight decay is decoupled has it before the step or after it") {
  const std::vector<Case> others = cases_of_other_order();
  for (const Case& c : others) {
    CAPTURE(c.name);
    CAPTURE(c.options);
    compare_with_formula(c, kFp64, 0.5, 1e-12, 20);
  }
  const std::set<std::string_view> coupled{"adam",     "sgd",     "momentum",
                                           "nesterov", "adagrad", "rmsprop"};
  for (const OptimizerRow& row : optimizer_table()) {
    CAPTURE(row.name);
    const std::string name(row.name);
    const auto read = [&](const std::string& order) {
      OptimizerOptions options;
      read_options(options, "name: " + name + "\n" + order);
    };
    if (coupled.contains(row.name)) {
      CHECK_THROWS_AS(read("decay_order: after"), RecipeError);
      continue;
    }
    const std::string base = name == "amsgrad" ? "decoupled: true\n" : "";
    for (const char* order : {"before", "after"}) read(base + "decay_order: " + order);
    CHECK_THROWS_AS(read(base + "decay_order: between"), RecipeError);
    const bool has_case = std::ranges::any_of(cases(), [&](const Case& c) {
      return c.name == name && c.options.find("decay_order") != std::string::npos;
    });
    CHECK(has_case);
  }
}

TEST_CASE("a relative step of update t is at most t^-0.5, times a group's share") {
  const Rig relative(kFp64), plain(kFp64);
  OptimizerOptions of_relative, of_plain;
  const std::string groups = "groups: [{match: 'blocks.1.*', lr_scale: 0.5}]\n";
  read_options(of_relative, "name: adafactor\nlr: 9\n" + groups);
  read_options(of_plain, "name: adafactor\nlr: 1\nrelative_step: false\n" + groups);
  OptimizerSet one(relative.ctx, of_relative, relative.store, relative.mesh),
      two(plain.ctx, of_plain, plain.store, plain.mesh);
  for (int t = 1; t <= 4; ++t) {
    relative.set_gradients(t, 1.0);
    plain.set_gradients(t, 1.0);
    run_step(relative, one, 1.0);
    run_step(plain, two, 1 / std::sqrt(static_cast<double>(t)));
    CHECK(relative.contents(one) == plain.contents(two));
  }
}

TEST_CASE("a parameter that is near zero steps by the rate of the least size") {
  const Rig scaled(kFp64), plain(kFp64);
  OptimizerOptions of_scaled, of_plain;
  read_options(of_scaled, "name: adafactor\nlr: 0.1\neps: [1e-30, 0.125]\n");
  read_options(of_plain, "name: adafactor\nlr: 0.0125\nscale_parameter: false\n");
  OptimizerSet one(scaled.ctx, of_scaled, scaled.store, scaled.mesh),
      two(plain.ctx, of_plain, plain.store, plain.mesh);
  for (const Rig* rig : {&scaled, &plain}) {
    for (const auto& p : rig->store.all()) {
      set_values(p->master(), Values(values_of(p->master()).size(), 0));
    }
    rig->set_gradients(1, 1.0);
  }
  run_step(scaled, one, 1.0);
  run_step(plain, two, 1.0);
  for (const auto& p : scaled.store.all()) {
    const Values moved = values_of(p->master());
    CHECK(mean_square(moved) > 0);
    CHECK(distance(moved, values_of(plain.store.find(p->name()).master())) < 1e-14);
  }
}

TEST_CASE("the compute copy is the rounded master after every step") {
  for (const Case& c : cases()) {
    CAPTURE(c.name);
    const Rig rig(kBf16);
    OptimizerOptions options;
    read_options(options, recipe_of(c, "1.0"));
    OptimizerSet set(rig.ctx, options, rig.store, rig.mesh);

    rig.set_gradients(1, 1.0);
    run_step(rig, set, 1.0);

    for (const auto& p : rig.store.all()) {
      const Values master = values_of(p->master());
      std::vector<bf16> copy(master.size());
      rig.device.copy_to_host(std::as_writable_bytes(std::span(copy)), p->compute());
      for (std::size_t i = 0; i < copy.size(); ++i) {
        CHECK(copy[i] == split_master(static_cast<float>(master[i])).copy);
      }
    }
  }
}

TEST_CASE("masters as remainders give the bits of whole masters, over 50 steps") {
  for (const Case& c : cases()) {
    CAPTURE(c.name);
    const Rig whole(kBf16), halves(kBf16Remainder);
    OptimizerOptions options;
    read_options(options, recipe_of(c, "1.0"));
    OptimizerSet one(whole.ctx, options, whole.store, whole.mesh),
        two(halves.ctx, options, halves.store, halves.mesh);
    for (int t = 1; t <= 50; ++t) {
      whole.set_gradients(t, 1.0);
      halves.set_gradients(t, 1.0);
      run_step(whole, one, 1.0);
      run_step(halves, two, 1.0);
      REQUIRE(halves.contents(two) == whole.contents(one));
    }
    CHECK(halves.device.ledger().held_bytes(Category::optimizer) ==
          whole.device.ledger().held_bytes(Category::optimizer));
  }
}

TEST_CASE("a gradient that is not finite leaves everything as it was, to the bit") {
  for (const Case& c : cases()) {
    for (const double bad : {static_cast<double>(NAN), static_cast<double>(-INFINITY)}) {
      for (const std::string where : {"blocks.1.proj.weight", "model.norm.weight"}) {
        CAPTURE(c.name);
        CAPTURE(where);
        const Rig rig;
        OptimizerOptions options;
        read_options(options, recipe_of(c, "1.0"));
        OptimizerSet set(rig.ctx, options, rig.store, rig.mesh);
        rig.set_gradients(1, 1.0);
        run_step(rig, set, 1.0);
        const auto before = rig.contents(set);

        rig.set_gradients(2, 1.0);
        Values g = values_of(rig.store.find(where).grad());
        g.back() = bad;
        set_values(rig.store.find(where).grad(), g);
        const StepResult result = run_step(rig, set, 1.0);

        CHECK(!result.finite);
        CHECK(!std::isfinite(result.grad_norm));
        CHECK(rig.contents(set) == before);
        CHECK(set.progress().steps_taken == 1);
      }
    }
  }
}

TEST_CASE("an optimizer that gets another's states and step count continues to the same bits") {
  for (const Case& c : cases()) {
    CAPTURE(c.name);
    const Rig one;
    Rig two;
    OptimizerOptions options;
    read_options(options, recipe_of(c, "1.0"));
    OptimizerSet whole(one.ctx, options, one.store, one.mesh);
    for (int t = 1; t <= 2; ++t) {
      one.set_gradients(t, 1.0);
      run_step(one, whole, 1.0);
    }

    OptimizerSet resumed(two.ctx, options, two.store, two.mesh);
    for (const auto& p : two.store.all()) {
      two.store.write(*p, one.store.read(one.store.find(p->name())));
    }
    for (std::size_t i = 0; i < resumed.states().size(); ++i) {
      two.device.copy_from_host(resumed.states()[i].tensor, bytes_of(whole.states()[i].tensor));
    }
    resumed.set_progress(whole.progress());
    one.set_gradients(3, 1.0);
    run_step(one, whole, 0.5);
    two.set_gradients(3, 1.0);
    run_step(two, resumed, 0.5);

    CHECK(two.contents(resumed) == one.contents(whole));
  }
}

}  // namespace llmtrain::optim
