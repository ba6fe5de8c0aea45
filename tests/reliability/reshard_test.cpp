// Every layout goes on from every other one's checkpoints: T11 of docs/reliability.md.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/base/hash.hpp"
#include "lib/base/require.hpp"
#include "lib/checkpoint/store.hpp"
#include "lib/train/metrics.hpp"
#include "tests/mesh/probe_run.hpp"
#include "tests/reliability/journal.hpp"
#include "tests/support/temp_dir.hpp"

namespace llmtrain::test {

namespace fs = std::filesystem;

namespace {

// Odd sizes: nothing but the axes' own conditions divides anything.
constexpr std::string_view kRecipe = R"(
recipe: 1
run: {device: cpu, seed: 5, threads: 1}
model: {architecture: qwen3_moe, vocab_size: 263, hidden_size: 20, num_hidden_layers: 3,
        num_attention_heads: 4, num_key_value_heads: 2, head_dim: 6, intermediate_size: 28,
        moe_intermediate_size: 12, num_experts: 4, num_experts_per_tok: 2,
        max_position_embeddings: 64, initializer_range: 0.2}
tokenizer: {type: bytes}
data: {sources: [{path: text.txt, max_document_bytes: 1024}], eval_modulus: 4}
training: {seq_len: 12, micro_batch_size: 1, global_batch_size: 12, max_steps: 4}
optimizer: {lr: 1.0e-2}
lr_scheduler: {type: constant, warmup: 0}
precision: {compute: fp64}
checkpoint: {interval: 4, keep_latest: null}
eval: {interval: null, max_samples: 2}
metrics: {interval: 1, tensorboard: false}
)";
constexpr std::uint64_t kStep = 4;
constexpr std::int64_t kMoreSteps = 8;

struct Sharing {
  int ranks;
  std::string parallelism;
};
const std::vector<Sharing>& sharings() {
  static const std::vector<Sharing> kSharings{
      {1, "{}"},
      {2, "{dp: 2}"},
      {2, "{dp: 2, zero: 1}"},
      {3, "{dp: 3, zero: 2}"},
      {4, "{dp: 4, zero: 3}"},
      {2, "{tp: 2}"},
      {4, "{dp: 2, tp: 2, tp_sequence_parallel: true, zero: 1}"},
      {2, "{pp: 2}"},
      {3, "{pp: 3, pp_schedule: zb_h1}"},
      {2, "{sp: 2}"},
      {2, "{dp: 2, ep: 2}"},
      {4, "{dp: 2, sp: 2, ep: 4, zero: 2}"},
      {6, "{dp: 3, pp: 2, zero: 1}"},
      {8, "{dp: 2, tp: 2, pp: 2, ep: 2, zero: 3}"},
  };
  return kSharings;
}

struct Shop {
  Shop() {
    set_mpi_environment();
    std::string text;
    for (int i = 0; i < 3000; ++i) {
      text += fmt::format("word{}{}", i * 7919 % 613, i % 9 == 0 ? "\n" : " ");
    }
    std::ofstream(scratch / "text.txt") << text;
    std::ofstream(scratch / "recipe.yaml") << kRecipe;
  }
  void start(int ranks, const std::vector<std::string>& arguments) const {
    std::vector<std::string> command = ranks > 1 ? mpirun(ranks) : std::vector<std::string>();
    command.insert(command.end(), arguments.begin(), arguments.end());
    const ProcessResult result =
        run_process(command, scratch.path().string(), {.limit_seconds = 120});
    require(result.exit_code == 0, "{}: exit code {}: {}", fmt::join(command, " "),
            result.exit_code, result.output);
  }
  fs::path saved_by(std::size_t i) const { return scratch / fmt::format("run-{}", i); }
  fs::path saved_again(std::size_t from, std::size_t by) const {
    return scratch / fmt::format("again-{}-{}", from, by);
  }

