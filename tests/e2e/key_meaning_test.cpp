// Keys whose meaning an effect alone does not prove.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <numbers>
#include <set>
#include <sstream>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "lib/base/file.hpp"
#include "lib/base/require.hpp"
#include "lib/checkpoint/store.hpp"
#include "lib/train/corpus.hpp"
#include "tests/e2e/workspace.hpp"
#include "tests/support/relative.hpp"

namespace llmtrain {

namespace {

namespace fs = std::filesystem;

std::vector<double> eval_losses(const Workspace& here) {
  std::vector<double> losses;
  for (const train::StepRecord& record : here.metrics()) {
    if (const auto loss = record.number(train::metric::kEvalLoss)) losses.push_back(*loss);
  }
  return losses;
}

std::vector<nlohmann::json> samples_of(const Workspace& here) {
  std::vector<nlohmann::json> samples;
  std::istringstream lines(read_file(here.path / "run" / "samples.jsonl"));
  for (std::string line; std::getline(lines, line);) samples.push_back(nlohmann::json::parse(line));
  return samples;
}

// The values of an FP32 tensor of the newest checkpoint.
std::vector<float> tensor_of(const Workspace& here, const std::string& name) {
  const auto store = checkpoint::CheckpointStore::open_reader(here.path / "run" / "checkpoints");
  checkpoint::Loader loader = store.load(store.list().back());
  const checkpoint::Dims shape = loader.manifest().tensors.at(name).shape;
  std::vector<float> values(static_cast<std::size_t>(*checkpoint::num_elements(shape)));
  loader.read_box({name, DType::f32, shape, {checkpoint::Dims(shape.size(), 0), shape}},
                  std::as_writable_bytes(std::span(values)));
  return values;
}

// Weights stay at their first values.
const std::vector<std::string> kFrozen{"optimizer.lr=0", "training.max_steps=1"};

std::vector<std::string> with(std::vector<std::string> some, const std::vector<std::string>& more) {
  some.insert(some.end(), more.begin(), more.end());
  return some;
}

}  // namespace

TEST_CASE("eval.at_start evaluates the first weights, once") {
  const Workspace here(kTinyRecipe);

  run_well(here, {"eval.at_start=true", "optimizer.lr=0"});

  const auto records = here.metrics();
  CHECK(records.front().step == 0);
  CHECK(records.front().find(train::metric::kLoss) == nullptr);
  const std::vector<double> losses = eval_losses(here);
  REQUIRE(losses.size() == 4);  // before step 1, after 2, 4 and 6
  for (const double loss : losses) CHECK(loss == losses.front());
}

TEST_CASE("bits per byte are the loss of all held-out tokens in bits, over their bytes") {
  const Workspace here(kTinyRecipe);
  run_well(here, {"eval.at_start=true", "training.max_steps=1"});
  const train::StepRecord first = here.metrics().front();
  const double loss = first.number(train::metric::kEvalLoss).value();
  const double bits = first.number(train::metric::kEvalBitsPerByte).value();
  // Tokens are bytes here, and each document has an end.
  const double tokens_per_byte = bits * std::numbers::ln2 / loss;
  CHECK(tokens_per_byte > 1);
  CHECK(tokens_per_byte < 1.2);
}

TEST_CASE("eval.stride shows each token more of what came before it") {
  const auto loss_with = [](const std::string& stride) {
    const Workspace here(kTinyRecipe);
    run_well(here, {"eval.interval=null", "eval.stride=" + stride, "optimizer.lr=2e-2",
                    "training.max_steps=60"});
    return eval_losses(here).at(0);
  };
  const double alone = loss_with("null");
  CHECK(loss_with("16") == alone);  // seq_len: windows that do not overlap
  const double more = loss_with("4");
  CHECK(more < alone);
  CHECK(more > 0.7 * alone);  // per trained token, not per row: rows that only give context abound
}

TEST_CASE("eval reads a run's text with its own tokenizer, whatever text there is by now") {
  const Workspace here(kTinyRecipe);
  here.write("more/a.txt", "one two three four five six seven eight nine ten\n");
  const std::vector<std::string> recipe{
      "tokenizer={type: bpe, vocab_size: 280}", "model.vocab_size=280", "eval.interval=null",
      "data.sources=[{path: text.txt, max_document_bytes: 1024}, {path: more}]"};
  run_well(here, recipe);
  const auto before = here.call({"eval", "run"});
  INFO(before.output);
  REQUIRE(before.exit_code == 0);
  CHECK_FALSE(holds(before.output, {"is not what step 6 was trained on"}));
  CHECK(before.output.find(fmt::format("loss {:.4f}", eval_losses(here).back())) !=
        std::string::npos);

  // Training text of other words: a tokenizer trained now would have other merges.
  int number = 0;
  const auto name = [&] { return fmt::format("{}.txt", number); };
  while (data::is_held_out(name(), {.modulus = 4, .remainder = 0})) ++number;
  std::string text;
  for (int i = 0; i < 100; ++i) text += "zyxwv ";
  here.write("more/" + name(), text);
  const auto after = here.call({"eval", "run"});
  INFO(after.output);
  REQUIRE(after.exit_code == 0);
  CHECK(holds(after.output, {"is not what step 6 was trained on"}));
  const auto figures = [](const std::string& output) {
    return output.substr(output.find("step 6: loss"));
  };
  CHECK(figures(after.output) == figures(before.output));
}

TEST_CASE("data.cache_dir keeps token files for the next run") {
  const Workspace here(kTinyRecipe);

  const auto first = here.run({"data.cache_dir=kept"});
  const auto second = here.run({"data.cache_dir=kept", "run.output_dir=other"});

  REQUIRE(first.exit_code == 0);
  REQUIRE(second.exit_code == 0);
  CHECK(holds(first.output, {"kept/tokens-", "tokenising"}));
  CHECK(second.output.find("tokenising") == std::string::npos);
  CHECK_FALSE(fs::exists(here.path / ".cache"));
}

TEST_CASE("data.eval_remainder divides the documents: each is held out for one remainder") {
  const Workspace here(kTinyRecipe);
  std::multiset<std::string> all;
  for (int remainder = 0; remainder < 3; ++remainder) {
    const auto held_out =
        here.call({"data", "files", "recipe.yaml", "--held-out", "data.eval_modulus=3",
                   fmt::format("data.eval_remainder={}", remainder)});
    REQUIRE(held_out.exit_code == 0);
    std::istringstream lines(held_out.output);
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("text.txt@")) all.insert(line);
    }
  }

  const auto size = fs::file_size(here.path / "text.txt");
  CHECK(all.size() == (size + 1023) / 1024);
  CHECK(std::set<std::string>(all.begin(), all.end()).size() == all.size());
  CHECK(here.call({"check", "recipe.yaml", "data.eval_remainder=4"}).exit_code == 2);
}

