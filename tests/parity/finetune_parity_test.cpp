// 50 steps of fine-tuning on prompts and completions against PyTorch (scripts/golden/finetune.py),
// from the directory that transformers saved and the lines of JSONL to the loss.
#include <algorithm>
#include <cmath>
#include <string>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "lib/base/file.hpp"
#include "lib/checkpoint/hf_directory.hpp"
#include "lib/data/prepare.hpp"
#include "lib/train/batch_source.hpp"
#include "tests/parity/golden.hpp"
#include "tests/support/engine_recipe.hpp"
#include "tests/support/temp_dir.hpp"

namespace llmtrain::test {

namespace {

std::shared_ptr<const data::PackedSamples> samples_of(const std::filesystem::path& file,
                                                      const std::filesystem::path& scratch,
                                                      std::int64_t seq_len) {
  data::SourceOptions source;
  source.path = file;
  source.prompt_key = "prompt";
  source.completion_key = "completion";
  const auto tokenizer = data::make_byte_tokenizer();
  auto set = std::make_shared<data::TokenSet>(data::open_or_prepare(
      data::list_source_files(std::span(&source, 1)), *tokenizer, {}, scratch));
  return std::make_shared<data::PackedSamples>(std::move(set), *tokenizer,
                                               data::PackingOptions{.seq_len = seq_len});
}

/// Losses of the run in the given precision.
std::vector<double> losses_of(const nlohmann::json& golden, const std::string& compute,
                              const std::filesystem::path& scratch) {
  TrainingRecipe recipe;
  recipe::load(recipe, {.file = "finetune",
                        .text = golden.at("recipe").get<std::string>(),
                        .overrides = {"precision.compute=" + compute}});
  Device device(make_cpu_memory(), std::uint64_t{1} << 30);
  engine::Engine engine(
      {.device = &device,
       .table = compute == "fp64" ? &kernels::cpu_reference_table() : &kernels::cpu_table(),
       .threads = 2},
      recipe.options(0));
  const std::filesystem::path folder = golden_folder() / "finetune";
  checkpoint::import_hf(folder, engine.parameters(),
                        recipe.model.architecture().hf_layout(recipe.model.spec()));

  const auto packed = samples_of(folder / "pairs.jsonl", scratch,
                                 static_cast<std::int64_t>(recipe.training.seq_len().value));
  const auto count = static_cast<std::int64_t>(packed->sample_count());
  REQUIRE(count == static_cast<std::int64_t>(recipe.training.global_batch_size().value));
  const data::SampleStream stream(packed, 7);
  engine::StepBatch batch;
  std::vector<double> losses;
  for (std::int64_t step = 1; step <= static_cast<std::int64_t>(golden.at("fp64").size()); ++step) {
    train::fill_share_of_batch(stream, static_cast<std::uint64_t>((step - 1) * count), count,
                               engine.mesh().data(), batch);
    const engine::StepOutcome outcome = engine.train_step(batch, step, 1.0);
    REQUIRE(outcome.trained_tokens == golden.at("trained_rows").get<std::int64_t>());
    losses.push_back(outcome.loss_sum / static_cast<double>(outcome.trained_tokens));
  }
  return losses;
}

}  // namespace

TEST_CASE("50 steps of fine-tuning on prompts and completions give PyTorch's losses") {
  const nlohmann::json golden = nlohmann::json::parse(read_file(golden_folder() / "finetune.json"));
  const TempDir scratch;
  double worst64 = 0, worst32 = 0;
  const std::vector<double> fp64 = losses_of(golden, "fp64", scratch.path() / "64");
  const std::vector<double> fp32 = losses_of(golden, "fp32", scratch.path() / "32");
  for (std::size_t i = 0; i < fp64.size(); ++i) {
    CAPTURE(i);
    const double difference64 = std::abs(fp64[i] - golden.at("fp64").at(i).get<double>());
    const double difference32 = std::abs(fp32[i] - golden.at("fp32").at(i).get<double>());
    CHECK(difference64 <= 1e-9);
    CHECK(difference32 <= std::max(1e-4, 3 * golden.at("spread").at(i).get<double>()));
    worst64 = std::max(worst64, difference64);
    worst32 = std::max(worst32, difference32);
  }
  MESSAGE("largest difference in loss: fp64 ", worst64, ", fp32 ", worst32);
}

}  // namespace llmtrain::test