  TempDir scratch;
};

/// Names, types, shapes and the hashes of gathered values.
using Tensors = std::map<std::string, std::string>;

Tensors tensors_of(const fs::path& root, std::uint64_t step = kStep) {
  const auto store = checkpoint::CheckpointStore::open_reader(root);
  checkpoint::Loader loader = store.load(step);
  Tensors tensors;
  for (const auto& [name, record] : loader.manifest().tensors) {
    std::vector<std::byte> values(
        static_cast<std::size_t>(*checkpoint::num_elements(record.shape)) * size_of(record.dtype));
    loader.read_box({name,
                     record.dtype,
                     record.shape,
                     {checkpoint::Dims(record.shape.size(), 0), record.shape}},
                    values);
    tensors[name] =
        fmt::format("{} {} {}", to_string(record.dtype), checkpoint::to_string(record.shape),
                    to_hex(hash128(std::span<const std::byte>(values))));
  }
  return tensors;
}

/// Of all steps, and of the last evaluation.
std::vector<double> losses(const fs::path& run) {
  std::vector<double> values;
  double evaluated = 0;
  for (const auto& record : train::read_metrics(run / "metrics.jsonl")) {
    if (const auto value = record.number(train::metric::kLoss)) values.push_back(*value);
    evaluated = record.number(train::metric::kEvalLoss).value_or(evaluated);
  }
  values.push_back(evaluated);
  return values;
}

std::string check_continuation(const Shop& shop, std::size_t from, std::size_t by,
                               const std::vector<double>& expected) {
  const std::string name = fmt::format("on-{}-{}", from, by);
  fs::copy(shop.saved_by(from), shop.scratch / name, fs::copy_options::recursive);
  shop.start(sharings()[by].ranks,
             {LLMTRAIN_EXECUTABLE, "run", "recipe.yaml", "run.output_dir=" + name,
              "checkpoint.resume=must", fmt::format("training.max_steps={}", kMoreSteps),
              "parallelism=" + sharings()[by].parallelism});
  const std::vector<double> found = losses(shop.scratch / name);
  fs::remove_all(shop.scratch / name);
  if (found.size() != expected.size()) return fmt::format("{} losses", found.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    const bool follows = std::abs(found[i] - expected[i]) <= 1e-11 * expected[i];
    if (!follows) {  // nor does what is no number
      return fmt::format("loss {} is {}, not {}", i, found[i], expected[i]);
    }
  }
  return "";
}

/// What the `chosen` of sharings() have saved after kStep steps (saved_by), which each of the
/// others among them then loads and saves again (saved_again).
std::map<std::size_t, Tensors> save_and_save_again(const Shop& shop,
                                                   const std::vector<std::size_t>& chosen,
                                                   const std::vector<std::string>& overrides = {}) {
  const auto arguments = [&](std::vector<std::string> first, std::size_t of) {
    first.insert(first.end(), overrides.begin(), overrides.end());
    first.push_back("parallelism=" + sharings()[of].parallelism);
    return first;
  };
  std::map<std::size_t, Tensors> saved;
  for (const std::size_t i : chosen) {
    fs::remove_all(shop.saved_by(i));
    const std::string output = "run.output_dir=" + shop.saved_by(i).string();
    shop.start(sharings()[i].ranks,
               arguments({LLMTRAIN_EXECUTABLE, "run", "recipe.yaml", output}, i));
    saved[i] = tensors_of(shop.saved_by(i) / "checkpoints");
  }
  for (const std::size_t by : chosen) {
    std::vector<std::string> from, to;
    for (const std::size_t i : chosen) {
      if (i == by) continue;
      from.push_back((shop.saved_by(i) / "checkpoints").string());
      to.push_back(shop.saved_again(i, by).string());
      fs::remove_all(to.back());
    }
    shop.start(
        sharings()[by].ranks,
        arguments({LLMTRAIN_RESHARD_PROBE, "recipe.yaml", std::to_string(kStep),
                   fmt::format("{}", fmt::join(from, ",")), fmt::format("{}", fmt::join(to, ","))},
                  by));
  }
  return saved;
}

std::string check_same_bits(const Tensors& saved, const Tensors& again) {
  for (const auto& [tensor, value] : saved) {
    if (!again.contains(tensor) || again.at(tensor) != value) return tensor + " differs";
  }
  return again.size() == saved.size() ? "" : "other tensors";
}

std::string name_of(std::size_t from, std::size_t by) {
  return fmt::format("{} ranks {} by {} ranks {}", sharings()[from].ranks,
                     sharings()[from].parallelism, sharings()[by].ranks,
                     sharings()[by].parallelism);
}

/// That of a model of the recipe with `overrides` each of these layouts loads the bits that each
/// other one has saved.
void check_each_by_each(Journal& journal, const std::vector<std::size_t>& chosen,
                        const std::vector<std::string>& overrides) {
  const Shop shop;
  const auto saved = save_and_save_again(shop, chosen, overrides);
  for (const std::size_t from : chosen) {
    for (const std::size_t by : chosen) {
      if (from == by) continue;
      journal.run(name_of(from, by), [&] {
        return check_same_bits(saved.at(from), tensors_of(shop.saved_again(from, by)));
      });
    }
  }
  journal.check();
}

}  // namespace

