#include "lib/recipe/load.hpp"

#include <filesystem>
#include <map>

#include <doctest/doctest.h>

#include "lib/base/file.hpp"
#include "lib/recipe/dump.hpp"
#include "tests/unit/recipe/sample.hpp"

namespace llmtrain::recipe {

using namespace sample;
using Lines = std::vector<std::string>;

namespace {
const std::string kGood = "model: {hidden_size: 64}\n";
}

TEST_CASE("a recipe fills the declared fields and leaves the rest at their defaults") {
  Root root;

  load(root, request("recipe: 1\n"
                     "x-note: anything goes here\n"
                     "run: {name: \"7\", seed: 18446744073709551615, tags: [x], x-why: {a: [b]}}\n"
                     "model:\n"
                     "  hidden_size: 6_4\n"
                     "  norm: layer_norm\n"
                     "  init:\n"
                     "data:\n"
                     "  sources:\n"
                     "    - path: a.txt\n"
                     "      weight: 1e-4\n"
                     "    - {path: 010}\n"
                     "  cache: 16MiB\n"
                     "training: {max_tokens: 2M, max_time: 1h30min, ramp: {start: 8}}\n"
                     "optimizer: {name: sgd, momentum: 0.5, max_grad_norm: null}\n"
                     "lr_scheduler: {warmup: 2B tok, interval: 30min}\n"));

  CHECK(root.run.name() == "7");
  CHECK(root.run.seed() == 18446744073709551615u);
  CHECK(root.run.tags() == Lines{"x"});
  CHECK(root.model.hidden_size() == 64);
  CHECK(root.model.norm() == Norm::layer);
  CHECK(root.model.init.std() == 0.02);
  REQUIRE(root.data.sources.size() == 2);
  CHECK(root.data.sources[0].weight() == 1e-4);
  CHECK(root.data.sources[1].path() == "010");
  CHECK_FALSE(root.data.sources[1].weight().has_value());
  CHECK(root.data.cache() == 16u << 20);
  CHECK(root.training.max_tokens().value() == 2'000'000u);
  CHECK(root.training.max_time()->seconds == 5400.0);
  CHECK(root.training.micro_batch_size().is_auto());
  CHECK(root.training.ramp);
  CHECK(root.training.ramp.start() == 8u);
  CHECK(root.optimizer.name().name == "sgd");
  CHECK(root.optimizer.name.as<SgdOptions>().momentum() == 0.5);
  CHECK_THROWS_AS(root.optimizer.name.as<AdamOptions>(), InternalError);
  CHECK(root.optimizer.lr() == 3e-4);
  CHECK_FALSE(root.optimizer.max_grad_norm().has_value());
  CHECK(root.lr_scheduler.warmup() == Span::tokens(2'000'000'000));
  CHECK(root.lr_scheduler.interval() == Interval::every_seconds(1800));
  CHECK(root.model.hidden_size.where() == "r.yaml:5:16");
  CHECK(root.optimizer.lr.where() == "default");
  CHECK_FALSE(root.optimizer.lr.is_set());
}

TEST_CASE("ten different mistakes in one file are ten issues at their positions in one go") {
  Root root;
  const std::string text =
      "recipe: 2\n"
      "run:\n"
      "  sed: 7\n"
      "  verbose: yes\n"
      "model:\n"
      "  hidden_size: 60\n"
      "data:\n"
      "  sources:\n"
      "    - weight: 1\n"
      "training:\n"
      "  seq_len: 2.5\n"
      "  max_tokens: 5 parsecs\n"
      "  learning_rate: 1e-3\n"
      "optimizer:\n"
      "  lr: -1\n"
      "  lr: 1\n"
      "  name: adamv\n";

  const Lines lines = issues_of(root, request(text));

  CHECK(
      lines ==
      Lines{"r.yaml:1:9: recipe: this program reads recipes of version 1, found `2` (write recipe: "
            "1)",
            "r.yaml:3:3: run.sed: unknown key (did you mean `seed`?; allowed: name, seed, tags, "
            "verbose)",
            "r.yaml:4:12: run.verbose: expected true or false, found `yes` (write true or false)",
            "r.yaml:5:1: model.num_attention_heads: must divide model.hidden_size (8 divides 64)",
            "r.yaml:9:7: data.sources.0.path: required key is missing (text: file or folder)",
            "r.yaml:11:12: training.seq_len: expected an integer, found `2.5`",
            "r.yaml:12:15: training.max_tokens: expected a count like 2000, 2M, 64Ki, found `5 "
            "parsecs`",
            "r.yaml:13:3: training.learning_rate: is a key of other tools (here it is "
            "`optimizer.lr`)",
            "r.yaml:15:7: optimizer.lr: must be >= 0, found `-1`",
            "r.yaml:16:3: optimizer.lr: duplicate key, first given at r.yaml:15:3 (keep one of "
            "them)",
            "r.yaml:17:9: optimizer.name: unknown value `adamv` (did you mean `adamw`?; allowed: "
            "adamw, sgd, none)"});
  CHECK_THROWS_AS(load(root, request(text)), InvalidRecipe);
}

TEST_CASE("an unknown key is explained by what it most likely means") {
  const std::map<std::string, std::string> cases = {
      {"run: {Seed: 1}", "did you mean `seed`?; allowed: name, seed, tags, verbose"},
      {"run: {lr: 1}", "did you mean `optimizer.lr`?"},
      {"training: {max_grad_norm: 1}", "did you mean `optimizer.max_grad_norm`?"},
      {"training: {seq-len: 1}",
       "did you mean `seq_len`?; allowed: seq_len, micro_batch_size, max_tokens, max_time, ramp"},
      {"optimizer: {momentum: 0.5}", "only with optimizer.name: sgd"},
      {"optimiser: {lr: 1}",
       "did you mean `optimizer`?; allowed: run, model, data, training, optimizer, lr_scheduler"},
      {"run: {zzzzzz: 1}", "allowed: name, seed, tags, verbose"},
      {"run: {gradient_accumulation_steps: 1}",
       "here it is `training.global_batch_size`; accumulation follows from "
       "training.global_batch_size and training.micro_batch_size"},
  };
  for (const auto& [text, hint] : cases) {
    CAPTURE(text);
    Root root;
    const auto issues = check(root, request(kGood + text));
    REQUIRE(issues.size() == 1);
    CHECK(issues[0].hint == hint);
  }
}

TEST_CASE("a reserved key says why this build does not have it") {
  Root root;
  constexpr Reserved kReserved[] = {{"parallelism.ep", "this build has no mixture of experts yet"},
                                    {"peft", "this build has no adapters yet"}};
  LoadRequest with = request(kGood + "peft: {r: 8}\npeftx: 1\n");
  with.reserved = kReserved;

  const auto issues = check(root, with);

  REQUIRE(issues.size() == 2);
  CHECK(issues[0].text() == "r.yaml:2:1: peft: this build has no adapters yet");
  CHECK(issues[1].problem == "unknown key");
}

TEST_CASE("values of the wrong shape are refused with what was expected") {
  const std::map<std::string, std::string> cases = {
      {"run: 3", "run: expected a section of `key: value`, found `3`"},
      {"run: {tags: x}", "run.tags: expected list of texts, found `x` (write [a, b])"},
      {"run: {tags: [x, [y]]}", "run.tags: expected text, found a list"},
      {"run: {name: true}",
       "run.name: expected text, found `true` (put it in quotes if it is text)"},
      {"run: {name: }", "run.name: expected text, found no value (null)"},
      {"run: {seed: \"3\"}",
       "run.seed: expected an integer, found the text `3` (remove the quotes)"},
      {"run: {seed: -1}", "run.seed: must be between 0 and 18446744073709551615, found `-1`"},
      {"run: {seed: 2k}",
       "run.seed: expected an integer, found `2k` (this key takes no unit: write 2000)"},
      {"data: {sources: {path: x}}", "data.sources: expected a list of sections, found a section"},
      {"data: {sources: [x]}", "data.sources.0: expected a section of `key: value`, found `x`"},
      {"data: {sources: }", "data.sources: expected a list of sections, found no value (null)"},
      {"optimizer: {betas: [0.9]}", "optimizer.betas: must have exactly 2 elements, found 1"},
      {"optimizer: {betas: [0.9, 1]}", "optimizer.betas: must be >= 0 and < 1, found `1`"},
      {"optimizer: {lr: .inf}", "optimizer.lr: `.inf` must be a finite number"},
      {"optimizer: {name: [sgd]}",
       "optimizer.name: expected a name, found a list (allowed: adamw, sgd, none)"},
      {"training: {ramp: {}}",
       "training.ramp.start: required key is missing (count (2000, 2M, "
       "64Ki): first batch size)"},
      {"training: {micro_batch_size: 0}", "training.micro_batch_size: must be >= 1, found `0`"},
      {"lr_scheduler: {warmup: 101%}",
       "lr_scheduler.warmup: must be >= 0 and <= 100, found `101%`"},
  };
  for (const auto& [text, message] : cases) {
    CAPTURE(text);
    const Lines lines = issues_of(kGood + text + "\n");
    REQUIRE(lines.size() == 1);
    CHECK(lines[0].substr(lines[0].find(": ") + 2) == message);
  }
}

TEST_CASE("rules over several keys are not judged when they read a refused value") {
  CHECK(issues_of("model: {hidden_size: x, num_attention_heads: 3}").size() == 1);
  CHECK(issues_of("model: {hidden_size: 64, num_attention_heads: 3, norm: x}").size() == 2);
}

TEST_CASE("overrides win over the file and say where they come from") {
  Root root;

  load(root, request(kGood + "optimizer: {lr: 1}\n",
                     {"optimizer.lr=1e-3", "data.sources.0.path=a=b", "data.sources.1.path=c",
                      "data.sources.1.weight=2", "run={name: new}", "run.tags=[x, y]",
                      "~training.seq_len", "training.ramp.start=4", "~training.ramp"}));

  CHECK(root.optimizer.lr() == 1e-3);
  CHECK(root.optimizer.lr.where() == "optimizer.lr=1e-3 on the command line");
  CHECK(root.data.sources[0].path() == "a=b");
  CHECK(root.data.sources[1].weight() == 2.0);
  CHECK(root.run.name() == "new");
  CHECK(root.run.tags() == Lines{"x", "y"});
  CHECK_FALSE(root.training.ramp);
}

TEST_CASE("~key takes a value of the file back to its default") {
  Root root;

  load(root, request(kGood + "optimizer: {lr: 1, eps: 1}\nrun: {seed: 3}\n",
                     {"~optimizer.lr", "~run", "~optimizer.betas"}));

  CHECK(root.optimizer.lr() == 3e-4);
  CHECK_FALSE(root.optimizer.lr.is_set());
  CHECK(root.run.seed() == 42u);
}

TEST_CASE("a wrong override is reported by the argument itself") {
  const std::map<std::string, std::string> cases = {
      {"optimizer.lr=x", "command line: optimizer.lr=x: expected a number, found `x`"},
      {"optimizer.lr=", "command line: optimizer.lr=: expected a number, found no value (null)"},
      {"optimizer.Lr=1",
       "command line: optimizer.Lr=1: unknown key (did you mean `lr`?; allowed: name, betas, eps, "
       "lr, max_grad_norm)"},
      {"optimiser.lr=1",
       "command line: optimiser.lr=1: optimiser: unknown key (did you mean `optimizer`?; allowed: "
       "run, model, data, training, optimizer, lr_scheduler)"},
      {"nonsense", "command line: nonsense: is no override (write key.path=value or ~key.path)"},
      {"=3", "command line: =3: is no override (write key.path=value or ~key.path)"},
      {"run..seed=3",
       "command line: run..seed=3: a key path has a part without a name (write a.b=value)"},
      {"run.seed.x=3",
       "command line: run.seed.x=3: run.seed: expected an integer, found a section"},
      {"model.hidden_size.x=3", "command line: model.hidden_size.x=3: cannot set `x` below `64`"},
      {"data.sources.1.path=x",
       "command line: data.sources.1.path=x: the list has 0 elements, `1` is none of them nor the "
       "next"},
      {"run.tags=[a",
       "command line: run.tags=[a: a key must be text (is every `[` and `{` closed?)"},
      {"~run.sed", "command line: ~run.sed: unknown key (did you mean `run.seed`?)"},
      {"include=[x]", "command line: include=[x]: cannot be set on the command line"},
      {"run.name=\x01",
       "command line: run.name=?: the argument holds the control character 0x01 (is "
       "this a text file?)"},
  };
  for (const auto& [argument, message] : cases) {
    CAPTURE(argument);
    const Lines lines = issues_of(kGood, {argument});
    REQUIRE(lines.size() == 1);
    CHECK(lines[0] == message);
  }
}

TEST_CASE("included recipes come first, and every value knows its file") {
  const auto folder = std::filesystem::temp_directory_path() / "llmtrain_recipe_include";
  std::filesystem::create_directories(folder / "sub");
  write_file_atomic(folder / "sub/base.yaml",
                    "include: [lower.yaml, shipped]\nmodel: {hidden_size: 64, init: {std: 1}}\n"
                    "run: {tags: [from, base]}\n");
  write_file_atomic(folder / "sub/lower.yaml", "model: {hidden_size: 32}\nrun: {seed: 1}\n");
  write_file_atomic(folder / "main.yaml",
                    "include: [sub/base.yaml]\nrun:\n  tags: [main]\nmodel:\n  norm: layer_norm\n");
  LoadRequest with;
  with.file = folder / "main.yaml";
  with.builtin = [](std::string_view name) {
    return name == "shipped" ? std::optional<std::string>("run: {verbose: true}") : std::nullopt;
  };
  Root root;

  load(root, with);

  CHECK(root.model.hidden_size() == 64);
  CHECK(root.model.hidden_size.where() == (folder / "sub/base.yaml:2:22").string());
  CHECK(root.model.norm.where() == (folder / "main.yaml:5:9").string());
  CHECK(root.run.seed() == 1u);
  CHECK(root.run.tags() == Lines{"main"});
  CHECK(root.run.verbose.where() == "shipped:1:16");
}

TEST_CASE("includes that cannot be read are issues at their position, beside all others") {
  const auto folder = std::filesystem::temp_directory_path() / "llmtrain_recipe_cycle";
  std::filesystem::create_directories(folder);
  write_file_atomic(folder / "a.yaml", "include: [b.yaml]\n");
  write_file_atomic(folder / "b.yaml", "include:\n  - ../llmtrain_recipe_cycle/a.yaml\n");
  Root root;
  LoadRequest with;
  with.file = folder / "a.yaml";

  auto issues = check(root, with);
  REQUIRE(issues.size() == 1);
  CHECK(issues[0].line == 2);
  CHECK(issues[0].column == 5);
  CHECK(issues[0].problem.ends_with("a.yaml includes itself"));

  CHECK(issues_of("include: [nowhere.yaml]\nrun: {sed: 1}\n").size() == 2);
  CHECK(issues_of("include: nowhere.yaml\n")[0] ==
        "r.yaml:1:10: include: expected a list of recipes, found `nowhere.yaml` (write include: "
        "[base.yaml])");
  CHECK(issues_of("include: [[a]]\n").size() == 1);
}

TEST_CASE("includes are bounded in depth and number") {
  Root root;
  LoadRequest with = request("include: [r0]\n");
  with.builtin = [](std::string_view name) -> std::optional<std::string> {
    if (!name.starts_with('r')) return std::nullopt;
    const std::string next = "r" + std::to_string(std::stoi(std::string(name.substr(1))) + 1);
    return "include: [" + next + "]\n";
  };
  const auto deep = check(root, with);
  REQUIRE(deep.size() == 1);
  CHECK(deep[0].problem == "includes are nested deeper than 8 or more than 64");

  with.builtin = [](std::string_view name) -> std::optional<std::string> {
    const int depth = std::stoi(std::string(name.substr(1)));
    std::string next = "r" + std::to_string(depth + 1);
    return depth < 6 ? "include: [" + next + ", " + next + ", " + next + "]\n" : "run: {seed: 1}\n";
  };
  CHECK_FALSE(check(root, with).empty());
}

TEST_CASE("an empty section does not silently drop what an included recipe set below it") {
  LoadRequest with = request("include: [base]\nrun:\n");
  with.builtin = [](std::string_view) {
    return std::optional<std::string>("model: {hidden_size: 64}\nrun: {seed: 1}\n");
  };
  Root root;

  CHECK(issues_of(root, with) ==
        Lines{"r.yaml:2:1: run: is empty here, which would drop what is set below it (remove the "
              "line, or unset single keys)"});
}

TEST_CASE("a file that is missing, empty or no mapping is one clear issue") {
  Root root;
  LoadRequest missing;
  missing.file = "/nowhere/r.yaml";
  REQUIRE(check(root, missing).size() == 1);
  CHECK(check(root, missing)[0].text().starts_with("/nowhere/r.yaml: "));
  CHECK(issues_of("") == Lines{"r.yaml: the file holds no keys (start with `recipe: 1`)"});
  CHECK(issues_of("# nothing\n") ==
        Lines{"r.yaml: the file holds no keys (start with `recipe: 1`)"});
  CHECK(issues_of("just words") ==
        Lines{"r.yaml:1:1: expected `key: value` lines, found `just words`"});
  CHECK(issues_of("- a\n").size() == 1);
}

TEST_CASE("loading again starts from the defaults") {
  Root root;
  load(root, request("model: {hidden_size: 64}\noptimizer: {name: sgd, lr: 1, momentum: 1}\n"
                     "data: {sources: [{path: a}]}\ntraining: {ramp: {start: 1}}\n"));

  load(root, request(kGood));

  CHECK(dump(root, DumpKeys::minimal).find("lr") == std::string::npos);
  CHECK(root.optimizer.name().name == "adamw");
  CHECK(root.data.sources.size() == 0);
  CHECK_FALSE(root.training.ramp);
}

TEST_CASE("the error lists one line per issue and stays short for hostile files") {
  Root root;
  std::string text;
  for (int i = 0; i < 40000; ++i) text += "k" + std::to_string(i) + ": 1\n";

  try {
    load(root, request(text));
    FAIL("loaded");
  } catch (const InvalidRecipe& error) {
    CHECK(error.exit_code() == ExitCode::recipe);
    CHECK(error.issues().size() == 1000);
    CHECK(std::string(error.what()).ends_with("... and 950 more"));
  }
}

}  // namespace llmtrain::recipe
