#include "lib/train/recipe.hpp"

#include <algorithm>
#include <regex>

#include <doctest/doctest.h>

#include "lib/recipe/foreign_keys.hpp"
#include "lib/recipe/keys.hpp"
#include "tests/support/source_tree.hpp"

namespace llmtrain::train {

namespace {

std::vector<std::string> problems_of(const std::string& text) {
  Recipe root;
  std::vector<std::string> lines;
  for (const recipe::Issue& issue : recipe::check(root, {.file = "r.yaml", .text = text})) {
    lines.push_back(issue.key_path + ": " + issue.problem);
  }
  return lines;
}

// A recipe without issues; `more` replaces or adds keys.
template <class... Texts>
std::vector<std::string> problems_with(const Texts&... overrides) {
  static constexpr std::string_view kGood = R"(
recipe: 1
model: {architecture: gpt2, vocab_size: 300, hidden_size: 16, num_hidden_layers: 1,
        num_attention_heads: 2, max_position_embeddings: 32}
tokenizer: {type: bytes}
data: {sources: [{path: text.txt}]}
training: {seq_len: 32, micro_batch_size: 2, global_batch_size: 4, max_steps: 100}
)";
  Recipe root;
  std::vector<std::string> lines;
  for (const recipe::Issue& issue : recipe::check(
           root, {.file = "r.yaml", .text = std::string(kGood), .overrides = {overrides...}})) {
    lines.push_back(issue.key_path + ": " + issue.problem);
  }
  return lines;
}

}  // namespace

TEST_CASE("a dozen different mistakes in a recipe of this program are as many issues in one go") {
  std::string families;
  for (const auto& row : models::architectures())
    families += (families.empty() ? "" : ", ") + std::string(row.name);
  Recipe root;
  std::vector<std::string> lines;
  const std::string text =
      "recipe: 1\n"
      "run:\n"
      "  sed: 7\n"
      "  threads: many\n"
      "model:\n"
      "  architecture: lama\n"
      "  vocab_size: 300\n"
      "  num_hidden_layers: 1\n"
      "  num_attention_heads: 2\n"
      "  max_position_embeddings: 32\n"
      "data:\n"
      "  sources:\n"
      "    - {path: a.txt, format: csv}\n"
      "training:\n"
      "  seq_len: 2.5\n"
      "  per_device_train_batch_size: 4\n"
      "  global_batch_size: 3\n"
      "  micro_batch_size: 2\n"
      "optimizer:\n"
      "  lr: -1\n"
      "  lr: 1\n"
      "checkpoint: {interval: soon}\n"
      "offload: {optimizer: disk}\n";

  for (const recipe::Issue& issue :
       recipe::check(root, {.file = "r.yaml", .text = text, .reserved = reserved_keys()})) {
    lines.push_back(issue.text());
  }

  CHECK(
      lines ==
      std::vector<std::string>{
          "r.yaml:3:3: run.sed: unknown key (did you mean `seed`?)",
          "r.yaml:4:12: run.threads: expected a count like 2000, 2M, 64Ki, found `many`",
          "r.yaml:5:1: model.hidden_size: required key is missing (count (2000, 2M, 64Ki): width "
          "of the residual stream)",
          "r.yaml:6:17: model.architecture: unknown value `lama` (did you mean `llama`?; "
          "allowed: " +
              families + ")",
          "r.yaml:13:29: data.sources.0.format: unknown value `csv` (allowed: auto, text, jsonl, "
          "llmc, megatron)",
          "r.yaml:14:1: training.max_steps: the run has no length: set one of max_steps, "
          "max_tokens "
          "and num_epochs",
          "r.yaml:15:12: training.seq_len: expected a count like 2000, 2M, 64Ki, found `2.5`",
          "r.yaml:16:3: training.per_device_train_batch_size: is a key of other tools (here it is "
          "`training.micro_batch_size`)",
          "r.yaml:17:22: training.global_batch_size: 3 samples are not a multiple of "
          "micro_batch_size 2",
          "r.yaml:20:7: optimizer.lr: must be >= 0, found `-1`",
          "r.yaml:21:3: optimizer.lr: duplicate key, first given at r.yaml:20:3 (keep one of them)",
          "r.yaml:22:24: checkpoint.interval: expected an interval like 1000 steps, 30min, found "
          "`soon`",
          "r.yaml:23:22: offload.optimizer: unknown value `disk` (allowed: none, host, nvme)"});
}

