#pragma once
/// Held-out text in samples that overlap: a row is counted once, but may see more of its document
/// than the sample that it would begin.

#include <cstdint>
#include <memory>

#include "lib/data/sample_stream.hpp"

namespace llmtrain::data {

/// Window w holds rows [w * stride, w * stride + seq_len) of the packed documents. The first one
/// counts all its rows, the others their last `stride`, so that every row is counted in exactly one
/// window and sees at least seq_len - stride rows of its document, where it has as many. With
/// stride = seq_len windows are the samples of training.
class EvalWindows {
 public:
  /// RecipeError unless 1 <= stride <= seq_len.
  EvalWindows(std::shared_ptr<const PackedSamples> samples, std::int64_t stride);

  const PackedSamples& samples() const { return *samples_; }
  std::uint64_t count() const { return count_; }

  /// Writes window `index` (below count) to `out`; rows that do not count predict nothing. Returns
  /// how many count.
  std::int64_t read(std::uint64_t index, SampleView out) const;

 private:
  std::shared_ptr<const PackedSamples> samples_;
  std::uint64_t stride_;
  std::uint64_t count_;
};

}  // namespace llmtrain::data
