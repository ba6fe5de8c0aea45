// Optimizer states of bf16: what they cost, who has them, how far they are from FP32's, and that
// no layout shows in them.
#include <atomic>
#include <bit>
#include <map>

#include <doctest/doctest.h>

#include "lib/base/error.hpp"
#include "lib/comm/world.hpp"
#include "tests/support/thread_transport.hpp"
#include "tests/unit/optim/fixture.hpp"
#include "tests/unit/optim/formula_cases.hpp"

namespace llmtrain::optim {

namespace {

Values widened(const Tensor& state) {
  Values values;
  const std::vector<std::byte> bytes = bytes_of(state);
  for (std::size_t i = 0; i < bytes.size(); i += sizeof(bf16)) {
    bf16 x;
    std::memcpy(&x, &bytes[i], sizeof x);
    values.push_back(to_float(x));
  }
  return values;
}

void set_bf16(const StateTensor& state, double value) {
  const std::vector<bf16> values(static_cast<std::size_t>(state.place.own.count),
                                 to_bf16(static_cast<float>(value)));
  state.write(0, std::as_bytes(std::span(values)));
}

bool may_be_bf16(std::string_view name) {
  for (const OptimizerRow& row : optimizer_table()) {
    if (row.name == name) return row.no_bf16_states.empty();
  }
  return false;
}

/// The cases of optimizers that may have bf16 states.
std::vector<Case> cases_of_bf16() {
  std::vector<Case> some;
  for (const Case& c : cases()) {
    if (may_be_bf16(c.name)) some.push_back(c);
  }
  return some;
}

/// Between a bf16 number and the next one away from zero.
double step_at(double x) { return std::ldexp(1.0, std::max(std::ilogb(x), -126) - 7); }

/// How far written states were from what was to be written, in steps of bf16.
struct Errors {
  double sum = 0, variance = 0, largest = 0;
  std::int64_t count = 0;

