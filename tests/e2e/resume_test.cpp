// A run that is cut and resumed equals one that never stopped, bit for bit.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <regex>
#include <set>
#include <sstream>
#include <thread>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/base/file.hpp"
#include "lib/base/philox.hpp"
#include "lib/train/run_status.hpp"
#include "tests/e2e/workspace.hpp"

namespace llmtrain {

namespace {

namespace fs = std::filesystem;

constexpr int kSteps = 24;

// Accumulation, a batch ramp, dropout, two epochs and more, clipping, evaluation: all in 24 steps.
constexpr std::string_view kRecipe = R"(
recipe: 1
run: {output_dir: run, seed: 5, threads: 1}
model: {architecture: gpt2, vocab_size: 257, hidden_size: 16, num_hidden_layers: 2,
        num_attention_heads: 2, max_position_embeddings: 32, resid_pdrop: 0.1, attn_pdrop: 0.1,
        embd_pdrop: 0.1}
tokenizer: {type: bytes}
data: {sources: [{path: text.txt, max_document_bytes: 1024}], eval_modulus: 4}
training: {seq_len: 32, micro_batch_size: 2, global_batch_size: 8, max_steps: 24,
           rampup_batch_size: {start: 2, increment: 2, samples: 30}}
optimizer: {lr: 5.0e-3, max_grad_norm: 0.5}
lr_scheduler: {type: cosine, warmup: 4}
checkpoint: {interval: 1, keep_latest: null}
eval: {interval: 7, max_samples: 4}
metrics: {interval: 1, tensorboard: false}
)";

// Without what it says about memory.
std::string fingerprint_of_values(const Workspace& here, std::uint64_t step) {
  static const std::regex kMemory(",\"memory/[a-z_]+\":[0-9]+");
  return std::regex_replace(fingerprint(here.path, step), kMemory, "");
}

// Makes `part` what a crash of `whole` right after the save of step `cut` would have left.
void cut_after(const Workspace& whole, const Workspace& part, std::uint64_t cut) {
  fs::copy(whole.path / "run", part.path / "run", fs::copy_options::recursive);
  fs::copy(whole.path / ".cache", part.path / ".cache", fs::copy_options::recursive);
  for (const auto& entry : fs::directory_iterator(part.path / "run" / "checkpoints")) {
    const std::string name = entry.path().filename();
    if (name.starts_with("step-") && std::stoull(name.substr(5)) > cut) {
      fs::remove_all(entry.path());
    }
  }
}

}  // namespace

TEST_CASE("resumed runs equal the uninterrupted one at 20 cut points") {
  const Workspace whole(kRecipe);
  const auto uninterrupted = whole.run({"training.max_time=1000s"});
  INFO(uninterrupted.output);
  REQUIRE(uninterrupted.exit_code == 0);
  const std::string expected = fingerprint(whole.path, kSteps);
  const PhiloxKey key = philox_key(9, "test", "cuts");

  for (std::uint64_t i = 0; i < 20; ++i) {
    const Workspace part(kRecipe);
    const std::uint64_t cut = 1 + philox_below(key, 0, i, kSteps - 1);
    CAPTURE(cut);
    cut_after(whole, part, cut);
    const auto resumed = part.run({"checkpoint.resume=must"});
    INFO(resumed.output);
    REQUIRE(resumed.exit_code == 0);
    CHECK(resumed.output.find("resumed from step " + std::to_string(cut)) != std::string::npos);
    CHECK(fingerprint(part.path, kSteps) == expected);
  }
}

TEST_CASE("in FP8 resumed runs equal the uninterrupted one") {
  for (const char* scaling : {"current", "delayed, amax_history: 3", "block"}) {
    CAPTURE(scaling);
    const std::string fp8 =
        fmt::format("precision={{compute: fp8, fp8: {{scaling: {}, include: [\"*\"]}}}}", scaling);
    const Workspace whole(kRecipe);
    run_well(whole, {fp8});
    for (const std::uint64_t cut : {1, 10}) {
      const Workspace part(kRecipe);
      cut_after(whole, part, cut);
      const auto resumed = part.run({fp8, "checkpoint.resume=must"});
      INFO(resumed.output);
      REQUIRE(resumed.exit_code == 0);
      CHECK(fingerprint(part.path, kSteps) == fingerprint(whole.path, kSteps));
    }
  }
}