TEST_CASE("checkpoint.max_shard_size cuts a checkpoint, which loads as if it were whole") {
  const std::vector<std::string> constant{"lr_scheduler={type: constant, warmup: 0}"};
  const Workspace whole(kTinyRecipe);
  run_well(whole, constant);
  const Workspace cut(kTinyRecipe);
  run_well(cut, with(constant, {"training.max_steps=2", "checkpoint.max_shard_size=64KiB"}));

  std::uint64_t bytes = 0;
  int shards = 0;
  for (const auto& entry :
       fs::directory_iterator(cut.path / "run" / "checkpoints" / "step-00000002")) {
    if (entry.path().extension() != ".safetensors") continue;
    ++shards;
    bytes += entry.file_size();
    // The limit is on tensors; a header of some KiB comes on top.
    CHECK(entry.file_size() < (64 + 8) * 1024);
  }
  CHECK(shards >= 3);
  CHECK(bytes > 2 * 64 * 1024);
  run_well(cut, constant);
  CHECK(fingerprint(cut.path, 6) == fingerprint(whole.path, 6));
}

TEST_CASE("training.z_loss_coef trains the squared logsumexp beside the loss, and is told apart") {
  const auto run_of = [](const std::string& coefficient, bool learns) {
    const Workspace here(kTinyRecipe);
    std::vector<std::string> overrides{"training.z_loss_coef=" + coefficient,
                                       "training.max_steps=2", "eval.at_start=true",
                                       "optimizer.max_grad_norm=null"};
    if (!learns) overrides.push_back("optimizer.lr=0");
    run_well(here, overrides);
    return here.metrics();
  };
  const auto number = [](const std::vector<train::StepRecord>& records, std::int64_t step,
                         std::string_view key) {
    for (const auto& record : records) {
      if (record.step == step && record.find(key) != nullptr) return record.number(key).value();
    }
    FAIL("no " << key);
    return 0.0;
  };
  const auto without = run_of("0", false), some = run_of("0.1", false),
             twice = run_of("0.2", false);
  CHECK(std::none_of(without.begin(), without.end(),
                     [](const auto& record) { return record.find("train/z_loss") != nullptr; }));
  // The loss of the same weights is the same, in training and in evaluation.
  for (const std::int64_t step : {1, 2}) {
    CHECK(number(some, step, "train/loss") == number(without, step, "train/loss"));
  }
  CHECK(number(some, 2, "eval/loss") == number(without, 2, "eval/loss"));
  CHECK(number(some, 1, "train/z_loss") > 0);
  CHECK(number(twice, 1, "train/z_loss") ==
        test::relative(2 * number(some, 1, "train/z_loss"), 1e-6));
  CHECK(number(some, 1, "train/grad_norm") != number(without, 1, "train/grad_norm"));
  // It is trained: a large factor drives it down.
  const auto learnt = run_of("10", true);
  CHECK(number(learnt, 2, "train/z_loss") < number(learnt, 1, "train/z_loss"));
}

