#pragma once
/// Recipe sections that decide what the engine computes.

#include <optional>
#include <string>
#include <vector>

#include "lib/engine/recompute.hpp"
#include "lib/models/architecture.hpp"
#include "lib/optim/loss_scaling.hpp"
#include "lib/optim/optimizer_options.hpp"
#include "lib/param/parameter.hpp"
#include "lib/param/quantized_layers.hpp"
#include "lib/recipe/section.hpp"

namespace llmtrain::engine {

/// A batch that grows from `start` sequences by `increment` until it is training.global_batch_size.
struct RampupSection : recipe::Section {
  recipe::Required<recipe::Count> start{this, "start", "sequences of the first step",
                                        recipe::at_least(1)};
  recipe::Required<recipe::Count> increment{this, "increment", "sequences added at a time",
                                            recipe::at_least(1)};
  recipe::Required<recipe::Count> samples{this, "samples", "length of the ramp in sequences",
                                          recipe::between(1, 0x1p36)};
};

struct TrainingSection : recipe::Section {
  recipe::Required<recipe::Count> seq_len{this, "seq_len", "tokens of a sample",
                                          recipe::between(1, 1 << 24)};
  recipe::Key<recipe::Count> micro_batch_size{this, "micro_batch_size", 1,
                                              "samples of one forward and backward pass",
                                              recipe::between(1, 1 << 20)};
  recipe::Required<recipe::Count> global_batch_size{
      this, "global_batch_size", "samples of one optimizer step; a multiple of micro_batch_size",
      recipe::between(1, 1 << 24)};
  recipe::Key<recipe::Auto<recipe::Bytes>> loss_chunk{
      this,
      "loss_chunk",
      {},
      "bound on the logits that exist at a time: the loss head takes so many tokens at once; auto "
      "= 128 MiB on the CPU, 1 GiB on a GPU",
      recipe::at_least(1 << 10)};
  recipe::Key<double> z_loss_coef{
      this, "z_loss_coef", 0.0,
      "factor of the mean squared logsumexp of the trained tokens' logits, which is trained beside "
      "the loss and reported as train/z_loss (1e-4 is common); 0 = none",
      recipe::at_least(0)};
  recipe::OptionalSub<RampupSection> rampup_batch_size{
      this, "rampup_batch_size", "batch size that grows at the start of the run"};
  recipe::Key<std::optional<recipe::Count>> max_steps{this, "max_steps", std::nullopt,
                                                      "length of the run in optimizer steps",
                                                      recipe::between(1, 0x1p40)};
  recipe::Key<std::optional<recipe::Count>> max_tokens{
      this, "max_tokens", std::nullopt, "length of the run in tokens", recipe::between(1, 0x1p60)};
  recipe::Key<std::optional<double>> num_epochs{this, "num_epochs", std::nullopt,
                                                "length of the run in passes over the data",
                                                recipe::above(0) & recipe::at_most(1e6)};
  recipe::Key<std::optional<recipe::Duration>> max_time{
      this, "max_time", std::nullopt,
      "stop, with a checkpoint, after this time of training, earlier starts of the run included; "
      "lr_scheduler.horizon says whether the schedule ends with it",
      recipe::above(0)};

