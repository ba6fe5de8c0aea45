#pragma once
/// Rows know who they are: what every activation row of a micro-batch stands for.

#include <cstdint>

#include "kernels/attention.hpp"
#include "lib/tensor/tensor.hpp"

namespace llmtrain {

/// Rows of one micro-batch: `num_sequences` sequences of `rows_per_sequence` rows each. All tensors
/// are read-only and live on the device of the activations.
struct RowMap {
  std::int64_t num_sequences = 0;
  std::int64_t rows_per_sequence = 0;
  /// Length of the whole sample, of which a rank may hold a part.
  std::int64_t seq_len = 0;
  /// Global token id: sample in the step * seq_len + position. int64 [rows].
  Tensor token_id;
  /// Position in the sample, for masks. int32 [rows].
  Tensor position;
  /// Position that RoPE and learned embeddings see: restarts with each document if the recipe says
  /// so. int32 [rows].
  Tensor embedding_position;
  /// First position of the row's document in the sample. int32 [rows].
  Tensor document_begin;
  /// Sample in the step of each sequence. int64 [num_sequences].
  Tensor sample;
  /// Of `position` and `document_begin`.
  kernels::KnownRows known = kernels::KnownRows::nothing;
  /// Between layers that the ranks of Axis::tp share, this rank may have some of the rows only:
  /// `own_rows` from `own_begin` on. -1: all.
  std::int64_t own_begin = 0;
  std::int64_t own_rows = -1;

  /// Where the ranks of Axis::sp have the rows of the sequences in parts. Of the ranks that share
  /// heads: `position` and `document_begin` of their rows, each sequence's in the order of the
  /// ranks. int32 [rows * ranks].
  Tensor group_position, group_document_begin;
  /// Of all groups that share rows: `position`, each sequence's in the order of the groups, or,
  /// where keys go around them, one group after another. int32 [num_sequences * seq_len].
  Tensor all_position;

  std::int64_t rows() const { return num_sequences * rows_per_sequence; }
  bool in_parts() const { return group_position.defined() || all_position.defined(); }
  bool shared() const { return own_rows >= 0; }
  /// Of values [rows], those of the rows that this rank has between shared layers.
  Tensor own(const Tensor& values) const {
    return shared() ? values.columns(own_begin, own_rows) : values;
  }
};

}  // namespace llmtrain