TEST_CASE("training.num_epochs trains on every token that often") {
  const Workspace here(kTinyRecipe);
  const std::vector<std::string> one_by_one{"training.micro_batch_size=1",
                                            "training.global_batch_size=1", "~training.max_steps",
                                            "checkpoint.interval=null", "eval.interval=null"};
  const auto recipe = train::load_recipe(
      here.path / "recipe.yaml",
      with(one_by_one,
           {"training.num_epochs=1", "data.sources.0.path=" + (here.path / "text.txt").string(),
            "data.cache_dir=" + (here.path / "other-cache").string()}));
  const train::Corpus corpus = train::open_corpus(*recipe);
  const auto rows = static_cast<double>(corpus.parts.front().training->row_count());
  const auto samples = static_cast<double>(corpus.parts.front().training->sample_count());

  for (const double epochs : {1.0, 1.5}) {
    fs::remove_all(here.path / "run");
    run_well(here, with(one_by_one, {fmt::format("training.num_epochs={}", epochs)}));
    double tokens = 0, seen = 0;
    for (const train::StepRecord& record : here.metrics()) {
      tokens = record.number(train::metric::kTokens).value_or(tokens);
      seen = record.number("train/samples").value_or(seen);
    }
    CHECK(seen == std::ceil(epochs * samples));
    if (epochs == 1) CHECK(tokens == rows);
  }
}

TEST_CASE("training.max_time counts over all starts, and a schedule over time ends with it") {
  const Workspace here(kTinyRecipe);
  const auto train_for = [&](double seconds) {
    run_well(here, {"training.max_steps=1000000", fmt::format("training.max_time={}s", seconds),
                    "lr_scheduler={type: linear, warmup: 0, min_lr_ratio: 0, horizon: time}",
                    "optimizer.lr=1e-3", "eval.interval=null", "checkpoint.interval=null"});
    double before = 0;
    for (const train::StepRecord& record : here.metrics()) {
      const auto lr = record.number(train::metric::kLearningRate);
      const auto elapsed = record.number(train::metric::kElapsedSeconds);
      if (!elapsed) continue;  // of the evaluation at the end
      if (before >= 0.2 && seconds == 0.2) FAIL_CHECK("trained on");
      // To one of the million steps.
      if (seconds == 0.2 || before >= 0.2) {
        CHECK(lr.value() / 1e-3 == doctest::Approx(1 - before / seconds).epsilon(1e-6));
      }
      CHECK(*elapsed > before);
      before = *elapsed;
    }
    CHECK(before >= seconds);
    return before;
  };

  const double first = train_for(0.2);
  CHECK(train_for(0.2) == first);  // nothing is left
  CHECK(train_for(0.5) > first);   // goes on from there
}

TEST_CASE("with training.max_time the time left is never more than what is left of it") {
  const Workspace here(kTinyRecipe);
  run_well(here, {"training.max_steps=1000000", "training.max_time=0.3s", "eval.interval=null",
                  "checkpoint.interval=null"});
  int records = 0;
  for (const train::StepRecord& record : here.metrics()) {
    const auto eta = record.number(train::metric::kEtaSeconds);
    if (!eta) continue;  // of the evaluation at the end
    const double left = 0.3 - record.number(train::metric::kElapsedSeconds).value();
    CHECK(*eta == test::relative(std::max(left, 0.0), 1e-9));
    // Four samples of 16 tokens.
    CHECK(record.number(train::metric::kTokensPerSecond).value() *
              record.number(train::metric::kStepSeconds).value() ==
          test::relative(64));
    ++records;
  }
  CHECK(records > 0);
}

TEST_CASE("an interval of saves in time counts from the last save") {
  const Workspace here(kTinyRecipe);
  const auto begin = std::chrono::steady_clock::now();
  run_well(here, {"training.max_steps=1000000", "training.max_time=3s", "eval.interval=null",
                  "checkpoint.interval=1s"});
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
  const auto store = checkpoint::CheckpointStore::open_reader(here.path / "run" / "checkpoints");
  const auto saves = static_cast<double>(store.list().size());
  CHECK(saves >= 2);  // one of them at the end
  CHECK(saves <= wall.count() + 1);
}

