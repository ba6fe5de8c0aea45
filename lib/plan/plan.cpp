#include "lib/plan/plan.hpp"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "kernels/cuda/rules/product_scratch.hpp"
#include "lib/base/require.hpp"
#include "lib/plan/kernel_model.hpp"
#include "lib/plan/product_list.hpp"

namespace llmtrain::plan {

namespace {

class LaunchCounter final : public kernels::Recorder {
 public:
  void record(const kernels::LaunchRecord& launch) override {
    const std::string_view name = timed_name(launch);
    const Key key{std::string(name), launch.dtype, launch.sizes, launch.cost.flops};
    const auto [entry, is_new] = index_.emplace(key, groups_.size());
    if (is_new) {
      groups_.push_back({std::string(name), launch.dtype, launch.sizes, launch.cost, 0});
    }
    ++groups_[entry->second].count;
    if (launch.name == kernels::Matmul::name) {
      products_.add(*static_cast<const kernels::Matmul*>(launch.kernel));
    }
  }
  /// Of all passes.
  const ProductList& products() const { return products_; }
  std::vector<LaunchGroup> take() {
    index_.clear();
    return std::move(groups_);
  }

 private:
  using Key = std::tuple<std::string, DType, std::array<std::int64_t, 4>, double>;
  std::map<Key, std::size_t> index_;
  std::vector<LaunchGroup> groups_;
  ProductList products_;
};

/// Collectives of the steps; what ranks tell each other on the host has no part in it.
class CollectiveCounter final : public CollectiveRecorder {
 public:
  void record(const CollectiveRecord& call, int ranks) override {
    if (ranks == 1) return;
    const auto same = [&](const CollectiveGroup& group) {
      return group.kind == call.kind && group.group == call.group && group.bytes == call.bytes;
    };
    const auto found = std::find_if(groups_.begin(), groups_.end(), same);
    if (found != groups_.end()) {
      ++found->count;
    } else {
      groups_.push_back({call.kind, call.group, ranks, call.bytes, 1});
    }
  }
  std::vector<CollectiveGroup> take() { return std::exchange(groups_, {}); }