TEST_CASE("an fp16 run resumes with the scale of its loss, and with what it knows of it") {
  const std::vector<std::string> fp16 = {
      "precision={compute: fp16, initial_loss_scale: 4Mi, growth_interval: 5}"};
  const Workspace whole(kRecipe);
  run_well(whole, fp16);
  const std::string expected = fingerprint(whole.path, kSteps);
  std::set<double> scales;
  for (const train::StepRecord& record : whole.metrics()) {
    scales.insert(record.number("train/loss_scale").value_or(0));
  }
  CHECK(scales.size() >= 4);  // it moves, in both directions
  for (const std::uint64_t cut : {1, 8, 10, 17}) {
    CAPTURE(cut);
    const Workspace part(kRecipe);
    cut_after(whole, part, cut);
    std::vector<std::string> with = fp16;
    with.push_back("checkpoint.resume=must");
    run_well(part, with);
    CHECK(fingerprint(part.path, kSteps) == expected);
  }
}

TEST_CASE("noise on gradients goes on with the updates of the run that resumes") {
  const std::string noise = "optimizer.gradient_noise={eta: 1e-4}";
  const Workspace whole(kRecipe), quiet(kRecipe);
  run_well(whole, {noise});
  run_well(quiet, {});
  const std::string expected = fingerprint(whole.path, kSteps);
  CHECK(fingerprint(quiet.path, kSteps) != expected);
  for (const std::uint64_t cut : {1, 17}) {
    CAPTURE(cut);
    const Workspace part(kRecipe);
    cut_after(whole, part, cut);
    run_well(part, {noise, "checkpoint.resume=must"});
    CHECK(fingerprint(part.path, kSteps) == expected);
  }
}

TEST_CASE("biases of routers, which no gradient trains, resume as they were") {
  std::string recipe(kRecipe);
  const std::size_t model = recipe.find("model:");
  recipe.replace(model, recipe.find("tokenizer:") - model, R"(
model: {architecture: dots1, vocab_size: 257, hidden_size: 16, num_hidden_layers: 2,
        num_attention_heads: 2, intermediate_size: 24, max_position_embeddings: 32,
        n_routed_experts: 6, num_experts_per_tok: 2, n_group: 3, topk_group: 2,
        moe_intermediate_size: 12, bias_update_speed: 0.01}
)");
  const Workspace whole(recipe);
  run_well(whole, {});
  const std::string expected = fingerprint(whole.path, kSteps);
  for (const std::uint64_t cut : {1, 8, 17}) {
    CAPTURE(cut);
    const Workspace part(recipe);
    cut_after(whole, part, cut);
    run_well(part, {"checkpoint.resume=must"});
    CHECK(fingerprint(part.path, kSteps) == expected);
  }
}

TEST_CASE("masters in either form give one run, and each goes on with what the other saved") {
  const std::vector<std::string> forms[] = {
      {"training.max_steps=50", "precision={compute: bf16, master: fp32}"},
      {"training.max_steps=50", "precision={compute: bf16, master: bf16+remainder}"}};
  const auto exported = [](const Workspace& here) {
    REQUIRE(here.call({"ckpt", "export", "run", "hf"}).exit_code == 0);
    return read_file(here.path / "hf" / "model.safetensors");
  };
  const Workspace runs[] = {Workspace(kRecipe), Workspace(kRecipe)};
  for (const int form : {0, 1}) run_well(runs[form], forms[form]);
  const std::string expected = fingerprint_of_values(runs[0], 50);
  const std::string weights = exported(runs[0]);
  CHECK(fingerprint_of_values(runs[1], 50) == expected);
  CHECK((exported(runs[1]) == weights));
  for (const int saved : {0, 1}) {
    CAPTURE(saved);
    const Workspace part(kRecipe);
    cut_after(runs[saved], part, 23);
    run_well(part, forms[1 - saved]);
    CHECK(fingerprint_of_values(part, 50) == expected);
    CHECK((exported(part) == weights));
  }
}

TEST_CASE("a run without masters resumes bit for bit, and forms of masters follow each other") {
  const std::vector<std::string> none = {"training.max_steps=50",
                                         "precision={compute: bf16, master: none}"};
  const std::vector<std::string> whole = {"training.max_steps=50", "precision.compute=bf16"};
  const Workspace run(kRecipe), part(kRecipe), nearest(kRecipe), with(kRecipe);
  run_well(run, none);
  const std::string expected = fingerprint(run.path, 50);
  cut_after(run, part, 23);
  run_well(part, none);
  CHECK(fingerprint(part.path, 50) == expected);
  run_well(nearest,
           {"training.max_steps=50", "precision={compute: bf16, master: none, rounding: nearest}"});
  CHECK(fingerprint_of_values(nearest, 50) != fingerprint_of_values(run, 50));

  // Its export is that of bf16 weights, and evaluation and generation read them.
  REQUIRE(run.call({"ckpt", "export", "run", "hf"}).exit_code == 0);
  CHECK(run.call({"eval", "run"}).exit_code == 0);

  cut_after(run, with, 23);
  const auto widened = with.run(whole);
  CHECK(widened.exit_code == 0);
  CHECK(holds(widened.output, {"changed since then: precision.master"}));
  CHECK_FALSE(holds(widened.output, {"are rounded to bf16"}));
  const auto narrowed = with.run({"training.max_steps=52", none[1]});
  CHECK(narrowed.exit_code == 0);
  CHECK(holds(narrowed.output, {"FP32 parameters are rounded to bf16"}));
}