TEST_CASE("eval.patience stops after so many evaluations without a lower loss, for good") {
  const Workspace here(kTinyRecipe);
  const std::vector<std::string> stuck{"optimizer.lr=0", "eval.interval=1", "eval.patience=2"};

  const auto result = here.run(stuck);
  INFO(result.output);
  REQUIRE(result.exit_code == 0);
  CHECK(holds(result.output, {"stopping early: 2 evaluations without a lower loss"}));
  CHECK(here.metrics().back().step == 3);  // the best at 1, then two that are no better

  // The same command again does not train on; a longer patience does.
  run_well(here, stuck);
  CHECK(here.metrics().back().step == 3);
  run_well(here, {"optimizer.lr=0", "eval.interval=1", "eval.patience=4"});
  CHECK(here.metrics().back().step == 5);

  // Progress between evaluations without it begins the count anew.
  const Workspace anew(kTinyRecipe);
  const auto train_to = [&](int steps, const std::string& lr) {
    run_well(anew, {fmt::format("training.max_steps={}", steps), "optimizer.lr=" + lr,
                    "eval.interval=1", "eval.patience=3"});
  };
  train_to(3, "0");     // 1 is the best, 2 no better; the last evaluation counts for nothing
  train_to(6, "5e-3");  // 4 and 5 are better, and so is 6
  train_to(20, "0");    // 7 finds that; 8, 9 and 10 are no better
  CHECK(anew.metrics().back().step == 10);

  const Workspace learning(kTinyRecipe);
  run_well(learning, {"eval.interval=1", "eval.patience=1"});
  const std::vector<double> losses = eval_losses(learning);
  CHECK(std::is_sorted(losses.rbegin(), losses.rend()));
  CHECK(learning.metrics().back().step == 6);
}

TEST_CASE("eval.sample_prompts are continued by sample_tokens tokens at every evaluation, once") {
  const Workspace here(kTinyRecipe);
  const std::vector<std::string> prompts{"eval.sample_prompts=[word, \"two\\n\"]",
                                         "eval.sample_tokens=5"};
  run_well(here, prompts);

  const std::vector<nlohmann::json> samples = samples_of(here);
  REQUIRE(samples.size() == 6);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    CHECK(samples[i].at("step") == 2 * (i / 2 + 1));
    CHECK(samples[i].at("prompt") == (i % 2 == 0 ? "word" : "two\n"));
  }
  // What `generate` says with the same seed. A byte is a token; those that are no UTF-8 are U+FFFD.
  const auto generated =
      here.call({"generate", "run", "--prompt", "word", "--max-tokens", "5", "--seed", "5"});
  REQUIRE(generated.exit_code == 0);
  const std::string expected = "word" + samples[4].at("text").get<std::string>() + "\n";
  const std::string valid = nlohmann::json(generated.output)
                                .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  CHECK(nlohmann::json::parse(valid) == expected);
  CHECK(generated.output.size() == 4 + 5 + 1);
  const auto refused = here.call({"generate", "run", "--prompt", "word", "--temperature", "-1"});
  CHECK(refused.exit_code == 2);
  CHECK(refused.output.starts_with("error: sampling needs temperature >= 0"));

  // After a crash behind an evaluation, its texts are not there twice.
  fs::remove_all(here.path / "run" / "checkpoints" / "step-00000006");
  run_well(here, prompts);
  CHECK(samples_of(here) == samples);
}

TEST_CASE("model.scaled_residual_init divides what enters the residual stream by sqrt(2 layers)") {
  const Workspace scaled(kTinyRecipe);
  run_well(scaled, kFrozen);
  const Workspace plain(kTinyRecipe);
  run_well(plain, with(kFrozen, {"model.scaled_residual_init=false"}));

  const auto store = checkpoint::CheckpointStore::open_reader(plain.path / "run" / "checkpoints");
  int scaled_tensors = 0;
  const checkpoint::Loader first = store.load(1);
  for (const auto& [name, record] : first.manifest().tensors) {
    if (name.find('#') != std::string::npos) continue;
    CAPTURE(name);
    const bool residual = name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight");
    scaled_tensors += residual;
    const std::vector<float> a = tensor_of(scaled, name);
    const std::vector<float> b = tensor_of(plain, name);
    REQUIRE(a.size() == b.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      REQUIRE(a[i] == test::relative(residual ? b[i] / 2 : b[i], 1e-6));  // 2 layers
    }
  }
  CHECK(scaled_tensors == 4);
}

}  // namespace llmtrain
