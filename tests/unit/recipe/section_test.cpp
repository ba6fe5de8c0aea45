#include "lib/recipe/section.hpp"

#include <doctest/doctest.h>

#include "lib/recipe/keys.hpp"
#include "tests/unit/recipe/sample.hpp"

namespace llmtrain::recipe {

using namespace sample;

TEST_CASE("keys know their paths, also in lists and in the rows of a choice") {
  Root root;
  load(root, request("model: {hidden_size: 64}\ndata: {sources: [{path: a}, {path: b}]}\n"));

  CHECK(root.run.seed.path() == "run.seed");
  CHECK(root.model.init.std.path() == "model.init.std");
  CHECK(root.data.sources[1].path.path() == "data.sources.1.path");
  CHECK(root.optimizer.name.as<AdamOptions>().betas.path() == "optimizer.betas");
  CHECK(root.optimizer.name.path() == "optimizer.name");
}

TEST_CASE("the program may set values, and the dump says so") {
  Root root;

  root.training.micro_batch_size.set(4, "chosen by the plan");
  root.optimizer.name.select("sgd");

  CHECK(root.training.micro_batch_size().value == 4);
  CHECK(root.training.micro_batch_size.where() == "chosen by the plan");
  CHECK(root.optimizer.name().name == "sgd");
  CHECK_THROWS_AS(root.optimizer.name.select("sgdd"), InternalError);
}

TEST_CASE(
    "changed values name key, old and new value, also of rows and elements that came or went") {
  Root before, after;
  load(before, request("model: {hidden_size: 64}\ndata: {sources: [{path: a}]}\n"
                       "optimizer: {name: adamw, lr: 1.0e-3}\n"));
  load(after, request("model: {hidden_size: 64}\ndata: {sources: [{path: a}, {path: b}]}\n"
                      "optimizer: {name: sgd, lr: 2.0e-3}\n"));

  CHECK(changed_values(before, before).empty());
  const auto changes = changed_values(before, after);
  const auto has = [&](const char* change) {
    return std::find(changes.begin(), changes.end(), change) != changes.end();
  };
  CHECK(has("optimizer.name: adamw -> sgd"));
  CHECK(has("optimizer.lr: 0.001 -> 0.002"));
  CHECK(has("optimizer.eps: 1e-08 -> absent"));
  CHECK(has("data.sources.1.path: absent -> b"));
  CHECK(!has("data.sources.0.path: a -> a"));
}

TEST_CASE(
    "unread keys are those that nobody asked for, of selected rows and present sections only") {
  Root root;
  load(root, request("model: {hidden_size: 64}\ndata: {sources: [{path: a}]}\n"));

  const auto all = unread_keys(root);
  CHECK(std::find(all.begin(), all.end(), "optimizer.betas") != all.end());
  CHECK(std::find(all.begin(), all.end(), "optimizer.momentum") == all.end());
  CHECK(std::find(all.begin(), all.end(), "training.ramp") != all.end());
  CHECK(std::find(all.begin(), all.end(), "training.ramp.start") == all.end());
  CHECK(std::find(all.begin(), all.end(), "data.sources") != all.end());
  CHECK(std::find(all.begin(), all.end(), "data.sources.0.path") == all.end());

  (void)root.run.name(), root.run.seed(), root.run.tags(), root.run.verbose();
  (void)root.model.hidden_size(), root.model.num_attention_heads(), root.model.norm();
  (void)root.model.init.std(), root.data.sources.size(), root.data.sources[0].weight();
  (void)root.training.seq_len(), root.training.micro_batch_size(), root.training.max_tokens();
  (void)root.training.max_time(), root.optimizer.name(), root.optimizer.lr();
  (void)static_cast<bool>(root.training.ramp);
  (void)root.optimizer.name.as<AdamOptions>().betas(), root.lr_scheduler.warmup();
  CHECK(unread_keys(root) == std::vector<std::string>{"model.init.scaled", "data.sources.0.path",
                                                      "data.cache", "optimizer.eps",
                                                      "optimizer.max_grad_norm",
                                                      "lr_scheduler.interval"});
}

TEST_CASE("rules over several keys do not count as reading") {
  Root root;
  load(root, request("model: {hidden_size: 64}\n"));

  CHECK_FALSE(root.model.hidden_size.was_read());
  CHECK(root.model.hidden_size() == 64);
  CHECK(root.model.hidden_size.was_read());
}

TEST_CASE("a key declared twice or with an impossible name is an internal error") {
  struct Twice : Section {
    Key<int> a{this, "a", 1, ""};
    Key<int> b{this, "a", 1, ""};
  };
  struct Dotted : Section {
    Key<int> a{this, "a.b", 1, ""};
  };
  struct Comment : Section {
    Key<int> a{this, "x-a", 1, ""};
  };
  struct Numbered : Section {
    Key<int> a{this, "0", 1, ""};
  };
  CHECK_THROWS_AS(Twice{}, InternalError);
  CHECK_THROWS_AS(Dotted{}, InternalError);
  CHECK_THROWS_AS(Comment{}, InternalError);
  CHECK_THROWS_AS(Numbered{}, InternalError);
}

TEST_CASE("defaults that break their own rule and rows that hide a key are found") {
  struct BadRow : Section {
    Key<int> lr{this, "lr", 1, ""};
  };
  struct Row {
    std::string_view name, doc;
    std::unique_ptr<Section> (*options)();
  };
  static constexpr Row kRows[] = {{"bad", "", &section_of<BadRow>}};
  struct Bad : Section {
    Key<double> lr{this, "lr", -1.0, "", at_least(0)};
    Choice<Row> name{this, "name", kRows, "bad", ""};
  };
  const Root root;
  const Bad bad;

  CHECK(declaration_mistakes(root).empty());
  const auto mistakes = declaration_mistakes(bad);
  REQUIRE(mistakes.size() == 2);
  CHECK(mistakes[0] == "lr: its default -1.0 is refused: must be >= 0, found `-1.0`");
  CHECK(mistakes[1] == "lr: declared twice in one mapping");
}

TEST_CASE("every key path is listed, and help knows each of them") {
  const Root root;

  const auto keys = list_keys(root);

  CHECK(keys.size() == 35);
  for (const KeyInfo& key : keys) {
    CAPTURE(key.path);
    const auto text = help(root, key.path);
    REQUIRE(text.has_value());
    CHECK(text->find(key.path) == 0);
    CHECK(text->find(key.doc) != std::string::npos);
  }
  CHECK_FALSE(help(root, "optimizer.nothing").has_value());
  CHECK(*help(root, "optimizer.betas") ==
        "optimizer.betas (list of numbers, default [0.9, 0.95])\n"
        "  decay of the two moments\n"
        "  range: >= 0 and < 1\n"
        "  only with optimizer.name: adamw\n");
  CHECK(*help(root, "data.sources.7.path") ==
        "data.sources.*.path (text, required)\n  file or folder\n");
  const std::string section = *help(root, "training");
  CHECK(section.find("seq_len") != std::string::npos);
  CHECK(section.find("integer of tokens, default 128") != std::string::npos);
  CHECK(help(root, "")->find("optimizer.momentum") != std::string::npos);
}

}  // namespace llmtrain::recipe