TEST_CASE("a run with bf16 states resumes bit for bit, and goes on with FP32 ones and back") {
  const std::string narrow = "optimizer.state_dtype=bf16";
  for (const std::string precision : {"precision.compute=fp32", "precision.compute=bf16",
                                      "precision={compute: bf16, master: none}"}) {
    CAPTURE(precision);
    const Workspace whole(kRecipe), wide(kRecipe);
    run_well(whole, {precision, narrow});
    run_well(wide, {precision});
    const std::string expected = fingerprint(whole.path, kSteps);
    CHECK(fingerprint_of_values(wide, kSteps) != fingerprint_of_values(whole, kSteps));
    for (const std::uint64_t cut : {1, 13}) {
      const Workspace part(kRecipe);
      cut_after(whole, part, cut);
      run_well(part, {precision, narrow, "checkpoint.resume=must"});
      CHECK(fingerprint(part.path, kSteps) == expected);
    }
    const Workspace widened(kRecipe), narrowed(kRecipe);
    cut_after(whole, widened, 13);
    const auto to_wide = widened.run({precision});
    REQUIRE_MESSAGE(to_wide.exit_code == 0, to_wide.output);
    CHECK(holds(to_wide.output, {"changed since then: optimizer.state_dtype: bf16 -> fp32"}));
    CHECK(fingerprint_of_values(widened, kSteps) != fingerprint_of_values(whole, kSteps));
    cut_after(wide, narrowed, 13);
    const auto to_narrow = narrowed.run({precision, narrow});
    REQUIRE_MESSAGE(to_narrow.exit_code == 0, to_narrow.output);
    CHECK(holds(to_narrow.output, {"changed since then: optimizer.state_dtype: fp32 -> bf16"}));
    // Not far from the run that never changed: what differs is rounding.
    const auto last_loss = [](const Workspace& of) {
      double loss = 0;
      for (const auto& r : of.metrics()) loss = r.number(train::metric::kLoss).value_or(loss);
      return loss;
    };
    for (const Workspace* other : {&whole, &widened, &narrowed}) {
      CHECK(std::abs(last_loss(*other) - last_loss(wide)) < 0.02);
    }
  }
}

TEST_CASE("after SIGKILL at any time a run resumes and ends as if nothing had happened") {
  double whole_seconds = 0;
  std::string expected[2];
  for (const bool async : {false, true}) {
    const Workspace whole(kRecipe);
    const auto start = std::chrono::steady_clock::now();
    run_well(whole, {"training.max_time=1000s", fmt::format("checkpoint.async={}", async)});
    // Kills fall anywhere in a run, however fast the machine is.
    whole_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    expected[async] = fingerprint(whole.path, kSteps);
  }
  const PhiloxKey key = philox_key(11, "test", "kills");
  int kills = 0;
  for (std::uint64_t round = 0; kills < LLMTRAIN_KILLS; ++round) {
    REQUIRE(round < 10 * LLMTRAIN_KILLS);
    const Workspace part(kRecipe);
    const std::int64_t interval = round % 2 == 0 ? 1 : 3;
    const bool async = round % 4 >= 2;
    // Of what was reported less than so much is lost: beside the run one save may be under way.
    const std::int64_t bound = async ? 2 * interval : interval;
    CAPTURE(interval);
    CAPTURE(async);
    std::int64_t saved = 0, reported = 0;
    for (std::uint64_t attempt = 0;; ++attempt) {
      REQUIRE(attempt < 200);
      const double after = whole_seconds * unit_interval(philox_word(key, round, attempt));
      const auto result =
          part.run({"training.max_time=1000s", fmt::format("checkpoint.interval={}", interval),
                    fmt::format("checkpoint.async={}", async)},
                   {.kill_after_seconds = after});
      INFO(result.output);
      // Nothing that a line called saved is lost. A run that was killed before it resumed says
      // nothing.
      const std::int64_t resumed = number_after(result.output, "resumed from step ");
      const bool began = result.output.find("loss") != std::string::npos;
      if (began) CHECK(std::max<std::int64_t>(resumed, 0) >= saved);
      if (began) CHECK(reported - std::max<std::int64_t>(resumed, 0) < bound);
      saved = std::max(saved, number_after(result.output, "saved run/checkpoints/step-"));
      reported = part.last_step();
      if (result.exit_code == 0) break;
      REQUIRE(result.exit_code == -9);
      ++kills;
    }
    CHECK(fingerprint(part.path, kSteps) == expected[async]);
  }
}

