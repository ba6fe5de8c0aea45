#pragma once
/// Builds mesh, parameters, model, schedule and optimizer on a device, and runs one step, one
/// evaluation pass, or one decode step. No files, no log, no clock.

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "lib/engine/batch.hpp"
#include "lib/engine/sections.hpp"
#include "lib/models/decoder.hpp"
#include "lib/optim/optimizer_set.hpp"
#include "lib/parallel/executor.hpp"

namespace llmtrain::engine {

struct EngineOptions {
  models::DecoderSpec model;
  std::int64_t seq_len = 0;
  std::int64_t micro_batch_size = 0;
  DType compute = DType::f32;
  RecomputeMode recompute = RecomputeMode::none;
  std::int64_t recompute_every = 1;
  RecomputedOps recomputed_ops;
  std::uint64_t seed = 0;
  /// Samples are one document each, or may see earlier ones: no mask but the causal one.
  bool one_document = false;
  /// Null for an engine that only evaluates and decodes: no gradients, no optimizer state.
  const optim::OptimizerOptions* optimizer = nullptr;

  static EngineOptions from(const models::ModelSection& model, const TrainingSection& training,
                            const PrecisionSection& precision,
                            const ActivationCheckpointSection& recompute,
                            const optim::OptimizerOptions& optimizer, std::uint64_t seed);
};

/// Where the engine runs; all of it outlives the engine.
struct EnginePlace {
  Device* device = nullptr;
  const kernels::KernelTable* table = nullptr;
  int threads = 1;
  std::uint64_t library_workspace_bytes = 0;
  kernels::AttentionChoice attention = kernels::AttentionChoice::automatic;
  CommunicatorFactory communicators = self_factory();
  MeshShape mesh;
  int rank = 0;
  kernels::Recorder* recorder = nullptr;
};

struct StepOutcome {
  /// Sum over the step's trained tokens, in nats.
  double loss_sum = 0;
  std::int64_t trained_tokens = 0;
  optim::StepResult update;
  /// Loss and gradient norm are finite; otherwise nothing was updated.
  bool finite = true;
};

struct EvalOutcome {
  double loss_sum = 0;
  std::int64_t tokens = 0;
};

class Engine final : private parallel::StageProgram {
 public:
  /// Allocates everything that lives as long as the run.
  Engine(const EnginePlace& place, const EngineOptions& options);
  ~Engine() override;

  /// First values of all parameters.
  void initialize();

  /// Forward, backward and update over all micro-batches of the batch; `step` counts from 1.
  /// NumericError never: the outcome says whether it was finite.
  StepOutcome train_step(const StepBatch& batch, std::int64_t step, double lr_factor);
  /// Losses without gradients and without dropout; the batch need not fill whole micro-batches.
  EvalOutcome evaluate(const StepBatch& batch);

  ParameterStore& parameters() { return store_; }
  /// Null without an optimizer.
  optim::OptimizerSet* optimizer() { return optimizer_.get(); }
  const models::Decoder& model() const { return decoder_; }
  const EngineOptions& options() const { return options_; }
  Device& device() const { return *place_.device; }
  /// A context without tape, for decoding.
  OpCtx context() const;

 private:
  OpCtx begin(int micro_batch) override;
  Var forward(const OpCtx& ctx, int stage, int micro_batch, const Var& input) override;
  void end(int micro_batch) override;

  struct MicroBatch {
    RowMap rows;
    Tensor tokens, targets;
  };
  MicroBatch upload(std::int64_t first_sample, std::int64_t num_samples);
  Var run_blocks(const OpCtx& ctx, Var x) const;
  double read_back(const Tensor& scalar, double planned) const;

  EnginePlace place_;
  EngineOptions options_;
  Mesh mesh_;
  ParameterStore store_;
  models::Decoder decoder_;
  std::unique_ptr<optim::OptimizerSet> optimizer_;
  Tensor loss_sum_;

  // The step that is running.
  const StepBatch* batch_ = nullptr;
  StepKey key_;
  std::map<int, MicroBatch> live_;  // contexts point into it
  // Host staging of what upload() makes itself.
  std::vector<std::int64_t> token_ids_, samples_;
  std::vector<std::int32_t> row_positions_;
};

}  // namespace llmtrain::engine
