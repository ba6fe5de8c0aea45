#include <cmath>

#include <doctest/doctest.h>

#include "lib/optim/optimizer_set.hpp"
#include "tests/unit/optim/fixture.hpp"

namespace llmtrain::optim {

TEST_CASE("updates below half a step of bf16 count in the mean, and are lost to nearest") {
  // Steps of 1/64 of the distance of bf16 numbers above 1, down from 1.5: in 256 of them 4.
  constexpr std::int64_t kCount = 4096;
  constexpr int kSteps = 256;
  const auto mean_after = [&](const ParameterDTypes& dtypes, const char* name) {
    Rig rig(dtypes, {{.name = "w", .shape = {kCount}, .init = {Initializer::Kind::ones}}});
    const Parameter& p = rig.store.find("w");
    const std::vector<float> start(kCount, 1.5f);
    rig.store.write(p, std::as_bytes(std::span(start)));
    OptimizerOptions options;
    read_options(options, fmt::format("{{name: {}, lr: {}, max_grad_norm: null}}", name, 0x1p-13));
    OptimizerSet set(rig.ctx, options, rig.store, rig.mesh);
    for (int step = 0; step < kSteps; ++step) {
      set.zero_grads(rig.ctx);
      set_values(p.grad(), std::vector<double>(kCount, 1.0));
      run_step(rig, set, 1.0);
    }
    std::vector<float> values(kCount);
    rig.store.read_part(p, 0, std::as_writable_bytes(std::span(values)));
    double sum = 0;
    for (const float x : values) sum += x;
    return sum / kCount;
  };
  // Each step goes down with probability 1/64: the mean's standard error is that of
  // 256 x 4,096 draws.
  const double error = 0x1p-7 * std::sqrt(kSteps * (1.0 / 64) * (63.0 / 64) / kCount);
  for (const char* name : {"sgd", "momentum, momentum: 0", "adam, weight_decay: 0", "amsgrad",
                           "lion", "adamw_8bit, weight_decay: 0", "lion_8bit"}) {
    CAPTURE(name);
    CHECK(mean_after(kBf16Nearest, name) == 1.5);
    CHECK(std::abs(mean_after(kBf16Stochastic, name) - (1.5 - kSteps * 0x1p-13)) < 5 * error);
  }
}

}  // namespace llmtrain::optim
