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

void read_logits(const Tensor& z, std::vector<float>& logits) {
  if (z.dtype() == DType::f32) {
    z.device().copy_to_host(std::as_writable_bytes(std::span(logits)), z);
    return;
  }
  std::vector<double> wide(logits.size());
  z.device().copy_to_host(std::as_writable_bytes(std::span(wide)), z);
  std::copy(wide.begin(), wide.end(), logits.begin());
}

// Gives every rank of the pipeline those of its last one.
void share(std::vector<float>& logits, Communicator& pipeline, int root) {
  const std::span<char> bytes(reinterpret_cast<char*>(logits.data()),
                              logits.size() * sizeof(float));
  const std::string shared = pipeline.share_text({bytes.data(), bytes.size()}, root, "logits");
  std::copy(shared.begin(), shared.end(), bytes.begin());
}

}  // namespace

DecoderSession::DecoderSession(Engine& engine, std::int64_t capacity) : engine_(&engine) {
  const models::DecoderSpec& spec = engine.model().spec();
  const OpCtx ctx = engine.context();
  const Shape shape{capacity, engine.model().heads().kv_cols()};
  std::vector<std::int32_t> positions(static_cast<std::size_t>(capacity));
  std::iota(positions.begin(), positions.end(), 0);
  const Tensor position = upload(ctx, positions, "cache positions");
  for (int i = 0; i < spec.num_hidden_layers; ++i) {
    if (!engine.stages().has_block(i)) {
      caches_.emplace_back();
      continue;
    }
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
  const Stages& stages = engine_->stages();
  const Var x = engine_->through_stages(ctx, input, [&](int stage, Var h) {
    for (int i = stages.first_block(stage); i < stages.first_block(stage + 1); ++i) {
      ops::KvCache& cache = caches_[static_cast<std::size_t>(i)];
      h = engine_->with_block(ctx, i, [&] { return model.block(i).forward(ctx, h, &cache); });
    }
    return h;
  });
  length_ += rows;
  for (ops::KvCache& cache : caches_) cache.length = length_;
  std::vector<float> logits(static_cast<std::size_t>(model.spec().vocab_size));
  if (stages.is_here(stages.last()))
    read_logits(engine_->logits(ctx, x.tensor.row_range(rows - 1, 1)), logits);
  if (stages.divided())
    share(logits, engine_->mesh().axis(Axis::pp), stages.rank_of(stages.last()));
  return logits;
}

}  // namespace llmtrain::engine