  void validate(recipe::Issues& issues) const override;
};

enum class ComputeType : std::uint8_t { fp32, bf16, fp16, fp8, fp64 };
enum class Rounding : std::uint8_t { stochastic, nearest };
enum class LogitsPrecision : std::uint8_t { fp32, compute };

/// With compute fp8. Keys are null where they are not given; those of another scaling are refused.
struct Fp8Section : recipe::Section {
  recipe::Key<std::optional<OperandScaling>> scaling{
      this, "scaling", std::nullopt,
      "what the scales of operands follow from: current = the largest magnitude of the tensor; "
      "delayed = those of earlier steps; block = that of 128 numbers along a product's sum, and of "
      "128 x 128 of a weight; null = current",
      recipe::one_of<OperandScaling>({{"current", OperandScaling::current},
                                      {"delayed", OperandScaling::delayed},
                                      {"block", OperandScaling::block}})};
  recipe::Key<std::optional<recipe::Count>> amax_history{
      this, "amax_history", std::nullopt,
      "with scaling delayed: steps whose largest magnitudes count; null: 1024",
      recipe::between(1, 1 << 16)};
  recipe::Key<std::optional<kernels::HistoryAmax>> amax_algorithm{
      this, "amax_algorithm", std::nullopt,
      "with scaling delayed: the largest of the history, or that of the last step; null: max",
      recipe::one_of<kernels::HistoryAmax>({{"max", kernels::HistoryAmax::max},
                                            {"most_recent", kernels::HistoryAmax::most_recent}})};
  recipe::Key<std::optional<recipe::Count>> margin{
      this, "margin", std::nullopt,
      "with scaling delayed: scales are smaller by 2^margin, so that magnitudes may grow by as "
      "much; null: 0",
      recipe::between(0, 32)};
  recipe::Key<std::optional<bool>> power_of_two_scales{
      this, "power_of_two_scales", std::nullopt,
      "with scaling block: scales are rounded down to powers of two; null: true"};
  recipe::Key<std::optional<OperandProducts>> products{
      this, "products", std::nullopt,
      "with scaling current and delayed: what products multiply: auto = codes on a GPU that does "
      "so "
      "(compute capability 8.9 and above, by cuBLASLt), in layers whose sizes are multiples of 16; "
      "bf16 = everywhere the bf16 numbers that codes stand for, as with scaling block, with "
      "run.determinism layout and on the CPU; null = auto",
      recipe::one_of<OperandProducts>(
          {{"auto", OperandProducts::automatic}, {"bf16", OperandProducts::bf16}})};
  recipe::Key<std::vector<std::string>> include{
      this,
      "include",
      {},
      "patterns of weights whose products are quantized beside those of all linear layers that are "
      "neither in the first nor in the last block; layers that share a product (q, k, v; gate, up) "
      "are chosen together"};
  recipe::Key<std::vector<std::string>> exclude{
      this,
      "exclude",
      {},
      "patterns of weights whose products are not quantized, whatever "
      "includes them; embedding, head, norms, routers and experts never are"};
};

struct PrecisionSection : recipe::Section {
  recipe::Key<ComputeType> type{
      this, "compute", ComputeType::fp32,
      "dtype of activations and products; bf16 and fp16 keep an FP32 master copy of the "
      "parameters; fp8 is bf16 in which linear layers quantize the operands of their products (see "
      "fp8); fp64 runs the plain reference kernels, for proofs",
      recipe::one_of<ComputeType>({{"fp32", ComputeType::fp32},
                                   {"bf16", ComputeType::bf16},
                                   {"fp16", ComputeType::fp16},
                                   {"fp8", ComputeType::fp8},
                                   {"fp64", ComputeType::fp64}})};
  recipe::Sub<Fp8Section> fp8{this, "fp8", "with compute fp8: how operands are quantized"};
  recipe::Key<MasterForm> master{
      this, "master", MasterForm::whole,
      "how the FP32 masters of bf16 parameters are kept: whole, 4 bytes each, or as the 2 bytes "
      "that the bf16 copy lacks (every result is the same, bit for bit); none = there are no "
      "masters, each update is rounded to bf16",
      recipe::one_of<MasterForm>({{"fp32", MasterForm::whole},
                                  {"bf16+remainder", MasterForm::remainder},
                                  {"none", MasterForm::none}})};
  /// Beside the copies that products read, in whichever form.
  bool keeps_masters() const { return is_half_width(compute()) && master() != MasterForm::none; }
  recipe::Key<std::optional<Rounding>> rounding{
      this, "rounding", std::nullopt,
      "with master none: stochastic = up or down by chance, so that updates below half a step of "
      "bf16 count in the mean; nearest = they are lost; null = stochastic",
      recipe::one_of<Rounding>(
          {{"stochastic", Rounding::stochastic}, {"nearest", Rounding::nearest}})};
  recipe::Key<std::optional<DType>> grad_reduce{
      this, "grad_reduce", std::nullopt,
      "type in which gradients travel between the ranks of dp x sp, where sums are made in fp32 "
      "and "
      "rounded once: bf16 sends half of the bytes, and each term is rounded before; null = the "
      "type that gradients are summed up in, fp32 (fp64 with compute fp64)",
      recipe::one_of<DType>({{"fp32", DType::f32}, {"bf16", DType::bf16}})};
  recipe::Key<LogitsPrecision> logits{
      this, "logits", LogitsPrecision::fp32,
      "type in which the head's product leaves the logits of the loss: fp32, or compute, bf16 or "
      "fp16, which halves what the loss moves through memory and rounds each logit (the loss "
      "itself is summed up in fp32 either way)",
      recipe::one_of<LogitsPrecision>(
          {{"fp32", LogitsPrecision::fp32}, {"compute", LogitsPrecision::compute}})};
  recipe::Key<bool> tf32{
      this, "tf32", false,
      "with compute fp32 on a GPU: matrix products round their operands to TF32 (10 bits of "
      "mantissa) for the tensor cores and add in fp32; attention and all else stay fp32"};

