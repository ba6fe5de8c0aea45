#pragma once
/// Builds mesh, parameters, model, schedule and optimizer on a device, and runs one step, one
/// evaluation pass, or one decode step. No files, no log, no clock.

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/engine/activation_offload.hpp"
#include "lib/engine/batch.hpp"
#include "lib/engine/batch_rows.hpp"
#include "lib/engine/device_activations.hpp"
#include "lib/engine/diagnostics.hpp"
#include "lib/engine/expert_room.hpp"
#include "lib/engine/quantization_report.hpp"
#include "lib/engine/recompute.hpp"
#include "lib/engine/recorded_parts.hpp"
#include "lib/engine/router_report.hpp"
#include "lib/engine/sections.hpp"
#include "lib/engine/stages.hpp"
#include "lib/engine/target.hpp"
#include "lib/models/decoder.hpp"
#include "lib/optim/optimizer_set.hpp"
#include "lib/parallel/data_ranks.hpp"
#include "lib/parallel/executor.hpp"
#include "lib/parallel/gradient_tree.hpp"
#include "lib/parallel/partial_gradients.hpp"
#include "lib/parallel/sharded_units.hpp"
#include "lib/param/quantized_layers.hpp"

namespace llmtrain::engine {

struct EngineOptions {
  models::DecoderSpec model;
  std::int64_t seq_len = 0;
  std::int64_t micro_batch_size = 0;
  DType compute = DType::f32;
  MasterForm master = MasterForm::whole;
  /// With MasterForm::none.
  Rounding rounding = Rounding::stochastic;
  /// Of FP16; none in other types.
  std::optional<optim::LossScaling> loss_scaling;
  /// Of training steps; none: products take operands as they are.
  std::optional<QuantizationOptions> quantization;
  /// precision.tf32: as in KernelCtx.
  bool tf32 = false;
  /// Of ops::LossHeadOptions, in training.
  double z_loss_coef = 0;
  bool narrow_logits = false;
  /// Whether steps may be diagnosed, for which there is memory then.
  bool diagnostics = false;
  /// In which gradients travel between data ranks; without it in their own type.
  std::optional<DType> grad_reduce;
  RecomputePolicy recompute;
  std::uint64_t seed = 0;
  /// Launches are recorded once and queued as a whole (run.cuda_graphs), where the device can.
  /// Every kernel can be recorded: one that waited for the host would end its recording with a
  /// DeviceError.
  bool records_launches = true;
  /// Samples are one document each, or may see earlier ones: no mask but the causal one.
  bool one_document = false;
  /// Stage of ZeRO (arXiv 1910.02054): from 1 on each data rank keeps masters and optimizer states
  /// of its own slices of the parameters, and updates those; from 2 on their gradients, from 3 on
  /// the parameters themselves.
  int zero = 0;
  /// run.determinism: layout: those among which the micro-batches of a step are divided
  /// (parallel::GradientTree), a power of two and a multiple of the data ranks; gradients are then
  /// whole until a step's end, whatever stage of ZeRO. 0: sums follow the layout.
  int virtual_workers = 0;
  /// Of Axis::pp, where it has several ranks.
  PipelineOptions pipeline;
  /// Where optimizer states live if not in the device's memory: in the host's, or in a file, which
  /// meta does not open, and from which a GPU's host updates (OffloadPlace::host_file).
  std::optional<optim::Offload> offload;
  /// Which saved activations are elsewhere until the walk back: a CPU's in a file, a GPU's in the
  /// host's memory or in a file.
  std::optional<ActivationOffloadOptions> offloaded_activations;
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
  /// Of a meta device: what it is in place of.
  DeviceKind stands_for = DeviceKind::cpu;
  const kernels::KernelTable* table = nullptr;
  int threads = 1;
  std::uint64_t library_workspace_bytes = 0;
  std::uint64_t loss_chunk_bytes = default_loss_chunk_bytes(DeviceKind::cpu);
  kernels::AttentionChoice attention = kernels::AttentionChoice::automatic;
  kernels::Determinism determinism = kernels::Determinism::run;
  /// Target::multiplies_codes.
  bool multiplies_codes = false;
  /// What this rank writes of a checkpoint has a second place in the device's memory, from which it
  /// is written while the run goes on (Engine::snapshot), to files of so many bytes
  /// at most; 0: it has none.
  std::uint64_t snapshot_shard_bytes = 0;
  /// Of the files of EngineOptions::offload that name no directory.
  std::filesystem::path offload_directory = {};
  /// Of a GPU's host, for EngineOptions::offloaded_activations: DeviceActivationFacts of a plan.
  std::uint64_t host_activation_bytes = 0;
  CommunicatorFactory communicators = self_factory();
  MeshShape mesh;
  int rank = 0;
  kernels::Recorder* recorder = nullptr;
  /// Of the actions of a pipeline.
  parallel::ActionObserver* actions = nullptr;
};

struct StepOutcome {
  /// Sum over the step's trained tokens, in nats.
  double loss_sum = 0;
  /// The same of z-losses, times their coefficient.
  double z_loss_sum = 0;
  std::int64_t trained_tokens = 0;
  optim::StepResult update;
  RouterOutcome routers;
  std::optional<QuantizationOutcome> quantization;
  std::optional<DiagnosticsOutcome> diagnostics;
};

/// How a step is launched.
struct StepOptions {
  double lr_factor = 1;
  /// In nats per trained token; above it nothing is updated.
  double loss_limit = std::numeric_limits<double>::infinity();
  /// Looks at the step's tensors (EngineOptions::diagnostics). The host waits for it, and no other
  /// step may be in flight until it is settled.
  bool diagnose = false;
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