TEST_CASE("what cannot fit into the run is an issue of the recipe where its length is known") {
  CHECK(problems_with("training.max_steps=100").empty());
  CHECK(problems_with("lr_scheduler.warmup=100").empty());
  CHECK(problems_with("lr_scheduler.warmup=101") ==
        std::vector<std::string>{"lr_scheduler.warmup: 101 is longer than the run of 100 steps"});
  CHECK(problems_with("lr_scheduler={type: wsd, warmup: 50, decay: 51}")
            .front()
            .starts_with("lr_scheduler.decay: 51 after 50 steps of warm-up"));
  CHECK(problems_with("training.max_steps=2^50").size() == 1);
  CHECK(problems_with("training={seq_len: 32, global_batch_size: 1024, max_steps: 1e12}").size() ==
        0);
  CHECK(problems_with("training={seq_len: 32, global_batch_size: 2Mi, max_steps: 1e12}")
            .front()
            .starts_with("training.max_steps: 1000000000000 steps of"));
}

TEST_CASE("over time a schedule may count neither steps nor tokens") {
  const std::string time = "training.max_time=1h";
  const auto problems = [&](const std::string& schedule) {
    return problems_with(time, "lr_scheduler={horizon: time, " + schedule + "}");
  };
  CHECK(problems("warmup: 3%").empty());
  CHECK(problems("warmup: 0, type: wsd, decay: 20%").empty());
  CHECK(problems("type: step, step_size: 20%").empty());
  CHECK(problems("type: exponential, min_lr_ratio: 0.1").empty());
  CHECK(problems("type: inverse_sqrt").empty());
  for (const auto& [schedule, key] : std::vector<std::pair<std::string, std::string>>{
           {"warmup: 50", "warmup: 50"},
           {"warmup: 64 tok", "warmup: 64 tok"},
           {"type: wsd, decay: 50", "decay: 50"},
           {"type: step, step_size: 10", "step_size: 10"},
           {"type: exponential, gamma: 0.9", "gamma: is per step"},
           {"type: inverse_sqrt, timescale: 20", "timescale: is per step"}}) {
    CAPTURE(schedule);
    const auto lines = problems(schedule);
    REQUIRE(lines.size() == 1);
    CHECK(lines.front().starts_with("lr_scheduler." + key));
  }
  CHECK(
      problems_with("lr_scheduler={horizon: time}").front().starts_with("lr_scheduler.horizon: "));
}

TEST_CASE("a refused value hides only the rules that ask for it") {
  const auto lines = problems_with("lr_scheduler.warmup=101", "model.hidden_act=gelo",
                                   "training.seq_len=33", "eval.stride=34", "run.threads=many");
  CHECK(lines == std::vector<std::string>{
                     "lr_scheduler.warmup: 101 is longer than the run of 100 steps",
                     "model.hidden_act: unknown value `gelo`",
                     "training.seq_len: longer than model.max_position_embeddings 32",
                     "eval.stride: longer than training.seq_len 33",
                     "run.threads: expected a count like 2000, 2M, 64Ki, found `many`"});
}

