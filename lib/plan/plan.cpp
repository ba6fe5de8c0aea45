#include "lib/plan/plan.hpp"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "kernels/cuda/rules/product_scratch.hpp"
#include "lib/base/require.hpp"
#include "lib/checkpoint/snapshot.hpp"
#include "lib/plan/kernel_model.hpp"
#include "lib/plan/product_list.hpp"

namespace llmtrain::plan {

namespace {

/// Everything that passes do, in its order, with what is alike counted together.
class PassRecorder final : public kernels::Recorder,
                           public CollectiveRecorder,
                           public parallel::ActionObserver {
 public:
  void record(const kernels::LaunchRecord& launch) override {
    const std::string_view name = timed_name(launch);
    const Key key{std::string(name), launch.dtype, launch.sizes, launch.cost.flops};
    const auto [entry, is_new] = index_.emplace(key, pass_.launches.size());
    if (is_new) {
      pass_.launches.push_back({std::string(name), launch.dtype, launch.sizes, launch.cost, 0});
    }
    ++pass_.launches[entry->second].count;
    add(PassEvent::Kind::launch, entry->second);
    if (launch.name == kernels::Matmul::name) {
      products_.add(*static_cast<const kernels::Matmul*>(launch.kernel));
    } else if (launch.name == kernels::CodeMatmul::name) {
      products_.add(*static_cast<const kernels::CodeMatmul*>(launch.kernel));
    }
  }
  std::uint64_t started(const CollectiveRecord& call, std::span<const int> members) override {
    if (members.size() == 1) return kNothing;
    auto& groups = pass_.collectives;
    const auto same = [&](const CollectiveGroup& group) {
      return group.kind == call.kind && group.group == call.group && group.bytes == call.bytes &&
             group.own_elements == call.own_elements && group.elements == call.elements;
    };
    auto found = std::find_if(groups.begin(), groups.end(), same);
    if (found == groups.end()) {
      groups.push_back({.kind = call.kind,
                        .group = call.group,
                        .members = std::vector<int>(members.begin(), members.end()),
                        .bytes = call.bytes,
                        .own_elements = call.own_elements,
                        .elements = call.elements});
      found = groups.end() - 1;
    }
    ++found->count;
    add(PassEvent::Kind::start, static_cast<std::size_t>(found - groups.begin()));
    return started_++;
  }
  void awaited(std::uint64_t number) override {
    if (number != kNothing) add(PassEvent::Kind::wait, number);
  }
  void began(const parallel::Action& action) override {
    pass_.actions.push_back({action, pass_.events.size(), pass_.events.size()});
  }
  void ended(const parallel::Action&) override { pass_.actions.back().end = pass_.events.size(); }
  /// Of all passes.
  const ProductList& products() const { return products_; }
  /// The pass that ends, with its memory; the next one begins.
  PassPlan take(const Device& device, Phase phase) {
    PassPlan pass = std::exchange(pass_, {});
    pass.peak = device.ledger().peak(phase);
    pass.extent_bytes = device.arena_extent_bytes();
    index_.clear();
    started_ = 0;
    return pass;
  }

 private:
  static constexpr std::uint64_t kNothing = ~std::uint64_t{0};
  using Key = std::tuple<std::string, DType, std::array<std::int64_t, 4>, double>;
  void add(PassEvent::Kind kind, std::uint64_t index) {
    pass_.events.push_back({kind, static_cast<std::uint32_t>(index)});
  }

  std::map<Key, std::size_t> index_;
  PassPlan pass_;
  std::uint64_t started_ = 0;
  ProductList products_;
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
  for (const auto& state : engine.states()) bytes += state.bytes();
  return bytes;
}

std::uint64_t optimizer_state_bytes(const engine::Engine& engine) {
  std::uint64_t bytes = 0;
  for (const optim::StateTensor& state : engine.states()) {
    if (state.parameter != nullptr) bytes += state.bytes();
  }
  return bytes;
}

}  // namespace

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

engine::EnginePlace meta_place(Device& device, const engine::Target& target,
                               CollectiveRecorder* collectives) {
  return {.device = &device,
          .stands_for = target.device,
          .table = &engine::planning_table(target.device),
          .threads = target.threads,
          .library_workspace_bytes = target.library_workspace_bytes,
          .loss_chunk_bytes = target.loss_chunk_bytes,
          .attention = target.attention,
          .determinism = target.determinism,
          .multiplies_codes = target.multiplies_codes,
          .snapshot_shard_bytes = target.device_snapshot_shard_bytes(),
          .communicators = meta_factory(collectives, target.device),
          .mesh = target.mesh,
          .rank = target.rank};
}

namespace {

engine::EnginePlace recorded_place(Device& device, const engine::Target& target,
                                   PassRecorder& recorder) {
  engine::EnginePlace place = meta_place(device, target, &recorder);
  place.recorder = &recorder;
  place.actions = &recorder;
  return place;
}

double model_flops_per_token(const PassPlan& eval, const engine::EngineOptions& options) {
  return 3.0 * eval.flops() / static_cast<double>(options.micro_batch_size * options.seq_len);
}

/// What the plan says of the model, whatever the one rank has of it: asked of a rank that has all.
void add_whole_model(Plan& plan, const engine::EngineOptions& options, engine::Target target) {
  target.mesh = {};
  target.rank = 0;
  PassRecorder recorder;
  Device device(make_meta_memory(), kUnlimitedBytes);
  // Buffers of offload are made for what the ranks have, of which one may need much less.
  engine::EngineOptions whole = options;
  whole.offload.reset();
  whole.offloaded_activations.reset();
  engine::Engine engine(recorded_place(device, target, recorder), whole);
  engine.evaluate(engine::StepBatch::planned(options.micro_batch_size, options.seq_len));
  plan.model_flops_per_token = model_flops_per_token(recorder.take(device, Phase::eval), options);
  plan.checkpoint_bytes = checkpoint_bytes(engine);
  plan.optimizer_state_bytes = optimizer_state_bytes(engine);
}

/// Memory that is taken and given back before the engine is built.
void add_tuning(Plan& plan, std::span<const kernels::Product> products,
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

void check_parameters(const engine::EngineOptions& options, const MeshShape& mesh,
                      DeviceKind device) {
  Device meta(make_meta_memory(), kUnlimitedBytes);
  const engine::Engine engine(meta_place(meta, {.device = device, .mesh = mesh}, nullptr), options);
}

Plan make_plan(const engine::EngineOptions& options, std::int64_t samples_per_step, int threads) {
  return make_plan(options, samples_per_step, engine::Target{.threads = threads});
}

Plan make_plan(const engine::EngineOptions& options, std::int64_t samples_per_step,
               const engine::Target& target, const Plan* of_same_run) {
  PassRecorder recorder;
  Device device(make_meta_memory(), kUnlimitedBytes);
  engine::Engine engine(recorded_place(device, target, recorder), options);
  engine.initialize();
  recorder.take(device, Phase::init);
  const MeshShape& mesh = target.mesh;

  Plan plan;
  plan.device = target.device;
  plan.tf32 = options.tf32;
  plan.determinism = target.determinism;
  if (engine.quantized_layers() != nullptr) plan.layers = engine.quantized_layers()->layers();
  plan.init = device.ledger().peak(Phase::init);
  plan.parameters = engine.parameters().num_elements();
  plan.parameters_per_block = block_parameters(engine.parameters());
  plan.tokens_per_step = samples_per_step * options.seq_len;
  plan.mesh = target.mesh;
  plan.rank = target.rank;
  for (int c = 0; c < kNumCategories; ++c) {
    plan.held[static_cast<std::size_t>(c)] = device.ledger().held_bytes(Category(c));
  }

  const auto parameter_reads = [states = engine.optimizer()->offloaded()] {
    return states != nullptr ? states->copy_bytes_read() : 0;
  };
  const auto brought_parameters = [updates = engine.optimizer()->host_updates()] {
    return updates != nullptr ? updates->copy_bytes_brought() : 0;
  };
  const std::uint64_t read_before = parameter_reads(), brought_before = brought_parameters();
  device.ledger().start_trace();
  engine.train_step(engine::StepBatch::planned(samples_per_step / mesh[Axis::dp], options.seq_len),
                    1, 1.0);
  plan.step_trace = device.ledger().stop_trace();
  plan.step = recorder.take(device, Phase::step);
  plan.offloaded_parameter_reads = parameter_reads() - read_before;
  plan.brought_parameter_bytes = brought_parameters() - brought_before;

  engine.evaluate(engine::StepBatch::planned(engine.evaluation_samples(), options.seq_len));
  plan.eval = recorder.take(device, Phase::eval);

  device.ledger().enter(Phase::save);
  plan.save = device.ledger().peak(Phase::save);

  plan.model_flops_per_token = model_flops_per_token(plan.eval, options);
  plan.checkpoint_bytes = checkpoint_bytes(engine);
  plan.optimizer_state_bytes = optimizer_state_bytes(engine);
  if (const auto* states = engine.optimizer()->offloaded()) {
    plan.offloaded_bytes = states->file_bytes();
    plan.offloaded_contents = states->contents();
  }
  if (const auto* updates = engine.optimizer()->host_updates()) {
    plan.host_updates = updates->facts();
  }
  if (const auto* activations = engine.offloaded_activations()) {
    plan.activation_file_bytes = activations->most_file_bytes();
    plan.activation_traffic_bytes = activations->file_use().put_bytes();
  }
  if (const engine::ActivationShelf* shelf = engine.activation_shelf()) {
    plan.device_activations = shelf->facts();
    plan.activation_file_bytes = shelf->facts().file_bytes;
    if (plan.activation_file_bytes > 0) plan.activation_traffic_bytes = shelf->facts().down_bytes;
  }
  if (target.snapshot_shard_bytes > 0 && target.device_snapshot_shard_bytes() == 0) {
    plan.pinned_bytes =
        checkpoint::snapshot_bytes(engine.saved_bytes(), target.snapshot_shard_bytes);
  }
  const bool divided = options.zero > 0 && mesh[Axis::dp] > 1;
  if (of_same_run != nullptr) {
    plan.model_flops_per_token = of_same_run->model_flops_per_token;
    plan.checkpoint_bytes = of_same_run->checkpoint_bytes;
    plan.optimizer_state_bytes = of_same_run->optimizer_state_bytes;
  } else if (mesh[Axis::tp] * mesh[Axis::pp] * mesh[Axis::sp] * mesh.ep > 1 || divided) {
    add_whole_model(plan, options, target);
  }
  add_tuning(plan, recorder.products().all(), target);
  plan.records_launches = options.records_launches;
  plan.not_recorded = engine.not_recorded();
  return plan;
}

}  // namespace llmtrain::plan
