#include "lib/recipe/dump.hpp"

#include <doctest/doctest.h>

#include "lib/recipe/keys.hpp"
#include "tests/unit/recipe/sample.hpp"

namespace llmtrain::recipe {

using namespace sample;

namespace {

const std::string kText =
    "run: {name: \"a: b # c\", tags: [], seed: 7}\n"
    "model: {hidden_size: 64, norm: layer_norm, init: {std: 0.1}}\n"
    "data: {sources: [{path: x, weight: 1e-4}, {path: y}]}\n"
    "training: {max_tokens: 2M, max_time: 90.5s, ramp: {start: 2}}\n"
    "optimizer: {name: sgd, momentum: 0.25, max_grad_norm: ~}\n"
    "lr_scheduler: {warmup: 0.3%, interval: 5min}\n";

// The dump without comments: only values.
std::string values(const Section& root, DumpKeys keys = DumpKeys::all) {
  std::string out;
  const std::string text = dump(root, keys);
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t end = text.find('\n', i);
    const std::string line = text.substr(i, end - i);
    out += line.substr(0, line.rfind("  # ")) + "\n";
    i = end + 1;
  }
  return out;
}

}  // namespace

TEST_CASE("the dump has every key with its origin") {
  Root root;
  load(root, request(kText, {"optimizer.lr=0.5"}));

  const std::string text = dump(root);

  CHECK(text.starts_with("recipe: 1\nrun:\n  name: \"a: b # c\"  # r.yaml:1:13\n"));
  CHECK(text.find("  seed: 7  # r.yaml:1:41\n") != std::string::npos);
  CHECK(text.find("  lr: 0.5  # optimizer.lr=0.5 on the command line\n") != std::string::npos);
  CHECK(text.find("  seq_len: 128  # default\n") != std::string::npos);
  CHECK(text.find("    - path: x  # r.yaml:3:25\n      weight: 0.0001") != std::string::npos);
  CHECK(text.find("betas") == std::string::npos);
  for (const KeyInfo& key : list_keys(root)) {
    if (!key.only_with.empty() || key.path.find('*') != std::string::npos) continue;
    CAPTURE(key.path);
    const std::string name = key.path.substr(key.path.rfind('.') + 1);
    CHECK(text.find(name + ":") != std::string::npos);
  }
}

TEST_CASE("the dump loads again to the same values, whole and minimal") {
  Root root;
  load(root, request(kText, {"run.name=\"line\\nbreak\"", "x-y=\"# \\u00e9\""}));
  const std::string whole = values(root);
  for (const DumpKeys keys : {DumpKeys::all, DumpKeys::minimal}) {
    Root again;
    load(again, request(dump(root, keys)));
    CHECK(values(again) == whole);
  }
}

TEST_CASE("the minimal dump has what differs from the defaults and nothing else") {
  Root root;
  load(root, request("model: {hidden_size: 64, num_attention_heads: 8}\nrun: {seed: 43}\n"));
  CHECK(values(root, DumpKeys::minimal) ==
        "recipe: 1\nrun:\n  seed: 43\nmodel:\n  hidden_size: 64\n");
}

TEST_CASE(
    "a list element and an optional section without own values are kept by the minimal dump") {
  struct Item : Section {
    Key<int> a{this, "a", 1, ""};
  };
  struct Small : Section {
    List<Item> items{this, "items", ""};
    OptionalSub<Item> one{this, "one", ""};
  };
  Small small;
  load(small, request("items: [{}, {a: 2}]\none: {}\n"));

  const std::string text = dump(small, DumpKeys::minimal);

  Small again;
  load(again, request(text));
  REQUIRE(again.items.size() == 2);
  CHECK(again.items[1].a() == 2);
  CHECK(again.one);
}

}  // namespace llmtrain::recipe
