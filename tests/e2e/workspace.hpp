#pragma once
/// A directory with a recipe and a text, and the real executable in it.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "lib/train/metrics.hpp"
#include "tests/support/process.hpp"
#include "tests/support/temp_dir.hpp"

namespace llmtrain {

/// Six steps of a small Llama; a save every two, an evaluation every two.
inline constexpr std::string_view kTinyRecipe = R"(
recipe: 1
run: {device: cpu, output_dir: run, seed: 5, threads: 1}
model: {architecture: llama, vocab_size: 257, hidden_size: 16, num_hidden_layers: 2,
        num_attention_heads: 2, intermediate_size: 32, max_position_embeddings: 64}
tokenizer: {type: bytes}
data: {sources: [{path: text.txt, max_document_bytes: 1024}], eval_modulus: 4}
training: {seq_len: 16, micro_batch_size: 2, global_batch_size: 4, max_steps: 6}
optimizer: {lr: 5.0e-3}
checkpoint: {interval: 2, keep_latest: null}
eval: {interval: 2}
metrics: {interval: 1, tensorboard: false}
)";

struct Workspace {
  test::TempDir directory;
  std::filesystem::path path = directory.path();

  /// Writes `recipe.yaml` and `text.txt`: 700 words of a vocabulary of 40, in lines and paragraphs.
  explicit Workspace(std::string_view recipe);

  void write(const std::string& name, std::string_view content) const;
  /// `llmtrain arguments...` here.
  test::ProcessResult call(std::vector<std::string> arguments,
                           const test::ProcessEvents& events = {}) const;
  /// `llmtrain run recipe.yaml overrides...` here.
  test::ProcessResult run(const std::vector<std::string>& overrides = {},
                          const test::ProcessEvents& events = {}) const;
  /// Records of the run in `run`.
  std::vector<train::StepRecord> metrics() const;
  /// The last step of which they have one, or 0.
  std::int64_t last_step() const;
};

/// `run` there, which must reach its end.
void run_well(const Workspace& here, const std::vector<std::string>& overrides);

/// Everything of the run in `where`/run that must be equal after a step: tensors, state and
/// metrics, without times and host names.
std::string fingerprint(const std::filesystem::path& where, std::uint64_t step);

/// The number behind the last occurrence of `text`, or -1.
std::int64_t number_after(const std::string& output, std::string_view text);

/// Whether `text` holds each of the parts.
bool holds(const std::string& text, const std::vector<std::string>& parts);

}  // namespace llmtrain
