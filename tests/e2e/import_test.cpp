// `llmtrain ckpt import`: a run that begins with the weights of a Hugging Face directory.
#include <filesystem>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/base/file.hpp"
#include "tests/e2e/workspace.hpp"

namespace llmtrain {

namespace fs = std::filesystem;

namespace {

/// A place with weights in `hf` and no run.
struct Weights : Workspace {
  Weights() : Workspace(kTinyRecipe) {
    run_well(*this, {"run.seed=99"});
    REQUIRE(call({"ckpt", "export", "run", "hf"}).exit_code == 0);
    fs::remove_all(path / "run");
  }
  test::ProcessResult import(const std::vector<std::string>& overrides = {},
                             const std::string& from = "hf") const {
    std::vector<std::string> arguments{"ckpt", "import", "recipe.yaml", from};
    arguments.insert(arguments.end(), overrides.begin(), overrides.end());
    return call(arguments);
  }
};

}  // namespace

TEST_CASE("a run with imported weights has the bits of one with model.init_from") {
  const Weights here;
  run_well(here, {"model.init_from=hf", "eval.at_start=true"});
  const std::string expected = fingerprint(here.path, 6);
  for (const std::string from : {"hf", "hf/model.safetensors"}) {
    fs::remove_all(here.path / "run");
    const auto imported = here.import({"eval.at_start=true"}, from);
    INFO(imported.output);
    REQUIRE(imported.exit_code == 0);
    CHECK(holds(imported.output, {"saved run/checkpoints/step-00000000"}));
    CHECK(holds(here.call({"ckpt", "ls", "run"}).output, {"step        0"}));
    CHECK(here.call({"ckpt", "verify", "run"}).exit_code == 0);
    REQUIRE(here.call({"ckpt", "export", "run", "again"}).exit_code == 0);
    CHECK(read_file(here.path / "again" / "model.safetensors") ==
          read_file(here.path / "hf" / "model.safetensors"));
    fs::remove_all(here.path / "again");
    const auto run = here.run({"eval.at_start=true"});
    INFO(run.output);
    CHECK(run.exit_code == 0);
    CHECK(holds(run.output, {"resumed from step 0"}));
    CHECK(fingerprint(here.path, 6) == expected);
  }
}

TEST_CASE("one process imports for the recipe of several, which must go on or be new") {
  const Weights here;
  const std::vector<std::string> wide{"parallelism={dp: 2, zero: 1}", "checkpoint.resume=must"};
  CHECK(here.run({"checkpoint.resume=must"}).exit_code == 4);
  const auto imported = here.import(wide);
  INFO(imported.output);
  REQUIRE(imported.exit_code == 0);
  run_well(here, {"checkpoint.resume=must"});
}

TEST_CASE("an import is refused where there are checkpoints, and for weights that do not fit") {
  const Weights here;
  const auto refused = [&](int exit_code, const std::vector<std::string>& overrides,
                           const std::vector<std::string>& parts, const std::string& from = "hf") {
    const auto result = here.import(overrides, from);
    INFO(result.output);
    CHECK(result.exit_code == exit_code);
    CHECK(holds(result.output, parts));
    CHECK(!fs::exists(here.path / "run" / "checkpoints" / "step-00000000"));
  };
  refused(2, {"model.init_from=other"},
          {"model.init_from=other", "other weights than hf are to be imported", "leave it out"});
  refused(2, {"checkpoint.resume=never"}, {"checkpoint.resume=never", "would refuse"});
  refused(2, {"model.rope_theta=500"}, {"rope_theta 500 and 10000", "set the recipe's keys"});
  refused(2, {}, {"missing/config.json is missing"}, "missing");
  here.write("bare.safetensors", read_file(here.path / "hf" / "model.safetensors"));
  refused(2, {}, {"config.json is missing"}, "bare.safetensors");
  const std::string weights = read_file(here.path / "hf" / "model.safetensors");
  here.write("hf/model.safetensors", weights.substr(0, weights.size() - 1));
  refused(4, {}, {"hf/model.safetensors"});
  here.write("hf/model.safetensors", weights);

  run_well(here, {"model.init_from=hf"});
  refused(2, {},
          {"run.output_dir run has checkpoints, from which `llmtrain run` goes on",
           "name another run.output_dir, or delete run/checkpoints"});
  CHECK(here.import({"model.init_from=hf", "run.output_dir=other"}).exit_code == 0);
}

}  // namespace llmtrain
