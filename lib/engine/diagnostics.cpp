#include "lib/engine/diagnostics.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/elementwise.hpp"
#include "lib/base/require.hpp"

namespace llmtrain::engine {

namespace {

using kernels::Census;

constexpr std::int64_t kSums = Census::kBins + Census::kPowers;

/// Of a parameter's own part, as many pieces of as many elements.
constexpr std::int64_t kPieces = 8, kPieceElements = 1024;

std::string without_suffix(const std::string& name) {
  constexpr std::string_view kWeight = ".weight";
  return name.ends_with(kWeight) ? name.substr(0, name.size() - kWeight.size()) : name;
}

std::vector<double> to_host(const Tensor& tensor) {
  std::vector<double> values(static_cast<std::size_t>(tensor.numel()));
  if (tensor.device().is_meta()) return values;
  tensor.device().copy_to_host(std::as_writable_bytes(std::span(values)), tensor);
  return values;
}

/// Whether what this rank of Axis::tp has computed is no term of a gradient.
bool is_whole(const Parameter& p) {
  const AxisPlacement& how = p.placement()[Axis::tp];
  return !how.grad_partial && how.replicas == 1;
}

/// Values of a parameter's own elements from `first` on, of the whole precision that it has.
template <class T>
void append(const ParameterStore& store, const Parameter& p, std::int64_t first, std::int64_t count,
            std::vector<double>& to) {
  std::vector<T> values(static_cast<std::size_t>(count));
  store.read_part(p, first, std::as_writable_bytes(std::span(values)));
  to.insert(to.end(), values.begin(), values.end());
}

}  // namespace

std::string Diagnostics::name_of_block(std::int64_t block) {
  return fmt::format("model.layers.{}", block);
}

Diagnostics::Diagnostics(Device& device, const ParameterStore& store, const Mesh& mesh,
                         std::int64_t blocks)
    : device_(&device), store_(&store), mesh_(&mesh) {
  std::vector<std::string> parameters, values;
  for (const auto& p : store.all()) {
    if (!p->is_trained()) continue;
    parameters_.push_back(p.get());
    parameters.push_back(p->name());
  }
  for (const auto& group : store.groups()) {
    // Experts' rows are not this rank's to count, and have no place of their own.
    const Parameter& first = *group->members().front();
    if (first.is_linear() && !first.placement().of_experts) {
      values.push_back(without_suffix(first.name()));
    }
  }
  for (std::int64_t block = 0; block < blocks; ++block) values.push_back(name_of_block(block));
  for (const std::string& name : values) activation_rows_.emplace(name, activation_rows_.size());
  sliced_ = std::ranges::any_of(store.local(), [](const auto* p) { return p->is_sliced(); });
  gradients_ = make_family(parameters, "census of gradients");
  weights_ = make_family(std::move(parameters), "census of weights");
  activations_ = make_family(std::move(values), "census of activations");
  part_ = make_family({"all"}, "census of a part");
  updates_ = device.allocate({std::ssize(parameters_), 2}, DType::f64, Category::activations,
                             "samples of updates");
  scratch_ = device.allocate({Census::kParts, Census::kColumns}, DType::f64, Category::activations,
                             "parts of a census");
}

Diagnostics::Family Diagnostics::make_family(std::vector<std::string> names,
                                             std::string_view tag) const {
  const std::int64_t rows = std::ssize(names);
  const auto allocate = [&](std::int64_t cols) {
    return device_->allocate({rows, cols}, DType::f64, Category::activations, tag);
  };
  return {.names = std::move(names), .sums = allocate(kSums), .amax = allocate(1)};
}

void Diagnostics::begin_step(const kernels::KernelCtx& ctx) {
  for (const Family* family : {&gradients_, &weights_, &activations_, &part_}) {
    kernels::launch(ctx, kernels::Fill{.y = family->sums, .value = 0});
    kernels::launch(ctx, kernels::Fill{.y = family->amax, .value = 0});
  }
  before_ = sample();
  noise_.reset();
}

void Diagnostics::take(const kernels::KernelCtx& ctx, const Family& family, std::size_t row,
                       const View& x) const {
  if (x.numel() == 0) return;
  const Tensor sums = family.sums.row_range(static_cast<std::int64_t>(row), 1);
  kernels::launch(ctx, Census{.x = x,
                              .counts = sums.columns(0, Census::kBins),
                              .powers = sums.columns(Census::kBins, Census::kPowers),
                              .amax = family.amax.row_range(static_cast<std::int64_t>(row), 1),
                              .scratch = scratch_});
}

void Diagnostics::see(const OpCtx& ctx, std::string_view name, const Tensor& x, bool divided) {
  if (!divided && mesh_->index(Axis::tp) != 0) return;
  constexpr std::string_view kWeight = ".weight";
  if (name.ends_with(kWeight)) name.remove_suffix(kWeight.size());
  const auto row = activation_rows_.find(name);
  require(row != activation_rows_.end(), "nobody expects to see {}", name);
  take(ctx.kernel, activations_, row->second, x);
}

// As the gradients' norm counts them (optim::GradientNorm).
bool Diagnostics::counts(const Parameter& p) const {
  const bool is_first = sliced_ || p.placement().of_experts || mesh_->experts().rank() == 0;
  return is_first && counts_here(p, *mesh_);
}

void Diagnostics::join_parameters(const Tensor& values, ReduceOp op) const {
  Communicator& data = sliced_ ? mesh_->owners() : mesh_->experts();
  for (Communicator* group : {&data, &mesh_->model()}) {
    if (group->size() > 1) group->all_reduce(values, op, "diagnostics").wait();
  }
}

void Diagnostics::see_part(const kernels::KernelCtx& ctx, double tokens, double share) {
  for (const Parameter* p : parameters_) {
    if (counts(*p) && is_whole(*p)) take(ctx, part_, 0, p->own_grad());
  }
  join_parameters(part_.sums, ReduceOp::sum);
  // Slices are the owners' together, and each rank's of a gradient of its own unless these are sums
  // over the owners already; whole gradients are each data rank's own.
  const int data = mesh_->data().size();
  if (!sliced_ && data > 1) {
    mesh_->data().all_reduce(part_.sums, ReduceOp::sum, "diagnostics").wait();
  }
  const bool summed = std::ranges::any_of(
      parameters_, [](const auto* p) { return p->is_local() && p->shards().gradients; });
  const int ranks = summed ? mesh_->owners().size() : 1;
  noise_ = {.tokens = tokens, .tokens_of_part = tokens * share * ranks / data};
}

void Diagnostics::join(const kernels::KernelCtx& ctx) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& p = *parameters_[i];
    if (!counts(p)) continue;
    take(ctx, gradients_, i, p.own_grad());
    take(ctx, weights_, i, p.own_compute());
  }
  for (const Family* family : {&gradients_, &weights_}) {
    join_parameters(family->sums, ReduceOp::sum);
    join_parameters(family->amax, ReduceOp::max);
  }
  if (mesh_->world().size() == 1) return;
  mesh_->world().all_reduce(activations_.sums, ReduceOp::sum, "diagnostics").wait();
  mesh_->world().all_reduce(activations_.amax, ReduceOp::max, "diagnostics").wait();
}