TEST_CASE("T11 what any layout saved, any other one loads bit for bit, and goes on") {
  Journal bits("T11-bits", 1), steps("T11-steps", 41);
  const Shop shop;
  // In a part of the cases: the first, the last and every third between.
  std::vector<std::size_t> chosen;
  for (std::size_t i = 0; i < sharings().size(); ++i) {
    if (bits.tries_all() || i % 3 == 1 || i == 0) chosen.push_back(i);
  }
  const auto saved = save_and_save_again(shop, chosen);
  // Layouts that sum in other orders have other bits: what is compared is not the same by itself.
  std::set<Tensors> different;
  for (const auto& [i, tensors] : saved) different.insert(tensors);
  CHECK(different.size() >= 3);

  std::vector<double> expected;
  for (const std::size_t from : chosen) {
    for (const std::size_t by : chosen) {
      if (from == by) continue;
      bits.run(name_of(from, by), [&] {
        return check_same_bits(saved.at(from), tensors_of(shop.saved_again(from, by)));
      });
      steps.run(name_of(from, by), [&] {
        if (expected.empty()) {
          shop.start(
              1, {LLMTRAIN_EXECUTABLE, "run", "recipe.yaml", "run.output_dir=straight",
                  fmt::format("training.max_steps={}", kMoreSteps), "checkpoint.interval=null"});
          expected = losses(shop.scratch / "straight");
        }
        return check_continuation(shop, from, by, expected);
      });
    }
  }
  bits.check();
  steps.check();
}

namespace {

struct StateKind {
  std::string optimizer;
  std::vector<std::string> settings = {"precision.compute=fp64"};
  /// Ends the names of some of the states.
  std::string state;
  /// Tried where only a part of the cases is.
  bool in_part = false;
};

/// States that are cut in other ways than AdamW's: whole matrices, rows and columns, blocks,
/// factors, runs of codes, subspaces; of bf16; and of layers in FP8.
std::vector<StateKind> state_kinds() {
  // Parts that cut no run of 256 codes; experts are too small to have any.
  const std::vector<std::string> wide{"precision.compute=fp64", "model.head_dim=128",
                                      "model.intermediate_size=512", "model.mlp_only_layers=[1]"};
  return {
      {.optimizer = "muon", .state = "#momentum", .in_part = true},
      {.optimizer = "adafactor", .state = "#row"},
      {.optimizer = "adam_mini", .state = "#v"},
      {.optimizer = "galore", .state = "#projector"},
      {.optimizer = "sm3", .state = "#column"},
      {.optimizer = "amsgrad, state_dtype: bf16",
       .settings = {"precision.compute=fp32"},
       .state = "#v_max"},
      {.optimizer = "adamw_8bit, min_8bit_size: 1000",
       .settings = wide,
       .state = "#v_scale",
       .in_part = true},
      {.optimizer = "lion_8bit, min_8bit_size: 1000", .settings = wide, .state = "#m_scale"},
      {.optimizer = "came", .state = "#residual_row"},
      {.optimizer = "ldadamw, rank: 4", .state = "#error"},
      {.optimizer = "q_galore, rank: 4, update_proj_gap: 2, min_8bit_size: 1000",
       .settings = wide,
       .state = "#projector_zero"},
      {.optimizer = "adamw",
       .settings = {"precision={compute: fp8, fp8: {scaling: delayed, amax_history: 3, include: "
                    "[\"*\"]}}"},
       .state = "#fp8_history",
       .in_part = true}};
}

}  // namespace

