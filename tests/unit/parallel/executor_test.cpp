// Every schedule on threads that are the ranks of a pipeline, against one rank and by hand.
#include "lib/parallel/executor.hpp"

#include <algorithm>
#include <mutex>
#include <numeric>

#include <doctest/doctest.h>

#include "kernels/kernel.hpp"
#include "lib/base/error.hpp"
#include "lib/comm/world.hpp"
#include "lib/parallel/simulator.hpp"
#include "tests/support/thread_transport.hpp"
#include "tests/unit/parallel/shapes.hpp"

namespace llmtrain::parallel {

namespace {

constexpr std::int64_t kWidth = 5;

std::span<double> values(const Tensor& tensor) {
  return {tensor.view().as<double>(), static_cast<std::size_t>(tensor.numel())};
}

// y = (stage + 2) x + b[stage], in whole numbers that FP64 holds exactly. The first stage makes x
// of the micro-batch's number; the last one's root is (micro-batch + 1) * sum(y).
class Affine final : public StageProgram {
 public:
  Affine(Device& device, const ScheduleShape& shape)
      : weight_grads(at(shape.num_stages)), device_(&device), shape_(shape) {}

  OpCtx begin(int micro_batch) override {
    begun.push_back(micro_batch);
    OpCtx ctx;
    ctx.kernel = {.device = device_, .table = &kernels::cpu_table()};
    return ctx;
  }
  Var forward(const OpCtx& ctx, int stage, int micro_batch, const Var& input) override;
  Tensor between_stages(int) override { return make("between stages"); }
  void end(int micro_batch) override { ended.push_back(micro_batch); }

  std::vector<Action> log;
  std::vector<int> begun, ended;
  std::vector<double> outputs;       // of the last stage, first elements in the order made
  std::vector<double> weight_grads;  // per stage, sum of dy * x over elements and micro-batches

 private:
  class Node;
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  Tensor make(std::string_view tag) const {
    return device_->allocate({kWidth}, DType::f64, Category::activations, tag);
  }
  template <class Value>
  void fill(const Tensor& tensor, const Value& value) const {
    if (device_->is_meta()) return;
    const auto y = values(tensor);
    for (std::size_t i = 0; i < y.size(); ++i) y[i] = value(i);
  }

  Device* device_;
  ScheduleShape shape_;
};

class Affine::Node final : public llmtrain::Node {
 public:
  Node(Affine& program, int stage, int micro_batch, const Tensor& x)
      : llmtrain::Node("affine"), program_(&program), stage_(stage), micro_batch_(micro_batch) {
    x_.set(x);
  }

  std::vector<Tensor> input_grad(const OpCtx& ctx, std::span<Tensor> dys) override {
    apart_ = ctx.weight_grads == WeightGrads::deferred;
    program_->log.push_back(
        {apart_ ? ActionKind::input_grad : ActionKind::backward, stage_, micro_batch_});
    Tensor dy = std::move(dys[0]);
    if (stage_ == program_->shape_.num_stages - 1) {
      CHECK_FALSE(dy.defined());
      dy = program_->make("root");
      program_->fill(dy, [&](std::size_t) { return micro_batch_ + 1; });
    }
    dy_.set(dy);
    if (!wants(0)) return {Tensor()};
    Tensor dx = program_->make("dx");
    program_->fill(dx, [&](std::size_t i) { return (stage_ + 2) * values(dy)[i]; });
    return {dx};
  }
  bool has_weight_grad() const override { return true; }
  void weight_grad(const OpCtx& ctx) override {
    if (apart_) program_->log.push_back({ActionKind::weight_grad, stage_, micro_batch_});
    if (program_->device_->is_meta()) return;
    const auto x = values(x_.get(ctx)), dy = values(dy_.get(ctx));
    program_->weight_grads[at(stage_)] += std::inner_product(x.begin(), x.end(), dy.begin(), 0.0);
  }

