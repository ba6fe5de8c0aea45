#pragma once
/// Linear layers whose products take operands of eight bits, and what of them lives as long as the
/// run: largest magnitudes, their histories and the scales that follow from these.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kernels/quantize/quantize.hpp"
#include "lib/param/layer_precision.hpp"

namespace llmtrain {

/// What scales follow from, as Transformer Engine's recipes have it.
enum class OperandScaling : std::uint8_t {
  current,  // of a tensor: its own amax
  delayed,  // of a tensor: those of earlier steps
  block,    // of 128 numbers along a product's sum, of 128 x 128 of a weight: their own amax
};

/// What products multiply: codes where the device does, or the bf16 numbers that codes stand for.
enum class OperandProducts : std::uint8_t { automatic, bf16 };

struct QuantizationOptions {
  OperandScaling scaling = OperandScaling::current;
  /// With delayed scaling: steps whose amax counts, the last one included; which of them; and
  /// binades that scales leave free.
  std::int64_t history = 1024;
  kernels::HistoryAmax algorithm = kernels::HistoryAmax::max;
  int margin = 0;
  /// Scales of blocks are powers of two.
  bool power_of_two = true;
  OperandProducts products = OperandProducts::automatic;
  /// Patterns, as layer_precisions() has them.
  std::vector<std::string> include, exclude;
};

/// Operands of the three products of a linear layer y = x w^T.
enum class LinearOperand : std::uint8_t { input, weight, output_grad };
inline constexpr int kLinearOperands = 3;

class QuantizedLayers {
 public:
  /// Allocates what this rank needs of the layers that `options` chooses from `store`, which has
  /// its tensors and outlives this; values are those of a run that has not begun. RecipeError for
  /// a pattern that selects no linear layer, when no layer is chosen, and for blocks that a
  /// tensor's division over Axis::tp would cut. `codes`: products multiply codes
  /// (kernels::CodeMatmul) where their sizes allow it.
  QuantizedLayers(const kernels::KernelCtx& ctx, const QuantizationOptions& options,
                  const ParameterStore& store, bool codes = false);

  /// Number of a layer by its weight; none where its products are not quantized.
  std::optional<std::int64_t> find(const ParameterGroup& weight) const;
  const QuantizationOptions& options() const { return options_; }
  /// Whether the three products of a layer multiply codes, for inputs of so many rows.
  bool multiplies_codes(const ParameterGroup& weight, std::int64_t rows) const;
  /// Of this rank's layers: all, and those.
  std::size_t num_local() const { return local_.size(); }
  std::size_t num_multiplying_codes(std::int64_t rows) const;
  /// Names of the layers' (first) weights, on whichever ranks they are, in the model's order.
  const std::vector<std::string>& names() const { return names_; }
  /// All products with a weight, those among them.
  const std::vector<LayerPrecision>& layers() const { return layers_; }

  /// Whose magnitudes it is: FP32 [1], zero at a step's begin, that operations raise; and how many
  /// numbers did not fit, FP64 [1].
  Tensor amax(std::int64_t layer, LinearOperand operand) const;
  Tensor saturated(std::int64_t layer, LinearOperand operand) const;
  /// With delayed scaling, FP32 [1].
  Tensor scale(std::int64_t layer, LinearOperand operand) const;
  Tensor scale_inv(std::int64_t layer, LinearOperand operand) const;

  /// Whether weights have their scales, or with delayed scaling their magnitudes, once a step from
  /// scale_weights(), not from each of its micro-batches; and those scales, FP32 [1], with current
  /// scaling.
  bool scales_weights_once() const { return weights_once_; }
  Tensor weight_scale(std::int64_t layer) const;
  Tensor weight_scale_inv(std::int64_t layer) const;

  /// Scales and histories become those of a run that has not begun.
  void reset(const kernels::KernelCtx& ctx) const;
  /// Before a step's first micro-batch.
  void begin_step(const kernels::KernelCtx& ctx) const;
  /// Behind that, where weights are whole by then.
  void scale_weights(const kernels::KernelCtx& ctx) const;
  /// Behind the last: magnitudes and counts become those of all ranks. Collective over the world.
  void join(const Mesh& mesh) const;
  /// Behind that: with delayed scaling, the scales of the next step; where `decision`
  /// (kernels::UpdateDecision) does not apply, those of this one stay.
  void end_step(const kernels::KernelCtx& ctx, const View& decision) const;

  /// Of all local layers' operands: FP32 and FP64 [layers * kLinearOperands], input, weight and
  /// gradient of each.
  const Tensor& all_amax() const { return amax_; }
  const Tensor& all_saturated() const { return saturated_; }

  /// What a checkpoint keeps, in the way of an optimizer's state.
  struct State {
    std::string name;  // <weight>#fp8_<state>
    const Parameter* parameter = nullptr;
    TensorPlace place;
    bool is_first = true;  // of the ranks that have it
    Tensor tensor;
  };
  std::span<const State> states() const { return states_; }
  /// Of all layers of the model.
  const std::vector<std::string>& state_names() const { return state_names_; }

 private:
  void choose(const ParameterStore& store);
  void allocate(const kernels::KernelCtx& ctx);
  void add_states(const Mesh& mesh);
  Tensor at(const Tensor& all, std::int64_t layer, LinearOperand operand) const;

  QuantizationOptions options_;
  bool codes_;
  bool weights_once_ = false;
  std::vector<LayerPrecision> layers_;
  std::vector<std::string> names_, state_names_;
  std::vector<const ParameterGroup*> local_;
  std::map<const ParameterGroup*, std::int64_t> number_;
  Tensor amax_, saturated_;
  Tensor weight_scale_, weight_scale_inv_;  // of all operands; those of weights count
  Tensor scale_, scale_inv_, history_,
      max_;  // of delayed scaling; the history if it is longer than 1
  std::vector<State> states_;
};

/// The table's row for an operand of a product. `along_rows`: the product sums over the operand's
/// rows (weight gradients), else over its columns.
kernels::Quantizer quantizer_of(const QuantizationOptions& options, LinearOperand operand,
                                bool along_rows);

}  // namespace llmtrain
