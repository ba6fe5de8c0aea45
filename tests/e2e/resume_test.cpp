// A run that is cut and resumed equals one that never stopped, bit for bit.
#include <algorithm>
#include <chrono>
#include <filesystem>

#include <doctest/doctest.h>

#include "lib/base/philox.hpp"
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

// The number behind the last occurrence of `text`, or -1.
std::int64_t number_after(const std::string& output, std::string_view text) {
  const std::size_t at = output.rfind(text);
  return at == std::string::npos ? -1 : std::stoll(output.substr(at + text.size()));
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
    // Removing every later checkpoint leaves what a crash right after the cut's save would leave.
    const Workspace part(kRecipe);
    const std::uint64_t cut = 1 + philox_below(key, 0, i, kSteps - 1);
    CAPTURE(cut);
    fs::copy(whole.path / "run", part.path / "run", fs::copy_options::recursive);
    fs::copy(whole.path / ".cache", part.path / ".cache", fs::copy_options::recursive);
    for (const auto& entry : fs::directory_iterator(part.path / "run" / "checkpoints")) {
      const std::string name = entry.path().filename();
      if (name.starts_with("step-") && std::stoull(name.substr(5)) > cut) {
        fs::remove_all(entry.path());
      }
    }
    const auto resumed = part.run({"checkpoint.resume=must"});
    INFO(resumed.output);
    REQUIRE(resumed.exit_code == 0);
    CHECK(resumed.output.find("resumed from step " + std::to_string(cut)) != std::string::npos);
    CHECK(fingerprint(part.path, kSteps) == expected);
  }
}

TEST_CASE("after SIGKILL at any time a run resumes and ends as if nothing had happened") {
  const Workspace whole(kRecipe);
  const auto start = std::chrono::steady_clock::now();
  REQUIRE(whole.run({"training.max_time=1000s"}).exit_code == 0);
  // Kills fall anywhere in a run, however fast the machine is.
  const double whole_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const std::string expected = fingerprint(whole.path, kSteps);
  const PhiloxKey key = philox_key(11, "test", "kills");
  int kills = 0;
  for (std::uint64_t round = 0; kills < LLMTRAIN_KILLS; ++round) {
    REQUIRE(round < 10 * LLMTRAIN_KILLS);
    const Workspace part(kRecipe);
    std::int64_t saved = 0;
    for (std::uint64_t attempt = 0;; ++attempt) {
      REQUIRE(attempt < 200);
      const double after = whole_seconds * unit_interval(philox_word(key, round, attempt));
      const auto result = part.run({"training.max_time=1000s"}, {.kill_after_seconds = after});
      INFO(result.output);
      // With an interval of one step, nothing that a line called saved may be lost.
      const std::int64_t resumed = number_after(result.output, "resumed from step ");
      if (resumed >= 0) CHECK(resumed >= saved);
      saved = std::max(saved, number_after(result.output, "step-"));
      if (result.exit_code == 0) break;
      REQUIRE(result.exit_code == -9);
      ++kills;
    }
    CHECK(fingerprint(part.path, kSteps) == expected);
  }
}

}  // namespace llmtrain
