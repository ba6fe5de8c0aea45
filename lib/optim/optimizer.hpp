#pragma once
/// What an optimizer is: named state tensors per parameter and an update of all. An optimizer is
/// one file and one row of the table in table.cpp; groups, clipping, memory and checkpoints come
/// from OptimizerSet.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/optimizer.hpp"
#include "lib/mesh/mesh.hpp"
#include "lib/param/parameter.hpp"
#include "lib/recipe/section.hpp"

namespace llmtrain::optim {

/// What is kept of a parameter from step to step. On disk it is `<parameter>#<name>`.
struct StateSpec {
  std::string_view name;
  DType dtype = DType::f32;
  /// Of every value before the first step.
  double initial = 0;
  /// One value for each block of so many of the parameter's elements per dim, which divide its
  /// dims; of rank 0: one for each element.
  Shape block = {};
  /// One value for each run of so many elements of the whole tensor in row-major order, of which
  /// the last may be shorter; 0: `block` says. A rank has whole runs (holds_whole_runs()).
  std::int64_t run = 0;
  /// A tensor of its own for each matrix of the parameter (each expert's), of so many rows and
  /// columns, whatever those of the matrix; of rank 0: `block` or `run` says. It belongs to the
  /// whole matrix: nothing cuts that, and every rank of Axis::tp that has a part of it keeps all of
  /// the state.
  Shape matrix = {};

  bool is_elementwise() const { return block.rank() == 0 && run == 0 && matrix.rank() == 0; }
};

/// Whether a box of a tensor of `global` shape consists of whole runs of so many elements of it,
/// one after the other in the box's own row-major order.
bool holds_whole_runs(const Shape& global, const Box& box, std::int64_t run);

/// Where the values of a state lie that this rank keeps: of an element-wise one where the own
/// elements do, of others for the blocks or runs that have one of these. A block that a rank of
/// Axis::tp shares with others is kept by all of them. Runs are counted in one dim, or, where rows
/// are whole numbers of them, in those of the tensor.
TensorPlace place_of(const StateSpec& state, const Parameter& parameter);
/// Of the parameter's elements here, how many one value is for; not of a state of matrices.
std::int64_t elements_per_value(const StateSpec& state, const Parameter& parameter);
/// Values for so many of the parameter's elements here.
std::int64_t values_for(const StateSpec& state, const Parameter& parameter, std::int64_t elements);
/// Of the ranks of Axis::tp that keep such values alike this is the first, as far as it lies in
/// them.
bool begins_blocks(const StateSpec& state, const Parameter& parameter);

/// An allocated parameter with what its updates need.
struct OptimizedParameter {
  const Parameter* parameter = nullptr;
  double lr_scale = 1;
  double weight_decay = 0;
  /// In the order of Optimizer::states().
  std::vector<Tensor> states;
  /// What is updated in the place of the parameter's own tensors, and by which gradient, where they
  /// are defined, for the length of an update. `master` is its remainder, if it has one, and `copy`
  /// the master itself where they are one.
  Tensor master = {}, copy = {}, gradient = {};
  /// Of Parameter::own_slice(), counted from its first element, what is updated; empty: all of it.
  /// States, `master`, `copy` and `gradient` are those of the part.
  std::optional<ParameterSlice> part = std::nullopt;
  /// How its states are rounded, in their order, where they are bf16; of all that is updated.
  kernels::StateRounding rounding = {};

  /// By which all of the own slice is updated.
  const Tensor& whole_gradient() const {
    return gradient.defined() ? gradient : parameter->own_grad();
  }
};

/// Decays of two moments that start at zero, whose bias the decision corrects; 0 for none.
struct MomentDecays {
  double beta1 = 0, beta2 = 0;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Decay of parameters for which no group says otherwise.
  double weight_decay() const { return weight_decay_; }
  /// The decision of every step is made for these.
  virtual MomentDecays corrected_decays() const { return {}; }
  /// Elements of the parameter's box, one after the other, that an update needs at once, so that
  /// ZeRO does not cut them; 0: all.
  virtual std::int64_t indivisible(const Parameter&) const { return 1; }
  /// An update may be given a part of the own elements (OptimizedParameter::part) that begins and
  /// ends at multiples of as many, or at the end; 0: only all of them. A divisor of
  /// kernels::kListChunk.
  virtual std::int64_t divisible(const Parameter&) const { return 0; }
  /// State tensors of an allocated parameter, in the types that they have unless the recipe asks
  /// for bf16.
  virtual std::vector<StateSpec> states(const Parameter& parameter) const = 0;
  /// Called once, before the first update. All that is given outlives this and stays where it is.
  virtual void bind(Device&, const Mesh&, std::span<const OptimizedParameter> parameters) {
    parameters_ = parameters;
  }
  /// Updates masters, compute copies and states of all parameters from their gradients, which are
  /// left as they are. `decision` is kernels::UpdateDecision on the device: where it does not
  /// apply, all stay as they are, to the bit. In stream order; only what must be whole and is not
  /// (MatrixParts) waits for other ranks.
  virtual void update(const kernels::KernelCtx& ctx, const View& decision) const = 0;

 protected:
  explicit Optimizer(double weight_decay) : weight_decay_(weight_decay) {}
  std::span<const OptimizedParameter> parameters() const { return parameters_; }

 private:
  double weight_decay_;
  std::span<const OptimizedParameter> parameters_;
};

/// Master, in its form, gradient and compute copy (where it is a tensor of its own) of what is
/// updated, as the update kernels take them: of a sliced parameter, and of a part, one row.
kernels::UpdateOperands update_operands(const OptimizedParameter& optimized);
/// OptimizedParameter::rounding of that part.
kernels::StateRounding state_rounding(const OptimizedParameter& optimized);

struct OptimizerRow;
using OptimizerChoice = recipe::Choice<OptimizerRow>;

struct OptimizerRow {
  std::string_view name, doc;
  /// Its keys, which are an UpdateOptions (update_options.hpp).
  std::unique_ptr<recipe::Section> (*options)();
  /// `choice` has this row selected.
  std::unique_ptr<Optimizer> (*make)(const OptimizerChoice& choice);
  /// Some of its kernels are the CPU's alone.
  bool cpu_only = false;
  /// Why its states are never bf16. Empty: they may be, for each belongs to one element, and
  /// kernels::AdamUpdate or RuleUpdate writes it.
  std::string_view no_bf16_states = "has kernels that keep states in FP32";
};

std::span<const OptimizerRow> optimizer_table();

}  // namespace llmtrain::optim
