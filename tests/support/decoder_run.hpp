#pragma once
/// A decoder without the engine: parameters, one batch, forward and backward by hand.

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "kernels/kernel.hpp"
#include "lib/models/decoder.hpp"

namespace llmtrain::test {

/// Sequences of packed documents, row by row.
struct Batch {
  std::int64_t num_sequences = 0;
  std::int64_t length = 0;
  std::vector<std::int32_t> tokens, targets, document_begin, embedding_position;

  std::int64_t rows() const { return num_sequences * length; }
  std::int64_t trained() const {
    return std::count_if(targets.begin(), targets.end(), [](std::int32_t t) { return t >= 0; });
  }
};

struct RunOptions {
  DType compute = DType::f32;
  const kernels::KernelTable* table = &kernels::cpu_table();
  WeightGrads weight_grads = WeightGrads::now;
  bool recompute_blocks = false;
  RecomputedOps recomputed_ops = {};
  std::int64_t seq_len = 0;  // of the batches to come
  /// Of the device that `table` is for.
  std::function<std::unique_ptr<MemoryBackend>()> memory = make_cpu_memory;
  kernels::AttentionChoice attention = kernels::AttentionChoice::automatic;
};

template <class T>
std::vector<double> to_doubles(const std::vector<std::byte>& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return {values.begin(), values.end()};
}

inline std::vector<double> to_doubles(const Tensor& tensor) {
  std::vector<std::byte> bytes(tensor.view().bytes());
  tensor.device().copy_to_host(bytes, tensor);
  return tensor.dtype() == DType::f64 ? to_doubles<double>(bytes) : to_doubles<float>(bytes);
}

/// A model with its parameters on a device of its own.
class DecoderRun {
 public:
  DecoderRun(const models::DecoderSpec& spec, RunOptions options)
      : options_(std::move(options)),
        device_(options_.memory(), std::uint64_t{1} << 28),
        mesh_({}, 0, self_factory()),
        store_(mesh_),
        decoder_(store_, spec) {
    const DType wide = statistics_dtype(options_.compute);
    store_.allocate(device_, {options_.compute, wide, wide}, true);
    decoder_.allocate_tables(device_, options_.compute, options_.seq_len);
  }

  /// Sets every parameter to make(parameter), FP32 values.
  void fill(const std::function<std::vector<float>(const Parameter&)>& make) {
    for (const auto& p : store_.all()) {
      const std::vector<float> values = make(*p);
      if (p->master().dtype() == DType::f64) {
        const std::vector<double> wide(values.begin(), values.end());
        store_.write(*p, std::as_bytes(std::span(wide)));
      } else {
        store_.write(*p, std::as_bytes(std::span(values)));
      }
    }
  }

  /// One forward and backward pass; returns the mean loss over the trained tokens. The gradients
  /// are its own and replace what the parameters held.
  double forward_backward(const Batch& batch) {
    const RowMap rows = row_map(batch);
    Tape tape;
    OpCtx ctx = context(rows);
    ctx.tape = &tape;
    ctx.training = true;
    ctx.recomputed_ops = &options_.recomputed_ops;
    ctx.step.grad_scale = 1.0 / static_cast<double>(batch.trained());
    for (const auto& group : store_.local_groups()) zero(group->grad());
    const Tensor loss_sum = upload(std::vector<double>{0.0}, {1});
    const Tensor targets = upload(batch.targets, {batch.rows()});
    Var x = embed(ctx, batch);
    for (int i = 0; i < decoder_.num_blocks(); ++i) x = block(ctx, i, x);
    const Var loss = decoder_.loss(ctx, x, targets, loss_sum, {.chunk_bytes = 1 << 20});
    x = {};
    tape.seed_root(loss);
    tape.backward(ctx, options_.weight_grads);
    tape.run_weight_grads(ctx);
    return to_doubles(loss_sum).front() * ctx.step.grad_scale;
  }

  /// Logits of every row, [rows, vocab].
  std::vector<double> logits(const Batch& batch) {
    const RowMap rows = row_map(batch);
    const OpCtx ctx = context(rows);
    Var x = embed(ctx, batch);
    for (int i = 0; i < decoder_.num_blocks(); ++i) x = block(ctx, i, x);
    return to_doubles(decoder_.logits(ctx, x.tensor));
  }

  ParameterStore& store() { return store_; }
  Device& device() { return device_; }
  kernels::KernelCtx kernel_context() {
    return {.device = &device_,
            .table = options_.table,
            .stream = device_.compute_stream(),
            .threads = 2,
            .library_workspace_bytes = std::uint64_t{4} << 20,
            .attention = options_.attention};
  }

 private:
  template <class T>
  Tensor upload(const std::vector<T>& values, const Shape& shape) {
    Tensor tensor = device_.allocate(shape, dtype_of<T>, Category::activations, "test input");
    device_.copy_from_host(tensor, std::as_bytes(std::span(values)));
    return tensor;
  }

  void zero(const Tensor& tensor) {
    const std::vector<std::byte> zeros(tensor.view().bytes());
    device_.copy_from_host(tensor, zeros);
  }

  OpCtx context(const RowMap& rows) {
    return {.kernel = kernel_context(), .mesh = &mesh_, .rows = &rows, .step = {}};
  }

  RowMap row_map(const Batch& batch) {
    const auto rows = static_cast<std::size_t>(batch.rows());
    std::vector<std::int64_t> token_id(rows);
    std::vector<std::int64_t> sample(static_cast<std::size_t>(batch.num_sequences));
    std::vector<std::int32_t> position(rows);
    std::iota(token_id.begin(), token_id.end(), 0);
    std::iota(sample.begin(), sample.end(), 0);
    for (std::size_t i = 0; i < rows; ++i) {
      position[i] = static_cast<std::int32_t>(static_cast<std::int64_t>(i) % batch.length);
    }
    return {.num_sequences = batch.num_sequences,
            .rows_per_sequence = batch.length,
            .seq_len = batch.length,
            .token_id = upload(token_id, {batch.rows()}),
            .position = upload(position, {batch.rows()}),
            .embedding_position = upload(batch.embedding_position, {batch.rows()}),
            .document_begin = upload(batch.document_begin, {batch.rows()}),
            .sample = upload(sample, {batch.num_sequences}),
            .known = kernels::KnownRows::in_order};
  }

  Var embed(const OpCtx& ctx, const Batch& batch) {
    return decoder_.embed(ctx, upload(batch.tokens, {batch.rows()}));
  }

  Var block(const OpCtx& ctx, int i, const Var& x) {
    const auto body = [this, i](const OpCtx& inner, const Var& input) {
      return decoder_.block(i).forward(inner, input);
    };
    return options_.recompute_blocks ? recompute_segment(ctx, x, body) : body(ctx, x);
  }

  RunOptions options_;
  Device device_;
  Mesh mesh_;
  ParameterStore store_;
  models::Decoder decoder_;
};

}  // namespace llmtrain::test
