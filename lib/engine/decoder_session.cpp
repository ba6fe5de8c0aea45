#include "lib/engine/decoder_session.hpp"

#include <numeric>

#include "lib/base/require.hpp"

namespace llmtrain::engine {

namespace {

template <class T>
Tensor upload(const OpCtx& ctx, const std::vector<T>& values, std::string_view tag) {
  Tensor tensor = ctx.allocate({static_cast<std::int64_t>(values.size())}, dtype_of<T>, tag);
  ctx.kernel.device->copy_from_host(tensor, std::as_bytes(std::span(values)));
  return tensor;
}

}  // namespace

DecoderSession::DecoderSession(const Engine& engine, std::int64_t capacity) : engine_(&engine) {
  const models::DecoderSpec& spec = engine.model().spec();
  const OpCtx ctx = engine.context();
  const Shape shape{capacity, engine.model().heads().kv_cols()};
  std::vector<std::int32_t> positions(static_cast<std::size_t>(capacity));
  std::iota(positions.begin(), positions.end(), 0);
  const Tensor position = upload(ctx, positions, "cache positions");
  for (std::int64_t i = 0; i < spec.num_hidden_layers; ++i) {
    caches_.push_back({.k = ctx.allocate(shape, engine.options().compute, "cache k"),
                       .v = ctx.allocate(shape, engine.options().compute, "cache v"),
                       .position = position,
                       .capacity = capacity,
                       .length = 0});
  }
}

std::vector<float> DecoderSession::append(std::span<const std::int32_t> tokens) {
  const models::Decoder& model = engine_->model();
  OpCtx ctx = engine_->context();
  const auto rows = static_cast<std::int64_t>(tokens.size());
  std::vector<std::int32_t> positions(tokens.size());
  std::iota(positions.begin(), positions.end(), static_cast<std::int32_t>(length_));
  std::vector<std::int64_t> ids(tokens.size());
  std::iota(ids.begin(), ids.end(), length_);
  const Tensor position = upload(ctx, positions, "decode positions");
  const RowMap map{.num_sequences = 1,
                   .rows_per_sequence = rows,
                   .seq_len = model.spec().max_position_embeddings,
                   .token_id = upload(ctx, ids, "decode token ids"),
                   .position = position,
                   .embedding_position = position,
                   .document_begin =
                       upload(ctx, std::vector<std::int32_t>(tokens.size(), 0), "decode documents"),
                   .sample = upload(ctx, std::vector<std::int64_t>{0}, "decode samples")};
  ctx.rows = &map;
  const Tensor input =
      upload(ctx, std::vector<std::int32_t>(tokens.begin(), tokens.end()), "decode tokens");
  Var x = model.embed(ctx, input);
  for (int i = 0; i < model.num_blocks(); ++i) {
    x = model.block(i).forward(ctx, x, &caches_[static_cast<std::size_t>(i)]);
  }
  length_ += rows;
  for (ops::KvCache& cache : caches_) cache.length = length_;
  const Tensor z = model.logits(ctx, x.tensor.row_range(rows - 1, 1));
  std::vector<float> logits(static_cast<std::size_t>(z.numel()));
  if (z.dtype() == DType::f32) {
    engine_->device().copy_to_host(std::as_writable_bytes(std::span(logits)), z);
    return logits;
  }
  std::vector<double> wide(logits.size());
  engine_->device().copy_to_host(std::as_writable_bytes(std::span(wide)), z);
  std::copy(wide.begin(), wide.end(), logits.begin());
  return logits;
}

}  // namespace llmtrain::engine