TEST_CASE("a resumed run says which keys changed, and when nothing is left to train") {
  const Workspace here(kRecipe);
  REQUIRE(here.run({"training.max_steps=6"}).exit_code == 0);

  const auto longer = here.run({"training.max_steps=8", "optimizer.lr=1e-3"});
  INFO(longer.output);
  CHECK(longer.exit_code == 0);
  CHECK(
      holds(longer.output, {"resumed from step 6", "changed since then: training.max_steps: 6 -> 8",
                            "changed since then: optimizer.lr: 0.005 -> 0.001"}));
  CHECK(longer.output.find("seq_len") == std::string::npos);

  const auto shorter = here.run({"training.max_steps=7", "optimizer.lr=1e-3"});
  INFO(shorter.output);
  CHECK(shorter.exit_code == 0);
  CHECK(holds(shorter.output, {"nothing left to train: step 8 is saved, the run has 7 steps"}));
}

TEST_CASE("what was loaded is not saved again before anything was trained") {
  const Workspace here(kRecipe);
  run_well(here, {"training.max_steps=4"});
  const auto again = here.run({"training.max_steps=4"});
  INFO(again.output);
  CHECK(again.exit_code == 0);
  CHECK(again.output.find("resumed from step 4") != std::string::npos);
  CHECK(again.output.find("saved run") == std::string::npos);
}

TEST_CASE("a signal ends the making of samples, which the next start makes again") {
  const Workspace whole(kRecipe), part(kRecipe);
  const std::vector<std::string> prompts{"eval.sample_prompts=[a, b, c]", "eval.sample_tokens=20",
                                         "eval.interval=2", "training.max_steps=40"};
  run_well(whole, prompts);
  for (const char* const after : {" 2/40 ", " 8/40 "}) {
    const auto stopped = part.run(prompts, {.signal = SIGTERM, .signal_after = after});
    INFO(stopped.output);
    CHECK(stopped.exit_code == 75);
  }
  run_well(part, prompts);
  CHECK(read_file(part.path / "run" / "samples.jsonl") ==
        read_file(whole.path / "run" / "samples.jsonl"));
}

TEST_CASE("a run that is stopped while it makes its last samples is not done") {
  const Workspace here(kRecipe);
  std::string prompts = "eval.sample_prompts=[a";
  for (int i = 0; i < 80; ++i) prompts += ", b";
  const std::vector<std::string> keys{prompts + "]", "eval.sample_tokens=20",
                                      "training.max_steps=4", "data.eval_modulus=8",
                                      "checkpoint.interval=100"};
  // A while after the last step was written down: the evaluation is over then, samples are not.
  std::thread sender([&] {
    const fs::path run = here.path / "run";
    const auto is_there = [&] {
      std::error_code error;
      return fs::exists(run / "metrics.jsonl", error) &&
             read_file(run / "metrics.jsonl").find("\"step\":4,") != std::string::npos;
    };
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!is_there() && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    const auto status = train::read_status(run);
    if (status && !status->has_ended()) ::kill(static_cast<pid_t>(status->pid), SIGTERM);
  });
  const auto stopped = here.run(keys);
  sender.join();
  INFO(stopped.output);
  // Where the signal came too late all is there.
  const auto samples = [&] {
    const fs::path file = here.path / "run" / "samples.jsonl";
    const std::string text = fs::exists(file) ? read_file(file) : "";
    return std::ranges::count(text, '\n');
  };
  CHECK(stopped.exit_code == (samples() == 81 ? 0 : 75));
  run_well(here, keys);
  CHECK(samples() == 81);
}

TEST_CASE("samples of the step that a run resumes from are there once") {
  const Workspace here(kRecipe);
  const std::vector<std::string> prompts{"eval.sample_prompts=[word]", "eval.sample_tokens=3",
                                         "eval.interval=2"};
  auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), prompts.begin(), prompts.end());
    return here.run(more);
  };
  REQUIRE(with({"training.max_steps=4"}).exit_code == 0);
  REQUIRE(with({"training.max_steps=6"}).exit_code == 0);

  std::istringstream lines(read_file(here.path / "run" / "samples.jsonl"));
  std::vector<std::string> steps;
  for (std::string line; std::getline(lines, line);) steps.push_back(line.substr(0, 10));
  CHECK(steps == std::vector<std::string>{"{\"step\":2,", "{\"step\":4,", "{\"step\":6,"});
}

}  // namespace llmtrain
