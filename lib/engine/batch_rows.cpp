#include "lib/engine/batch_rows.hpp"

#include <numeric>

#include "lib/base/require.hpp"

namespace llmtrain::engine {

namespace {

void append_piece(std::vector<std::int32_t>& positions, std::int64_t piece, std::int64_t rows) {
  for (std::int64_t i = 0; i < rows; ++i) {
    positions.push_back(static_cast<std::int32_t>(piece * rows + i));
  }
}

std::vector<std::int32_t> positions_of(int rank, int ranks, SequenceSharing how,
                                       std::int64_t seq_len) {
  std::vector<std::int32_t> positions;
  if (ranks == 1 || how == SequenceSharing::ulysses) {
    append_piece(positions, rank, seq_len / ranks);
    return positions;
  }
  append_piece(positions, rank, seq_len / (2 * ranks));
  append_piece(positions, 2 * ranks - 1 - rank, seq_len / (2 * ranks));
  return positions;
}

}  // namespace

BatchRows::BatchRows(const MeshShape& shape, int sp_index, std::int64_t seq_len)
    : seq_len_(seq_len) {
  const int ranks = shape[Axis::sp];
  positions_ = positions_of(sp_index, ranks, shape.sp_algo, seq_len);
  for (int r = 0; r < ranks; ++r) {
    const auto some = positions_of(r, ranks, shape.sp_algo, seq_len);
    all_positions_.insert(all_positions_.end(), some.begin(), some.end());
  }
  require(std::ssize(all_positions_) == seq_len, "{} ranks cannot share {} rows", ranks, seq_len);
  keys_travel_ = ranks > 1 && shape.sp_algo == SequenceSharing::ring;
  in_order_ = ranks == 1 || shape.sp_algo == SequenceSharing::ulysses;
}

// Of `count` samples, the rows at `positions` of each.
template <class T>
const std::vector<T>& BatchRows::pick(std::vector<T>& to,
                                      const std::vector<std::int32_t>& positions,
                                      std::int64_t first, std::int64_t count,
                                      const T* of_batch) const {
  to.clear();
  for (std::int64_t s = 0; s < count; ++s) {
    const T* sample = of_batch + (first + s) * seq_len_;
    for (const std::int32_t position : positions) to.push_back(sample[position]);
  }
  return to;
}

MicroBatch BatchRows::upload(Device& device, const StepBatch& batch, std::int64_t first,
                             std::int64_t count, bool one_document) {
  const auto length = static_cast<std::int64_t>(positions_.size());
  const std::int64_t rows = count * length;
  const auto make = [&](std::string_view tag, DType dtype, std::int64_t n) {
    return device.allocate({n}, dtype, Category::activations, tag);
  };
  const kernels::KnownRows known =
      one_document ? kernels::KnownRows::one_document : kernels::KnownRows::in_order;
  MicroBatch micro{.rows = {.num_sequences = count,
                            .rows_per_sequence = length,
                            .seq_len = seq_len_,
                            .token_id = make("batch token ids", DType::i64, rows),
                            .position = make("batch row positions", DType::i32, rows),
                            .embedding_position = make("batch positions", DType::i32, rows),
                            .document_begin = make("batch documents", DType::i32, rows),
                            .sample = make("batch samples", DType::i64, count),
                            .known = in_order_ ? known : kernels::KnownRows::nothing},
                   .tokens = make("batch tokens", DType::i32, rows),
                   .targets = make("batch targets", DType::i32, rows)};
  if (in_parts()) {
    micro.rows.all_position = make("all row positions", DType::i32, count * seq_len_);
  }
  if (in_parts() && !keys_travel_) {
    micro.rows.all_document_begin = make("all documents", DType::i32, count * seq_len_);
  }
  if (device.is_meta()) return micro;

  const auto send = [&](const Tensor& to, const auto& host) {
    device.copy_from_host(to, std::as_bytes(std::span(host)));
  };
  const auto send_rows = [&](const Tensor& to, const std::vector<std::int32_t>& of_batch) {
    send(to, pick(values_, positions_, first, count, of_batch.data()));
  };
  const auto send_positions = [&](const Tensor& to, const std::vector<std::int32_t>& positions) {
    values_.clear();
    for (std::int64_t s = 0; s < count; ++s) {
      values_.insert(values_.end(), positions.begin(), positions.end());
    }
    send(to, values_);
  };
  const std::int64_t in_step = batch.first_sample + first;
  ids_.clear();
  for (std::int64_t s = 0; s < count; ++s) {
    for (const std::int32_t position : positions_) {
      ids_.push_back((in_step + s) * seq_len_ + position);
    }
  }
  samples_.resize(static_cast<std::size_t>(count));
  std::iota(samples_.begin(), samples_.end(), in_step);
  send(micro.rows.token_id, ids_);
  send(micro.rows.sample, samples_);
  send_positions(micro.rows.position, positions_);
  send_rows(micro.rows.embedding_position, batch.positions);
  send_rows(micro.rows.document_begin, batch.doc_begin);
  send_rows(micro.tokens, batch.tokens);
  send_rows(micro.targets, batch.targets);
  if (!in_parts()) return micro;
  if (keys_travel_) {
    values_.clear();
    for (std::int64_t r = 0; r * length < seq_len_; ++r) {
      const auto of_rank = all_positions_.begin() + r * length;
      for (std::int64_t s = 0; s < count; ++s) {
        values_.insert(values_.end(), of_rank, of_rank + length);
      }
    }
    send(micro.rows.all_position, values_);
    return micro;
  }
  send_positions(micro.rows.all_position, all_positions_);
  send(micro.rows.all_document_begin,
       pick(values_, all_positions_, first, count, batch.doc_begin.data()));
  return micro;
}

std::vector<const void*> MicroBatch::addresses() const {
  std::vector<const void*> all;
  for (const Tensor* tensor : {&rows.token_id, &rows.position, &rows.embedding_position,
                               &rows.document_begin, &rows.sample, &tokens, &targets}) {
    all.push_back(tensor->view().data);
  }
  return all;
}

}  // namespace llmtrain::engine