TEST_CASE("T11 any layout loads what another one has of each kind of states") {
  Journal journal("T11-optimizers", 1);
  const Shop shop;
  const std::vector<std::size_t> chosen = journal.tries_all()
                                              ? std::vector<std::size_t>{0, 2, 5, 8, 11, 13}
                                              : std::vector<std::size_t>{2, 5};
  for (const StateKind& kind : state_kinds()) {
    if (!journal.tries_all() && !kind.in_part) continue;
    CAPTURE(kind.optimizer);
    std::vector<std::string> settings = kind.settings;
    settings.push_back(fmt::format("optimizer={{name: {}, lr: {}}}", kind.optimizer,
                                   kind.optimizer == "came" ? 1e-5 : 1e-2));
    const auto saved = save_and_save_again(shop, chosen, settings);
    for (const auto& [layout, tensors] : saved) {
      CHECK(std::ranges::any_of(
          tensors, [&](const auto& tensor) { return tensor.first.ends_with(kind.state); }));
    }
    for (const std::size_t from : chosen) {
      for (const std::size_t by : chosen) {
        if (from == by) continue;
        const std::string layers = kind.state.find("fp8") == kind.state.npos ? "" : " in FP8";
        journal.run(fmt::format("{}{}: {}", kind.optimizer, layers, name_of(from, by)), [&] {
          return check_same_bits(saved.at(from), tensors_of(shop.saved_again(from, by)));
        });
      }
    }
  }
  journal.check();
}

// What a check hands over are pieces of 4 MiB of files, which end anywhere in a tensor; the model
// of the other cases is smaller than one.
TEST_CASE("T11 any layout loads bit for bit tensors that are larger than a piece") {
  Journal journal("T11-pieces", 1);
  check_each_by_each(
      journal,
      journal.tries_all() ? std::vector<std::size_t>{0, 2, 3, 4, 5, 7}
                          : std::vector<std::size_t>{0, 3},
      {"model.hidden_size=64", "model.num_hidden_layers=2", "model.moe_intermediate_size=20002",
       "model.num_experts=2", "precision.compute=fp32"});
}

// A table and a head of so many rows, which are as large as some pieces, too.
TEST_CASE("T11 any layout loads bit for bit tables whose rows no number of ranks divides") {
  Journal journal("T11-vocabulary", 1);
  check_each_by_each(journal,
                     journal.tries_all() ? std::vector<std::size_t>{0, 3, 4, 5, 6, 7, 13}
                                         : std::vector<std::size_t>{4, 5},
                     {"model.vocab_size=31123", "precision.compute=fp32"});
}

TEST_CASE("T11 with determinism: layout a run that changes its layout has the bits of one rank") {
  Journal journal("T11-layout", 29);
  const std::vector<std::string> state_dtypes{"fp32", "bf16"};
  const std::vector<Sharing> all{{1, "{}"},
                                 {2, "{dp: 2}"},
                                 {2, "{dp: 2, zero: 1}"},
                                 {4, "{dp: 4, zero: 3}"},
                                 {4, "{dp: 4, dp_replicate: 2, zero: 1}"},
                                 {2, "{pp: 2}"},
                                 {3, "{pp: 3, pp_layers: [2, 1, 0]}"},
                                 {4, "{dp: 2, pp: 2, pp_schedule: zb_h1, zero: 2}"}};
  const Shop shop;
  const auto run = [&](const Sharing& by, const std::string& states, const std::string& name,
                       std::int64_t steps) {
    shop.start(by.ranks, {LLMTRAIN_EXECUTABLE, "run", "recipe.yaml", "run.output_dir=" + name,
                          fmt::format("training.max_steps={}", steps), "precision.compute=fp32",
                          "optimizer.state_dtype=" + states, "run.determinism=layout",
                          "run.virtual_workers=4", "parallelism=" + by.parallelism});
    return tensors_of(shop.scratch / name / "checkpoints", static_cast<std::uint64_t>(steps));
  };
  for (const std::string states : {"fp32", "bf16"}) {
    const auto expected = run(all[0], states, "straight-" + states, kMoreSteps);
    for (const Sharing& from : all) {
      for (const Sharing& by : all) {
        if (&from == &by) continue;
        const std::string of_states = states == "fp32" ? "" : ", states of " + states;
        journal.run(fmt::format("{} ranks {} by {} ranks {}{}", from.ranks, from.parallelism,
                                by.ranks, by.parallelism, of_states),
                    [&] {
                      run(from, states, "changed", kStep);
                      const bool same = run(by, states, "changed", kMoreSteps) == expected;
                      fs::remove_all(shop.scratch / "changed");
                      return same ? "" : "other bits";
                    });
      }
    }
  }
  journal.check();
}

}  // namespace llmtrain::test
