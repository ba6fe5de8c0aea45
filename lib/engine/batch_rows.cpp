#include "lib/engine/batch_rows.hpp"

#include <numeric>

#include "lib/base/require.hpp"

namespace llmtrain::engine {

namespace {

using Positions = std::vector<std::int32_t>;

void append_piece(Positions& positions, std::int64_t piece, std::int64_t rows) {
  for (std::int64_t i = 0; i < rows; ++i) {
    positions.push_back(static_cast<std::int32_t>(piece * rows + i));
  }
}

Positions positions_of_group(int group, int groups, std::int64_t seq_len) {
  Positions positions;
  if (groups == 1) {
    append_piece(positions, 0, seq_len);
    return positions;
  }
  append_piece(positions, group, seq_len / (2 * groups));
  append_piece(positions, 2 * groups - 1 - group, seq_len / (2 * groups));
  return positions;
}

}  // namespace

BatchRows::BatchRows(const MeshShape& shape, int sp_index, std::int64_t seq_len)
    : seq_len_(seq_len) {
  const int groups = shape.row_groups(), sharers = shape.head_sharers();
  for (int g = 0; g < groups; ++g) {
    const Positions some = positions_of_group(g, groups, seq_len);
    all_positions_.insert(all_positions_.end(), some.begin(), some.end());
  }
  group_positions_ = positions_of_group(sp_index / sharers, groups, seq_len);
  const auto of_group = std::ssize(group_positions_);
  require(std::ssize(all_positions_) == seq_len && of_group % sharers == 0,
          "{} ranks cannot share {} rows", shape[Axis::sp], seq_len);
  const auto begin = group_positions_.begin() + sp_index % sharers * (of_group / sharers);
  positions_.assign(begin, begin + of_group / sharers);
  if (groups > 1) groups_ = shape.sp_algo == SequenceSharing::ring ? Groups::ring : Groups::gather;
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
                            .known = groups_ == Groups::one ? known : kernels::KnownRows::nothing},
                   .tokens = make("batch tokens", DType::i32, rows),
                   .targets = make("batch targets", DType::i32, rows)};
  if (shares_heads()) {
    const auto of_group = count * std::ssize(group_positions_);
    micro.rows.group_position = make("group's row positions", DType::i32, of_group);
    micro.rows.group_document_begin = make("group's documents", DType::i32, of_group);
  }
  if (groups_ != Groups::one) {
    micro.rows.all_position = make("all row positions", DType::i32, count * seq_len_);
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
  if (shares_heads()) {
    send_positions(micro.rows.group_position, group_positions_);
    send(micro.rows.group_document_begin,
         pick(values_, group_positions_, first, count, batch.doc_begin.data()));
  }
  if (groups_ == Groups::gather) send_positions(micro.rows.all_position, all_positions_);
  if (groups_ == Groups::ring) send(micro.rows.all_position, one_group_after_another(count));
  return micro;
}

const std::vector<std::int32_t>& BatchRows::one_group_after_another(std::int64_t count) {
  values_.clear();
  const auto length = std::ssize(group_positions_);
  for (auto group = all_positions_.begin(); group != all_positions_.end(); group += length) {
    for (std::int64_t s = 0; s < count; ++s) values_.insert(values_.end(), group, group + length);
  }
  return values_;
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
