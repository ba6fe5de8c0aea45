// checkpoint.export_hf and `ckpt import` by several ranks.
#include <filesystem>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "tests/mesh/workshop.hpp"

namespace llmtrain::test {

namespace {

namespace fs = std::filesystem;

/// 301 tokens do not divide by two ranks.
const std::string kModel =
    "model={architecture: qwen3_moe, vocab_size: 301, hidden_size: 16, num_hidden_layers: 2, "
    "num_attention_heads: 2, intermediate_size: 32, moe_intermediate_size: 12, num_experts: 4, "
    "num_experts_per_tok: 2, max_position_embeddings: 64}";
const std::string kEight = "parallelism={dp: 2, tp: 2, pp: 2, ep: 2, zero: 1}";

ProcessResult ckpt(const Workshop& w, std::vector<std::string> arguments, int ranks = 1) {
  std::vector<std::string> command = ranks > 1 ? mpirun(ranks) : std::vector<std::string>();
  command.insert(command.end(), {LLMTRAIN_EXECUTABLE, "ckpt"});
  command.insert(command.end(), arguments.begin(), arguments.end());
  return run_process(command, w.scratch.path().string(), {.limit_seconds = 60});
}

/// Of a Hugging Face directory, everything.
std::string all_of(const fs::path& directory) {
  std::string text;
  for (const char* name :
       {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}) {
    text += read_file(directory / name);
  }
  return text;
}

}  // namespace

TEST_CASE("what eight ranks export with their saves is what one exports of their checkpoints") {
  const Workshop w;
  for (const auto& [name, ranks, layout, more] :
       {std::tuple("eight", 8, kEight, "checkpoint.async=true"),
        {"four", 4, std::string("parallelism={dp: 2, tp: 2, zero: 3}"),
         "precision.compute=fp32"}}) {
    CAPTURE(name);
    const ProcessResult result =
        w.run(ranks, {kModel, layout, more, fmt::format("run.output_dir={}", name),
                      "checkpoint.export_hf=true", "training.max_steps=4"});
    REQUIRE_MESSAGE(result.exit_code == 0, result.output);
    const std::string to = fmt::format("{}-hf", name);
    const ProcessResult exported = ckpt(w, {"export", name, to});
    REQUIRE_MESSAGE(exported.exit_code == 0, exported.output);
    CHECK(all_of(w.scratch / name / "checkpoints" / "step-00000004" / "hf") ==
          all_of(w.scratch / to));
  }
}

TEST_CASE("what one rank or eight import is what eight start from, bit for bit") {
  const Workshop w;
  const ProcessResult weights =
      w.run(1, {kModel, "run.output_dir=weights", "run.seed=9", "training.max_steps=2"});
  REQUIRE_MESSAGE(weights.exit_code == 0, weights.output);
  REQUIRE(ckpt(w, {"export", "weights", "hf"}).exit_code == 0);
  const auto run = [&](const std::string& name, const std::string& more) {
    const ProcessResult result =
        w.run(8, {kModel, kEight, "run.output_dir=" + name, "training.max_steps=4", more});
    REQUIRE_MESSAGE(result.exit_code == 0, result.output);
    return losses_and_norms(w.scratch / name);
  };
  const std::vector<double> expected = run("from", "model.init_from=hf");
  for (const int ranks : {1, 8}) {
    const std::string name = fmt::format("imported-{}", ranks);
    const ProcessResult imported =
        ckpt(w, {"import", "r.yaml", "hf", kModel, kEight, "run.output_dir=" + name}, ranks);
    REQUIRE_MESSAGE(imported.exit_code == 0, imported.output);
    CHECK(run(name, "checkpoint.resume=must") == expected);
  }
}

}  // namespace llmtrain::test
