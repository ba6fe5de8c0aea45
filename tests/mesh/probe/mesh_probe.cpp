// One rank of a run on made-up text, for the tests of layouts:
//
//   mesh_probe RECIPE OUT STEPS [override...]
//
// writes OUT/rank-N.txt: this rank's parts of the gradients of step 1, and of all masters,
// optimizer states and losses in the end. Every step is compared with the plan of this very rank. A
// process without a launcher is one rank.
#include <algorithm>
#include <cstdio>
#include <dlfcn.h>
#include <fstream>
#include <numeric>

#include "lib/base/philox.hpp"
#include "lib/base/require.hpp"
#include "lib/comm/world.hpp"
#include "lib/mesh/mesh.hpp"
#include "lib/plan/pipeline.hpp"
#include "lib/plan/plan.hpp"
#include "lib/train/device.hpp"
#include "lib/train/device_links.hpp"
#include "lib/train/peers.hpp"
#include "lib/train/planned_step.hpp"
#include "lib/train/recipe.hpp"

using namespace llmtrain;

namespace {

std::uint32_t draw(std::uint64_t step, std::uint64_t index, std::uint32_t below) {
  return philox_below(philox_key(11, "mesh", "text"), step, index, below);
}

// Samples of ragged documents, some rows of which are not trained: a pure function of the step and
// the sample's number in it.
void write_sample(engine::StepBatch& batch, std::int64_t step, std::int64_t at,
                  std::int64_t vocab) {
  const auto number = static_cast<std::uint64_t>(batch.first_sample + at);
  const auto length = static_cast<std::uint64_t>(batch.seq_len);
  std::int32_t begin = 0;
  for (std::uint64_t r = 0; r < length; ++r) {
    const std::uint64_t index = (number * length + r) * 4;
    const auto row = static_cast<std::size_t>(at) * length + r;
    const auto of_step = static_cast<std::uint64_t>(step);
    if (draw(of_step, index, 7) == 0) begin = static_cast<std::int32_t>(r);
    batch.tokens[row] =
        static_cast<std::int32_t>(draw(of_step, index + 1, static_cast<std::uint32_t>(vocab)));
    const bool trained = draw(of_step, index + 2, 5) != 0;
    batch.targets[row] =
        trained
            ? static_cast<std::int32_t>(draw(of_step, index + 3, static_cast<std::uint32_t>(vocab)))
            : -1;
    batch.doc_begin[row] = begin;
    batch.positions[row] = static_cast<std::int32_t>(r) - begin;
  }
}

// This rank's share of a step, and the trained tokens of all.
void fill(engine::StepBatch& batch, std::int64_t step, std::int64_t samples, std::int64_t seq_len,
          std::int64_t vocab, int ranks, int rank) {
  engine::StepBatch whole;
  whole.resize(samples, seq_len);
  for (std::int64_t s = 0; s < samples; ++s) write_sample(whole, step, s, vocab);
  batch.first_sample = samples / ranks * rank;
  batch.resize(samples / ranks, seq_len);
  for (std::int64_t s = 0; s < batch.num_samples; ++s) write_sample(batch, step, s, vocab);
  batch.trained_tokens = 0;
  for (const std::int32_t target : whole.targets) batch.trained_tokens += target >= 0;
}

class Output {
 public:
  explicit Output(const std::filesystem::path& file) : out_(file) { out_.precision(17); }
  void number(std::string_view name, double value) { out_ << name << ' ' << value << '\n'; }

  /// "kind name | global shape | offset | shape | values".
  void box(std::string_view kind, const Parameter& p, std::span<const double> values) {
    out_ << kind << ' ' << p.name() << " |";
    for (const auto d : p.global_shape().dims()) out_ << ' ' << d;
    out_ << " |";
    for (int d = 0; d < p.box().shape.rank(); ++d) out_ << ' ' << p.box().offset[d];
    out_ << " |";
    for (const auto d : p.box().shape.dims()) out_ << ' ' << d;
    out_ << " |";
    for (const double value : values) out_ << ' ' << value;
    out_ << '\n';
  }

