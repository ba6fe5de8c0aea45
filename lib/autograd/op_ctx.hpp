#pragma once
/// What a differentiable operation needs to run.

#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include "kernels/kernel.hpp"
#include "lib/autograd/row_map.hpp"

namespace llmtrain {

class Mesh;
class ParameterGroup;
class QuantizedLayers;
class Tape;

/// What changes from step to step.
struct StepKey {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  /// Gradients are those of (sum of token losses) * grad_scale; 1 / trained tokens of the step.
  double grad_scale = 1;
  /// `step` and `grad_scale` on the device (kernels::StepScalars), where kernels read them; or
  /// undefined.
  View scalars;
  /// Where the scale of the loss stands on the device (kernels::UpdateDecision), if it has one.
  View decision;
};

/// When the weight part of a node's backward runs.
enum class WeightGrads : std::uint8_t { now, deferred };

/// Of a table that is embedding and output head: which of the two adds to its gradient.
enum class GradientPart : std::uint8_t { body, head };

/// Where the operations of a micro-batch add to the gradients of parameters, if not to
/// ParameterGroup::grad().
class GradientSinks {
 public:
  virtual ~GradientSinks() = default;
  /// Asked before each launch that adds, or several of one operation.
  virtual const Tensor& sink(const kernels::KernelCtx& ctx, const ParameterGroup& group,
                             GradientPart part) = 0;
};

/// Gradients with memory of any content: whoever is the first to add to one writes it instead,
/// which spares setting it to zero before, and reading the zeros.
class UnwrittenGradients {
 public:
  void add(const ParameterGroup& group) { groups_.insert(&group); }
  /// Whether it is one of them, and none any more.
  bool take(const ParameterGroup& group) { return groups_.erase(&group) > 0; }

 private:
  std::set<const ParameterGroup*> groups_;
};

struct OpCtx;

/// Looks at values on their way through a step, now and then: each once, not again where a segment
/// is computed again.
class TensorWatch {
 public:
  virtual ~TensorWatch() = default;
  /// `x` [rows, cols], of which each rank of Axis::tp has all or, `divided`, a part of its own.
  virtual void see(const OpCtx& ctx, std::string_view name, const Tensor& x, bool divided) = 0;
};

/// Operations whose output may be computed again instead of kept: activation_checkpoint.ops.
using RecomputedOps = std::set<std::string, std::less<>>;

/// Cheap to copy; the referenced objects outlive it. `tape` is null where nothing is recorded: in
/// evaluation and decoding, and in the first forward pass of a recompute segment (where `training`
/// still holds, so that dropout acts).
struct OpCtx {
  kernels::KernelCtx kernel;
  Tape* tape = nullptr;
  bool training = false;
  const Mesh* mesh = nullptr;
  const RowMap* rows = nullptr;
  StepKey step;
  const RecomputedOps* recomputed_ops = nullptr;
  /// Null: the parameters' own.
  GradientSinks* sinks = nullptr;
  /// Among these gradients of linear layers may be that have nothing to add to.
  UnwrittenGradients* unwritten = nullptr;
  /// Linear layers whose products quantize their operands in training; null: none do.
  const QuantizedLayers* quantized = nullptr;
  TensorWatch* watch = nullptr;
  /// The last of a step's: gradients are complete behind it.
  bool last_micro_batch = false;
  /// During a backward walk: what Tape::backward was asked for.
  WeightGrads weight_grads = WeightGrads::now;

  template <class K>
  void launch(const K& k) const {
    kernels::launch(kernel, k);
  }
  Tensor allocate(const Shape& shape, DType dtype, std::string_view tag,
                  Category category = Category::activations) const {
    return kernel.device->allocate(shape, dtype, category, tag);
  }
  bool recomputes(std::string_view op) const {
    return tape != nullptr && recomputed_ops != nullptr && recomputed_ops->contains(op);
  }
};

/// FP32 statistics and sums go with every compute dtype but fp64.
constexpr DType statistics_dtype(DType compute) {
  return compute == DType::f64 ? DType::f64 : DType::f32;
}

}  // namespace llmtrain