TEST_CASE("a capacity of experts is a positive number, with which one can be full") {
  // 32 tokens with two choices each of eight experts, of whom each may see all 32.
  const auto problems = [](std::string_view factor) {
    return problems_with(
        fmt::format("model={{architecture: mixtral, vocab_size: 300, hidden_size: 16, "
                    "intermediate_size: 16, num_hidden_layers: 1, num_attention_heads: 2, "
                    "max_position_embeddings: 32, capacity_factor: {}}}",
                    factor));
  };
  CHECK(problems("null").empty());
  CHECK(problems("0.01").empty());
  CHECK(problems("3.87").empty());
  for (const char* factor : {"3.88", "4", "100"}) {
    CHECK(problems(factor) ==
          std::vector<std::string>{"model.capacity_factor: does nothing: an expert has room for "
                                   "all 32 tokens of a sequence"});
  }
  for (const char* factor : {"0", "-1", ".nan", ".inf"}) {
    CAPTURE(factor);
    REQUIRE(problems(factor).size() == 1);
    CHECK(problems(factor).front().starts_with("model.capacity_factor: "));
  }
}

TEST_CASE("gradients cannot travel in bf16 where no bit may depend on the layout") {
  const auto problems = problems_with("run.determinism=layout", "precision.grad_reduce=bf16");
  REQUIRE(problems.size() == 1);
  CHECK(problems[0].find("precision.grad_reduce: rounds what ranks exchange") == 0);
  CHECK(problems_with("run.determinism=layout", "precision.grad_reduce=fp32").empty());
  CHECK(problems_with("run.determinism=layout", "precision.grad_reduce=fp32",
                      "precision.compute=fp64")
            .size() == 1);
  CHECK(problems_with("precision.grad_reduce=bf16").empty());
}

TEST_CASE("an optimizer without kernels for a GPU is refused there") {
  for (const std::string name : {"galore", "ldadamw", "q_galore"}) {
    const std::string chosen = "optimizer.name=" + name;
    const auto problems = problems_with("run.device=cuda", chosen);
    REQUIRE(problems.size() == 1);
    CHECK(problems[0] == "optimizer.name: " + name + " is for the CPU");
    CHECK(problems_with("run.device=cpu", chosen).empty());
    CHECK(problems_with(chosen).empty());  // as long as no GPU is found
  }
  CHECK(problems_with("run.device=cuda", "optimizer.name=adamw").empty());
}

TEST_CASE("layouts whose sums depend on the number of ranks are refused where no bit may") {
  const auto problems = problems_with("run.determinism=layout",
                                      "parallelism={sp: 2, dp: 4, zero: 1, dp_replicate: 2}");
  REQUIRE(problems.size() == 1);
  CHECK(problems[0].find("parallelism.dp_replicate: with sp adds up gradients") == 0);
  CHECK(problems_with("run.determinism=layout", "parallelism={dp: 4, zero: 1, dp_replicate: 2}")
            .empty());
  CHECK(problems_with("parallelism={sp: 2, dp: 4, zero: 1, dp_replicate: 2}").empty());
  const auto of_experts = problems_with("run.determinism=layout", "parallelism={dp: 2, ep: 2}");
  CHECK(std::ranges::any_of(of_experts, [](const std::string& problem) {
    return problem.find("parallelism.ep: joins rows of several ranks") == 0;
  }));
}

TEST_CASE("the name of a run is one directory, and an interval is at least one") {
  for (const char* name : {"../x", "a/b", "..", "."}) {
    CAPTURE(name);
    CHECK(problems_with(std::string("run.name=") + name) ==
          std::vector<std::string>{"run.name: is the name of one directory"});
  }
  CHECK(problems_with("run.name=a.b").empty());
  CHECK(problems_with("checkpoint.interval=0").size() == 1);
  CHECK(problems_with("checkpoint.interval=1").empty());
}

TEST_CASE("recipes without a model, or with a part of one, have issues and nothing divides by 0") {
  for (const char* text : {"recipe: 1", "model: 3", "model: {architecture: llama}",
                           "model: {architecture: gpt2, hidden_size: 64}",
                           "model: {architecture: gpt2, num_attention_heads: 0, hidden_size: 64}",
                           "model: {architecture: llama, hidden_size: 64, head_dim: 8}"}) {
    CAPTURE(text);
    CHECK_FALSE(problems_of(text).empty());
  }
  CHECK(problems_of("recipe: 1").front() == "model.architecture: required key is missing");
}

