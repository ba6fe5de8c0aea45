// What ranks of tp, pp and dp (ZeRO) make of parts of parameters, from the gradients of the whole:
// weights and states of one rank, for every row of the table.
#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <set>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/comm/world.hpp"
#include "tests/support/thread_transport.hpp"
#include "tests/unit/optim/fixture.hpp"

namespace llmtrain::optim {

namespace {

using Values = std::vector<double>;

struct Row {
  std::string name, options;
  /// Ranks of tp add up squares of their parts, in FP64 and in another order than one rank: what
  /// follows is near it (kBound64, kBound32), of the largest element. Else all have one rank's
  /// bits.
  bool adds_over_tp = false;
};

/// Some times what FP64 and FP32 round (7e-16 and 2.7e-7 were measured), which steps carry on.
constexpr double kBound64 = 1e-12, kBound32 = 1e-6;

const std::vector<Row>& rows() {
  static const std::vector<Row> kRows{
      {"sgd", ""},
      {"momentum", ", momentum: 0.8, dampening: 0.25"},
      {"nesterov", ""},
      {"adagrad", ", lr_decay: 0.5, initial_accumulator_value: 0.25"},
      {"rmsprop", ", centered: true, momentum: 0.8"},
      {"adam", ""},
      {"adamw", ""},
      {"amsgrad", ", decoupled: true"},
      {"lion", ""},
      {"adamw_8bit", ", min_8bit_size: 300"},
      {"lion_8bit", ", min_8bit_size: 300"},
      {"sm3", ""},  // the largest of parts
      // Of whole matrices, which ranks of tp put together.
      {"galore", ", rank: 4, update_proj_gap: 2"},
      {"ldadamw", ", rank: 4"},
      {"q_galore",
       ", rank: 4, update_proj_gap: 1, queue_size: 2, proj_group_size: 7, min_8bit_size: 300"},
      {"adam_mini", "", true},
      {"adafactor", ", beta1: 0.8", true},
      {"came", "", true},
      {"muon", "", true}};
  return kRows;
}

struct Layout {
  std::string_view name;
  int dp = 1, tp = 1, pp = 1;
};

constexpr Layout kLayouts[] = {{"tp 2", 1, 2},          {"tp 4", 1, 4},
                               {"pp 2", 1, 1, 2},       {"dp 2, zero 1", 2},
                               {"dp 3, zero 1", 3},     {"dp 2, tp 2, zero 1", 2, 2},
                               {"tp 2, pp 2", 1, 2, 2}, {"dp 2, tp 2, pp 2, zero 1", 2, 2, 2}};

ParameterSpec spec(std::string name, Shape shape, ParameterRole role, int tp_dim) {
  ParameterSpec made{.name = std::move(name),
                     .shape = shape,
                     .role = role,
                     .init = {Initializer::Kind::normal, 1.0}};
  made.placement[Axis::tp].split_dim = tp_dim;
  return made;
}

/// Every role; whole, and cut along rows, columns and the columns of experts' matrices, without
/// cutting blocks of 256 elements; key heads that two of four ranks have alike; a tied table.
void declare_model(ParameterStore& store, const Layout& layout) {
  const auto on = [&](std::vector<int> stages) {
    store.declare_on(layout.pp > 1 ? std::move(stages) : std::vector<int>());
  };
  using enum ParameterRole;
  on({0, 1});
  store.declare(spec("embed", {64, 48}, embedding, 0));
  on({0});
  ParameterSpec queries = spec("queries", {48, 64}, matrix, 0);
  queries.rows_per_head = 6;
  ParameterSpec keys = spec("keys", {32, 64}, matrix, 0);
  keys.rows_per_head = 16;
  if (layout.tp == 4) keys.placement[Axis::tp].replicas = 2;
  store.declare({std::move(queries), std::move(keys)});
  store.declare(spec("columns", {12, 1024}, matrix, 1));
  store.declare(spec("bias", {96}, bias, 0));
  on({1});
  store.declare(spec("rows", {32, 96}, matrix, 0));
  store.declare(spec("experts", {3, 8, 1024}, matrix, 2));
  store.declare(spec("whole", {8, 64}, matrix, -1));
  store.declare(spec("norm", {300}, norm, -1));
}

/// Where element `i` of a box is in the whole tensor, in row-major order.
std::size_t whole_index(const Shape& global, const Box& box, std::int64_t i) {
  std::int64_t at = 0, stride = 1;
  for (int d = global.rank() - 1; d >= 0; --d) {
    at += (box.offset[static_cast<std::size_t>(d)] + i % box.shape[d]) * stride;
    i /= box.shape[d];
    stride *= global[d];
  }
  return static_cast<std::size_t>(at);
}

/// Whole tensors from the parts of ranks; those that several have must be the same.
class Gathered {
 public:
  void add(const std::string& name, const TensorPlace& place, const Values& own) {
    const std::lock_guard lock(mutex_);
    Values& all = tensors_[name];
    all.resize(static_cast<std::size_t>(place.global_shape.numel()), NAN);
    if (std::ssize(own) != place.own.count) problems_.insert(name + ": another size");
    for (std::size_t i = 0; i < own.size(); ++i) {
      double& to = all.at(whole_index(place.global_shape, place.box,
                                      place.own.first + static_cast<std::int64_t>(i)));
      if (!std::isnan(to) && to != own[i]) problems_.insert(name + ": ranks differ");
      to = own[i];
    }
  }
  const std::map<std::string, Values>& tensors() const { return tensors_; }
  std::string problems() const { return fmt::format("{}", fmt::join(problems_, ", ")); }