 private:
  std::ofstream out_;
};

std::vector<double> doubles(std::span<const std::byte> bytes, DType dtype) {
  std::vector<double> values(bytes.size() / size_of(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::f64) {
      std::memcpy(&values[i], &bytes[i * sizeof(double)], sizeof(double));
    } else {
      float value = 0;
      std::memcpy(&value, &bytes[i * sizeof(float)], sizeof(float));
      values[i] = value;
    }
  }
  return values;
}

/// What MPI was given so far, by the counter that stands before it; 0 for a process by itself.
double sent_bytes(const World& world) {
  if (world.place().size == 1) return 0;
  using Counter = unsigned long long();
  const auto counter = reinterpret_cast<Counter*>(::dlsym(RTLD_DEFAULT, "mesh_test_sent_bytes"));
  require(counter != nullptr, "nobody counts what is sent: libmesh_count_sent.so is not loaded");
  return static_cast<double>(counter());
}

/// Each rank sends in a step what its plan says, and all together do, but for rows on their way to
/// experts, of which routers decide how many there are: `uneven` bytes, which the plan takes to be
/// those of experts that all have as many. The elements of a sum that its ranks do not divide are
/// some ranks' only: there a plan says the mean.
void check_sent(Communicator& all, double sent, double uneven, const plan::Plan& plan) {
  struct Bytes {
    double sent, planned;
  } sum{0, 0}, mine{sent - uneven, 0};
  double rest = 0;
  for (const auto& group : plan.step.collectives) {
    const bool to_experts = group.group == "experts" && group.kind == Collective::all_to_all;
    if (!to_experts) mine.planned += group.sent_bytes();
    const bool is_sum = group.kind == Collective::all_reduce;
    const auto others = static_cast<double>(group.members.size()) - 2;
    if (is_sum) rest += others * static_cast<double>(group.count) * sizeof(double);
  }
  require(std::abs(mine.sent - mine.planned) < 1 + rest, "rank {}: a step sent {} B, {} B planned",
          plan.rank, mine.sent, mine.planned);
  for (const Bytes& of : all.gather_values(mine, "sent bytes")) {
    sum.sent += of.sent;
    sum.planned += of.planned;
  }
  require(std::abs(sum.sent - sum.planned) < 1, "a step sent {} B, {} B planned", sum.sent,
          sum.planned);
}

std::vector<double> values_of(const Tensor& tensor) {
  std::vector<std::byte> bytes(tensor.view().bytes());
  tensor.device().copy_to_host(bytes, tensor);
  return doubles(bytes, tensor.dtype());
}

/// Of the local box, from this rank's slice and the others'. Between the phases that are planned.
std::vector<double> values_of_box(const Parameter& p, const Tensor& own, Communicator& data) {
  if (!p.is_sliced()) return values_of(own);
  Device& device = own.device();
  device.ledger().enter(Phase::save);
  const Tensor box = device.allocate(p.box().shape, own.dtype(), Category::activations, "box");
  data.all_gather_parts(own, box, p.slice_counts(), p.name()).wait();
  return values_of(box);
}

/// What the executor did in a step.
class ActionLog final : public parallel::ActionObserver {
 public:
  void began(const parallel::Action& action) override { done_.push_back(action); }
  void ended(const parallel::Action&) override {}
  std::vector<parallel::Action> take() { return std::exchange(done_, {}); }

 private:
  std::vector<parallel::Action> done_;
};

/// This rank's actions in the order in which the simulator begins them; none without a pipeline.
std::vector<parallel::Action> simulated_order(const engine::EngineOptions& options,
                                              std::int64_t samples, const engine::Target& target) {
  if (target.mesh[Axis::pp] == 1) return {};
  const plan::PipelinePlan pipeline = plan::plan_pipeline(options, samples, target);
  std::vector<plan::ActionSeconds> seconds;
  for (const plan::Plan& of_rank : pipeline.ranks) {
    seconds.emplace_back(of_rank.step.actions.size(), 1.0);
  }
  const auto no_time = [](int, int) { return parallel::Link(); };
  const auto simulation = plan::simulate(pipeline, seconds, no_time, true);
  const auto at =
      static_cast<std::size_t>(coordinate_of(target.mesh, target.rank)[static_cast<int>(Axis::pp)]);
  const auto& actions = pipeline.schedule.ranks[at];
  const auto& spans = simulation.ranks[at].actions;
  std::vector<std::size_t> order(actions.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t i) { return spans[i].begin; });
  std::vector<parallel::Action> sorted;
  for (const std::size_t i : order) sorted.push_back(actions[i]);
  return sorted;
}