  /// Steps that may be launched and not settled.
  static constexpr int kMaxInFlight = RouterReport::kSlots;

  /// Launches forward, backward and update over all micro-batches of the batch; `step` counts from
  /// 1. Collective: the batches of all ranks that share the step's samples are as large, and know
  /// the trained tokens of all. Waits for nothing (but, where a batch is larger than the memory
  /// through which it travels to the device, for the part of it that went before), and `batch` may
  /// be used again at once. Whether loss and gradients are finite, and hence whether to update, is
  /// decided on the device; so is whether its loss is above its limit.
  void launch_step(const StepBatch& batch, std::int64_t step, const StepOptions& options);
  /// Waits for the oldest launched step that was not settled, not for one after it. NumericError
  /// never: the outcome's update says whether it was finite.
  StepOutcome settle_step();
  /// Launched and not settled.
  int steps_in_flight() const { return static_cast<int>(launched_ - settled_); }
  /// Parts of a step that no device records, because ranks exchange in them; known after the first
  /// step. "micro-batches and the update"; empty where all are recorded.
  std::string not_recorded() const;
  /// Of the last step, in nats: the sum over this rank's samples, before those of all ranks were
  /// added. On the CPU; elsewhere 0.
  double own_loss() const { return own_loss_; }
  /// Launches a step and settles it; none may be in flight.
  StepOutcome train_step(const StepBatch& batch, std::int64_t step, double lr_factor);
  /// Losses without gradients and without dropout; the batch need not fill whole micro-batches. Of
  /// this rank's batch alone, which all ranks that hold one copy of the model have. The stages of a
  /// pipeline work at the same time.
  EvalOutcome evaluate(const StepBatch& batch);
  /// Samples that fill an evaluation's batch: several micro-batches where that lets stages of a
  /// pipeline work at the same time; one where ranks need each other's parameters or experts,
  /// because all must make as many.
  std::int64_t evaluation_samples() const;

  ParameterStore& parameters() { return store_; }
  /// Null without an optimizer.
  optim::OptimizerSet* optimizer() { return optimizer_.get(); }
  /// Null where no activations of a CPU are in a file; where none of a GPU are elsewhere.
  const ActivationOffload* offloaded_activations() const {
    return activations_ ? &*activations_ : nullptr;
  }
  const ActivationShelf* activation_shelf() const {
    return device_activations_ ? &device_activations_->shelf() : nullptr;
  }
  /// Null where no products are quantized, and without an optimizer.
  const QuantizedLayers* quantized_layers() const { return quantized_ ? &*quantized_ : nullptr; }
  /// What a checkpoint keeps beside the parameters, of this rank: the optimizer's states and those
  /// of quantized layers; and the names of all ranks'.
  std::span<const optim::StateTensor> states() const { return states_; }
  std::vector<std::string> state_names() const;
  const models::Decoder& model() const { return decoder_; }
  const EngineOptions& options() const { return options_; }
  Device& device() const { return *place_.device; }
  /// checkpoint::snapshot_bytes() of saved_bytes(), held as long as the run; undefined without
  /// EnginePlace::snapshot_shard_bytes, without an optimizer and where this rank writes nothing.
  const Tensor& snapshot() const { return snapshot_; }
  /// What this rank writes of a checkpoint.
  std::uint64_t saved_bytes() const;
  const Mesh& mesh() const { return mesh_; }
  const Stages& stages() const { return stages_; }
  /// A context without tape, for decoding.
  OpCtx context() const;
  /// Runs the blocks of a stage.
  using StageBody = std::function<Var(int stage, Var x)>;
  /// All stages in turn, without gradients, over the rows of `ctx`: what the last one gives, on its
  /// rank, else undefined. Collective over the pipeline.
  Var through_stages(const OpCtx& ctx, const Tensor& tokens, const StageBody& blocks);
  /// A block's forward, and the logits of rows behind the last block, in `body`, with whole
  /// parameters. Collective over the data ranks where these have slices of them.
  Var with_block(const OpCtx& ctx, int block, const std::function<Var()>& body);
  Tensor logits(const OpCtx& ctx, const Tensor& x);
  /// Where parameters are the host's, and come to the device beside micro-batches, which are not
  /// recorded then.
  bool brings_parameters() const {
    return shards_ && options_.offload && options_.offload->parameters &&
           optimizer_->host_updates() != nullptr;
  }
  /// How long the host has waited in steps for parameters that are in a file.
  double waited_for_parameters() const { return shards_ ? shards_->waited_seconds() : 0; }
  /// Whether all data ranks must make each pass together.
  bool passes_together() const {
    const bool exchange = options_.model.num_expert_layers() > 0 && mesh_.experts().size() > 1;
    return exchange || (options_.zero == 3 && mesh_.owners().size() > 1);
  }

