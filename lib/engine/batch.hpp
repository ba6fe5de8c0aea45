#pragma once
/// The samples of one optimizer step, or this rank's share of them, on the host.

#include <cstdint>
#include <vector>

namespace llmtrain::engine {

/// Row r of sample s is element s * seq_len + r of each array. Buffers keep their capacity from
/// step to step. For a plan only the sizes are set and the arrays stay empty.
struct StepBatch {
  /// Number of the first sample in its step: ranks share a step's samples.
  std::int64_t first_sample = 0;
  std::int64_t num_samples = 0;
  std::int64_t seq_len = 0;
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> targets;    // -1 where nothing is trained
  std::vector<std::int32_t> doc_begin;  // first row of the sample that row r may see
  std::vector<std::int32_t> positions;  // for RoPE and learned positions
  /// Targets that are not -1; to train, those of all ranks that share the step.
  std::int64_t trained_tokens = 0;

  void resize(std::int64_t samples, std::int64_t length) {
    num_samples = samples;
    seq_len = length;
    const auto n = static_cast<std::size_t>(samples * length);
    for (auto* array : {&tokens, &targets, &doc_begin, &positions}) array->resize(n);
  }
  /// What a plan executes: full samples, every token trained.
  static StepBatch planned(std::int64_t samples, std::int64_t length) {
    StepBatch batch;
    batch.num_samples = samples;
    batch.seq_len = length;
    batch.trained_tokens = samples * length;
    return batch;
  }
};

}  // namespace llmtrain::engine
