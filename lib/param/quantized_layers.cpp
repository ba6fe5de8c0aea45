#include "lib/param/quantized_layers.hpp"

#include <algorithm>
#include <array>

#include "kernels/code_matmul.hpp"
#include "kernels/elementwise.hpp"
#include "lib/base/refused_key.hpp"
#include "lib/base/require.hpp"

namespace llmtrain {

namespace {

constexpr std::int64_t kBlock = 128;

// A rank's part of a matrix must be whole blocks, or its scales would depend on the layout.
void check_division(const ParameterGroup& group, const Mesh& mesh) {
  if (mesh.size(Axis::tp) == 1) return;
  for (const Parameter* p : group.members()) {
    const int dim = p->placement()[Axis::tp].split_dim;
    if (dim < 0) continue;
    const std::int64_t part = p->box().shape[static_cast<std::size_t>(dim)];
    if (part % kBlock == 0) continue;
    throw RefusedKey("precision.fp8.scaling",
                     fmt::format("block, and parallelism.tp {} divides {} into parts of {}, which "
                                 "are not whole blocks of {}",
                                 mesh.size(Axis::tp), p->name(), part, kBlock),
                     "take another tp, or scaling: current");
  }
}

}  // namespace

kernels::Quantizer quantizer_of(const QuantizationOptions& options, LinearOperand operand,
                                bool along_rows) {
  if (options.scaling != OperandScaling::block) {
    const bool delayed = options.scaling == OperandScaling::delayed;
    const bool gradient = operand == LinearOperand::output_grad;
    return kernels::find_quantizer(gradient ? (delayed ? "e5m2_delayed" : "e5m2_current")
                                            : (delayed ? "e4m3_delayed" : "e4m3_current"));
  }
  constexpr std::array<std::array<std::string_view, 2>, 3> kNames = {
      {{"e4m3_1x128", "e4m3_1x128_pow2"},
       {"e4m3_128x1", "e4m3_128x1_pow2"},
       {"e4m3_128x128", "e4m3_128x128_pow2"}}};
  const std::size_t shape = operand == LinearOperand::weight ? 2 : along_rows ? 1 : 0;
  return kernels::find_quantizer(kNames[shape][options.power_of_two ? 1 : 0]);
}

QuantizedLayers::QuantizedLayers(const kernels::KernelCtx& ctx, const QuantizationOptions& options,
                                 const ParameterStore& store, bool codes)
    : options_(options), codes_(codes) {
  choose(store);
  // A part of a weight has no scale of its own, and a shard's whole is not there when a step
  // begins.
  weights_once_ =
      codes_ && options_.scaling != OperandScaling::block &&
      (options_.scaling == OperandScaling::delayed || store.mesh().size(Axis::tp) == 1) &&
      std::ranges::all_of(local_, [](const auto* g) { return g->compute().defined(); });
  allocate(ctx);
  if (options_.scaling == OperandScaling::delayed) add_states(store.mesh());
}

void QuantizedLayers::choose(const ParameterStore& store) {
  layers_ = layer_precisions(store, options_.include, options_.exclude);
  for (const LayerPrecision& layer : layers_) {
    if (layer.is_quantized) names_.push_back(layer.name);
  }
  for (const auto& group : store.groups()) {
    if (std::ranges::find(names_, group->name()) == names_.end()) continue;
    if (options_.scaling == OperandScaling::block) check_division(*group, store.mesh());
    if (!group->members().front()->is_local()) continue;
    number_[group.get()] = static_cast<std::int64_t>(local_.size());
    local_.push_back(group.get());
  }
  if (!names_.empty()) return;
  throw RefusedKey("precision.compute",
                   "fp8, and no linear layer is quantized: those of the first and the last block "
                   "are not unless precision.fp8.include names them",
                   "include: [\"*\"] takes all");
}

void QuantizedLayers::allocate(const kernels::KernelCtx& ctx) {
  const std::int64_t count = kLinearOperands * static_cast<std::int64_t>(local_.size());
  if (count == 0) return;
  const auto make = [&](const Shape& shape, DType dtype, Category category, std::string_view tag) {
    return ctx.device->allocate(shape, dtype, category, tag);
  };
  amax_ = make({count}, DType::f32, Category::activations, "fp8 amax");
  saturated_ = make({count}, DType::f64, Category::activations, "fp8 saturated");
  begin_step(ctx);
  if (weights_once_ && options_.scaling == OperandScaling::current) {
    weight_scale_ = make({count}, DType::f32, Category::activations, "fp8 scales of weights");
    weight_scale_inv_ =
        make({count}, DType::f32, Category::activations, "fp8 inverse scales of weights");
  }
  if (options_.scaling != OperandScaling::delayed) return;
  scale_ = make({count}, DType::f32, Category::optimizer, "fp8 scales");
  scale_inv_ = make({count}, DType::f32, Category::optimizer, "fp8 inverse scales");
  max_ = make({count}, DType::f32, Category::optimizer, "fp8 largest numbers");
  if (options_.history > 1) {
    history_ =
        make({count, options_.history - 1}, DType::f32, Category::optimizer, "fp8 amax histories");
  }
  reset(ctx);
  for (std::int64_t i = 0; i < count; ++i) {
    const auto operand = static_cast<LinearOperand>(i % kLinearOperands);
    kernels::launch(ctx, kernels::Fill{.y = max_.columns(i, 1),
                                       .value = quantizer_of(options_, operand, false).format.max});
  }
}

// One tensor for the three operands of a layer, whatever ranks have of its weight.
void QuantizedLayers::add_states(const Mesh& mesh) {
  const auto add = [&](const std::string& weight, std::string_view state, const Tensor& all,
                       std::int64_t first, const Parameter* parameter) {
    const Tensor tensor = all.cols() == all.numel() && all.rows() == 1
                              ? all.columns(first, kLinearOperands)
                              : all.row_range(first, kLinearOperands);
    const bool is_first = mesh.index(Axis::tp) == 0 && parameter->own_slice().first == 0;
    states_.push_back({.name = weight + std::string(state),
                       .parameter = parameter,
                       .place = {.global_shape = tensor.shape(),
                                 .box = {.offset = {}, .shape = tensor.shape()},
                                 .own = {0, tensor.numel()}},
                       .is_first = is_first,
                       .tensor = tensor});
  };
  for (const std::string& name : names_) {
    state_names_.push_back(name + "#fp8_scale");
    state_names_.push_back(name + "#fp8_scale_inv");
    if (options_.history > 1) state_names_.push_back(name + "#fp8_history");
  }
  for (std::size_t i = 0; i < local_.size(); ++i) {
    const Parameter* first = local_[i]->members().front();
    const std::int64_t row = kLinearOperands * static_cast<std::int64_t>(i);
    add(first->name(), "#fp8_scale", scale_, row, first);
    add(first->name(), "#fp8_scale_inv", scale_inv_, row, first);
    if (history_.defined()) add(first->name(), "#fp8_history", history_, row, first);
  }
}

std::optional<std::int64_t> QuantizedLayers::find(const ParameterGroup& weight) const {
  const auto at = number_.find(&weight);
  return at == number_.end() ? std::nullopt : std::optional(at->second);
}

bool QuantizedLayers::multiplies_codes(const ParameterGroup& weight, std::int64_t rows) const {
  std::int64_t out = 0;
  for (const Parameter* p : weight.members()) out += p->box().shape.rows();
  const std::int64_t in = weight.members().front()->box().shape.cols();
  return codes_ && kernels::CodeMatmul::takes(rows, out, in);
}

std::size_t QuantizedLayers::num_multiplying_codes(std::int64_t rows) const {
  return static_cast<std::size_t>(std::ranges::count_if(
      local_, [&](const ParameterGroup* group) { return multiplies_codes(*group, rows); }));
}

Tensor QuantizedLayers::at(const Tensor& all, std::int64_t layer, LinearOperand operand) const {
  return all.columns(kLinearOperands * layer + static_cast<std::int64_t>(operand), 1);
}
Tensor QuantizedLayers::amax(std::int64_t layer, LinearOperand operand) const {
  return at(amax_, layer, operand);
}
Tensor QuantizedLayers::saturated(std::int64_t layer, LinearOperand operand) const {
  return at(saturated_, layer, operand);
}
Tensor QuantizedLayers::scale(std::int64_t layer, LinearOperand operand) const {
  return at(scale_, layer, operand);
}
Tensor QuantizedLayers::scale_inv(std::int64_t layer, LinearOperand operand) const {
  return at(scale_inv_, layer, operand);
}

void QuantizedLayers::reset(const kernels::KernelCtx& ctx) const {
  if (!scale_.defined()) return;
  kernels::launch(ctx, kernels::Fill{.y = scale_, .value = 1});
  kernels::launch(ctx, kernels::Fill{.y = scale_inv_, .value = 1});
  if (history_.defined()) kernels::launch(ctx, kernels::Fill{.y = history_, .value = 0});
}

void QuantizedLayers::begin_step(const kernels::KernelCtx& ctx) const {
  if (local_.empty()) return;
  kernels::launch(ctx, kernels::Fill{.y = amax_, .value = 0});
  kernels::launch(ctx, kernels::Fill{.y = saturated_, .value = 0});
}

Tensor QuantizedLayers::weight_scale(std::int64_t layer) const {
  return at(weight_scale_, layer, LinearOperand::weight);
}
Tensor QuantizedLayers::weight_scale_inv(std::int64_t layer) const {
  return at(weight_scale_inv_, layer, LinearOperand::weight);
}

void QuantizedLayers::scale_weights(const kernels::KernelCtx& ctx) const {
  if (!weights_once_ || local_.empty()) return;
  for (std::size_t i = 0; i < local_.size(); ++i) {
    kernels::launch(
        ctx, kernels::BlockAmax{.x = local_[i]->compute(),
                                .amax = amax(static_cast<std::int64_t>(i), LinearOperand::weight)});
  }
  if (!weight_scale_.defined()) return;
  kernels::launch(ctx, kernels::ScaleFromAmax{
                           .amax = amax_,
                           .scale = weight_scale_,
                           .scale_inv = weight_scale_inv_,
                           .max = quantizer_of(options_, LinearOperand::weight, false).format.max,
                           .largest = kernels::largest_of(local_.front()->compute().dtype())});
}

// Stages of a pipeline have layers of their own; of one layer all ranks of these groups have the
// same operands, or parts of them.
void QuantizedLayers::join(const Mesh& mesh) const {
  if (local_.empty()) return;
  for (Communicator* group : {&mesh.axis(Axis::tp), &mesh.data()}) {
    if (group->size() == 1) continue;
    group->all_reduce(amax_, ReduceOp::max, "fp8 amax").wait();
    group->all_reduce(saturated_, ReduceOp::sum, "fp8 saturated").wait();
  }
}

void QuantizedLayers::end_step(const kernels::KernelCtx& ctx, const View& decision) const {
  if (local_.empty() || options_.scaling != OperandScaling::delayed) return;
  kernels::launch(ctx,
                  kernels::RollAmaxHistory{.amax = amax_,
                                           .history = history_.defined() ? history_.view() : View{},
                                           .scale = scale_,
                                           .scale_inv = scale_inv_,
                                           .max = max_,
                                           .decision = decision,
                                           .margin = options_.margin,
                                           .algorithm = options_.algorithm});
}

}  // namespace llmtrain
