#include "lib/optim/gradient_norm.hpp"

#include <algorithm>
#include <bit>

#include "kernels/optimizer.hpp"

namespace llmtrain::optim {

namespace {

constexpr std::int64_t kBlock = kernels::SquaredNorm::kBlock;

/// 2^level blocks from `block` on, which is a multiple of as many.
struct BlockRun {
  std::int64_t block = 0;
  std::int32_t level = 0;
  std::int64_t end() const { return block + (std::int64_t{1} << level); }
};

/// Blocks [begin, end) as the fewest runs, ascending.
std::vector<BlockRun> runs_of(std::int64_t begin, std::int64_t end) {
  std::vector<BlockRun> runs;
  while (begin < end) {
    const auto left = static_cast<std::uint64_t>(end - begin);
    const int fits = std::bit_width(left) - 1;
    const int aligned = begin == 0 ? fits : std::countr_zero(static_cast<std::uint64_t>(begin));
    runs.push_back({begin, static_cast<std::int32_t>(std::min(fits, aligned))});
    begin = runs.back().end();
  }
  return runs;
}

/// Those of all ranks' slices, none of which spans two.
std::vector<BlockRun> runs_of_slices(const Parameter& p) {
  std::vector<BlockRun> all;
  std::int64_t begin = 0;
  // Experts that nobody else has are one slice.
  const std::vector<std::int64_t> whole{p.box().shape.numel()};
  const std::span<const std::int64_t> counts = p.is_sliced() ? p.slice_counts() : whole;
  for (const std::int64_t count : counts) {
    const auto runs = runs_of(begin / kBlock, (begin + count + kBlock - 1) / kBlock);
    if (count > 0) all.insert(all.end(), runs.begin(), runs.end());
    begin += count;
  }
  return all;
}

View nothing(DType dtype) { return {.data = nullptr, .dtype = dtype, .shape = {0}}; }

/// The gradient's elements in a run, where they are this rank's.
View own_run(const Parameter& p, const BlockRun& run) {
  const ParameterSlice& own = p.own_slice();
  const std::int64_t begin = run.block * kBlock;
  const std::int64_t end = std::min(run.end() * kBlock, p.box().shape.numel());
  if (begin < own.first || end > own.end()) return nothing(p.own_grad().dtype());
  return p.own_grad().reshape({own.count}).columns(begin - own.first, end - begin);
}

template <class T>
Tensor upload(Device& device, const std::vector<T>& values, std::string_view tag) {
  const Tensor tensor =
      device.allocate({std::ssize(values)}, dtype_of<T>, Category::optimizer, tag);
  if (!device.is_meta()) device.copy_from_host(tensor, std::as_bytes(std::span(values)));
  return tensor;
}

}  // namespace

GradientNorm::GradientNorm(Device& device, const ParameterStore& store, const Mesh& mesh)
    : mesh_(&mesh) {
  std::vector<const Parameter*> by_name;
  for (const auto& parameter : store.all()) {
    if (parameter->is_trained()) by_name.push_back(parameter.get());
  }
  std::sort(by_name.begin(), by_name.end(),
            [](const Parameter* a, const Parameter* b) { return a->name() < b->name(); });
  const DType dtype = store.local_groups().front()->step_grad().dtype();
  sliced_ = std::ranges::any_of(store.local(), [](const auto* p) { return p->is_sliced(); });
  std::vector<std::int32_t> levels, first_runs{0};
  for (const Parameter* p : by_name) {
    // Over the experts' ranks, unless slices are: what all have is the first one's.
    const bool is_first = sliced_ || p->placement().of_experts || mesh.experts().rank() == 0;
    const bool counts = is_first && counts_here(*p, mesh);
    if (!sliced_) {
      gradients_.push_back(counts ? p->grad().view() : nothing(dtype));
      continue;
    }
    for (const BlockRun& run : runs_of_slices(*p)) {
      gradients_.push_back(counts ? own_run(*p, run) : nothing(dtype));
      levels.push_back(run.level);
    }
    first_runs.push_back(static_cast<std::int32_t>(levels.size()));
  }
  table_ = kernels::make_table<kernels::SquaredNorm>(device, gradients_, "gradient_norm table");
  squares_ =
      device.allocate({std::ssize(by_name)}, DType::f64, Category::optimizer, "gradient_norm");
  if (!sliced_) return;
  runs_ = device.allocate({std::ssize(levels)}, DType::f64, Category::optimizer, "norms of runs");
  levels_ = upload(device, levels, "levels of runs");
  first_runs_ = upload(device, first_runs, "first runs");
}

const Tensor& GradientNorm::squares(const kernels::KernelCtx& ctx) const {
  const Tensor& sums = sliced_ ? runs_ : squares_;
  launch(ctx, kernels::SquaredNorm{.gradients = gradients_, .table = table_, .out = sums});
  if (sliced_) {
    mesh_->owners().all_reduce(runs_, ReduceOp::sum, "gradient norm over data").wait();
    launch(ctx, kernels::JoinSquaredNorms{
                    .runs = runs_, .levels = levels_, .first = first_runs_, .out = squares_});
  }
  if (!sliced_ && mesh_->experts().size() > 1) {
    mesh_->experts().all_reduce(squares_, ReduceOp::sum, "gradient norm over experts").wait();
  }
  if (mesh_->model().size() > 1) {
    mesh_->model().all_reduce(squares_, ReduceOp::sum, "gradient norm").wait();
  }
  return squares_;
}

}  // namespace llmtrain::optim