 private:
  std::vector<CollectiveGroup> groups_;
};

std::int64_t block_parameters(const ParameterStore& store) {
  std::int64_t n = 0;
  for (const auto& p : store.all()) {
    if (p->name().starts_with("model.layers.0.")) n += p->global_shape().numel();
  }
  return n;
}

std::uint64_t checkpoint_bytes(engine::Engine& engine) {
  std::uint64_t bytes = 0;
  for (const Parameter* p : engine.parameters().local()) {
    bytes += static_cast<std::uint64_t>(p->box().shape.numel()) * size_of(p->stored_dtype());
  }
  for (const auto& state : engine.optimizer()->states()) bytes += state.tensor.view().bytes();
  return bytes;
}

}  // namespace

std::uint64_t CollectiveGroup::sent_bytes() const {
  const auto n = static_cast<std::uint64_t>(ranks);
  const auto calls = static_cast<std::uint64_t>(count);
  switch (kind) {
    case Collective::all_reduce:
      return calls * (2 * (n - 1) * bytes / n);
    case Collective::all_gather:
    case Collective::reduce_scatter:
    case Collective::all_to_all:
      return calls * ((n - 1) * bytes / n);
    case Collective::broadcast:
    case Collective::send:
      return calls * bytes;
    case Collective::recv:
    case Collective::barrier:
      return 0;
  }
  return 0;
}

double PassPlan::flops() const {
  double sum = 0;
  for (const LaunchGroup& group : launches) {
    sum += group.cost.flops * static_cast<double>(group.count);
  }
  return sum;
}

const Peak& Plan::peak(Phase phase) const {
  switch (phase) {
    case Phase::init:
      return init;
    case Phase::step:
      return step.peak;
    case Phase::eval:
      return eval.peak;
    case Phase::save:
      return save;
  }
  fail("no phase {}", static_cast<int>(phase));
}

std::uint64_t Plan::peak_bytes() const {
  return std::max(
      {init.total_bytes, step.peak.total_bytes, eval.peak.total_bytes, save.total_bytes});
}

std::uint64_t Plan::extent_bytes() const {
  return std::max({step.extent_bytes, eval.extent_bytes, tuning_bytes});
}

namespace {

engine::EnginePlace meta_place(Device& device, const engine::Target& target,
                               kernels::Recorder* recorder, CollectiveRecorder* collectives) {
  return {.device = &device,
          .table = &engine::planning_table(target.device),
          .threads = target.threads,
          .library_workspace_bytes = target.library_workspace_bytes,
          .loss_chunk_bytes = target.loss_chunk_bytes,
          .attention = target.attention,
          .determinism = target.determinism,
          .communicators = meta_factory(collectives),
          .mesh = target.mesh,
          .rank = target.rank,
          .recorder = recorder};
}

/// Memory that is taken and given back before the engine is built.
void add_tuning(Plan& plan, std::span<const kernels::Matmul> products,
                const engine::Target& target) {
  if (target.device != DeviceKind::cuda || !target.tune_products) return;
  plan.products.assign(products.begin(), products.end());
  plan.tuning_bytes = kernels::cuda::tuning_scratch_bytes(products, target.library_workspace_bytes);
  auto& workspace = plan.init.per_category[static_cast<std::size_t>(Category::workspace)];
  workspace = std::max(workspace, plan.tuning_bytes);
  if (plan.tuning_bytes <= plan.init.total_bytes) return;
  plan.init.total_bytes = plan.tuning_bytes;
  plan.init.at_peak = {};
  plan.init.at_peak[static_cast<std::size_t>(Category::workspace)] = plan.tuning_bytes;
  plan.init.tag = kTuningTag;
}

}  // namespace

void check_parameters(const engine::EngineOptions& options) {
  Device device(make_meta_memory(), kUnlimitedBytes);
  const engine::Engine engine(meta_place(device, {}, nullptr, nullptr), options);
}

Plan make_plan(const engine::EngineOptions& options, std::int64_t samples_per_step, int threads) {
  return make_plan(options, samples_per_step, engine::Target{.threads = threads});
}

Plan make_plan(const engine::EngineOptions& options, std::int64_t samples_per_step,
               const engine::Target& target, std::uint64_t capacity_bytes) {
  LaunchCounter counter;
  CollectiveCounter collectives;
  Device device(make_meta_memory(), capacity_bytes);
  engine::Engine engine(meta_place(device, target, &counter, &collectives), options);
  engine.initialize();
  counter.take();
  const int data_ranks = target.mesh[Axis::dp] * target.mesh[Axis::sp];

  Plan plan;
  plan.device = target.device;
  plan.tf32 = options.tf32;
  plan.determinism = target.determinism;
  plan.init = device.ledger().peak(Phase::init);
  plan.parameters = engine.parameters().num_elements();
  plan.parameters_per_block = block_parameters(engine.parameters());
  plan.tokens_per_step = samples_per_step * options.seq_len;
  plan.mesh = target.mesh;
  for (int c = 0; c < kNumCategories; ++c) {
    plan.held[static_cast<std::size_t>(c)] = device.ledger().held_bytes(Category(c));
  }

  device.ledger().start_trace();
  engine.train_step(engine::StepBatch::planned(samples_per_step / data_ranks, options.seq_len), 1,
                    1.0);
  plan.step_trace = device.ledger().stop_trace();
  plan.step = {device.ledger().peak(Phase::step), device.arena_extent_bytes(), counter.take(),
               collectives.take()};

  engine.evaluate(engine::StepBatch::planned(options.micro_batch_size, options.seq_len));
  plan.eval = {device.ledger().peak(Phase::eval), device.arena_extent_bytes(), counter.take(),
               collectives.take()};

  device.ledger().enter(Phase::save);
  plan.save = device.ledger().peak(Phase::save);

  plan.model_flops_per_token =
      3.0 * plan.eval.flops() / static_cast<double>(options.micro_batch_size * options.seq_len);
  plan.checkpoint_bytes = checkpoint_bytes(engine);
  add_tuning(plan, counter.products().all(), target);
  plan.records_launches = options.records_launches;
  return plan;
}

}  // namespace llmtrain::plan
