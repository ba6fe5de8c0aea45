// 200 steps of AdamW against PyTorch (scripts/golden/trajectory.py), from the recipe to the loss.
#include <algorithm>
#include <cmath>
#include <string>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "lib/base/file.hpp"
#include "tests/parity/golden.hpp"
#include "tests/support/engine_recipe.hpp"
#include "tests/support/formula.hpp"

namespace llmtrain::test {

namespace {

/// Sequences in which the next token is one of three, by the token before it.
engine::StepBatch make_batch(std::int64_t step, std::int64_t samples, std::int64_t length,
                             std::int32_t vocab) {
  engine::StepBatch batch;
  batch.resize(samples, length);
  for (std::int64_t s = 0; s < samples; ++s) {
    const std::string name = fmt::format("sequence {}", (step - 1) * samples + s);
    std::int32_t token = formula_below(name + " start", static_cast<std::uint32_t>(vocab), 0);
    for (std::int64_t t = 0; t < length; ++t) {
      const auto i = static_cast<std::size_t>(s * length + t);
      batch.tokens[i] = token;
      token = (token * 5 + 7 + formula_below(name, 3, static_cast<std::uint64_t>(t))) % vocab;
      batch.targets[i] = token;
      batch.doc_begin[i] = 0;
      batch.positions[i] = static_cast<std::int32_t>(t);
    }
  }
  batch.trained_tokens = samples * length;
  return batch;
}

/// Largest difference from PyTorch's losses over the run.
double worst_difference(const nlohmann::json& golden) {
  TrainingRecipe recipe;
  recipe::load(recipe, {.file = "trajectory", .text = golden.at("recipe").get<std::string>()});
  Device device(make_cpu_memory(), std::uint64_t{1} << 30);
  engine::Engine engine({.device = &device, .table = &kernels::cpu_table(), .threads = 2},
                        recipe.options(0));
  for (const auto& p : engine.parameters().all()) {
    const nlohmann::json& fill = golden.at("fill").at(p->name());
    const std::vector<float> values =
        formula_weights(p->name(), p->global_shape().numel(), fill.at(0), fill.at(1));
    engine.parameters().write(*p, std::as_bytes(std::span(values)));
  }

  const auto samples = static_cast<std::int64_t>(recipe.training.global_batch_size().value);
  const auto length = static_cast<std::int64_t>(recipe.training.seq_len().value);
  const auto vocab = static_cast<std::int32_t>(engine.model().spec().vocab_size);
  const nlohmann::json& losses = golden.at("loss");
  const auto steps = static_cast<std::int64_t>(losses.size());
  const optim::LrSchedule schedule(
      recipe.lr_scheduler,
      optim::Horizon::uniform(steps, static_cast<std::uint64_t>(samples * length)));
  double worst = 0;
  for (std::int64_t step = 1; step <= steps; ++step) {
    CAPTURE(step);
    const engine::StepOutcome outcome =
        engine.train_step(make_batch(step, samples, length, vocab), step, schedule.factor(step));
    const double loss = outcome.loss_sum / static_cast<double>(outcome.trained_tokens);
    const auto at = static_cast<std::size_t>(step - 1);
    const double difference = std::abs(loss - losses.at(at).get<double>());
    CHECK(difference <= std::max(1e-4, 3 * golden.at("spread").at(at).get<double>()));
    worst = std::max(worst, difference);
  }
  return worst;
}

}  // namespace

TEST_CASE("200 steps of AdamW give PyTorch's losses") {
  for (const std::string name : {"gpt2", "llama"}) {
    CAPTURE(name);
    const nlohmann::json golden =
        nlohmann::json::parse(read_file(golden_folder() / ("trajectory_" + name + ".json")));
    const double worst = worst_difference(golden);
    MESSAGE("largest difference in loss: ", worst);
  }
}

}  // namespace llmtrain::test
