#include "lib/optim/eight_bit.hpp"

#include <utility>

#include <fmt/format.h>

#include "lib/base/refused_key.hpp"
#include "lib/base/require.hpp"

namespace llmtrain::optim {

namespace {

constexpr std::int64_t kRun = kernels::kDynamicBlock;

/// Whether `box` would consist of whole blocks as any of `parts` equal parts of dim `dim`.
bool divides_well(const Shape& global, Box box, int dim, std::int64_t parts) {
  if (global[dim] % parts != 0) return false;
  const std::int64_t part = global[dim] / parts;
  box.shape = box.shape.with(dim, part);
  for (std::int64_t p = 0; p < parts; ++p) {
    box.offset[static_cast<std::size_t>(dim)] = p * part;
    if (!holds_whole_runs(global, box, kRun)) return false;
  }
  return true;
}

/// "6 or 12": sizes of an axis next to the one with which `box` is a part of dim `dim`, of which
/// `replicas` ranks have the same, that cut no block; empty if none does.
std::string nearest_sizes(const Shape& global, const Box& box, int dim, int replicas) {
  const std::int64_t parts = global[dim] / box.shape[dim];
  std::string sizes;
  for (std::int64_t p = parts - 1; p > 0 && sizes.empty(); --p) {
    if (divides_well(global, box, dim, p)) sizes = fmt::format("{}", p * replicas);
  }
  for (std::int64_t p = parts + 1; p <= global[dim]; ++p) {
    if (!divides_well(global, box, dim, p)) continue;
    return fmt::format("{}{}{}", sizes, sizes.empty() ? "" : " or ", p * replicas);
  }
  return sizes;
}

/// What to do about a placement that cuts blocks.
std::string remedy(const Parameter& p) {
  const std::string keep = fmt::format("optimizer.min_8bit_size = {} keeps its states whole",
                                       p.global_shape().numel() + 1);
  const AxisPlacement& tp = p.placement()[Axis::tp];
  const auto advice = [&](std::string_view axis, int dim, int replicas) {
    const std::string sizes = nearest_sizes(p.global_shape(), p.box(), dim, replicas);
    return sizes.empty() ? "" : fmt::format("parallelism.{} = {} does not, and ", axis, sizes);
  };
  if (tp.split_dim >= 0) {
    const std::string sizes = advice("tp", tp.split_dim, tp.replicas);
    if (!sizes.empty()) return sizes + keep;
  }
  return (p.placement().of_experts ? advice("ep", 0, 1) : "") + keep;
}

}  // namespace

EightBitOptimizer::EightBitOptimizer(Settings settings)
    : Optimizer(settings.weight_decay), settings_(std::move(settings)) {}

std::int64_t EightBitOptimizer::indivisible(const Parameter& parameter) const {
  return in_eight_bits(parameter) ? kRun : settings_.others->indivisible(parameter);
}

std::int64_t EightBitOptimizer::divisible(const Parameter& parameter) const {
  return in_eight_bits(parameter) ? kRun : settings_.others->divisible(parameter);
}

std::vector<StateSpec> EightBitOptimizer::states(const Parameter& parameter) const {
  if (!in_eight_bits(parameter)) return settings_.others->states(parameter);
  if (!holds_whole_runs(parameter.global_shape(), parameter.box(), kRun)) {
    throw RefusedKey(
        parameter.placement()[Axis::tp].split_dim >= 0 ? "parallelism.tp" : "parallelism.ep",
        fmt::format("a part of {} of {} {} cuts blocks of {} elements that share a scale of 8-bit "
                    "states",
                    to_string(parameter.box().shape), parameter.name(),
                    to_string(parameter.global_shape()), kRun),
        remedy(parameter));
  }
  static constexpr std::string_view kScales[] = {"m_scale", "v_scale"};
  std::vector<StateSpec> specs;
  for (const std::string_view name : kernels::states_of(settings_.rule)) {
    specs.push_back({.name = name, .dtype = DType::u8});
    specs.push_back({.name = kScales[specs.size() / 2], .dtype = DType::f32, .run = kRun});
  }
  return specs;
}

void EightBitOptimizer::bind(Device& device, const Mesh& mesh,
                             std::span<const OptimizedParameter> parameters) {
  for (const OptimizedParameter& p : parameters) {
    if (!in_eight_bits(*p.parameter)) {
      others_.push_back(p);
      continue;
    }
    kernels::EightBitTensors& tensors =
        tensors_.emplace_back(kernels::EightBitTensors{.to = update_operands(p),
                                                       .codes = {},
                                                       .scales = {},
                                                       .lr_scale = p.lr_scale,
                                                       .weight_decay = p.weight_decay});
    for (std::size_t k = 0; 2 * k < p.states.size(); ++k) {
      tensors.codes[k] = p.states[2 * k];
      tensors.scales[k] = p.states[2 * k + 1];
    }
  }
  settings_.others->bind(device, mesh, others_);
  if (tensors_.empty()) return;
  table_ = kernels::make_table<kernels::EightBitUpdate>(device, std::span(std::as_const(tensors_)),
                                                        "8-bit table");
}

void EightBitOptimizer::update(const kernels::KernelCtx& ctx, const View& decision) const {
  settings_.others->update(ctx, decision);
  if (tensors_.empty()) return;
  launch(ctx, kernels::EightBitUpdate{.tensors = tensors_,
                                      .table = table_,
                                      .decision = decision,
                                      .rule = settings_.rule,
                                      .decay = settings_.decay});
}

}  // namespace llmtrain::optim
