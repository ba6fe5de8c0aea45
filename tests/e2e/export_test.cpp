// checkpoint.export_hf: each durable checkpoint has the model as a Hugging Face directory.
#include <csignal>
#include <filesystem>
#include <map>
#include <span>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/base/file.hpp"
#include "lib/checkpoint/safetensors.hpp"
#include "tests/e2e/workspace.hpp"

namespace llmtrain {

namespace fs = std::filesystem;

namespace {

const std::string kExport = "checkpoint.export_hf=true";

/// Texts of a directory's files, by name.
std::map<std::string, std::string> files_in(const fs::path& directory) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(directory)) {
    files[entry.path().filename().string()] = read_file(entry.path());
  }
  return files;
}

fs::path step_directory(const Workspace& here, int step) {
  return here.path / "run" / "checkpoints" / fmt::format("step-{:08}", step);
}

}  // namespace

TEST_CASE("what saves export is what `ckpt export` writes, byte for byte, in place and beside") {
  const std::string gpt2 =
      "model={architecture: gpt2, vocab_size: 259, hidden_size: 16, num_hidden_layers: 2, "
      "num_attention_heads: 2, max_position_embeddings: 64}";
  for (const auto& [model, precision] :
       {std::pair(std::string("model.vocab_size=261"), "precision.compute=fp32"),
        {std::string("model.vocab_size=257"), "precision.compute=fp64"},
        {gpt2, "precision={compute: bf16, master: bf16+remainder}"},
        {gpt2, "precision={compute: bf16, master: none}"}}) {
    for (const char* more : {"checkpoint.async=false", "checkpoint.async=true"}) {
      INFO(model, " ", precision, " ", more);
      std::string recipe(kTinyRecipe);
      if (model == gpt2) {  // a family of its own
        const std::size_t begin = recipe.find("model: {"), end = recipe.find("tokenizer:");
        recipe.replace(begin, end - begin, "model: " + gpt2.substr(6) + "\n");
      }
      const Workspace here(recipe);
      std::vector<std::string> overrides{kExport, precision, more,
                                         "checkpoint.max_shard_size=64KiB"};
      if (model != gpt2) overrides.push_back(model);
      run_well(here, overrides);
      for (const int step : {2, 4, 6}) {
        const std::string to = fmt::format("hf-{}", step);
        REQUIRE(
            here.call({"ckpt", "export", "run", to, "--step", std::to_string(step)}).exit_code ==
            0);
        const auto exported = files_in(step_directory(here, step) / "hf");
        CHECK(exported.size() == 4);
        CHECK(exported == files_in(here.path / to));
      }
      const auto listed = here.call({"ckpt", "ls", "run"});
      CHECK(holds(listed.output, {"exported to run/checkpoints/step-00000006/hf"}));
      CHECK(here.call({"ckpt", "verify", "run"}).exit_code == 0);
    }
  }
}

/// A table of embeddings of kTinyRecipe's in an exported directory.
std::vector<float> table_in(const fs::path& directory, const std::string& name) {
  std::vector<float> values(257 * 16);
  checkpoint::SafetensorsFile::open(directory / "model.safetensors")
      .read_tensor(name, std::as_writable_bytes(std::span(values)));
  return values;
}

TEST_CASE("a step is exported as it was trained, whatever the recipe says since") {
  const Workspace here(kTinyRecipe);
  run_well(here, {"model={tie_word_embeddings: true, rope_theta: 5000}", "training.max_steps=2"});
  run_well(here, {"model={tie_word_embeddings: false, rope_theta: 7000}"});
  REQUIRE(here.call({"ckpt", "export", "run", "then", "--step", "2"}).exit_code == 0);
  REQUIRE(here.call({"ckpt", "export", "run", "now"}).exit_code == 0);
  const std::string embeddings = "model.embed_tokens.weight", head = "lm_head.weight";
  const auto says = [&](const char* export_of, const std::string& text) {
    return read_file(here.path / export_of / "config.json").find(text) != std::string::npos;
  };
  CHECK(says("then", "\"tie_word_embeddings\": true"));
  CHECK(says("then", "\"rope_theta\": 5000"));
  CHECK(says("now", "\"tie_word_embeddings\": false"));
  CHECK(says("now", "\"rope_theta\": 7000"));
  const auto then = checkpoint::SafetensorsFile::open(here.path / "then" / "model.safetensors");
  CHECK(then.find(head) == nullptr);
  CHECK(table_in(here.path / "now", head) != table_in(here.path / "now", embeddings));
  CHECK(table_in(here.path / "then", embeddings) != table_in(here.path / "now", embeddings));
  const auto line = here.call({"eval", "run", "--step", "2"});
  CHECK_MESSAGE(line.exit_code == 0, line.output);
}

