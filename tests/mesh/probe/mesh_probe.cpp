// One rank of a run on made-up text, for the tests of layouts:
//
//   mesh_probe RECIPE OUT STEPS [one_word] [textbook] [override...]
//
// writes OUT/rank-N.txt: this rank's parts of the gradients of step 1, of the choices of routers in
// every step (on the CPU), and of all masters, optimizer states and losses in the end, and the loss
// of an evaluation. With
// `one_word` all tokens of the text are the same, so that routers send all to the same experts.
// Every step is compared with the plan of this very rank, and with `textbook`, on the CPU, what all
// ranks sent in it with the formulas of papers, too. A process without a launcher is one rank.
#include <algorithm>
#include <cstdio>
#include <numeric>

#include "lib/base/philox.hpp"
#include "lib/base/require.hpp"
#include "lib/checkpoint/box.hpp"
#include "lib/comm/world.hpp"
#include "lib/mesh/mesh.hpp"
#include "lib/plan/pipeline.hpp"
#include "lib/plan/plan.hpp"
#include "lib/train/device.hpp"
#include "lib/train/device_links.hpp"
#include "lib/train/peers.hpp"
#include "lib/train/planned_step.hpp"
#include "lib/train/recipe.hpp"
#include "tests/mesh/probe/output.hpp"
#include "tests/mesh/probe/routing.hpp"
#include "tests/mesh/probe/scales.hpp"
#include "tests/mesh/probe/sent_by_textbook.hpp"
#include "tests/mesh/probe/sent_bytes.hpp"

using namespace llmtrain;
using test::Output;

