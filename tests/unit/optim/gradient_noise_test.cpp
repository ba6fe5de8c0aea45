// Noise on gradients as runs have it: behind clipping, of updates and not of steps, and the same
// whatever the loss's scale and the place of states.
#include <limits>
#include <map>

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/unit/optim/fixture.hpp"

namespace llmtrain::optim {

namespace {

constexpr std::uint64_t kSeed = 11;

struct Run {
  explicit Run(const std::string& yaml, const ParameterDTypes& dtypes = {},
               std::optional<LossScaling> scaling = std::nullopt,
               const std::optional<Offload>& offload = std::nullopt, std::uint64_t seed = kSeed)
      : rig(dtypes) {
    read_options(options, yaml);
    set.emplace(rig.ctx, options, rig.store, rig.mesh, scaling, offload, seed);
  }
  /// Step number `number`, of which every fifth is skipped.
  StepResult step(int number, double scale = 1) {
    rig.set_gradients(number, (number % 2 == 0 ? 0.01 : 1.0) * scale);
    if (number % 5 == 0) {
      const Tensor& g = rig.store.all().front()->grad();
      std::vector<double> values = values_of(g);
      values.front() = std::numeric_limits<double>::quiet_NaN();
      set_values(g, values);
    }
    return run_step(rig, *set, 1.0);
  }
  Rig rig;
  OptimizerOptions options;
  std::optional<OptimizerSet> set;
};

/// The noise of update t, counted from 0, on element i.
double noise_of(const Parameter& p, int t, std::size_t i, double eta, double gamma) {
  const PhiloxKey key = philox_key(kSeed, "gradient noise", p.name());
  const double z =
      normal_quantile(unit_interval(philox_word(key, static_cast<std::uint64_t>(t), i)));
  return z * std::sqrt(eta / std::pow(1 + t, gamma));
}

}  // namespace

TEST_CASE("noise joins the clipped gradient, and its variance falls with the updates") {
  for (const auto& [text, gamma] :
       {std::pair("{eta: 0.3}", 0.55), std::pair("{eta: 0.3, gamma: 2}", 2.0)}) {
    for (const ParameterDTypes& dtypes : {kFp64, kFp32}) {
      Run run(
          std::string("{name: sgd, lr: 0.05, max_grad_norm: 0.5, gradient_noise: ") + text + "}",
          dtypes);
      std::map<std::string, std::vector<double>> expected;
      for (const auto& p : run.rig.store.all()) expected[p->name()] = values_of(p->master());
      int updates = 0;
      for (int number = 1; number <= 20; ++number) {
        const StepResult result = run.step(number);
        CHECK(result.applied == (number % 5 != 0));
        if (!result.applied) continue;
        const Rig fresh(dtypes);
        fresh.set_gradients(number, number % 2 == 0 ? 0.01 : 1.0);
        for (const auto& p : fresh.store.all()) {
          const std::vector<double> g = values_of(p->grad());
          std::vector<double>& values = expected[p->name()];
          for (std::size_t i = 0; i < values.size(); ++i) {
            const double noise = noise_of(*p, updates, i, 0.3, gamma);
            values[i] -= 0.05 * (result.clip_scale * g[i] + noise);
          }
        }
        ++updates;
      }
      CHECK(updates == 16);
      for (const auto& p : run.rig.store.all()) {
        CAPTURE(p->name());
        CHECK(distance(values_of(p->master()), expected[p->name()]) <
              (dtypes.master == DType::f64 ? 1e-13 : 1e-6));
      }
    }
  }
}

TEST_CASE("noise has no part in the norm, and a seed of its own") {
  Run noisy("{max_grad_norm: 0.5, gradient_noise: {eta: 0.3}}"), plain("{max_grad_norm: 0.5}");
  const std::optional<Offload> in_memory;
  Run other("{max_grad_norm: 0.5, gradient_noise: {eta: 0.3}}", {}, std::nullopt, in_memory, 12);
  const StepResult a = noisy.step(1), b = plain.step(1);
  other.step(1);
  CHECK(a.grad_norm == b.grad_norm);
  CHECK(a.clip_scale == b.clip_scale);
  CHECK(noisy.rig.contents(*noisy.set) != plain.rig.contents(*plain.set));
  CHECK(noisy.rig.contents(*noisy.set) != other.rig.contents(*other.set));
}

TEST_CASE("noise is the same for every scale of the loss, and for states in a file") {
  const std::string yaml = "{max_grad_norm: 0.5, gradient_noise: {eta: 0.3}}";
  const test::TempDir directory;
  Run plain(yaml), scaled(yaml, {}, LossScaling{.initial = 1024, .growth_interval = 0}),
      in_file(yaml, {}, std::nullopt,
              Offload{.buffer_bytes = 384 << 10, .directory = directory.path()});
  for (int number = 1; number <= 6; ++number) {
    plain.step(number);
    scaled.step(number, 1024);
    in_file.step(number);
  }
  CHECK(scaled.rig.contents(*scaled.set) == plain.rig.contents(*plain.set));
  for (const auto& p : plain.rig.store.all()) {
    CHECK(plain.rig.store.read(*p) == in_file.rig.store.read(in_file.rig.store.find(p->name())));
  }
}

TEST_CASE("a set that gets another's states and step count goes on with its noise") {
  const std::string yaml = "{gradient_noise: {eta: 0.3}}";
  Run whole(yaml), rest(yaml);
  for (int number = 1; number <= 7; ++number) whole.step(number);
  for (const auto& p : rest.rig.store.all()) {
    rest.rig.store.write(*p, whole.rig.store.read(whole.rig.store.find(p->name())));
  }
  for (std::size_t i = 0; i < rest.set->states().size(); ++i) {
    rest.rig.device.copy_from_host(rest.set->states()[i].tensor,
                                   bytes_of(whole.set->states()[i].tensor));
  }
  rest.set->set_progress(whole.set->progress());
  for (int number = 8; number <= 12; ++number) {
    whole.step(number);
    rest.step(number);
  }
  CHECK(rest.rig.contents(*rest.set) == whole.rig.contents(*whole.set));
}

TEST_CASE("noise without a variance, or with a growing one, is refused") {
  for (const char* wrong : {"{}", "{eta: 0}", "{eta: -1}", "{eta: 1, gamma: -0.5}",
                            "{eta: 1, gamma: 11}", "{eta: 1, sigma: 2}"}) {
    CAPTURE(wrong);
    OptimizerOptions options;
    CHECK_THROWS_AS(read_options(options, std::string("gradient_noise: ") + wrong), RecipeError);
  }
}

}  // namespace llmtrain::optim
