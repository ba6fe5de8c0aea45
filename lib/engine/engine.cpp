#include "lib/engine/engine.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/elementwise.hpp"
#include "kernels/step_scalars.hpp"
#include "lib/base/refused_key.hpp"
#include "lib/base/require.hpp"
#include "lib/base/trace.hpp"
#include "lib/engine/checkpoint_share.hpp"
#include "lib/engine/target.hpp"

namespace llmtrain::engine {

EngineOptions EngineOptions::from(const models::ModelSection& model,
                                  const TrainingSection& training,
                                  const PrecisionSection& precision,
                                  const ActivationCheckpointSection& recompute,
                                  const optim::OptimizerOptions& optimizer, std::uint64_t seed) {
  const models::DecoderSpec spec = model.spec();
  return {.model = spec,
          .seq_len = static_cast<std::int64_t>(training.seq_len().value),
          .micro_batch_size = static_cast<std::int64_t>(training.micro_batch_size().value),
          .compute = precision.compute(),
          .master = precision.master(),
          .rounding = precision.rounding().value_or(Rounding::stochastic),
          .loss_scaling = precision.loss_scaling(),
          .quantization = precision.quantization(),
          .tf32 = precision.tf32(),
          .z_loss_coef = training.z_loss_coef(),
          .narrow_logits = precision.logits() == LogitsPrecision::compute,
          .grad_reduce = precision.grad_reduce(),
          .recompute = recompute.policy(spec.num_hidden_layers),
          .seed = seed,
          .optimizer = &optimizer};
}

Engine::Engine(const EnginePlace& place, const EngineOptions& options)
    : place_(place),
      options_(options),
      mesh_(place.mesh, place.rank, place.communicators),
      store_(mesh_),
      stages_(mesh_, options.pipeline, options.model.num_hidden_layers),
      decoder_(store_, options.model, stages_.places()),
      partial_gradients_(store_, mesh_, place.communicators),
      data_ranks_(store_, mesh_, options.grad_reduce),
      // A recorder is told of every launch, so each must be made.
      parts_(*place.device,
             place.device->backend().can_record() && place.recorder == nullptr &&
                 options.records_launches,
             [this] { return mesh_.collectives(); }) {
  require<RecipeError>(options.seq_len <= options.model.longest_sequence(),
                       "training.seq_len {} is longer than the model's longest sequence {}",
                       options.seq_len, options.model.longest_sequence());
  Device& device = *place_.device;
  device.ledger().enter(Phase::init);
  allocate_parameters();
  decoder_.allocate_tables(device, options.compute, options.seq_len);
  if (const std::uint64_t bytes = mesh_.world().staging_bytes(); bytes > 0) {
    communication_staging_ = device.allocate({static_cast<std::int64_t>(bytes)}, DType::u8,
                                             Category::comm, "communication staging");
    mesh_.use_staging(communication_staging_);
    partial_gradients_.use_staging(communication_staging_);
  }
  loss_sum_ = device.allocate({options.z_loss_coef > 0 ? 2 : 1}, DType::f64, Category::activations,
                              "loss sum");
  if (options.optimizer != nullptr) allocate_optimizer();
  if (mesh_.experts().size() > 1 && mesh_.shape().ep_room > 0) {
    decoder_.allocate_needed(device);
    expert_room_.emplace(device, decoder_, mesh_);
  }
  if (options.optimizer != nullptr && place.snapshot_shard_bytes > 0) allocate_snapshot();
  batch_rows_ = BatchRows(mesh_.shape(), mesh_.index(Axis::sp), options.seq_len);
}

std::vector<std::string> Engine::state_names() const {
  std::vector<std::string> names = optimizer_->state_names();
  if (!quantized_) return names;
  names.insert(names.end(), quantized_->state_names().begin(), quantized_->state_names().end());
  return names;
}

std::uint64_t Engine::saved_bytes() const {
  return written_bytes(written_here(store_, mesh_), states_);
}

Engine::~Engine() = default;

void Engine::initialize() { store_.initialize(options_.seed, place_.threads); }

OpCtx Engine::context() const {
  OpCtx ctx;
  ctx.kernel = {.device = place_.device,
                .table = place_.table,
                .stream = place_.device->compute_stream(),
                .threads = place_.threads,
                .determinism = place_.determinism,
                .recorder = place_.recorder,
                .library_workspace_bytes = place_.library_workspace_bytes,
                .tf32 = options_.tf32,
                .attention = place_.attention};
  ctx.mesh = &mesh_;
  ctx.step = key_;
  ctx.recomputed_ops = &options_.recompute.outside;
  ctx.quantized = quantized_layers();
  return ctx;
}

double Engine::read_loss(double value) const {
  if (place_.device->is_meta()) return value;
  place_.device->copy_to_host(std::as_writable_bytes(std::span(&value, 1)),
                              loss_sum_.columns(0, 1));
  return value;
}

void Engine::launch_step(const StepBatch& batch, std::int64_t step, const StepOptions& options) {
  require(optimizer_ != nullptr, "an engine without an optimizer cannot train");
  require(steps_in_flight() < (diagnoses_ || options.diagnose ? 1 : kMaxInFlight),
          "step {}: {} steps are in flight", step, steps_in_flight());
  require(diagnostics_ || !options.diagnose, "step {}: no memory for diagnostics", step);
  require(batch.seq_len == options_.seq_len && batch.trained_tokens > 0 &&
              batch.num_samples % options_.micro_batch_size == 0,
          "a batch of {} x {} with {} trained tokens for micro-batches of {} x {}",
          batch.num_samples, batch.seq_len, batch.trained_tokens, options_.micro_batch_size,
          options_.seq_len);
  place_.device->ledger().enter(Phase::step);
  send_scalars(batch, step, options);
  const kernels::KernelCtx kernel = context().kernel;
  diagnoses_ = options.diagnose;
  if (diagnoses_) diagnostics_->begin_step(kernel);
  parts_.run(RecordedParts::Part::start, [&] {
    optimizer_->zero_grads(kernel);
    kernels::launch(kernel, kernels::Fill{.y = loss_sum_, .value = 0});
    if (routers_) routers_->clear(kernel);
    if (quantization_) quantization_->begin_step(kernel);
    if (quantized_) quantized_->scale_weights(kernel);
    if (expert_room_) expert_room_->clear(kernel);
  });
  if (tree_) {
    tree_->begin_step(kernel, static_cast<int>(batch.num_samples / options_.micro_batch_size));
  }
  stages_.divided() ? run_schedule(batch) : run_micro_batches(batch);
  finish_gradients(kernel);
  if (diagnoses_) diagnostics_->join(kernel);
  if (routers_) routers_->sum(mesh_);
  if (quantization_) quantization_->join(kernel, mesh_);
  if (expert_room_) expert_room_->join_all();
  {
    const trace::Scope span(trace::Kind::action, "update");
    parts_.run(RecordedParts::Part::update, [&] {
      optimizer_->launch_step(kernel, step_scalars_, loss_sum_);
      if (routers_) decoder_.balance_routers(kernel, optimizer_->decision());
      if (quantized_) quantized_->end_step(kernel, optimizer_->decision().view());
    });
    optimizer_->update_on_host(kernel);
    data_ranks_.gather_updates(kernel);
  }
  const auto slot = static_cast<int>(launched_++ % kMaxInFlight);
  Launched& launched = in_flight_[static_cast<std::size_t>(slot)];
  launched.trained_tokens = batch.trained_tokens;
  launched.decision->start(optimizer_->decision().view().data);
  if (routers_) routers_->start(slot);
  if (quantization_) quantization_->start(slot);
  if (expert_room_) expert_room_->start(slot);
}

void Engine::send_scalars(const StepBatch& batch, std::int64_t step, const StepOptions& options) {
  const auto tokens = static_cast<double>(batch.trained_tokens);
  const kernels::StepScalars scalars{.step = static_cast<double>(step),
                                     .grad_scale = 1.0 / tokens,
                                     .lr = optimizer_->lr(options.lr_factor),
                                     .loss_limit = options.loss_limit * tokens};
  place_.device->copy_from_host(step_scalars_, std::as_bytes(std::span(&scalars, 1)));
  key_ = {.seed = options_.seed,
          .step = static_cast<std::uint64_t>(step),
          .grad_scale = scalars.grad_scale,
          .scalars = step_scalars_,
          .decision = options_.loss_scaling ? optimizer_->decision().view() : View{}};
}

// A stage whose schedule finishes one micro-batch before it begins the next runs one after the
// other, each as a part of its own; what it reads is sent before.
void Engine::run_micro_batches(const StepBatch& batch) {
  const parallel::ScheduleShape shape =
      stages_.shape(static_cast<int>(batch.num_samples / options_.micro_batch_size));
  const parallel::Schedule schedule = parallel::find_schedule("1f1b").make(shape);
  const std::span<const parallel::Action> actions = schedule.ranks.front();
  batch_ = &batch;
  for (std::size_t begin = 0; begin < actions.size();) {
    const int micro_batch = actions[begin].micro_batch;
    std::size_t end = begin;
    while (end < actions.size() && actions[end].micro_batch == micro_batch) ++end;
    const auto entry = live_.emplace(
        micro_batch, upload(micro_batch * options_.micro_batch_size, options_.micro_batch_size));
    if (tree_) tree_->begin_micro_batch(context().kernel, micro_batch);
    const auto work = [&] {
      parallel::Executor(shape, *this).run(actions.subspan(begin, end - begin));
    };
    const bool gradients_leave = end == actions.size() && mesh_.data().size() > 1;
    // A recording has the launches of one stream, and what the host keeps comes by another.
    if (gradients_leave || diagnoses_ || device_activations_ || brings_parameters()) {
      work();
    } else {
      parts_.run(RecordedParts::Part::micro_step, work, entry.first->second.addresses());
    }
    live_.erase(micro_batch);
    if (diagnoses_ && begin == 0 && end < actions.size()) look_at_first_part(batch);
    begin = end;
  }
  batch_ = nullptr;
}

void Engine::finish_gradients(const kernels::KernelCtx& kernel) {
  if (place_.device->kind() == DeviceKind::cpu) own_loss_ = *loss_sum_.view().as<double>();
  if (tree_) tree_->finish(kernel);
  if (shards_) shards_->settle(context());
  data_ranks_.sum_gradients(kernel);
  if (tree_ && tree_->tied() != nullptr) {
    data_ranks_.add_summed(kernel, *tree_->tied()->members().front(), tree_->head_grad());
  }
  partial_gradients_.sum();
  // The last stage alone has added losses.
  if (stages_.divided()) mesh_.axis(Axis::pp).all_reduce(loss_sum_, ReduceOp::sum, "loss").wait();
  data_ranks_.sum(loss_sum_, "loss");
}

void Engine::look_at_first_part(const StepBatch& batch) {
  if (tree_) return;  // sums of several virtual workers lie apart
  if (shards_) shards_->arrive(context());
  const auto micro_batches = static_cast<double>(batch.num_samples / options_.micro_batch_size);
  diagnostics_->see_part(context().kernel, static_cast<double>(batch.trained_tokens),
                         1 / micro_batches);
}

std::string Engine::not_recorded() const {
  std::vector<std::string_view> parts;
  if (stages_.divided()) parts.push_back("the pipeline's actions");
  if (parts_.has_collectives(RecordedParts::Part::micro_step)) {
    parts.push_back("micro-batches");
  } else if (mesh_.data().size() > 1 && !device_activations_ && !brings_parameters()) {
    parts.push_back("the last micro-batch");
  }
  if (parts_.has_collectives(RecordedParts::Part::update)) parts.push_back("the update");
  return fmt::format("{}", fmt::join(parts, " and "));
}

StepOutcome Engine::settle_step() {
  require(steps_in_flight() > 0, "no step is in flight");
  const auto slot = static_cast<int>(settled_++ % kMaxInFlight);
  const Launched& launched = in_flight_[static_cast<std::size_t>(slot)];
  const auto tokens = static_cast<double>(launched.trained_tokens);
  kernels::UpdateDecision decision{.loss_sum = tokens, .grad_norm = 1, .apply = 1};  // planned
  if (!place_.device->is_meta()) {
    std::memcpy(&decision, launched.decision->wait().data(), sizeof(decision));
  }
  if (expert_room_) expert_room_->check(slot);
  return {.loss_sum = decision.loss_sum,
          .z_loss_sum = decision.z_loss_sum,
          .trained_tokens = launched.trained_tokens,
          .update = optim::step_result(decision),
          .routers = routers_ ? routers_->wait(slot) : RouterOutcome{},
          .quantization = quantization_ ? std::optional(quantization_->wait(slot)) : std::nullopt,
          .diagnostics = std::exchange(diagnoses_, false) ? std::optional(diagnostics_->end_step())
                                                          : std::nullopt};
}

StepOutcome Engine::train_step(const StepBatch& batch, std::int64_t step, double lr_factor) {
  require(steps_in_flight() == 0, "step {}: a step is in flight", step);
  launch_step(batch, step, {.lr_factor = lr_factor});
  return settle_step();
}

MicroBatch Engine::upload(std::int64_t first_sample, std::int64_t num_samples) {
  MicroBatch micro =
      batch_rows_.upload(*place_.device, *batch_, first_sample, num_samples, options_.one_document);
  if (mesh_.tp_shares_rows()) {
    micro.rows.own_rows = micro.rows.rows() / mesh_.size(Axis::tp);
    micro.rows.own_begin = micro.rows.own_rows * mesh_.index(Axis::tp);
  }
  return micro;
}

}  // namespace llmtrain::engine