  recipe::Key<std::optional<recipe::Dynamic<recipe::Count>>> loss_scale{
      this, "loss_scale", std::nullopt,
      "with compute fp16: what the loss is multiplied with, so that its gradients are not too "
      "small "
      "for the type; a power of two, or dynamic (null is dynamic): times backoff_factor when a "
      "gradient overflows, whose step is skipped, and times growth_factor after growth_interval "
      "steps without, within 1 and 2^32",
      recipe::between(1, 0x1p32)};
  recipe::Key<std::optional<recipe::Count>> initial_loss_scale{
      this, "initial_loss_scale", std::nullopt,
      "scale of the first step with loss_scale dynamic, a power of two; null: 65536",
      recipe::between(1, 0x1p32)};
  recipe::Key<std::optional<recipe::Count>> growth_interval{
      this, "growth_interval", std::nullopt,
      "with loss_scale dynamic: steps in a row without overflow before it grows; null: 2000",
      recipe::between(1, 1 << 30)};
  recipe::Key<std::optional<double>> growth_factor{
      this, "growth_factor", std::nullopt,
      "with loss_scale dynamic: what the scale is multiplied with when it grows, a power of two; "
      "null: 2",
      recipe::between(2, 0x1p16)};
  recipe::Key<std::optional<double>> backoff_factor{
      this, "backoff_factor", std::nullopt,
      "with loss_scale dynamic: what an overflow multiplies the scale with, a power of two; null: "
      "0.5",
      recipe::between(0x1p-16, 0.5)};

  /// The type of activations, and of parameters as products see them: of fp8 bf16.
  DType compute() const;
  /// None where compute is not fp8.
  std::optional<QuantizationOptions> quantization() const;
  /// None where compute is not fp16.
  std::optional<optim::LossScaling> loss_scaling() const;
  void validate(recipe::Issues& issues) const override;
};

enum class RecomputeMode : std::uint8_t { none, full, every_k, sqrt, selective, budget };

struct ActivationCheckpointSection : recipe::Section {
  recipe::Key<RecomputeMode> mode{
      this, "mode", RecomputeMode::none,
      "what the backward pass computes again: nothing, every block, every k-th block, segments of "
      "sqrt(layers) blocks, the operations named in `ops`, or as little as keeps activations "
      "within `budget`",
      recipe::one_of<RecomputeMode>({{"none", RecomputeMode::none},
                                     {"full", RecomputeMode::full},
                                     {"every_k", RecomputeMode::every_k},
                                     {"sqrt", RecomputeMode::sqrt},
                                     {"selective", RecomputeMode::selective},
                                     {"budget", RecomputeMode::budget}})};
  recipe::Key<std::optional<recipe::Count>> k{this, "k", std::nullopt,
                                              "with mode every_k: recompute blocks 0, k, 2k ...",
                                              recipe::at_least(1)};
  recipe::Key<std::vector<std::string>> ops{
      this,
      "ops",
      {},
      "with mode selective: operations to compute again",
      recipe::any_of({"norm", "activation", "attention", "up_proj"})};
  recipe::Key<std::optional<recipe::SizeOrShare>> budget{
      this, "budget", std::nullopt,
      "with mode budget: activations that a rank may hold at a time, as a size, or as a share of "
      "what mode none takes"};

  /// Of all modes but budget, whose policy follows from plans (lib/plan/recompute_budget.hpp) and
  /// is that of none here.
  RecomputePolicy policy(std::int64_t num_blocks) const;
  void validate(recipe::Issues& issues) const override;
};

}  // namespace llmtrain::engine