 private:
  Affine* program_;
  int stage_, micro_batch_;
  bool apart_ = false;
  Saved x_{this, Part::weight}, dy_{this, Part::weight};
};

Var Affine::forward(const OpCtx& ctx, int stage, int micro_batch, const Var& input) {
  CHECK(input.tensor.defined() == (stage > 0));
  log.push_back({ActionKind::forward, stage, micro_batch});
  Tensor x = input.tensor;
  if (stage == 0) {
    x = make("embedded");
    fill(x, [&](std::size_t i) { return micro_batch * 10 + static_cast<double>(i); });
  }
  Tensor y = make("y");
  fill(y, [&](std::size_t i) { return (stage + 2) * values(x)[i] + stage; });
  if (stage == shape_.num_stages - 1 && !device_->is_meta()) outputs.push_back(values(y)[0]);
  if (ctx.tape == nullptr) return {std::move(y), -1, nullptr};
  return ctx.tape->record_one(std::make_unique<Node>(*this, stage, micro_batch, x), {&input}, y);
}

// What weight_grads of a stage must be: x by going forward, dy by going backward.
double weight_grad_by_hand(const ScheduleShape& shape, int stage) {
  double sum = 0;
  for (int m = 0; m < shape.num_micro_batches; ++m) {
    double dy = m + 1;
    for (int s = shape.num_stages - 1; s > stage; --s) dy *= s + 2;
    for (std::int64_t i = 0; i < kWidth; ++i) {
      double x = m * 10 + static_cast<double>(i);
      for (int s = 0; s < stage; ++s) x = (s + 2) * x + s;
      sum += x * dy;
    }
  }
  return sum;
}

std::vector<ScheduleShape> shapes_of(const ScheduleRow& row) {
  std::vector<ScheduleShape> shapes;
  for (const int ranks : {1, 2, 3, 4}) {
    for (const int micro_batches : {1, 2, 3, 6, 8}) {
      const ScheduleShape shape = test::shape_of(row, ranks, micro_batches, 2);
      if (row.refusal(shape).empty()) shapes.push_back(shape);
    }
  }
  return shapes;
}

// Runs visit(rank, program, allocations, group) after each rank has run the schedule.
template <class Visit>
std::vector<std::uint64_t> run_pipeline(const Schedule& schedule, const MessagePlan& plan,
                                        const Visit& visit, Pass pass = Pass::training) {
  return testing::run_job(schedule.shape.num_ranks, [&](Transport& transport) {
    World world(transport);
    Device device(make_cpu_memory(), 1 << 22);
    std::vector<int> members(static_cast<std::size_t>(world.place().size));
    std::iota(members.begin(), members.end(), 0);
    const int rank = world.place().rank;
    const auto group = world.make_group("pp", members, rank);
    Affine program(device, schedule.shape);
    device.ledger().start_trace();
    Executor(schedule.shape, program, group.get(), nullptr, pass).run(schedule, plan);
    visit(rank, program, device);
  });
}

// The same on the meta device; bytes of all sends.
struct Planned {
  std::vector<AllocationEvent> allocations;
  std::uint64_t sent_bytes = 0;
};

Planned plan_rank(const Schedule& schedule, const MessagePlan& plan, int rank,
                  Pass pass = Pass::training) {
  struct Recorder final : CollectiveRecorder {
    std::uint64_t started(const CollectiveRecord& record, std::span<const int>) override {
      if (record.kind == Collective::send) sent += record.bytes;
      return 0;
    }
    void awaited(std::uint64_t) override {}
    std::uint64_t sent = 0;
  } recorder;
  Device device(make_meta_memory(), 1 << 22);
  std::vector<int> members(static_cast<std::size_t>(schedule.shape.num_ranks));
  std::iota(members.begin(), members.end(), 0);
  const auto group = make_meta_communicator("pp", members, rank, &recorder);
  Affine program(device, schedule.shape);
  device.ledger().start_trace();
  Executor(schedule.shape, program, group.get(), nullptr, pass).run(schedule, plan);
  return {device.ledger().stop_trace(), recorder.sent};
}

void check_schedule(const Schedule& schedule) {
  const MessagePlan plan = derive_messages(schedule);
  std::vector<Planned> planned;
  for (int r = 0; r < schedule.shape.num_ranks; ++r) {
    planned.push_back(plan_rank(schedule, plan, r));
  }
  const Simulation simulation = simulate(schedule, plan, uniform_work(schedule));
  std::vector<double> weight_grads(static_cast<std::size_t>(schedule.shape.num_stages));
  std::mutex mutex;  // of the sums and of the test's own state
  const auto sent = run_pipeline(schedule, plan, [&](int rank, Affine& program, Device& device) {
    const std::lock_guard lock(mutex);
    const auto r = static_cast<std::size_t>(rank);
    CAPTURE(rank);
    const auto text = [](const std::vector<Action>& actions) {
      std::string all;
      for (const Action& action : actions) all += to_string(action) + ' ';
      return all;
    };
    CHECK(text(program.log) == text(schedule.ranks[r]));
    const auto& spans = simulation.ranks[r].actions;
    REQUIRE(spans.size() == program.log.size());
    CHECK(std::ranges::is_sorted(spans, {}, &Span::begin));
    CHECK(program.begun.size() == static_cast<std::size_t>(schedule.shape.num_micro_batches));
    std::ranges::sort(program.begun);
    std::ranges::sort(program.ended);
    CHECK(program.begun == program.ended);
    CHECK(device.ledger().held_bytes() == 0);
    CHECK(device.ledger().stop_trace() == planned[r].allocations);
    for (std::size_t s = 0; s < weight_grads.size(); ++s)
      weight_grads[s] += program.weight_grads[s];
  });
  for (int s = 0; s < schedule.shape.num_stages; ++s) {
    CHECK(weight_grads[static_cast<std::size_t>(s)] == weight_grad_by_hand(schedule.shape, s));
  }
  if (schedule.shape.num_ranks == 1) return;
  for (std::size_t r = 0; r < sent.size(); ++r) CHECK(sent[r] == planned[r].sent_bytes);
}

}  // namespace

TEST_CASE("every schedule computes what one rank does, in its own order and as planned") {
  for (const ScheduleRow& row : schedules()) {
    const auto shapes = shapes_of(row);
    CHECK(shapes.size() > 5);
    for (const ScheduleShape& shape : shapes) {
      CAPTURE(row.name);
      CAPTURE(shape.num_ranks);
      CAPTURE(shape.num_micro_batches);
      check_schedule(row.make(shape));
    }
  }
}

TEST_CASE(
    "a pass without gradients makes the same values in order, as planned, and keeps nothing") {
  for (const ScheduleRow& row : schedules()) {
    for (const int ranks : {2, 3, 4}) {
      const ScheduleShape shape = test::shape_of(row, ranks, 7, 2);
      CAPTURE(row.name);
      CAPTURE(ranks);
      const Schedule schedule = forward_schedule(row, shape);
      const MessagePlan plan = derive_forward_messages(schedule);
      std::vector<double> expected;
      for (int m = 0; m < shape.num_micro_batches; ++m) {
        double x = m * 10;
        for (int s = 0; s < shape.num_stages; ++s) x = (s + 2) * x + s;
        expected.push_back(x);
      }
      std::mutex mutex;
      run_pipeline(
          schedule, plan,
          [&](int rank, Affine& program, Device& device) {
            const std::lock_guard lock(mutex);
            CAPTURE(rank);
            CHECK(program.log == schedule.ranks[static_cast<std::size_t>(rank)]);
            const bool last = schedule.rank_of_stage.back() == rank;
            CHECK(program.outputs == (last ? expected : std::vector<double>()));
            CHECK(program.ended == program.begun);
            CHECK(program.ended.size() == 7);
            CHECK(device.ledger().held_bytes() == 0);
            CHECK(device.ledger().stop_trace() ==
                  plan_rank(schedule, plan, rank, Pass::evaluation).allocations);
          },
          Pass::evaluation);
    }
  }
}

TEST_CASE("what was sent is given back when a later message tells that it arrived") {
  const Schedule schedule = find_schedule("1f1b").make({2, 2, 12});
  const MessagePlan plan = derive_messages(schedule);
  for (int rank = 0; rank < 2; ++rank) {
    int held = 0, most = 0;
    for (const AllocationEvent& event : plan_rank(schedule, plan, rank).allocations) {
      held += event.is_free ? -1 : 1;
      most = std::max(most, held);
    }
    CAPTURE(rank);
    CHECK(most <= 8);  // of 12 micro-batches
  }
}

TEST_CASE("ranks and schedule must agree") {
  Device device(make_meta_memory(), 1 << 20);
  const Schedule schedule = find_schedule("gpipe").make({2, 2, 2});
  Affine program(device, schedule.shape);
  CHECK_THROWS_AS(Executor(schedule.shape, program), InternalError);
  const auto group = make_meta_communicator("pp", {0, 1, 2}, 0, nullptr);
  CHECK_THROWS_AS(Executor(schedule.shape, program, group.get()), InternalError);
}

TEST_CASE("a list whose stages lack their input or their end is refused") {
  Device device(make_meta_memory(), 1 << 20);
  using enum ActionKind;
  const ScheduleShape shape{.num_ranks = 1, .num_stages = 2, .num_micro_batches = 1};
  Affine program(device, shape);
  const auto run = [&](const std::vector<Action>& actions) {
    Executor(shape, program).run(actions);
  };
  run({{forward, 0, 0}, {forward, 1, 0}, {backward, 1, 0}, {backward, 0, 0}});
  CHECK_THROWS_AS(run({{forward, 1, 0}}), InternalError);
  CHECK_THROWS_AS(run({{forward, 0, 0}, {forward, 1, 0}, {backward, 0, 0}}), InternalError);
  CHECK_THROWS_AS(run({{forward, 0, 0}, {forward, 1, 0}, {backward, 1, 0}}), InternalError);
  CHECK_THROWS_AS(run({{backward, 0, 0}}), InternalError);
}

}  // namespace llmtrain::parallel