TEST_CASE("a malformed length hides no rule about the batch") {
  const std::vector<std::string> problems =
      problems_with("training.max_steps=1e2.5", "training.global_batch_size=3");
  REQUIRE(problems.size() == 2);
  CHECK(problems[0].starts_with("training.max_steps: expected"));
  CHECK(problems[1] ==
        "training.global_batch_size: 3 samples are not a multiple of micro_batch_size 2");
}

// What looks like the path of a key: "data.eval_modulus".
std::vector<std::string> paths_in(std::string_view note) {
  std::vector<std::string> paths;
  const std::regex path("[a-z_]+(\\.[a-z_]+)+");
  const std::string text(note);
  for (std::sregex_iterator match(text.begin(), text.end(), path), end; match != end; ++match) {
    paths.push_back(match->str());
  }
  return paths;
}

TEST_CASE("every key that another tool's key is said to be is one of ours") {
  const Recipe recipe;
  const auto reserved = [](std::string_view path) {
    return std::ranges::any_of(reserved_keys(), [path](const recipe::Reserved& row) {
      return path == row.path || path.starts_with(std::string(row.path) + ".");
    });
  };
  for (const recipe::ForeignKey& row : recipe::foreign_keys()) {
    CAPTURE(row.name);
    CAPTURE(row.ours);
    for (const std::string& path : paths_in(row.note)) {
      CAPTURE(path);
      CHECK((!recipe::find_keys(recipe, path).empty() || reserved(path)));
    }
    if (row.ours.empty()) continue;
    CHECK((!recipe::find_keys(recipe, row.ours).empty() || reserved(row.ours)));
  }
}

TEST_CASE("a size that an axis takes when the ranks are known is judged like one that was given") {
  const auto refused = [](const std::string& parallelism, int ranks, const char* message) {
    CAPTURE(parallelism);
    Recipe root;
    recipe::load(root, {.file = "r.yaml",
                        .text = fmt::format(R"(
model: {{architecture: mixtral, vocab_size: 300, hidden_size: 16, num_hidden_layers: 2,
        num_attention_heads: 2, intermediate_size: 32, max_position_embeddings: 36,
        num_local_experts: 4}}
tokenizer: {{type: bytes}}
data: {{sources: [{{path: text.txt}}]}}
training: {{seq_len: 36, micro_batch_size: 1, global_batch_size: 12, max_steps: 100}}
parallelism: {{{}}}
)",
                                            parallelism)});
    if (message == nullptr) {
      root.enter({.size = ranks});
      CHECK(root.mesh_shape().world_size() == ranks);
      // Judging is not using.
      CHECK_FALSE(root.training.seq_len.was_read());
      return;
    }
    CHECK_THROWS_WITH_AS(root.enter({.size = ranks}), doctest::Contains(message), RecipeError);
  };
  refused("dp: 2, pp: -1", 8, "4 stages of a pipeline need a block each, and the model has 2");
  refused("dp: 1, sp: -1", 8, "36 tokens do not divide by the 16 parts");
  refused("dp: 3, sp: -1, ep: -1", 6, "does not divide the model's 4 experts (2 does)");
  refused("dp: 1, tp: -1, tp_sequence_parallel: true", 1, "has nobody to share tokens with");
  refused("dp: 2, pp: -1, pp_layers: [2, 0]", 8, "2 numbers for 4 stages");
  refused("dp: 2, pp: -1, pp_layers: [2, 0]", 4, nullptr);
  refused("dp: 2, pp: -1, pp_layers: [2, 0]", 2, "does nothing: parallelism.pp is 1");
  refused("dp: 4, sp: -1, ep: -1", 4, nullptr);
}

