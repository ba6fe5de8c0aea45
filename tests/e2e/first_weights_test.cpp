// First weights from a directory of Hugging Face.
#include <filesystem>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/base/file.hpp"
#include "tests/e2e/workspace.hpp"

namespace llmtrain {

namespace fs = std::filesystem;

TEST_CASE("model.init_from starts from the weights of a Hugging Face directory, bit for bit") {
  const Workspace here(kTinyRecipe);
  run_well(here, {});
  REQUIRE(here.call({"ckpt", "export", "run", "hf"}).exit_code == 0);
  fs::remove_all(here.path / "run");

  run_well(here, {"model.init_from=hf", "run.seed=77", "optimizer.lr=0", "training.max_steps=1"});
  REQUIRE(here.call({"ckpt", "export", "run", "again"}).exit_code == 0);
  CHECK(read_file(here.path / "again" / "model.safetensors") ==
        read_file(here.path / "hf" / "model.safetensors"));

  const auto other =
      here.run({"model.init_from=hf", "model.rope_theta=500", "run.output_dir=other"});
  CHECK(other.exit_code == 2);
  CHECK(holds(other.output, {"model.init_from=hf: ", "rope_theta 500 and 10000"}));

  // Weights as the recipe says, beside a file that says something else.
  const std::string config = read_file(here.path / "hf" / "config.json");
  for (const auto& [key, value, said, difference] :
       {std::tuple("hidden_size", "16", "18", "hidden_size 16 and 18"),
        {"attention_bias", "false", "true", "attention_bias false and true"}}) {
    const std::string line = fmt::format("\"{}\": ", key);
    REQUIRE(config.find(line + value) != std::string::npos);
    std::string wrong = config;
    wrong.replace(config.find(line), line.size() + std::string(value).size(), line + said);
    here.write("hf/config.json", wrong);
    const auto refused = here.run({"model.init_from=hf", "run.output_dir=other"});
    CHECK(refused.exit_code == 2);
    CHECK(holds(refused.output, {"hf/config.json", difference, "(set the recipe's keys"}));
  }
}

TEST_CASE("unusable first weights are refused by check and plan and run before any data is read") {
  const Workspace here(kTinyRecipe);
  run_well(here, {"training.max_steps=1"});
  REQUIRE(here.call({"ckpt", "export", "run", "hf"}).exit_code == 0);
  fs::remove_all(here.path / "run");
  const std::string config = read_file(here.path / "hf" / "config.json");
  const std::string weights = read_file(here.path / "hf" / "model.safetensors");
  const auto refused = [&](int exit_code, const std::vector<std::string>& parts) {
    for (const std::string command : {"check", "plan", "run"}) {
      const auto result =
          here.call({command, "recipe.yaml", "model.init_from=hf", "data.cache_dir=cache"});
      INFO(command, ": ", result.output);
      CHECK(result.exit_code == exit_code);
      CHECK(holds(result.output, parts));
      CHECK(!fs::exists(here.path / "cache"));
    }
  };
  std::string other = config;
  other.replace(other.find("\"hidden_size\": 16"), 17, "\"hidden_size\": 18");
  here.write("hf/config.json", other);
  refused(2, {"different models: hidden_size 16 and 18 (set the recipe's keys"});
  here.write("hf/config.json", config.substr(0, config.size() / 2));
  refused(4, {"hf/config.json: not valid JSON: ", "line ", "; correct it, or take the file again"});
  fs::remove(here.path / "hf" / "config.json");
  refused(2, {"hf/config.json is missing (name the directory of a model"});
  here.write("hf/config.json", config);
  here.write("hf/model.safetensors", weights.substr(0, weights.size() - 1));
  refused(4, {"hf/model.safetensors"});
  fs::remove(here.path / "hf" / "model.safetensors");
  refused(4, {"hf: has neither model.safetensors nor", "; fetch the model's safetensors files"});
  here.write("hf/model.safetensors.index.json", R"({"weight_map": {"a": "part.safetensors"}})");
  refused(4, {"lists part.safetensors, which is missing; fetch"});
  fs::remove(here.path / "hf" / "model.safetensors.index.json");
  here.write("hf/model.safetensors", weights);
  run_well(here, {"model.init_from=hf", "training.max_steps=1"});

  // A run that goes on from its checkpoint needs them no more.
  fs::remove_all(here.path / "hf");
  for (const std::string command : {"check", "plan", "run"}) {
    const auto result = here.call({command, "recipe.yaml", "model.init_from=hf"});
    INFO(command, ": ", result.output);
    CHECK(result.exit_code == 0);
  }
}

}  // namespace llmtrain
