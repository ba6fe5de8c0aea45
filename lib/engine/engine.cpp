#include "lib/engine/engine.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/elementwise.hpp"
#include "lib/base/require.hpp"

namespace llmtrain::engine {

EngineOptions EngineOptions::from(const models::ModelSection& model,
                                  const TrainingSection& training,
                                  const PrecisionSection& precision,
                                  const ActivationCheckpointSection& recompute,
                                  const optim::OptimizerOptions& optimizer, std::uint64_t seed) {
  return {.model = model.spec(),
          .seq_len = static_cast<std::int64_t>(training.seq_len().value),
          .micro_batch_size = static_cast<std::int64_t>(training.micro_batch_size().value),
          .compute = precision.compute(),
          .recompute = recompute.mode(),
          .recompute_every = recompute.k() ? static_cast<std::int64_t>(recompute.k()->value) : 1,
          .recomputed_ops = {recompute.ops().begin(), recompute.ops().end()},
          .seed = seed,
          .optimizer = &optimizer};
}

namespace {

ParameterDTypes parameter_dtypes(DType compute) {
  const DType wide = statistics_dtype(compute);
  return {.compute = compute, .master = wide, .grad = wide};
}

}  // namespace

Engine::Engine(const EnginePlace& place, const EngineOptions& options)
    : place_(place),
      options_(options),
      mesh_(place.mesh, place.rank, place.communicators),
      store_(mesh_),
      decoder_(store_, options.model) {
  require<RecipeError>(options.seq_len <= options.model.longest_sequence(),
                       "training.seq_len {} is longer than the model's longest sequence {}",
                       options.seq_len, options.model.longest_sequence());
  Device& device = *place_.device;
  device.ledger().enter(Phase::init);
  store_.allocate(device, parameter_dtypes(options.compute), options.optimizer != nullptr);
  decoder_.allocate_tables(device, options.compute, options.seq_len);
  loss_sum_ = device.allocate({1}, DType::f64, Category::activations, "loss sum");
  if (options.optimizer != nullptr) {
    optimizer_ =
        std::make_unique<optim::OptimizerSet>(context().kernel, *options.optimizer, store_);
  }
  const auto rows = static_cast<std::size_t>(options.micro_batch_size * options.seq_len);
  token_ids_.resize(rows);
  row_positions_.resize(rows);
  samples_.resize(static_cast<std::size_t>(options.micro_batch_size));
}

Engine::~Engine() = default;

void Engine::initialize() { store_.initialize(options_.seed); }

OpCtx Engine::context() const {
  OpCtx ctx;
  ctx.kernel = {.device = place_.device,
                .table = place_.table,
                .stream = place_.device->compute_stream(),
                .threads = place_.threads,
                .determinism = kernels::Determinism::run,
                .recorder = place_.recorder,
                .library_workspace_bytes = place_.library_workspace_bytes,
                .attention = place_.attention};
  ctx.mesh = &mesh_;
  ctx.step = key_;
  ctx.recomputed_ops = &options_.recomputed_ops;
  return ctx;
}

double Engine::read_back(const Tensor& scalar, double planned) const {
  if (place_.device->is_meta()) return planned;
  double value = 0;
  place_.device->copy_to_host(std::as_writable_bytes(std::span(&value, 1)), scalar);
  return value;
}

StepOutcome Engine::train_step(const StepBatch& batch, std::int64_t step, double lr_factor) {
  require(optimizer_ != nullptr, "an engine without an optimizer cannot train");
  require(batch.seq_len == options_.seq_len && batch.trained_tokens > 0 &&
              batch.num_samples % options_.micro_batch_size == 0,
          "a batch of {} x {} with {} trained tokens for micro-batches of {} x {}",
          batch.num_samples, batch.seq_len, batch.trained_tokens, options_.micro_batch_size,
          options_.seq_len);
  place_.device->ledger().enter(Phase::step);
  batch_ = &batch;
  key_ = {.seed = options_.seed,
          .step = static_cast<std::uint64_t>(step),
          .grad_scale = 1.0 / static_cast<double>(batch.trained_tokens)};
  const kernels::KernelCtx kernel = context().kernel;
  optimizer_->zero_grads(kernel);
  kernels::launch(kernel, kernels::Fill{.y = loss_sum_, .value = 0});

  const parallel::ScheduleShape shape{
      .num_ranks = 1,
      .num_stages = 1,
      .num_micro_batches = static_cast<int>(batch.num_samples / options_.micro_batch_size)};
  const parallel::Schedule schedule = parallel::find_schedule("1f1b").make(shape);
  parallel::Executor(shape, *this).run(schedule.ranks.front());
  batch_ = nullptr;

  StepOutcome outcome;
  outcome.trained_tokens = batch.trained_tokens;
  outcome.loss_sum = read_back(loss_sum_, static_cast<double>(batch.trained_tokens));
  outcome.finite = std::isfinite(outcome.loss_sum);
  if (outcome.finite) {
    outcome.update = optimizer_->step(kernel, mesh_, lr_factor);
    outcome.finite = outcome.update.finite;
  }
  return outcome;
}

EvalOutcome Engine::evaluate(const StepBatch& batch) {
  place_.device->ledger().enter(Phase::eval);
  batch_ = &batch;
  key_ = {.seed = options_.seed};
  kernels::launch(context().kernel, kernels::Fill{.y = loss_sum_, .value = 0});
  for (std::int64_t s = 0; s < batch.num_samples; s += options_.micro_batch_size) {
    const MicroBatch micro = upload(s, std::min(options_.micro_batch_size, batch.num_samples - s));
    OpCtx ctx = context();
    ctx.rows = &micro.rows;
    const Var x = run_blocks(ctx, decoder_.embed(ctx, micro.tokens));
    decoder_.loss(ctx, x, micro.targets, loss_sum_);
  }
  batch_ = nullptr;
  return {read_back(loss_sum_, static_cast<double>(batch.trained_tokens)), batch.trained_tokens};
}

Engine::MicroBatch Engine::upload(std::int64_t first_sample, std::int64_t num_samples) {
  const std::int64_t length = options_.seq_len;
  const std::int64_t rows = num_samples * length;
  Device& device = *place_.device;
  const auto make = [&](std::string_view tag, DType dtype, std::int64_t n) {
    return device.allocate({n}, dtype, Category::activations, tag);
  };
  MicroBatch micro{.rows = {.num_sequences = num_samples,
                            .rows_per_sequence = length,
                            .seq_len = length,
                            .token_id = make("batch token ids", DType::i64, rows),
                            .position = make("batch row positions", DType::i32, rows),
                            .embedding_position = make("batch positions", DType::i32, rows),
                            .document_begin = make("batch documents", DType::i32, rows),
                            .sample = make("batch samples", DType::i64, num_samples),
                            .known = options_.one_document ? kernels::KnownRows::one_document
                                                           : kernels::KnownRows::in_order},
                   .tokens = make("batch tokens", DType::i32, rows),
                   .targets = make("batch targets", DType::i32, rows)};
  if (device.is_meta()) return micro;

  const auto count = static_cast<std::size_t>(rows);
  std::iota(token_ids_.begin(), token_ids_.end(), first_sample * length);
  std::iota(samples_.begin(), samples_.end(), first_sample);
  for (std::size_t i = 0; i < count; ++i) {
    row_positions_[i] = static_cast<std::int32_t>(static_cast<std::int64_t>(i) % length);
  }
  const auto send = [&](const Tensor& to, const auto& host, std::size_t begin, std::size_t n) {
    device.copy_from_host(to, std::as_bytes(std::span(host).subspan(begin, n)));
  };
  const auto begin = static_cast<std::size_t>(first_sample * length);
  send(micro.rows.token_id, token_ids_, 0, count);
  send(micro.rows.position, row_positions_, 0, count);
  send(micro.rows.embedding_position, batch_->positions, begin, count);
  send(micro.rows.document_begin, batch_->doc_begin, begin, count);
  send(micro.rows.sample, samples_, 0, static_cast<std::size_t>(num_samples));
  send(micro.tokens, batch_->tokens, begin, count);
  send(micro.targets, batch_->targets, begin, count);
  return micro;
}

OpCtx Engine::begin(int micro_batch) {
  const auto [entry, is_new] = live_.emplace(
      micro_batch, upload(micro_batch * options_.micro_batch_size, options_.micro_batch_size));
  require(is_new, "micro-batch {} began twice", micro_batch);
  OpCtx ctx = context();
  ctx.rows = &entry->second.rows;
  return ctx;
}

void Engine::end(int micro_batch) { live_.erase(micro_batch); }

Var Engine::forward(const OpCtx& ctx, int, int micro_batch, const Var&) {
  const MicroBatch& micro = live_.at(micro_batch);
  return decoder_.loss(ctx, run_blocks(ctx, decoder_.embed(ctx, micro.tokens)), micro.targets,
                       loss_sum_);
}

namespace {

// Blocks of one recompute segment from block `i` on; `recompute` is false for blocks that keep all.
struct Segment {
  int size = 1;
  bool recompute = false;
};

Segment segment_at(const EngineOptions& options, int i, int num_blocks) {
  switch (options.recompute) {
    case RecomputeMode::none:
    case RecomputeMode::selective:
      return {1, false};
    case RecomputeMode::full:
      return {1, true};
    case RecomputeMode::every_k:
      return {1, i % options.recompute_every == 0};
    case RecomputeMode::sqrt: {
      const int size = static_cast<int>(std::ceil(std::sqrt(static_cast<double>(num_blocks))));
      return {std::min(size, num_blocks - i), true};
    }
  }
  return {};
}

}  // namespace

Var Engine::run_blocks(const OpCtx& ctx, Var x) const {
  const int num_blocks = decoder_.num_blocks();
  for (int i = 0; i < num_blocks;) {
    const Segment segment = segment_at(options_, i, num_blocks);
    const auto body = [this, i, size = segment.size](const OpCtx& inner, const Var& input) {
      Var h = input;
      for (int b = i; b < i + size; ++b) h = decoder_.block(b).forward(inner, h);
      return h;
    };
    x = segment.recompute ? recompute_segment(ctx, x, body) : body(ctx, x);
    i += segment.size;
  }
  return x;
}

}  // namespace llmtrain::engine
