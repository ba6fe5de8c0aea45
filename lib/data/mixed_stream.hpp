#pragma once
/// The samples of training in order, from one source or from a mixture of several.

#include <cstdint>
#include <string>
#include <vector>

#include "lib/data/mixture.hpp"
#include "lib/data/sample_stream.hpp"

namespace llmtrain::data {

/// A pure function of the position: which source comes from the mixture, which of its samples from
/// the source's own permutation. All sources have the same seq_len and end token.
class MixedStream {
 public:
  /// One source for ever.
  MixedStream(SampleStream stream);  // NOLINT: a stream of one source is one
  /// One stream per source of the mixture, in its order.
  MixedStream(std::vector<SampleStream> streams, Mixture mixture);

  std::int64_t seq_len() const { return streams_.front().samples().options().seq_len; }
  std::int32_t end_id() const { return streams_.front().samples().end_id(); }
  const std::vector<SampleStream>& sources() const { return streams_; }
  const Mixture& mixture() const { return mixture_; }
  /// Samples of all sources together.
  std::uint64_t epoch_size() const { return epoch_size_; }

  /// Writes the sample at position `global_index` (below mixture().length()) to `out`; returns how
  /// many of its rows predict something.
  std::int64_t read(std::uint64_t global_index, SampleView out) const;
  Sample sample_at(std::uint64_t global_index) const;

 private:
  std::vector<SampleStream> streams_;
  Mixture mixture_;
  std::uint64_t epoch_size_ = 0;
};

}  // namespace llmtrain::data