std::vector<std::vector<double>> Diagnostics::sample() const {
  std::vector<std::vector<double>> samples(parameters_.size());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& p = *parameters_[i];
    const ParameterSlice& own = p.own_slice();
    if (!counts(p) || own.count == 0 || device_->is_meta()) continue;
    const std::int64_t pieces = own.count <= kPieces * kPieceElements ? 1 : kPieces;
    for (std::int64_t piece = 0; piece < pieces; ++piece) {
      const std::int64_t first = own.first + piece * own.count / pieces;
      const std::int64_t count = pieces == 1 ? own.count : kPieceElements;
      p.master_dtype() == DType::f64 ? append<double>(*store_, p, first, count, samples[i])
                                     : append<float>(*store_, p, first, count, samples[i]);
    }
  }
  return samples;
}

std::vector<TensorCensus> Diagnostics::read(const Family& family) const {
  const std::vector<double> sums = to_host(family.sums), amax = to_host(family.amax);
  std::vector<TensorCensus> all;
  for (std::size_t i = 0; i < family.names.size(); ++i) {
    const auto begin = sums.begin() + static_cast<std::ptrdiff_t>(i) * kSums;
    TensorCensus& census = all.emplace_back();
    census.name = family.names[i];
    census.counts.assign(begin, begin + Census::kBins);
    std::copy_n(begin + Census::kBins, Census::kPowers, census.powers.begin());
    census.amax = amax[i];
  }
  return all;
}

DiagnosticsOutcome Diagnostics::end_step() {
  const std::vector<std::vector<double>> after = sample();
  std::vector<double> sums(2 * parameters_.size());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    for (std::size_t e = 0; e < after[i].size(); ++e) {
      const double value = before_[i][e], update = after[i][e] - value;
      sums[2 * i] += update * update;
      sums[2 * i + 1] += value * value;
    }
  }
  if (!device_->is_meta()) device_->copy_from_host(updates_, std::as_bytes(std::span(sums)));
  join_parameters(updates_, ReduceOp::sum);
  sums = to_host(updates_);
  DiagnosticsOutcome outcome{.gradients = read(gradients_),
                             .weights = read(weights_),
                             .activations = read(activations_),
                             .updates = {}};
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    outcome.updates.push_back({parameters_[i]->name(), sums[2 * i], sums[2 * i + 1]});
    if (noise_ && is_whole(*parameters_[i])) {
      noise_->squared_norm += outcome.gradients[i].powers[1];
    }
  }
  if (noise_) {
    // Gradients are divided by the tokens of all.
    const double of_part = noise_->tokens / noise_->tokens_of_part;
    const double means = sliced_ ? 1 : mesh_->data().size();
    noise_->squared_norm_of_part = read(part_).front().powers[1] * of_part * of_part / means;
  }
  outcome.noise = noise_;
  return outcome;
}

}  // namespace llmtrain::engine