TEST_CASE("exports go with their checkpoints, and none is on fast storage") {
  const Workspace here(kTinyRecipe);
  run_well(here, {kExport, "checkpoint.keep_latest=2", "checkpoint.interval=1"});
  CHECK(!fs::exists(step_directory(here, 4)));
  CHECK(fs::exists(step_directory(here, 5) / "hf" / "model.safetensors"));
  CHECK(fs::exists(step_directory(here, 6) / "hf" / "model.safetensors"));

  const Workspace local(kTinyRecipe);
  const auto stopped = local.run({kExport, "training.max_steps=100000", "eval.interval=null",
                                  "checkpoint={interval: 20000, local: {directory: fast, "
                                  "interval: 1}}"},
                                 {.signal = SIGKILL, .signal_after = "  20/"});
  CHECK(stopped.exit_code != 0);
  std::size_t saved = 0;
  for (const auto& entry : fs::recursive_directory_iterator(local.path / "fast")) {
    saved += entry.path().filename() == "manifest.json" ? 1 : 0;
    CHECK(entry.path().filename() != "hf");
  }
  CHECK(saved > 0);
}

TEST_CASE("a plan counts what saves export, and a model that has no such form is refused") {
  const Workspace here(kTinyRecipe);
  const auto plan = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"plan", "recipe.yaml", "--json"});
    const auto result = here.call(more);
    REQUIRE(result.exit_code == 0);
    return result.output;
  };
  const std::string without = plan({}), with = plan({kExport});
  const std::int64_t weights = 4 * number_after(without, "\"parameters\": ");
  CHECK(number_after(without, "\"export_bytes\": ") == -1);
  CHECK(number_after(with, "\"export_bytes\": ") == weights);
  CHECK(number_after(with, "\"checkpoint_bytes\": ") ==
        number_after(without, "\"checkpoint_bytes\": ") + weights);
  const auto text = here.call({"plan", "recipe.yaml", kExport});
  CHECK(holds(text.output, {"of which ", " for Hugging Face"}));

  const auto refused = here.call(
      {"check", "recipe.yaml", kExport, "model.num_attention_heads=3", "model.head_dim=8"});
  CHECK(refused.exit_code == 2);
  CHECK(holds(refused.output, {"checkpoint.export_hf", "transformers opens a Llama only if"}));
}

TEST_CASE("an export that cannot be written fails the save, and earlier checkpoints stay") {
  const Workspace here(kTinyRecipe);
  // Embedding and head have 1 MB each; a file may have 1.5 MB, and shards are cut before.
  const std::string command = fmt::format(
      "ulimit -f 3000; exec {} run recipe.yaml {} model.vocab_size=16000 optimizer.name=sgd "
      "checkpoint.max_shard_size=64KiB",
      LLMTRAIN_EXECUTABLE, kExport);
  const auto result = test::run_process({"/bin/sh", "-c", command}, here.path, {});
  INFO(result.output);
  CHECK(result.exit_code == 7);
  CHECK(holds(result.output, {"saving step 2 failed", "model.safetensors"}));
  for (const auto& entry : fs::directory_iterator(here.path / "run" / "checkpoints")) {
    CHECK(entry.path().filename().string().find("step-") == std::string::npos);
  }
}

}  // namespace llmtrain