namespace {

std::uint32_t draw(std::uint64_t step, std::uint64_t index, std::uint32_t below) {
  return philox_below(philox_key(11, "mesh", "text"), step, index, below);
}

struct Text {
  std::int64_t vocab;
  bool one_word;
};

// Samples of ragged documents, some rows of which are not trained: a pure function of the step and
// the sample's number in it.
void write_sample(engine::StepBatch& batch, std::int64_t step, std::int64_t at, const Text& text) {
  const auto number = static_cast<std::uint64_t>(batch.first_sample + at);
  const auto length = static_cast<std::uint64_t>(batch.seq_len);
  std::int32_t begin = 0;
  for (std::uint64_t r = 0; r < length; ++r) {
    const std::uint64_t index = (number * length + r) * 4;
    const auto row = static_cast<std::size_t>(at) * length + r;
    const auto of_step = static_cast<std::uint64_t>(step);
    if (draw(of_step, index, 7) == 0) begin = static_cast<std::int32_t>(r);
    const auto word = [&](std::uint64_t at_index) {
      return static_cast<std::int32_t>(
          draw(of_step, at_index, static_cast<std::uint32_t>(text.vocab)));
    };
    batch.tokens[row] = text.one_word ? 7 : word(index + 1);
    const bool trained = draw(of_step, index + 2, 5) != 0;
    batch.targets[row] = trained ? word(index + 3) : -1;
    batch.doc_begin[row] = begin;
    batch.positions[row] = static_cast<std::int32_t>(r) - begin;
  }
}

// This rank's share of a step, and the trained tokens of all.
void fill(engine::StepBatch& batch, std::int64_t step, std::int64_t samples, std::int64_t seq_len,
          const Text& text, int ranks, int rank) {
  engine::StepBatch whole;
  whole.resize(samples, seq_len);
  for (std::int64_t s = 0; s < samples; ++s) write_sample(whole, step, s, text);
  batch.first_sample = samples / ranks * rank;
  batch.resize(samples / ranks, seq_len);
  for (std::int64_t s = 0; s < batch.num_samples; ++s) write_sample(batch, step, s, text);
  batch.trained_tokens = 0;
  for (const std::int32_t target : whole.targets) batch.trained_tokens += target >= 0;
}

void write_box(Output& out, std::string_view kind, const Parameter& p,
               std::span<const double> values) {
  out.box(fmt::format("{} {}", kind, p.name()), p.global_shape().dims(),
          std::span(&p.box().offset[0], static_cast<std::size_t>(p.box().shape.rank())),
          p.box().shape.dims(), values);
}

std::vector<double> doubles(std::span<const std::byte> bytes, DType dtype) {
  std::vector<double> values(bytes.size() / size_of(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::f64) {
      std::memcpy(&values[i], &bytes[i * sizeof(double)], sizeof(double));
    } else if (dtype == DType::u8) {
      values[i] = std::to_integer<int>(bytes[i]);
    } else if (dtype == DType::bf16) {
      bf16 value;
      std::memcpy(&value, &bytes[i * sizeof value], sizeof value);
      values[i] = to_float(value);
    } else {
      float value = 0;
      std::memcpy(&value, &bytes[i * sizeof(float)], sizeof(float));
      values[i] = value;
    }
  }
  return values;
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

// Each rank writes the states of what it updates, and of the layers in FP8 that it has.
void write_states(Output& out, engine::Engine& engine) {
  for (const optim::StateTensor& state : engine.states()) {
    const std::string& parameter = state.parameter->name();
    const std::string name =
        fmt::format("state{} {}", state.name.substr(parameter.size()), parameter);
    const TensorPlace& place = state.place;
    const std::vector<double> values = values_of(state.tensor);
    const std::span dims = place.box.shape.dims();
    std::size_t first = 0;
    for (checkpoint::Box& box :
         checkpoint::boxes_of_range({dims.begin(), dims.end()}, place.own.first, place.own.end())) {
      const auto count = static_cast<std::size_t>(*checkpoint::num_elements(box.shape));
      for (std::size_t d = 0; d < dims.size(); ++d) box.offset[d] += place.box.offset[d];
      out.box(name, place.global_shape.dims(), box.offset, box.shape,
              std::span(values).subspan(first, count));
      first += count;
    }
  }
}

// Behind `steps` steps, of samples that none of them had; all data ranks have the same.
void evaluate(Output& out, engine::Engine& engine, std::int64_t steps, const Text& text) {
  const engine::EngineOptions& options = engine.options();
  const std::int64_t samples = engine.evaluation_samples(), all = 16 * options.micro_batch_size;
  engine::StepBatch batch;
  double loss_sum = 0;
  std::int64_t tokens = 0;
  for (std::int64_t first = 0; first < all; first += samples) {
    batch.first_sample = first;
    batch.resize(samples, options.seq_len);
    for (std::int64_t s = 0; s < samples; ++s) write_sample(batch, steps + 1, s, text);
    batch.trained_tokens =
        std::ranges::count_if(batch.targets, [](std::int32_t target) { return target >= 0; });
    const engine::EvalOutcome outcome = engine.evaluate(batch);
    loss_sum += outcome.loss_sum;
    tokens += outcome.tokens;
  }
  out.number("evaluation", loss_sum / static_cast<double>(tokens));
}

/// In no phase did a category take more or less than planned, and all together neither.
void check_memory(const MemoryLedger& ledger, const plan::Plan& plan) {
  for (int c = 0; c < kNumCategories; ++c) {
    const auto of = [&](const Peak& peak) {
      return peak.per_category[static_cast<std::size_t>(c)];
    };
    for (const Phase phase : {Phase::init, Phase::step, Phase::eval}) {
      require(of(ledger.peak(phase)) == of(plan.peak(phase)), "{} in {}: {} B at most, {} planned",
              to_string(Category(c)), to_string(phase), of(ledger.peak(phase)),
              of(plan.peak(phase)));
    }
  }
  for (const Phase phase : {Phase::step, Phase::eval}) {
    const std::uint64_t most = ledger.peak(phase).total_bytes;
    require(most == plan.peak(phase).total_bytes, "{} B in all at most in {}, {} planned", most,
            to_string(phase), plan.peak(phase).total_bytes);
  }
}

/// What a probe's steps go by and write to.
struct Probe {
  const plan::Plan& plan;
  const std::vector<parallel::Action>& planned_actions;
  ActionLog& actions;
  test::Routing* routing;          // on the CPU
  test::Scales* scales;            // likewise
  const test::SentBytes* sent;     // null where what is sent passes no MPI
  test::SentByTextbook* textbook;  // null unless asked for
  Device& device;
  Output& out;

  void step(engine::Engine& engine, train::PlannedSteps& steps, const engine::StepBatch& batch,
            std::int64_t step, std::int64_t samples) const;
};

void Probe::step(engine::Engine& engine, train::PlannedSteps& steps, const engine::StepBatch& batch,
                 std::int64_t step, std::int64_t samples) const {
  const std::uint64_t uneven_before = engine.mesh().experts().uneven_bytes_sent();
  if (routing) routing->begin_step();
  if (scales) scales->begin_step();
  if (sent) sent->start();
  steps.launch(engine, device, batch, step, {});
  if (step == 1) out.number("own extent", static_cast<double>(device.arena_extent_bytes()));
  if (sent) {
    // On a GPU nobody listens to routers.
    const std::uint64_t uneven = engine.mesh().experts().uneven_bytes_sent() - uneven_before;
    const bool even = engine.mesh().shape().ep_room > 0;
    const auto by_group =
        sent->check(engine.mesh().world(), plan.step,
                    routing ? routing->rows_to_experts(plan.step)
                    : even  ? test::even_rows_to_experts(plan.step)
                            : test::RowsToExperts{.planned_bytes = static_cast<double>(uneven)});
    if (textbook) textbook->check(engine.mesh().world(), by_group, routing->rows_elsewhere());
  }
  const auto done = actions.take();
  require(planned_actions.empty() || done == planned_actions,
          "step {}: the executor's actions are not in the simulator's order", step);
  if (routing) routing->write(out, step, batch.first_sample, batch.num_samples, samples);
  if (scales && step == 1) scales->write(out);
  for (const Parameter* p : engine.parameters().local()) {
    if (step > 1 || !p->is_trained()) continue;
    write_box(out, "gradient", *p,
              values_of_box(*p, p->own_grad(), engine.mesh().owners(p->holders_of_data())));
  }
  const engine::StepOutcome outcome = engine.settle_step();
  out.number(fmt::format("loss {}", step),
             (outcome.loss_sum + outcome.z_loss_sum) / static_cast<double>(outcome.trained_tokens));
  out.number(fmt::format("norm {}", step), outcome.update.grad_norm);
}

int probe(const std::vector<std::string>& arguments, World& world) {
  std::vector<std::string> overrides(arguments.begin() + 3, arguments.end());
  const bool one_word = std::erase(overrides, "one_word") > 0;
  const bool by_textbook = std::erase(overrides, "textbook") > 0;
  const auto recipe = train::load_recipe(arguments[0], overrides);
  recipe->enter(world.place());
  const std::int64_t samples = recipe->geometry().global_batch_size();
  const engine::EngineOptions options = recipe->engine_options();
  engine::Target target = train::target_of(*recipe);
  target.mesh = recipe->mesh_shape();
  target.rank = world.place().rank;
  const plan::Plan plan = plan::make_plan(options, samples, target);

  train::RunDevice device(*recipe);
  engine::EnginePlace place = device.place();
  place.mesh = target.mesh;
  place.rank = target.rank;
  place.communicators = train::communicators_of(world, device, *recipe);
  ActionLog actions;
  place.actions = &actions;
  const bool on_cpu = target.device == DeviceKind::cpu;
  test::Routing routing(options, target.mesh, target.rank);
  test::Scales scales;
  if (on_cpu) place.table = scales.listen(*routing.listen(*place.table));
  const test::SentBytes sent(world);
  test::SentByTextbook textbook(options, target.mesh, target.rank, samples);
  const auto planned_actions = simulated_order(options, samples, target);
  engine::Engine engine(place, options);
  engine.initialize();
  routing.know(engine);
  train::PlannedSteps steps(plan.step_trace, plan.host_update_bytes());
  Output out(std::filesystem::path(arguments[1]) / fmt::format("rank-{}.txt", target.rank));
  // What goes from GPU to GPU passes no MPI.
  const bool by_nccl = recipe->parallelism.gpu_collectives() == parallel::GpuCollectives::nccl;
  const Probe by{.plan = plan,
                 .planned_actions = planned_actions,
                 .actions = actions,
                 .routing = on_cpu ? &routing : nullptr,
                 .scales = on_cpu ? &scales : nullptr,
                 .sent = by_nccl ? nullptr : &sent,
                 .textbook = by_textbook && on_cpu ? &textbook : nullptr,
                 .device = device.device(),
                 .out = out};
  engine::StepBatch batch;
  const Text text{options.model.vocab_size, one_word};
  const std::int64_t last = std::stoll(arguments[2]);
  for (std::int64_t step = 1; step <= last; ++step) {
    fill(batch, step, samples, options.seq_len, text, engine.mesh().size(Axis::dp),
         engine.mesh().index(Axis::dp));
    by.step(engine, steps, batch, step, samples);
  }
  evaluate(out, engine, last, text);
  for (const Parameter* p : engine.parameters().local()) {
    write_box(out, "master", *p,
              values_of_box(*p, p->master(), engine.mesh().owners(p->holders_of_data())));
  }
  write_states(out, engine);
  check_memory(device.device().ledger(), plan);
  if (on_cpu) routing.write_rows(out, plan);
  out.own_number("steps by the textbook", textbook.steps());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() < 3) {
    std::fputs("usage: mesh_probe RECIPE OUT STEPS [one_word] [textbook] [override...]\n", stderr);
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
