#pragma once
/// `llmtrain run` on a small text, in processes of mpirun.

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "lib/base/file.hpp"
#include "lib/train/metrics.hpp"
#include "tests/mesh/probe_run.hpp"
#include "tests/support/temp_dir.hpp"

namespace llmtrain::test {

inline constexpr std::string_view kRecipe = R"(
recipe: 1
run: {seed: 5, threads: 1, device: cpu}
model: {architecture: llama, vocab_size: 300, hidden_size: 16, num_hidden_layers: 2,
        num_attention_heads: 2, intermediate_size: 32, max_position_embeddings: 64,
        initializer_range: 0.2}
tokenizer: {type: bytes}
data: {sources: [{path: text.txt, max_document_bytes: 1024}], eval_modulus: 4}
training: {seq_len: 16, micro_batch_size: 1, global_batch_size: 4, max_steps: 12}
optimizer: {lr: 5.0e-2}
lr_scheduler: {warmup: 0}
precision: {compute: fp64}
checkpoint: {interval: 4}
eval: {interval: 6, sample_prompts: [word]}
metrics: {interval: 1, tensorboard: true}
)";

struct Workshop {
  Workshop() {
    set_mpi_environment();
    std::string text;
    for (int i = 0; i < 3000; ++i)
      text += fmt::format("word{}{}", i * 7919 % 613, i % 9 == 0 ? "\n" : " ");
    write_file_atomic(scratch / "text.txt", text);
    write_file_atomic(scratch / "r.yaml", kRecipe);
  }
  ProcessResult run(int ranks, const std::vector<std::string>& overrides,
                    ProcessEvents events = {.limit_seconds = 60}) const {
    std::vector<std::string> command = ranks > 1 ? mpirun(ranks) : std::vector<std::string>();
    command.insert(command.end(), {LLMTRAIN_EXECUTABLE, "run", "r.yaml"});
    command.insert(command.end(), overrides.begin(), overrides.end());
    return run_process(command, scratch.path().string(), events);
  }
  /// The same by a shell in each process, in which `before` comes first ("[ $OMPI_COMM_WORLD_RANK =
  /// 1 ] && ulimit -t 2;").
  ProcessResult run_in_shell(int ranks, const std::string& before,
                             const std::string& overrides) const {
    std::vector<std::string> command = mpirun(ranks);
    command.insert(command.end(), {"/bin/sh", "-c",
                                   fmt::format("{} exec {} run r.yaml {}", before,
                                               LLMTRAIN_EXECUTABLE, overrides)});
    return run_process(command, scratch.path().string(), {.limit_seconds = 60});
  }
  std::vector<std::string> records(const std::string& run) const {
    std::vector<std::string> lines;
    for (const auto& record : train::read_metrics(scratch / run / "metrics.jsonl")) {
      lines.push_back(train::reproducible_line(record));
    }
    return lines;
  }

  TempDir scratch;
};

inline double last_loss(const std::filesystem::path& file, std::string_view key) {
  double loss = 0;
  for (const auto& record : train::read_metrics(file)) {
    if (const auto value = record.number(key)) loss = *value;
  }
  return loss;
}

// Of all steps, as they were written.
inline std::vector<double> losses_and_norms(const std::filesystem::path& run) {
  std::vector<double> numbers;
  for (const auto& record : train::read_metrics(run / "metrics.jsonl")) {
    for (const auto key :
         {train::metric::kLoss, train::metric::kGradNorm, train::metric::kEvalLoss}) {
      if (const auto value = record.number(key)) numbers.push_back(*value);
    }
  }
  return numbers;
}

}  // namespace llmtrain::test