 private:
  void allocate_parameters();
  /// What of them data ranks share, or are whole only while somebody works with them.
  void divide_parameters();
  /// What steps need beside the parameters.
  void allocate_optimizer();
  void allocate_activation_offload();
  /// On one, or on meta in place of one.
  bool is_for_gpu() const;
  void allocate_quantization();
  void allocate_snapshot();

  OpCtx begin(int micro_batch) override;
  Var forward(const OpCtx& ctx, int stage, int micro_batch, const Var& input) override;
  Tensor between_stages(int micro_batch) override;
  Tensor room_between_stages(std::int64_t rows) const;
  /// The last micro-batch of an evaluation may have fewer.
  std::int64_t samples_of(int micro_batch) const;
  void end(int micro_batch) override;

  /// Sends what the kernels of a step read there, and keeps it as the key of its operations.
  void send_scalars(const StepBatch& batch, std::int64_t step, const StepOptions& options);
  /// What diagnostics ask of the first of several micro-batches.
  void look_at_first_part(const StepBatch& batch);
  void run_micro_batches(const StepBatch& batch);
  /// The same by the pipeline's schedule.
  void run_schedule(const StepBatch& batch);
  /// Adds losses, without gradients.
  void evaluate_micro_batches(const StepBatch& batch);
  /// Makes gradients, of sliced parameters the own slices, and the loss those of the whole step.
  void finish_gradients(const kernels::KernelCtx& kernel);
  MicroBatch upload(std::int64_t first_sample, std::int64_t num_samples);
  Var run_blocks(const OpCtx& ctx, Var x, int stage);
  Var embed(const OpCtx& ctx, const Tensor& tokens);
  Var loss(const OpCtx& ctx, const Var& x, const Tensor& targets);
  /// Units (Decoder::units) of a stage, and of blocks and the head.
  parallel::ShardedUnits::Range units_of_stage(int stage) const;
  parallel::ShardedUnits::Range units_of_blocks(int begin, int end) const;
  parallel::ShardedUnits::Range units_of_head() const;
  /// Runs `body` with whole parameters of these units of a stage.
  template <class Body>
  auto within(const OpCtx& ctx, parallel::ShardedUnits::Range units, int stage, const Body& body);
  /// The loss of an evaluation; waits for it.
  double read_loss(double planned) const;

  EnginePlace place_;
  EngineOptions options_;
  Mesh mesh_;
  ParameterStore store_;
  Stages stages_;
  models::Decoder decoder_;
  parallel::PartialGradients partial_gradients_;
  parallel::DataRanks data_ranks_;
  std::unique_ptr<optim::OptimizerSet> optimizer_;
  std::optional<parallel::ShardedUnits> shards_;  // which read ahead from what the optimizer has
  std::optional<parallel::GradientTree> tree_;
  // Tapes have values in one of them, or in none.
  std::optional<ActivationOffload> activations_;
  std::optional<DeviceActivations> device_activations_;
  std::optional<QuantizedLayers> quantized_;
  std::optional<QuantizationReport> quantization_;
  std::vector<optim::StateTensor> states_;
  std::optional<RouterReport> routers_;
  std::optional<ExpertRoom> expert_room_;
  std::optional<Diagnostics> diagnostics_;
  bool diagnoses_ = false;  // the step in flight
  double own_loss_ = 0;
  Tensor communication_staging_;
  Tensor snapshot_;
  Tensor loss_sum_;      // FP64 [1], with a z-loss [2]
  Tensor step_scalars_;  // kernels::StepScalars
  RecordedParts parts_;

  /// What a step's outcome is made of when its decision has come.
  struct Launched {
    std::unique_ptr<HostRead> decision;
    std::int64_t trained_tokens = 0;
  };
  std::array<Launched, kMaxInFlight> in_flight_;  // step number n of this engine at n % size
  std::int64_t launched_ = 0, settled_ = 0;

  // The step that is being launched.
  const StepBatch* batch_ = nullptr;
  StepKey key_;
  std::map<int, MicroBatch> live_;  // contexts point into it
  BatchRows batch_rows_;
};

}  // namespace llmtrain::engine