TEST_CASE("prompt and completion go together, alone, and in JSONL") {
  const auto problems = [](const std::string& keys) {
    return problems_with("data.sources=[{path: a.jsonl, " + keys + "}]");
  };
  using Lines = std::vector<std::string>;
  CHECK(problems("prompt_key: p, completion_key: c") == Lines{});
  CHECK(problems("prompt_key: p") == Lines{"data.sources.0.prompt_key: goes with completion_key"});
  CHECK(problems("completion_key: c") ==
        Lines{"data.sources.0.completion_key: goes with prompt_key"});
  CHECK(problems("prompt_key: p, completion_key: p") ==
        Lines{"data.sources.0.completion_key: is prompt_key too"});
  CHECK(problems("prompt_key: p, completion_key: c, format: text") ==
        Lines{"data.sources.0.format: has no prompts"});
  CHECK(problems("prompt_key: p, completion_key: c, text_key: t, max_document_bytes: 2Ki") ==
        Lines{"data.sources.0.text_key: does nothing beside prompt_key and completion_key",
              "data.sources.0.max_document_bytes: does nothing beside prompt_key and "
              "completion_key"});
}

TEST_CASE("weights are given to all sources or to none, and stages to all") {
  using Lines = std::vector<std::string>;
  const auto problems = [](const std::string& a, const std::string& b, const auto&... more) {
    return problems_with("data.sources=[{path: a.txt" + a + "}, {path: b.txt" + b + "}]", more...);
  };
  CHECK(problems(", weight: 1", ", weight: 0") == Lines{});
  CHECK(problems(", weight: 1, max_epochs: 2, name: code", ", weight: 2",
                 "data.stages=[{start: 1B tok, weights: [1, 0]}]") == Lines{});
  CHECK(problems(", weight: 1", "") ==
        Lines{"data.sources.1.weight: missing: other sources have one"});
  CHECK(problems(", weight: 0", ", weight: 0") ==
        Lines{"data.sources.0.weight: no source has a weight above 0"});
  CHECK(problems("", ", max_epochs: 2, name: code") ==
        Lines{"data.sources.1.max_epochs: does nothing without a weight",
              "data.sources.1.name: does nothing without a weight"});
  CHECK(problems(", weight: 1, name: x", ", weight: 1, name: x") ==
        Lines{"data.sources.1.name: 'x' is the name of two sources"});
  CHECK(problems(", weight: 1, name: x/y", ", weight: 1") ==
        Lines{"data.sources.0.name: is part of the names of metrics and has no /"});
  CHECK(problems("", "", "data.stages=[{start: 1, weights: [1, 1]}]") ==
        Lines{"data.stages: the sources have no weights"});
  CHECK(problems(", weight: 1", ", weight: 1",
                 "data.stages=[{start: 1, weights: [1]}, {start: 2, weights: [0, 0]}]") ==
        Lines{"data.stages.0.weights: 1 weights for 2 sources",
              "data.stages.1.weights: no weight is above 0"});
  const auto with_stages = [&](const std::string& first, const std::string& second) {
    return problems(", weight: 1", ", weight: 1",
                    fmt::format("data.stages=[{{start: {}, weights: [1, 1]}}, "
                                "{{start: {}, weights: [1, 2]}}]",
                                first, second));
  };
  const std::string order = ".start: is not behind the start of the stage before it";
  CHECK(with_stages("1", "2") == Lines{});
  CHECK(with_stages("2", "2") == Lines{"data.stages.1" + order});
  CHECK(with_stages("50%", "1") == Lines{"data.stages.1" + order});
  CHECK(with_stages("0", "5") == Lines{"data.stages.0" + order});
  CHECK(with_stages("1", "1000000000000000000") ==
        Lines{"data.stages.1.start: is behind more than 2^60 tokens"});
  CHECK(problems(", weight: 1", ", weight: 1", "~training.max_steps", "training.num_epochs=2") ==
        Lines{"training.num_epochs: a mixture of weighted sources has no epochs"});
  CHECK(problems_with("data.sources=[{path: a.txt, weight: 1}]") ==
        Lines{"data.sources.0.weight: there is no other source to weigh against"});
}

}  // namespace llmtrain::train