// Of optimizers that keep tensors of the parameter's shape. All data ranks gather, also those whose
// slice is empty and which thus have no state.
void write_states(Output& out, engine::Engine& engine) {
  std::map<std::string, const optim::StateTensor*> of_rank;
  for (const auto& state : engine.optimizer()->states()) of_rank[state.name] = &state;
  for (const Parameter* p : engine.parameters().local()) {
    for (const std::string& name : engine.optimizer()->state_names()) {
      if (!name.starts_with(p->name() + "#")) continue;
      const auto found = of_rank.find(name);
      const Tensor& own = found == of_rank.end() ? p->own_grad() : found->second->tensor;
      out.box("state" + name.substr(p->name().size()), *p,
              values_of_box(*p, own, engine.mesh().owners(p->holders_of_data())));
    }
  }
}

int probe(const std::vector<std::string>& arguments, World& world) {
  const auto recipe = train::load_recipe(
      arguments[0], std::vector<std::string>(arguments.begin() + 3, arguments.end()));
  recipe->enter(world.place());
  const engine::BatchGeometry geometry = recipe->geometry();
  const engine::EngineOptions options = recipe->engine_options();
  engine::Target target = train::target_of(*recipe);
  target.mesh = recipe->mesh_shape();
  target.rank = world.place().rank;
  const plan::Plan plan = plan::make_plan(options, geometry.global_batch_size(), target);

  train::RunDevice device(*recipe);
  engine::EnginePlace place = device.place();
  place.mesh = target.mesh;
  place.rank = target.rank;
  place.communicators = train::communicators_of(world, device, *recipe);
  ActionLog actions;
  place.actions = &actions;
  const auto planned_actions = simulated_order(options, geometry.global_batch_size(), target);
  engine::Engine engine(place, options);
  engine.initialize();
  train::PlannedSteps steps(plan.step_trace);
  Output out(std::filesystem::path(arguments[1]) / fmt::format("rank-{}.txt", target.rank));
  const auto owners = [&](const Parameter& p) -> Communicator& {
    return engine.mesh().owners(p.holders_of_data());
  };
  // What goes from GPU to GPU passes no MPI.
  const bool by_nccl = recipe->parallelism.gpu_collectives() == parallel::GpuCollectives::nccl;
  engine::StepBatch batch;
  for (std::int64_t step = 1; step <= std::stoll(arguments[2]); ++step) {
    fill(batch, step, geometry.global_batch_size(), options.seq_len, options.model.vocab_size,
         engine.mesh().size(Axis::dp), engine.mesh().index(Axis::dp));
    const double sent_before = sent_bytes(world);
    const std::uint64_t uneven_before = engine.mesh().experts().uneven_bytes_sent();
    steps.launch(engine, device.device(), batch, step, 1.0);
    if (step == 1) {
      out.number("extent", static_cast<double>(device.device().arena_extent_bytes()));
    }
    const auto uneven =
        static_cast<double>(engine.mesh().experts().uneven_bytes_sent() - uneven_before);
    if (!by_nccl) check_sent(engine.mesh().world(), sent_bytes(world) - sent_before, uneven, plan);
    const auto done = actions.take();
    require(planned_actions.empty() || done == planned_actions,
            "step {}: the executor's actions are not in the simulator's order", step);
    if (step == 1) {
      for (const Parameter* p : engine.parameters().local()) {
        if (!p->is_trained()) continue;
        out.box("gradient", *p, values_of_box(*p, p->own_grad(), owners(*p)));
      }
    }
    const engine::StepOutcome outcome = engine.settle_step();
    out.number(fmt::format("loss {}", step), (outcome.loss_sum + outcome.z_loss_sum) /
                                                 static_cast<double>(outcome.trained_tokens));
    out.number(fmt::format("norm {}", step), outcome.update.grad_norm);
  }
  for (const Parameter* p : engine.parameters().local()) {
    out.box("master", *p, values_of_box(*p, p->master(), owners(*p)));
  }
  write_states(out, engine);
  for (int c = 0; c < kNumCategories; ++c) {
    const auto of = [&](const Peak& peak) {
      return peak.per_category[static_cast<std::size_t>(c)];
    };
    const MemoryLedger& ledger = device.device().ledger();
    require(of(ledger.peak(Phase::init)) == of(plan.init) &&
                of(ledger.peak(Phase::step)) == of(plan.step.peak),
            "{}: {} and {} B at most, {} and {} planned", to_string(Category(c)),
            of(ledger.peak(Phase::init)), of(ledger.peak(Phase::step)), of(plan.init),
            of(plan.step.peak));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() < 3) {
    std::fputs("usage: mesh_probe RECIPE OUT STEPS [override...]\n", stderr);
    return 2;
  }
  try {
    return static_cast<int>(train::run_as_rank(
        [&](World& world) { return static_cast<ExitCode>(probe(arguments, world)); }));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
