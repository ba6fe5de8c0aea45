#pragma once
/// Which key a query sees and what dropout leaves of it: the same words for the plain and the tiled
/// kernels.

#include <cmath>
#include <cstdint>

#include "kernels/attention.hpp"

namespace llmtrain::kernels {

/// Key positions that a query sees: first <= position <= last.
struct KeyRange {
  std::int32_t first = 0;
  std::int32_t last = 0;
  bool contains(std::int32_t position) const { return position >= first && position <= last; }
};

/// Of query row `row` among all sequences' rows.
inline KeyRange visible_keys(const AttentionShape& shape, std::int64_t row) {
  const std::int32_t position = shape.q_position.as<std::int32_t>()[row];
  std::int64_t first = shape.q_document_begin.as<std::int32_t>()[row];
  if (shape.window > 0) first = std::max(first, position - shape.window + 1);
  return {static_cast<std::int32_t>(first), position};
}

/// InternalError where the positions are not what is said to be known of them.
void require_known_rows(const AttentionShape& shape);

/// The sink of a head; W is the type of scores.
template <class W>
W sink_of(const AttentionShape& shape, std::int64_t head) {
  const View& sink = shape.sink;
  if (sink.dtype == DType::bf16) return static_cast<W>(to_float(sink.as<bf16>()[head]));
  if (sink.dtype == DType::f16) return static_cast<W>(to_float(sink.as<f16>()[head]));
  return sink.dtype == DType::f64 ? static_cast<W>(sink.as<double>()[head])
                                  : static_cast<W>(sink.as<float>()[head]);
}

/// Index of the element (sample, head, q, k = 0) in the stream of dropout; k adds to it.
inline std::uint64_t dropout_row_index(const AttentionShape& shape, std::int64_t sequence,
                                       std::int64_t head, std::int32_t q_position) {
  const std::int64_t sample = shape.q_sample.as<std::int64_t>()[sequence];
  const std::int64_t seq_len = shape.dropout.seq_len;
  const std::int64_t heads = shape.dropout.heads_of_layer(shape.num_heads);
  const std::int64_t row =
      (sample * heads + shape.dropout.first_head + head) * seq_len + q_position;
  return static_cast<std::uint64_t>(row * seq_len);
}

/// unit_interval(word) >= p exactly when word >= dropout_threshold(p).
inline std::uint32_t dropout_threshold(double p) {
  return static_cast<std::uint32_t>(std::ceil(p * 0x1p32 - 0.5));
}

}  // namespace llmtrain::kernels