 private:
  std::mutex mutex_;
  std::map<std::string, Values> tensors_;
  std::set<std::string> problems_;
};

/// The gradient of the whole model in step `t`, as far as it is here.
void set_gradient(const Parameter& p, std::uint64_t t) {
  const PhiloxKey key = philox_key(3, "gradient", p.name());
  Values g(static_cast<std::size_t>(p.grad().numel()));
  for (std::size_t i = 0; i < g.size(); ++i) {
    const std::size_t at = whole_index(p.global_shape(), p.box(), static_cast<std::int64_t>(i));
    g[i] = static_cast<float>(normal_quantile(unit_interval(philox_word(key, t, at))));
  }
  set_values(p.grad(), g);
}

/// Weights and states of all ranks after five steps.
void train(const Row& row, const ParameterDTypes& dtypes, const Layout& layout, Gathered& all) {
  testing::run_job(layout.dp * layout.tp * layout.pp, [&](Transport& transport) {
    World world(transport);
    const Mesh mesh({.sizes = {layout.dp, layout.tp, layout.pp, 1}}, world.place().rank,
                    world_factory(world));
    Device device(make_cpu_memory(), 1 << 25);
    const Tensor staging = device.allocate({static_cast<std::int64_t>(kHostStagingBytes)},
                                           DType::u8, Category::comm, "staging");
    mesh.use_staging(staging);
    const kernels::KernelCtx ctx{.device = &device, .table = &kernels::cpu_table()};
    ParameterStore store(mesh);
    declare_model(store, layout);
    OptimizerOptions options;
    read_options(options, fmt::format("{{name: {}, lr: 0.05, weight_decay: 0.1, no_decay: [], "
                                      "max_grad_norm: null{}}}",
                                      row.name, row.options));
    if (layout.dp > 1) store.slice(indivisible_pieces(options), {});
    store.allocate(device, dtypes, true);
    store.initialize(11);
    OptimizerSet set(ctx, options, store, mesh);
    const Tensor scalars = device.allocate({kernels::StepScalars::kScalars}, DType::f64,
                                           Category::activations, "scalars");
    const kernels::StepScalars numbers{.lr = set.lr(1)};
    device.copy_from_host(scalars, std::as_bytes(std::span(&numbers, 1)));
    for (std::uint64_t t = 1; t <= 5; ++t) {
      for (const Parameter* p : store.local()) set_gradient(*p, t);
      set.launch_step(ctx, scalars, {});
    }
    if (!step_result(decision_of(set)).applied) throw std::runtime_error("a step was skipped");
    for (const Parameter* p : store.local()) {
      all.add(p->name(), p->own_place(), values_of(p->master()));
    }
    for (const StateTensor& state : set.states()) {
      all.add(state.name, state.place, values_of(state.tensor));
    }
  });
}

/// The largest difference, of the largest element; infinite where something is missing.
double difference(const Values& a, const Values& b) {
  if (a.size() != b.size()) return INFINITY;
  double off = 0, largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double here = std::abs(a[i] - b[i]);
    off = std::isnan(here) ? INFINITY : std::max(off, here);
    largest = std::max(largest, std::abs(b[i]));
  }
  return off == 0 ? 0 : off / largest;
}

}  // namespace

TEST_CASE("every row of the table is here once, with its bound") {
  std::map<std::string, int> times;
  for (const Row& row : rows()) ++times[row.name];
  CHECK(times.size() == optimizer_table().size());
  for (const OptimizerRow& row : optimizer_table()) {
    CAPTURE(row.name);
    CHECK(times[std::string(row.name)] == 1);
    // Whatever belongs to one element each is exact.
    const auto here = std::ranges::find(rows(), row.name, &Row::name);
    if (row.no_bf16_states.empty()) CHECK(!here->adds_over_tp);
  }
}

TEST_CASE("of the same gradients ranks that divide weights and states make those of one rank") {
  for (const Row& row : rows()) {
    CAPTURE(row.name);
    for (const bool wide : {false, true}) {
      CAPTURE(wide);
      const ParameterDTypes& dtypes = wide ? kFp64 : kFp32;
      Gathered whole;
      train(row, dtypes, {"one rank"}, whole);
      REQUIRE(whole.problems() == "");
      CHECK(whole.tensors().size() >= (row.name == "sgd" ? 9 : 18));
      if (row.name.ends_with("8bit")) CHECK(whole.tensors().contains("columns#m_scale"));
      for (const Layout& layout : kLayouts) {
        CAPTURE(layout.name);
        Gathered found;
        train(row, dtypes, layout, found);
        CHECK(found.problems() == "");
        REQUIRE(found.tensors().size() == whole.tensors().size());
        const bool is_exact = layout.tp == 1 || !row.adds_over_tp;
        const double bound = is_exact ? 0 : wide ? kBound64 : kBound32;
        for (const auto& [name, expected] : whole.tensors()) {
          CAPTURE(name);
          REQUIRE(found.tensors().contains(name));
          CHECK(difference(found.tensors().at(name), expected) <= bound);
        }
      }
    }
  }
}

}  // namespace llmtrain::optim
