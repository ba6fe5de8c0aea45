// What the engine does for the stages of its model.
#include <cmath>

#include "kernels/elementwise.hpp"
#include "lib/base/require.hpp"
#include "lib/engine/engine.hpp"

namespace llmtrain::engine {

// Units are the embedding, the blocks, the final norm and the head.
parallel::ShardedUnits::Range Engine::units_of_blocks(int begin, int end) const {
  return {1 + begin, 1 + end};
}

parallel::ShardedUnits::Range Engine::units_of_head() const {
  const int norm = 1 + decoder_.num_blocks();
  return {norm, norm + 2};
}

parallel::ShardedUnits::Range Engine::units_of_stage(int stage) const {
  const auto blocks = units_of_blocks(stages_.first_block(stage), stages_.first_block(stage + 1));
  return {stage == 0 ? 0 : blocks.begin, stages_.is_last(stage) ? units_of_head().end : blocks.end};
}

template <class Body>
auto Engine::within(const OpCtx& ctx, parallel::ShardedUnits::Range units, int stage,
                    const Body& body) {
  data_ranks_.enter(ctx, units);
  if (!shards_) return body();
  shards_->enter(ctx, units, units_of_stage(stage));
  auto result = body();
  shards_->leave(ctx, units, units_of_stage(stage));
  return result;
}

Var Engine::embed(const OpCtx& ctx, const Tensor& tokens) {
  return within(ctx, {0, 1}, 0, [&] { return decoder_.embed(ctx, tokens); });
}

Var Engine::loss(const OpCtx& ctx, const Var& x, const Tensor& targets) {
  return within(ctx, units_of_head(), stages_.last(), [&] {
    return decoder_.loss(ctx, x, targets, loss_sum_,
                         {.z_loss_coef = options_.z_loss_coef,
                          .chunk_bytes = place_.loss_chunk_bytes,
                          .narrow_logits = options_.narrow_logits});
  });
}

Tensor Engine::logits(const OpCtx& ctx, const Tensor& x) {
  return within(ctx, units_of_head(), stages_.last(), [&] { return decoder_.logits(ctx, x); });
}

Var Engine::with_block(const OpCtx& ctx, int block, const std::function<Var()>& body) {
  return within(ctx, units_of_blocks(block, block + 1), stages_.of_block(block), body);
}

std::int64_t Engine::samples_of(int micro_batch) const {
  return std::min(options_.micro_batch_size,
                  batch_->num_samples - micro_batch * options_.micro_batch_size);
}

OpCtx Engine::begin(int micro_batch) {
  if (stages_.divided()) {
    live_.emplace(micro_batch,
                  upload(micro_batch * options_.micro_batch_size, samples_of(micro_batch)));
  }
  OpCtx ctx = context();
  ctx.rows = &live_.at(micro_batch).rows;
  if (tree_) ctx.sinks = tree_->sinks(micro_batch);
  if (shards_) ctx.unwritten = &shards_->unwritten();
  if (diagnoses_) ctx.watch = &*diagnostics_;
  ctx.last_micro_batch = micro_batch == batch_->num_samples / options_.micro_batch_size - 1;
  return ctx;
}

void Engine::end(int micro_batch) {
  if (stages_.divided()) live_.erase(micro_batch);
}

Tensor Engine::between_stages(int micro_batch) {
  const std::int64_t rows = samples_of(micro_batch) * options_.seq_len / mesh_.size(Axis::sp);
  return room_between_stages(mesh_.tp_shares_rows() ? rows / mesh_.size(Axis::tp) : rows);
}

Tensor Engine::room_between_stages(std::int64_t rows) const {
  return place_.device->allocate({rows, options_.model.hidden_size}, options_.compute,
                                 Category::activations, "between stages");
}

Var Engine::forward(const OpCtx& ctx, int stage, int micro_batch, const Var& input) {
  const MicroBatch& micro = live_.at(micro_batch);
  const Var x = run_blocks(ctx, stage == 0 ? embed(ctx, micro.tokens) : input, stage);
  if (!stages_.is_last(stage)) return x;
  if (tree_ && ctx.training) tree_->before_loss(ctx.kernel, micro_batch);
  return loss(ctx, x, micro.targets);
}

void Engine::run_schedule(const StepBatch& batch) {
  const parallel::ScheduleShape shape =
      stages_.shape(static_cast<int>(batch.num_samples / options_.micro_batch_size));
  const parallel::Schedule schedule = stages_.schedule().make(shape);
  batch_ = &batch;
  parallel::Executor(shape, *this, &mesh_.axis(Axis::pp), place_.actions)
      .run(schedule, parallel::derive_messages(schedule));
  batch_ = nullptr;
}

std::int64_t Engine::evaluation_samples() const {
  constexpr std::int64_t kMicroBatches = 16;
  // Those of one call are added up in their order, those of several as a tree, whatever the layout.
  const bool is_alone = passes_together() || options_.virtual_workers > 0;
  const bool fills_pipeline = stages_.divided() && !is_alone;
  return options_.micro_batch_size * (fills_pipeline ? kMicroBatches : 1);
}

void Engine::evaluate_micro_batches(const StepBatch& batch) {
  const std::int64_t size = options_.micro_batch_size;
  const int count = static_cast<int>((batch.num_samples + size - 1) / size);
  batch_ = &batch;
  if (stages_.divided()) {
    const parallel::ScheduleShape shape = stages_.shape(count);
    const parallel::Schedule schedule = parallel::forward_schedule(stages_.schedule(), shape);
    parallel::Executor(shape, *this, &mesh_.axis(Axis::pp), nullptr, parallel::Pass::evaluation)
        .run(schedule, parallel::derive_forward_messages(schedule));
  }
  for (int m = 0; m < count && !stages_.divided(); ++m) {
    const MicroBatch micro = upload(m * size, samples_of(m));
    OpCtx ctx = context();
    ctx.rows = &micro.rows;
    loss(ctx, run_blocks(ctx, embed(ctx, micro.tokens), 0), micro.targets);
  }
  batch_ = nullptr;
}

Var Engine::through_stages(const OpCtx& ctx, const Tensor& tokens, const StageBody& blocks) {
  Communicator& pipeline = mesh_.axis(Axis::pp);
  Var x;
  for (int stage = 0; stage < stages_.count(); ++stage) {
    if (!stages_.is_here(stage)) continue;
    if (stage == 0) {
      x = embed(ctx, tokens);
    } else if (!stages_.is_here(stage - 1)) {
      x = {room_between_stages(ctx.rows->shared() ? ctx.rows->own_rows : ctx.rows->rows()), -1,
           nullptr};
      pipeline.recv(x.tensor, stages_.rank_of(stage - 1), "activations").wait();
    }
    x = blocks(stage, std::move(x));
    if (!stages_.is_last(stage) && !stages_.is_here(stage + 1)) {
      pipeline.send(x.tensor, stages_.rank_of(stage + 1), "activations").wait();
      x = {};
    }
  }
  return x;
}

EvalOutcome Engine::evaluate(const StepBatch& batch) {
  place_.device->ledger().enter(Phase::eval);
  key_ = {.seed = options_.seed};
  const kernels::KernelCtx kernel = context().kernel;
  kernels::launch(kernel, kernels::Fill{.y = loss_sum_, .value = 0});
  if (expert_room_) expert_room_->clear(kernel);
  evaluate_micro_batches(batch);
  if (expert_room_) expert_room_->check_evaluation();
  for (const Axis axis : {Axis::sp, Axis::pp}) {
    if (mesh_.size(axis) == 1) continue;
    mesh_.axis(axis).all_reduce(loss_sum_, ReduceOp::sum, "evaluation loss").wait();
  }
  return {read_loss(static_cast<double>(batch.trained_tokens)), batch.trained_tokens};
}

namespace {

// Blocks [i, result) of those up to `end` are recorded as one, or computed again as one.
int segment_end(const RecomputePolicy& policy, int i, int end) {
  int behind = i + 1;
  if (!policy.block(i).whole) return behind;
  while (behind < std::min(end, i + policy.segment) && policy.block(behind).whole) ++behind;
  return behind;
}

}  // namespace

Var Engine::run_blocks(const OpCtx& ctx, Var x, int stage) {
  const int end = stages_.first_block(stage + 1);
  for (int i = stages_.first_block(stage); i < end;) {
    const BlockRecompute& recompute = options_.recompute.block(i);
    const int behind = segment_end(options_.recompute, i, end);
    const auto body = [this, i, behind](const OpCtx& inner, const Var& input) {
      Var h = input;
      for (int b = i; b < behind; ++b) {
        h = decoder_.block(b).forward(inner, h);
        if (inner.watch == nullptr) continue;
        inner.watch->see(inner, Diagnostics::name_of_block(b), h.tensor, mesh_.tp_shares_rows());
      }
      return h;
    };
    OpCtx of_block = ctx;
    of_block.recomputed_ops = &recompute.ops;
    const std::size_t first = ctx.tape != nullptr ? ctx.tape->num_nodes() : 0;
    x = within(of_block, units_of_blocks(i, behind), stage, [&] {
      return recompute.whole ? recompute_segment(of_block, x, body) : body(of_block, x);
    });
    if (ctx.tape != nullptr && activations_) ctx.tape->put_away(of_block, first, *activations_);
    if (ctx.tape != nullptr && device_activations_) {
      ctx.tape->put_away(of_block, first, *device_activations_);
    }
    i = behind;
  }
  return x;
}

}  // namespace llmtrain::engine
