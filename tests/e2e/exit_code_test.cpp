// What ends a run early: its exit code, and a message that says where and what to do.
#include <filesystem>
#include <fstream>

#include <doctest/doctest.h>

#include "lib/base/exit_codes.hpp"
#include "lib/base/file.hpp"
#include "lib/base/require.hpp"
#include "lib/checkpoint/store.hpp"
#include "lib/data/bpe_trainer.hpp"
#include "lib/train/recipe.hpp"
#include "lib/train/starts.hpp"
#include "tests/e2e/workspace.hpp"
#include "tests/support/source_tree.hpp"

namespace llmtrain {

namespace {

namespace fs = std::filesystem;

// Runs the verb and checks its end: the code and every part of the message.
void check_end(const Workspace& here, const std::vector<std::string>& arguments, int exit_code,
               const std::vector<std::string>& parts, const test::ProcessEvents& events = {}) {
  const test::ProcessResult result = here.call(arguments, events);
  INFO(fmt::format("{}\n{}", fmt::join(arguments, " "), result.output.substr(0, 4000)));
  CHECK(result.exit_code == exit_code);
  for (const std::string& part : parts) {
    CAPTURE(part);
    CHECK(result.output.find(part) != std::string::npos);
  }
}

void flip_byte(const fs::path& path, std::uint64_t offset) {
  std::string content = read_file(path);
  content[offset] = static_cast<char>(content[offset] ^ 1);
  write_file_atomic(path, content);
}

fs::path shard_of(const Workspace& here, int step) {
  return here.path / "run" / "checkpoints" / fmt::format("step-{:08}", step) /
         "shard-0000-0000.safetensors";
}

std::string repeated(std::string_view text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

}  // namespace

TEST_CASE("the help and README.md say what every exit code means") {
  const Workspace here(kTinyRecipe);
  const std::string readme = read_file(test_file("../README.md"));
  std::vector<std::string> lines{"Exit codes:"};
  for (const auto& [code, meaning] : kExitCodes) {
    lines.push_back(fmt::format("{:>2}  {}", static_cast<int>(code), meaning));
    const std::string row = fmt::format("| {} | {} |", static_cast<int>(code), meaning);
    CAPTURE(row);
    CHECK(readme.find(row) != std::string::npos);
  }
  check_end(here, {"--help"}, 0, lines);
}

TEST_CASE("0: a run that reaches its end") {
  const Workspace here(kTinyRecipe);

  check_end(here, {"run", "recipe.yaml"}, 0, {"saved run/checkpoints/step-00000006", "report: "});
  check_end(here, {"ckpt", "verify", "run"}, 0, {"step        6  valid"});
  check_end(here, {"ckpt", "ls", "run"}, 0, {"step        6  "});
}

TEST_CASE("2 for what is no run, and 4 for checkpoints of one that has none") {
  const Workspace here(kTinyRecipe);
  for (const char* verb : {"ls", "verify"}) {
    check_end(here, {"ckpt", verb, "rnu"}, 2, {"rnu: no directory of a run"});
    check_end(here, {"ckpt", verb, "."}, 2, {"no directory of a run"});
  }
  for (const std::vector<std::string>& command : {std::vector<std::string>{"status", "rnu"},
                                                  {"report", "rnu"},
                                                  {"report", "--compare", "rnu", "."}}) {
    check_end(here, command, 2, {"rnu: ", "give the "});
  }
  std::filesystem::create_directories(here.path / "run" / "checkpoints");
  check_end(here, {"ckpt", "ls", "run"}, 0, {"run: no checkpoint yet"});
  check_end(here, {"ckpt", "verify", "run"}, 4, {"run: no checkpoint yet"});
}

TEST_CASE("2: mistakes in the recipe and on the command line, with their position") {
  const Workspace here(kTinyRecipe);
  here.write("wrong.yaml", "recipe: 1\noptimizer: {lr: fast}\nmodle: {}\n");

  check_end(here, {"run", "wrong.yaml"}, 2,
            {"wrong.yaml:2:17: optimizer.lr: ", "wrong.yaml:3:1: modle: unknown key"});
  check_end(here, {"run", "recipe.yaml", "optimizer.lr=-1"}, 2, {"optimizer.lr=-1"});
  check_end(here, {"run", "nothere.yaml"}, 2, {"error: nothere.yaml: cannot open"});
  check_end(here, {"run"}, 2, {"recipe is required"});
  check_end(here, {"pln", "recipe.yaml"}, 2, {"llmtrain: no verb `pln`; did you mean `plan`?"});
  check_end(here, {"--version"}, 0, {"llmtrain "});
  const auto lost = test::run_process(
      {"/bin/sh", "-c", fmt::format("{} keys run > /dev/full", LLMTRAIN_EXECUTABLE)}, here.path,
      {});
  CHECK(lost.exit_code == 7);
  CHECK(lost.output.find("the standard output cannot be written") != std::string::npos);
  check_end(here, {"data", "inspekt", "recipe.yaml"}, 2,
            {"llmtrain data: no verb `inspekt`; did you mean `inspect`?"});
  check_end(here, {"data"}, 2, {"A subcommand is required"});
  CHECK_FALSE(fs::exists(here.path / "run"));
  here.write("short.yaml", "recipe: 1\n");
  check_end(
      here, {"check", "short.yaml"}, 2,
      {"model.architecture: required key is missing", "training.seq_len: required key is missing"});
  check_end(here, {"check", "recipe.yaml", "model.num_attention_heads=0"}, 2,
            {"model.num_attention_heads"});
  for (const char* verb : {"check", "plan", "run"}) {
    check_end(here, {verb, "recipe.yaml", "optimizer.groups=[{match: none.*, lr_scale: 2}]"}, 2,
              {"optimizer.groups.0.match: `none.*` selects no parameter"});
  }
}

TEST_CASE("2: keys of what this build does not have say so") {
  const Workspace here(kTinyRecipe);

  for (const recipe::Reserved& reserved : train::reserved_keys()) {
    const std::string path(reserved.path);
    check_end(here, {"check", "recipe.yaml", path + "={}"}, 2,
              {path, std::string(reserved.reason)});
  }
}

TEST_CASE("2: hostile YAML is refused at its position, however large and deep") {
  const Workspace here(kTinyRecipe);
  const std::string good(kTinyRecipe);
  constexpr std::size_t kMebibyte = std::size_t{1} << 20;
  std::string keys = good;
  for (int i = 0; keys.size() + 20 < kMebibyte; ++i) keys += fmt::format("key{}: 1\n", i);
  here.write("keys.yaml", keys);
  here.write("long.yaml", good + std::string(kMebibyte - good.size() + 1, '#'));
  here.write("deep.yaml", good + "x: " + repeated("[", 100000) + repeated("]", 100000));
  here.write(
      "block.yaml", good + "x:\n" + [] {
        std::string text;
        for (int i = 1; i < 500; ++i)
          text += std::string(static_cast<std::size_t>(i), ' ') + "a:\n";
        return text;
      }());
  here.write("alias.yaml", "a: &a [1, 1]\nb: [*a, *a]\n" + good);
  here.write("laughs.yaml", "a: [x]\nb: [*a, *a]\n" + good);

  check_end(here, {"run", "keys.yaml"}, 2, {"keys.yaml:13:1: key0: unknown key", "... and "});
  check_end(here, {"run", "long.yaml"}, 2, {"long.yaml", "1 MiB"});
  check_end(here, {"run", "deep.yaml"}, 2, {"deep.yaml:13:68: nested deeper than 64 levels"});
  check_end(here, {"run", "block.yaml"}, 2, {"block.yaml:7", "nested deeper than 64 levels"});
  check_end(here, {"run", "alias.yaml"}, 2, {"alias.yaml:1:4: anchors (&name) are not used"});
  check_end(here, {"run", "laughs.yaml"}, 2, {"laughs.yaml:2:5: "});
}

TEST_CASE("2: a tokenizer that is larger than the model's vocabulary") {
  const Workspace here(kTinyRecipe);
  const std::string text = read_file(here.path / "text.txt");
  const std::string_view view = text;
  fs::create_directory(here.path / "tok");
  data::save_tokenizer(*data::train_bpe({&view, 1}, {.vocab_size = 270}), here.path / "tok");

  check_end(here, {"run", "recipe.yaml", "tokenizer={type: bpe, path: tok}"}, 2,
            {"tokenizer.path: the tokenizer has 270 tokens, but model.vocab_size is 257 (set it to "
             "at least 270)"});
  check_end(here, {"run", "recipe.yaml", "tokenizer={type: bpe, vocab_size: 270}"}, 2,
            {"larger than model.vocab_size 257"});
  check_end(here, {"run", "recipe.yaml", "model.vocab_size=256"}, 2, {"256 is below the 257"});
  check_end(here,
            {"run", "recipe.yaml", "tokenizer={type: bpe, path: tok}", "model.vocab_size=270"}, 0,
            {});
}

TEST_CASE("2: a prompt that is too long is refused before the first step") {
  const Workspace here(kTinyRecipe);
  const std::string prompt(64, 'a');

  check_end(here, {"run", "recipe.yaml", "eval.sample_prompts=[" + prompt + "]"}, 2,
            {"eval.sample_prompts", "65 tokens", "fewer than 64"});
  CHECK_FALSE(fs::exists(shard_of(here, 2)));
}

TEST_CASE("3: a run that does not fit says so, with remedies, before it reads any data") {
  const Workspace here(kTinyRecipe);

  check_end(here,
            {"run", "recipe.yaml", "run.memory_limit=1MiB", "data.sources=[{path: nothere.txt}]"},
            3,
            {"1.00 MiB", "training.micro_batch_size", "activation_checkpoint.mode: full",
             "precision.compute: bf16"});
  CHECK_FALSE(fs::exists(here.path / "run"));
  check_end(here, {"plan", "recipe.yaml", "run.memory_limit=1MiB"}, 3, {"with gaps of the arena"});
  check_end(here, {"plan", "recipe.yaml", "run.memory_limit=100MiB"}, 0, {});
  check_end(here,
            {"run", "recipe.yaml", "run.memory_limit=10000000GiB", "model.hidden_size=1000000",
             "model.num_hidden_layers=3", "data.sources=[{path: nothere.txt}]"},
            3, {"a checkpoint needs ", "TiB of disk", "choose another run.output_dir"});
}

TEST_CASE("2: what is no number of a step, with the verb that lists those that there are") {
  const Workspace here(kTinyRecipe);
  REQUIRE(here.run().exit_code == 0);

  for (const char* const step :
       {"-1", "-4", "abc", "4x", "4.0", "1e1", "0x4", " 4", "", "99999999999999999999999"}) {
    const std::string says = fmt::format("--step: `{}` is no number of a step", step);
    for (const std::string verb : {"generate", "eval"}) {
      check_end(here, {verb, "run", "--step", step}, 2, {says, "llmtrain ckpt ls"});
    }
    check_end(here, {"ckpt", "export", "run", "hf", "--step", step}, 2, {says});
  }
  check_end(here, {"ckpt", "export", "run", "hf", "--step", "3"}, 4,
            {"there is no step 3 in run/checkpoints; there are steps 2, 4, 6"});
  check_end(here, {"ckpt", "export", "run", "hf", "--step", "4"}, 0, {"hf: step 4 in fp32"});
  check_end(here, {"ckpt", "export", "run", "hf", "--step", "4"}, 2,
            {"hf: exists and is not empty; name another directory or remove it"});
}

TEST_CASE("4: who evaluates in another directory than the run's is told where its text is") {
  const Workspace here(kTinyRecipe);
  REQUIRE(here.run().exit_code == 0);
  here.write("elsewhere/other.txt", "some text\n");
  const auto result = test::run_process({LLMTRAIN_EXECUTABLE, "eval", "../run"},
                                        (here.path / "elsewhere").string(), {});
  CHECK(result.exit_code == 4);
  CHECK(result.output.find(": is not in " + (here.path / "elsewhere").string() +
                           "; the run's recipe names it from the directory that the run was "
                           "started in: call llmtrain there") != std::string::npos);
}

TEST_CASE("4: data that cannot be trained on is named with its place and a remedy") {
  const Workspace here(kTinyRecipe);
  here.write("empty.txt", "");
  here.write("mixed/a.txt", "some text\n");
  here.write("mixed/b.txt", std::string("binary\0junk", 11));
  here.write("lines.jsonl", "{\"text\": \"good\"}\n\n{\"body\": \"no text\"}\n");
  here.write("broken.jsonl", "{\"text\": \"good\"}\n{\"text\": \n");
  here.write("number.jsonl", "{\"text\": 5}\n");
  const auto refused = [&](const std::string& path, const std::vector<std::string>& parts) {
    check_end(here, {"run", "recipe.yaml", "data.sources=[{path: " + path + "}]"}, 4, parts);
  };

  refused("empty.txt", {"empty.txt: no document with text", "check the data sources"});
  refused("nothere.txt", {"nothere.txt: cannot stat"});
  refused("mixed", {"mixed/b.txt: binary data: NUL byte at offset 6; leave it out"});
  refused("lines.jsonl",
          {"lines.jsonl:3: no key 'text'; the line has 'body'; set text_key to the one"});
  refused("broken.jsonl", {"broken.jsonl:2: not valid JSON"});
  refused("number.jsonl", {"number.jsonl:1: 'text' is number, not a string"});
  check_end(here, {"run", "recipe.yaml", "data.eval_modulus=1000000"}, 4,
            {"selects no document with text of text.txt; use a smaller data.eval_modulus"});
}

TEST_CASE("4: a damaged checkpoint is passed over, and a run without a valid one ends") {
  const Workspace here(kTinyRecipe);
  REQUIRE(here.run().exit_code == 0);
  const std::string whole = fingerprint(here.path, 6);
  flip_byte(shard_of(here, 6), 9000);

  check_end(here, {"ckpt", "verify", "run"}, 4, {"step        6  INVALID"});
  {  // those behind a damaged one are listed, too
    const std::string manifest =
        read_file(here.path / "run/checkpoints/step-00000002/manifest.json");
    std::ofstream(here.path / "run/checkpoints/step-00000002/manifest.json") << "{}";
    check_end(here, {"ckpt", "ls", "run"}, 4,
              {"step        2  INVALID: ", "step        4  ", "step        6  "});
    std::ofstream(here.path / "run/checkpoints/step-00000002/manifest.json") << manifest;
  }
  // Metrics, too, tell how far the last start came.
  std::filesystem::remove(here.path / "run/status.json");
  check_end(here, {"run", "recipe.yaml", "checkpoint.resume=must"}, 0,
            {"checkpoint of step 6 is not used: shard-0000-0000.safetensors: tensor "
             "'lm_head.weight': does not match the hash",
             "resumed from step 4 (newer and not valid: 1)"});
  CHECK(fingerprint(here.path, 6) == whole);
  // The start counts from the step that it came to, and as one.
  const std::vector<train::Start> starts = train::read_starts(here.path / "run");
  REQUIRE(starts.size() == 2);
  CHECK(starts[1].step == 4);
  CHECK(starts[1].lost_steps == 2);

  for (const int step : {2, 4, 6}) flip_byte(shard_of(here, step), 9000);
  for (const std::string mode : {"must", "auto"}) {
    check_end(
        here, {"run", "recipe.yaml", "checkpoint.resume=" + mode}, 4,
        {"run/checkpoints: no valid checkpoint to resume from; restore one, or choose another "
         "run.output_dir"});
  }
  fs::remove_all(here.path / "run");
  check_end(here, {"run", "recipe.yaml", "checkpoint.resume=must"}, 4, {"no valid checkpoint"});
  check_end(here, {"generate", "run"}, 2, {"run/resolved.yaml"});
}

TEST_CASE("4: a step that is not there, and one of which a file is not") {
  const Workspace here(kTinyRecipe);
  REQUIRE(here.run().exit_code == 0);
  const std::string says = "there is no step 9 in run/checkpoints; there are steps 2, 4, 6";
  check_end(here, {"eval", "run", "--step", "9"}, 4, {says});
  check_end(here, {"ckpt", "export", "run", "hf", "--step", "9"}, 4, {says});
  fs::remove(shard_of(here, 4));
  check_end(
      here, {"ckpt", "ls", "run"}, 4,
      {"step        2 ", "seen  damaged: shard-0000-0000.safetensors is missing\nstep        6 "});
  check_end(here, {"eval", "run", "--step", "4"}, 4,
            {"the checkpoint of step 4 is not valid: shard-0000-0000.safetensors: cannot open"});
  const fs::path checkpoints = here.path / "run" / "checkpoints";
  fs::copy(checkpoints / "step-00000002", checkpoints / "step-00000003",
           fs::copy_options::recursive);
  check_end(here, {"ckpt", "ls", "run"}, 4,
            {"seen  damaged: manifest.json is of step 2, the directory of step 3\n"});
}

TEST_CASE("4: a checkpoint of another run is refused") {
  const Workspace here(kTinyRecipe);
  REQUIRE(here.run().exit_code == 0);
  const auto refused = [&](const std::string& change, const std::vector<std::string>& parts) {
    check_end(here, {"run", "recipe.yaml", change}, 4, parts);
  };

  refused("run.seed=6", {"made with run.seed 5, the recipe says 6"});
  refused("training.seq_len=32", {"is not what step 6 was trained on", "another run.output_dir"});
  refused("model.num_hidden_layers=3", {"model.layers.2.", "of another model or optimizer",
                                        "; model.num_hidden_layers: 2 -> 3; set the recipe back"});
  refused("optimizer.name=sgd", {"#m", "of another model or optimizer",
                                 "; optimizer.name: adamw -> sgd", "another run.output_dir"});
  // Of tensors with the same shapes.
  refused("model.num_attention_heads=4",
          {"the checkpoint of step 6 is of another model: model.num_attention_heads is 2 there and "
           "4 in the recipe, so that",
           "begin a new run", "with model.init_from"});
  refused("model.num_key_value_heads=1", {});
  refused("model.rms_norm_eps=1e-6", {"model.rms_norm_eps is 1e-05 there and 1e-06 in the recipe"});
  const auto longer = here.run({"training.max_steps=8", "model.rope_theta=500000",
                                "model.max_position_embeddings=128", "model.head_dim=8",
                                "model.attention_dropout=0.1"});
  INFO(longer.output);
  CHECK(longer.exit_code == 0);
  CHECK(holds(longer.output, {"changed since then: model.rope_theta: 10000.0 -> 500000.0"}));
}

TEST_CASE("2: what is no run is not mistaken for a recipe") {
  const Workspace here(kTinyRecipe);

  for (const std::string verb : {"generate", "eval"}) {
    check_end(here, {verb, "nothere"}, 2, {"nothere: no run (there is no nothere/resolved.yaml)"});
  }
}

TEST_CASE("7: a cache that cannot be made") {
  const Workspace here(kTinyRecipe);

  for (const char* tokenizer : {"{type: bytes}", "{type: bpe, vocab_size: 257}"}) {
    check_end(
        here,
        {"run", "recipe.yaml", "data.cache_dir=text.txt/x", std::string("tokenizer=") + tokenizer},
        7, {"text.txt", "cannot create"});
  }
}

TEST_CASE("7: a disk that is full during a save harms no earlier checkpoint") {
  const Workspace here(kTinyRecipe);
  REQUIRE(here.run().exit_code == 0);
  const std::string before = fingerprint(here.path, 6);

  check_end(
      here, {"run", "recipe.yaml", "training.max_steps=12"}, 7,
      {"resumed from step 6", "saving step 8 failed", "shard-0000-0000.safetensors: cannot write",
       "see `ulimit -f`; earlier checkpoints are intact\n"},
      {.largest_file_bytes = 100'000});

  CHECK(fingerprint(here.path, 6) == before);
  const auto store = checkpoint::CheckpointStore::open_reader(here.path / "run" / "checkpoints");
  CHECK(store.list() == std::vector<std::uint64_t>{2, 4, 6});
  check_end(here, {"ckpt", "verify", "run"}, 0, {"step        6  valid"});
  for (const auto& entry : fs::directory_iterator(here.path / "run" / "checkpoints")) {
    CHECK(entry.path().string().find(".tmp-") == std::string::npos);
  }
  // With room again the run ends as if nothing had happened.
  const Workspace other(kTinyRecipe);
  REQUIRE(other.run().exit_code == 0);
  REQUIRE(other.run({"training.max_steps=12"}).exit_code == 0);
  REQUIRE(here.run({"training.max_steps=12"}).exit_code == 0);
  CHECK(fingerprint(here.path, 12) == fingerprint(other.path, 12));
}

TEST_CASE("7: a run directory that cannot be written") {
  const Workspace here(kTinyRecipe);
  here.write("run", "a file where the directory should be");

  check_end(here, {"run", "recipe.yaml"}, 7, {"run"});
}

}  // namespace llmtrain