  void add(double written, double exact) {
    if (exact == 0) {
      CHECK(written == 0);
      return;
    }
    const double step = step_at(exact);
    const double up = std::abs(exact) / step - std::floor(std::abs(exact) / step);
    const double error = (std::abs(written) - std::abs(exact)) / step;
    sum += error;
    variance += up * (1 - up);
    largest = std::max(largest, std::abs(error));
    ++count;
  }
};

/// `steps` steps, each beside the formula's from where that one began.
Errors follow(const Case& c, int steps) {
  const Rig rig(kFp32);
  OptimizerOptions options;
  read_options(options, "name: " + c.name +
                            "\nlr: 0.05\nweight_decay: 0.1\nno_decay: []\nmax_grad_norm: null\n"
                            "state_dtype: bf16\n" +
                            c.options);
  OptimizerSet set(rig.ctx, options, rig.store, rig.mesh, std::nullopt, std::nullopt, 7);
  Errors errors;
  for (int t = 1; t <= steps; ++t) {
    rig.set_gradients(t, t % 2 == 0 ? 0.01 : 1.0);
    std::map<std::string, Values> parameters;
    std::map<std::string, States> states;
    for (const auto& p : rig.store.all()) parameters[p->name()] = values_of(p->master());
    for (const StateTensor& state : set.states()) {
      const std::string& of = state.parameter->name();
      states[of][state.name.substr(of.size() + 1)] = widened(state.tensor);
    }
    for (const auto& p : rig.store.all()) {
      c.formula(parameters[p->name()], values_of(p->grad()), states[p->name()],
                {.lr = 0.05, .weight_decay = 0.1, .t = t, .parameter = p.get()});
    }
    CHECK(run_step(rig, set, 1.0).applied);
    for (const auto& p : rig.store.all()) {
      CHECK(distance(values_of(p->master()), parameters[p->name()]) < c.fp32_tolerance);
    }
    for (const StateTensor& state : set.states()) {
      const std::string& of = state.parameter->name();
      const Values written = widened(state.tensor);
      const Values& exact = states[of][state.name.substr(of.size() + 1)];
      for (std::size_t i = 0; i < exact.size(); ++i) errors.add(written[i], exact[i]);
    }
  }
  return errors;
}

}  // namespace

TEST_CASE("20 steps with bf16 states follow the formula, and their errors have no mean") {
  const std::vector<Case> all = cases_of_bf16();
  CHECK(all.size() >= 8);
  for (const Case& c : all) {
    CAPTURE(c.name);
    CAPTURE(c.options);
    const Errors errors = follow(c, 20);
    CHECK(errors.count >= 20 * 1300);
    CHECK(errors.largest <= 1 + 1e-3);  // and what FP32 rounds
    CHECK(errors.variance > 0.05 * static_cast<double>(errors.count));
    CHECK(std::abs(errors.sum) < 5 * std::sqrt(errors.variance));
  }
}

TEST_CASE("changes of a second moment below half a step of bf16 count in the mean") {
  constexpr std::int64_t kCount = 4096;
  constexpr int kSteps = 100;
  for (const char* name : {"adamw", "adam", "amsgrad"}) {
    CAPTURE(name);
    Rig rig(kFp32, {{.name = "w", .shape = {kCount}, .init = {Initializer::Kind::ones}}});
    OptimizerOptions options;
    read_options(options, fmt::format("{{name: {}, weight_decay: 0, betas: [0.9, 0.999], lr: "
                                      "1e-4, max_grad_norm: null, state_dtype: bf16}}",
                                      name));
    OptimizerSet set(rig.ctx, options, rig.store, rig.mesh);
    const StateTensor& v = set.states()[1];
    set_bf16(v, 1);
    // Each adds a sixteenth of a step of bf16 to v, and less and less.
    double expected = 1;
    for (int t = 0; t < kSteps; ++t) {
      set_values(rig.store.find("w").grad(), Values(kCount, std::sqrt(1.5)));
      run_step(rig, set, 1.0);
      expected = 0.999 * expected + 0.001 * 1.5;
    }
    double mean = 0, squares = 0;
    for (const double x : widened(v.tensor)) {
      mean += x / kCount;
      squares += x * x / kCount;
    }
    const double error = std::sqrt((squares - mean * mean) / kCount);
    CHECK(expected > 1.04);
    CHECK(std::abs(mean - expected) < 5 * error);
  }
}

TEST_CASE("every optimizer of the table has all its states in bf16, or refuses them") {
  for (const OptimizerRow& row : optimizer_table()) {
    CAPTURE(row.name);
    const std::string yaml = fmt::format("{{name: {}, state_dtype: bf16}}", row.name);
    OptimizerOptions options;
    if (!row.no_bf16_states.empty()) {
      std::string text;
      try {
        read_options(options, yaml);
      } catch (const RecipeError& error) {
        text = error.what();
      }
      CHECK(text.find(fmt::format("state_dtype: bf16: {} {} (leave it out, or choose one of adamw,",
                                  row.name, row.no_bf16_states)) != text.npos);
      continue;
    }
    read_options(options, yaml);
    OptimizerOptions wide;
    read_options(wide, fmt::format("{{name: {}}}", row.name));
    const Rig rig(kBf16), rig32(kBf16);
    const OptimizerSet set(rig.ctx, options, rig.store, rig.mesh);
    const OptimizerSet set32(rig32.ctx, wide, rig32.store, rig32.mesh);
    CHECK(set.state_names() == set32.state_names());
    CHECK(!set.states().empty());
    std::uint64_t bytes = 0, bytes32 = 0;
    for (const StateTensor& state : set.states()) {
      CHECK(state.dtype() == DType::bf16);
      bytes += state.bytes();
    }
    for (const StateTensor& state : set32.states()) bytes32 += state.bytes();
    CHECK(2 * bytes == bytes32);
    const auto of_plan = [&](const OptimizerSet& of, const Rig& in) {
      std::uint64_t sum = 0;
      for (const auto& p : in.store.all()) {
        const auto each = of.state_bytes(*p, p->box().shape.numel());
        CHECK(each.kept == each.written);
        sum += each.kept;
      }
      return sum;
    };
    CHECK(of_plan(set, rig) == bytes);
    CHECK(of_plan(set32, rig32) == bytes32);
    const auto held = [](const Rig& in) {
      return in.device.ledger().held_bytes(Category::optimizer);
    };
    CHECK(held(rig32) - held(rig) >= bytes32 - bytes - 2048);  // parts of blocks
    const Rig exact(kFp64);
    CHECK_THROWS_AS(OptimizerSet(exact.ctx, options, exact.store, exact.mesh), InternalError);
  }
}

namespace {

constexpr std::int64_t kRows = 38, kCols = 100;

struct Layout {
  int tp = 1, dp = 1;
  int split_dim = 0;
};

/// What ranks of a layout have after five steps, by state and element of the whole tensor, and as
/// the parameter's own.
std::map<std::string, Values> trained(const Layout& layout) {
  std::map<std::string, Values> whole;
  std::atomic<bool> is_free = true;
  const int ranks = layout.tp * layout.dp;
  testing::run_job(ranks, [&](Transport& transport) {
    World world(transport);
    const Mesh mesh({.sizes = {layout.dp, layout.tp, 1, 1}}, world.place().rank,
                    world_factory(world));
    Device device(make_cpu_memory(), 1 << 24);
    const Tensor staging = device.allocate({static_cast<std::int64_t>(kHostStagingBytes)},
                                           DType::u8, Category::comm, "staging");
    mesh.use_staging(staging);
    kernels::KernelCtx ctx{.device = &device, .table = &kernels::cpu_table()};
    ParameterStore store(mesh);
    ParameterSpec spec{
        .name = "w", .shape = {kRows, kCols}, .init = {Initializer::Kind::normal, 1.0}};
    if (layout.tp > 1) spec.placement[Axis::tp].split_dim = layout.split_dim;
    store.declare(std::move(spec));
    OptimizerOptions options;
    read_options(options, "{name: amsgrad, lr: 0.01, max_grad_norm: null, state_dtype: bf16}");
    if (layout.dp > 1) store.slice(indivisible_pieces(options), {});
    store.allocate(device, kFp32, true);
    store.initialize(11);
    OptimizerSet set(ctx, options, store, mesh, std::nullopt, std::nullopt, 3);
    const Parameter& w = store.find("w");
    const Box& box = w.box();
    const auto index = [&](std::int64_t i) {
      const std::int64_t cols = box.shape[1];
      return (box.offset[0] + i / cols) * kCols + box.offset[1] + i % cols;
    };
    const Tensor scalars = device.allocate({kernels::StepScalars::kScalars}, DType::f64,
                                           Category::activations, "scalars");
    const kernels::StepScalars numbers{.lr = set.lr(1)};
    device.copy_from_host(scalars, std::as_bytes(std::span(&numbers, 1)));
    for (std::uint64_t t = 1; t <= 5; ++t) {
      Values g(static_cast<std::size_t>(w.grad().numel()));
      for (std::size_t i = 0; i < g.size(); ++i) {
        const auto at = static_cast<std::uint64_t>(index(static_cast<std::int64_t>(i)));
        g[i] = static_cast<float>(
            normal_quantile(unit_interval(philox_word(philox_key(3, "g", "w"), t, at))));
      }
      set_values(w.grad(), g);
      set.launch_step(ctx, scalars, {});
    }
    // One rank after the other.
    while (!is_free.exchange(false)) std::this_thread::yield();
    const auto keep = [&](const std::string& name, const Values& values) {
      Values& all = whole[name];
      all.resize(kRows * kCols, NAN);
      for (std::size_t i = 0; i < values.size(); ++i) {
        const std::int64_t at = index(w.own_slice().first + static_cast<std::int64_t>(i));
        all[static_cast<std::size_t>(at)] = values[i];
      }
    };
    keep("w", values_of(w.own_compute()));
    for (const StateTensor& state : set.states()) keep(state.name, widened(state.tensor));
    is_free = true;
  });
  return whole;
}

}  // namespace

TEST_CASE("ranks that have parts of a parameter have the bf16 states of the whole") {
  const auto expected = trained({});
  CHECK(expected.size() == 4);
  for (const Layout& layout : {Layout{.tp = 2}, Layout{.tp = 2, .split_dim = 1}, Layout{.dp = 3},
                               Layout{.tp = 2, .dp = 2, .split_dim = 1}}) {
    CAPTURE(layout.tp);
    CAPTURE(layout.dp);
    CAPTURE(layout.split_dim);
    CHECK(trained(layout) == expected);
  }
}

TEST_CASE("seeds, parameters and states have roundings of their own") {
  const auto states = [](std::uint64_t seed) {
    const Rig rig(kFp32, {{.name = "a", .shape = {4000}, .role = ParameterRole::bias},
                          {.name = "b", .shape = {4000}, .role = ParameterRole::bias}});
    OptimizerOptions options;
    read_options(options,
                 "{name: rmsprop, alpha: 0.5, momentum: 1e-9, eps: 1e-9, state_dtype: "
                 "bf16, max_grad_norm: null}");
    OptimizerSet set(rig.ctx, options, rig.store, rig.mesh, std::nullopt, std::nullopt, seed);
    // v and the buffer are 1 and a little more: u = g / root of v = 1 + 2^-8 in both.
    for (const auto& p : rig.store.all()) set_values(p->grad(), Values(4000, 1 + 0x1p-8));
    for (const StateTensor& state : set.states()) set_bf16(state, 1);
    run_step(rig, set, 1.0);
    std::vector<Values> all;
    for (const StateTensor& state : set.states()) all.push_back(widened(state.tensor));
    return all;
  };
  const auto first = states(1), other = states(2);
  CHECK(first == states(1));
  CHECK(first != other);
  const auto agree = [](const Values& a, const Values& b) {
    double same = 0;
    for (std::size_t i = 0; i < a.size(); ++i) same += a[i] == b[i];
    return same / static_cast<double>(a.size());
  };
  REQUIRE(first.size() == 4);
  // The buffer rounds up less often than v: by the same halves never without it.
  double alone = 0;
  for (std::size_t i = 0; i < 4000; ++i) alone += first[1][i] > 1 && first[0][i] == 1;
  CHECK(alone > 100);
  // Each rounds one way or the other in half of the cases.
  for (const auto& [a, b] : {std::pair(first[0], first[2]), std::pair(first[1], first[3]),
                             std::pair(first[0], other[0]), std::pair(first[1], other[1])}) {
    CHECK(agree(a, b) < 0.9);
  }
}

}  // namespace llmtrain::optim
