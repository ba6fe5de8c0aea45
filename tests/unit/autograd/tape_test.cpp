#include "lib/autograd/tape.hpp"

#include <algorithm>
#include <set>

#include <doctest/doctest.h>

#include "kernels/activations.hpp"
#include "tests/support/gradcheck.hpp"

namespace llmtrain::test {

namespace {

const ParameterGroup& square(Place& place, const std::string& name, std::int64_t size) {
  return place.store().declare({.name = name, .shape = {size, size}, .init = {}});
}

const ParameterGroup& scale(Place& place, const std::string& name, std::int64_t size) {
  return place.store().declare(
      {.name = name, .shape = {size}, .role = ParameterRole::norm, .init = {}});
}

constexpr std::int64_t kRows = 12;
constexpr std::int64_t kWidth = 16;

// A chain of linear, norm and activation; the norm and the activation have two readers each.
using Wrap = std::function<Var(const OpCtx&, const Var&,
                               const std::function<Var(const OpCtx&, const Var&)>&)>;

Problem chain(const Wrap& wrap, double dropout = 0) {
  return {.rows = {.length = kRows},
          .inputs = {{kRows, kWidth}},
          .build = [=](Place& place) -> Forward {
            const ParameterGroup& a = square(place, "a", kWidth);
            const ParameterGroup& b = square(place, "b", kWidth);
            const ParameterGroup& c = square(place, "c", kWidth);
            const ParameterGroup& n = scale(place, "n", kWidth);
            const auto link = [&a, &b, &c, &n, dropout](const OpCtx& ctx, const Var& x) {
              const Var y = ops::norm(ctx, x, n, nullptr, {});
              const Var both =
                  ops::add(ctx, ops::linear(ctx, y, a, nullptr), ops::linear(ctx, y, b, nullptr));
              const Var z = ops::activation(ctx, both, kernels::Activation::silu);
              const Var kept = ops::dropout(ctx, z, dropout, "chain");
              return ops::add(ctx, ops::linear(ctx, kept, c, nullptr), x);
            };
            return [=](const OpCtx& ctx, std::span<const Var> x) -> Outputs {
              return {{wrap(ctx, wrap(ctx, x[0], link), link)}};
            };
          }};
}

const Wrap kPlain = [](const OpCtx& ctx, const Var& x, const auto& f) { return f(ctx, x); };
const Wrap kSegment = [](const OpCtx& ctx, const Var& x, const auto& f) {
  return recompute_segment(ctx, x, f);
};
// A segment that holds the link twice, each in a segment of its own.
const Wrap kNested = [](const OpCtx& ctx, const Var& x, const auto& f) {
  return recompute_segment(ctx, x, [f](const OpCtx& outer, const Var& y) {
    return recompute_segment(outer, recompute_segment(outer, y, f), f);
  });
};
const Wrap kTwice = [](const OpCtx& ctx, const Var& x, const auto& f) { return f(ctx, f(ctx, x)); };

/// Keeps copies on the host.
class HostKeeper final : public TensorKeeper {
 public:
  explicit HostKeeper(std::set<std::string_view> ops) : ops_(std::move(ops)) {}
  bool takes(std::string_view op) const override { return ops_.empty() || ops_.contains(op); }
  std::vector<std::function<Tensor(const OpCtx&)>> put_away(const OpCtx&,
                                                            std::vector<Leaving> tensors) override {
    std::vector<std::function<Tensor(const OpCtx&)>> ways_back;
    for (const Leaving& leaving : tensors) ways_back.push_back(put_away(leaving));
    return ways_back;
  }
  int put = 0, of_weight_parts = 0, taken = 0;

 private:
  std::function<Tensor(const OpCtx&)> put_away(const Leaving& leaving) {
    ++put;
    of_weight_parts += leaving.first == Part::weight;
    const Tensor& tensor = leaving.tensor;
    const auto* begin = tensor.view().as<std::byte>();
    std::vector<std::byte> copy(begin, begin + tensor.view().bytes());
    return [this, copy, shape = tensor.shape(), dtype = tensor.dtype()](const OpCtx& ctx) {
      ++taken;
      const Tensor back = ctx.allocate(shape, dtype, "back");
      std::ranges::copy(copy, back.view().as<std::byte>());
      return back;
    };
  }

  std::set<std::string_view> ops_;
};

Wrap kept_by(HostKeeper& keeper) {
  return [&keeper](const OpCtx& ctx, const Var& x, const auto& f) {
    if (ctx.tape == nullptr) return f(ctx, x);
    const std::size_t first = ctx.tape->num_nodes();
    const Var y = f(ctx, x);
    ctx.tape->put_away(ctx, first, keeper);
    return y;
  };
}

// Counts the launches of one kernel.
class Count final : public kernels::Recorder {
 public:
  explicit Count(std::string_view name) : name_(name) {}
  void record(const kernels::LaunchRecord& launch) override { count += launch.name == name_; }
  int count = 0;

 private:
  std::string_view name_;
};

}  // namespace

TEST_CASE("gradients of a value used several times add in reverse order of recording") {
  Place place({.length = 1}, {.compute = DType::f32});
  const Tensor zero = place.tensor({0}, {1, 1});
  const auto gradient = [&](const std::vector<double>& dys) {
    Tape tape;
    OpCtx ctx = place.context();
    ctx.tape = &tape;
    const Var x = tape.leaf(place.tensor({1}, {1, 1}));
    for (const double dy : dys) {
      tape.seed(ops::add(ctx, x, {zero, -1, nullptr}), place.tensor({dy}, {1, 1}));
    }
    tape.backward(ctx, WeightGrads::now);
    return values_of(tape.take_gradient(x)).front();
  };
  CHECK(gradient({1, 1e8, -1e8}) == 1);  // (-1e8 + 1e8) + 1
  CHECK(gradient({1e8, -1e8, 1}) == 0);  // (1 - 1e8) + 1e8
  CHECK(gradient({-1e8, 1, 1e8}) == 0);
}

TEST_CASE("a gradient that two inputs share is not overwritten by either") {
  // dy reaches x and y; x then collects more, y must not see it.
  Place place({.length = 1}, {.compute = DType::f32});
  Tape tape;
  OpCtx ctx = place.context();
  ctx.tape = &tape;
  const Var x = tape.leaf(place.tensor({1}, {1, 1}));
  const Var y = tape.leaf(place.tensor({1}, {1, 1}));
  const Var twice = ops::add(ctx, x, x);
  tape.seed(ops::add(ctx, ops::add(ctx, x, y), twice), place.tensor({1}, {1, 1}));
  tape.backward(ctx, WeightGrads::now);
  CHECK(values_of(tape.take_gradient(x)).front() == 3);
  CHECK(values_of(tape.take_gradient(y)).front() == 1);
}

TEST_CASE("what no gradient reaches is skipped") {
  Place place({.length = 2}, {.compute = DType::f32});
  const ParameterGroup& w = square(place, "w", 1);
  place.store().allocate(place.device(), {DType::f32, DType::f32, DType::f32}, true);
  place.store().initialize(0);
  const std::vector<float> start{7};
  place.device().copy_from_host(w.grad(), std::as_bytes(std::span(start)));
  Tape tape;
  OpCtx ctx = place.context();
  ctx.tape = &tape;
  const Var x = tape.leaf(place.tensor({1, 2}, {2, 1}));
  const Var unused = ops::linear(ctx, x, w, nullptr);
  const Var used = ops::activation(ctx, x, kernels::Activation::relu);
  tape.seed(used, place.tensor({4, 5}, {2, 1}));
  tape.backward(ctx, WeightGrads::now);
  CHECK(values_of(tape.take_gradient(x)) == std::vector<double>{4, 5});
  CHECK(values_of(w.grad()).front() == 7);
}

TEST_CASE("deferred weight gradients come when asked for, with the same bits") {
  Place place({.length = 2}, {.compute = DType::f32});
  const ParameterGroup& w = square(place, "w", 1);
  place.store().allocate(place.device(), {DType::f32, DType::f32, DType::f32}, true);
  place.store().initialize(0);
  const std::vector<float> start{0};
  place.device().copy_from_host(w.grad(), std::as_bytes(std::span(start)));
  Tape tape;
  OpCtx ctx = place.context();
  ctx.tape = &tape;
  const Var y = ops::linear(ctx, tape.leaf(place.tensor({2, 3}, {2, 1})), w, nullptr);
  tape.seed(y, place.tensor({1, 10}, {2, 1}));
  tape.backward(ctx, WeightGrads::deferred);
  CHECK(tape.has_deferred());
  CHECK(values_of(w.grad()).front() == 0);
  tape.run_weight_grads(ctx);
  CHECK_FALSE(tape.has_deferred());
  CHECK(values_of(w.grad()).front() == 32);
}

TEST_CASE("deferring changes no bit, also inside recompute segments") {
  for (const Wrap& wrap : {kPlain, kSegment, kNested}) {
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
      const Problem problem = chain(wrap, 0.2);
      check_same_bits(run_trial(problem, {.compute = dtype, .table = &kernels::cpu_table()}),
                      run_trial(problem, {.compute = dtype,
                                          .table = &kernels::cpu_table(),
                                          .weight_grads = WeightGrads::deferred}));
    }
  }
}

TEST_CASE("recomputing a segment changes no bit, also with dropout, and lowers the peak") {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    const TrialOptions options{.compute = dtype, .table = &kernels::cpu_table()};
    const TrialResult plain = run_trial(chain(kPlain, 0.2), options);
    const TrialResult segment = run_trial(chain(kSegment, 0.2), options);
    check_same_bits(plain, segment);
    CHECK(segment.peak_bytes < plain.peak_bytes);
  }
}

TEST_CASE("saved tensors that are elsewhere until the walk back change no bit and lower the peak") {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    for (const WeightGrads when : {WeightGrads::now, WeightGrads::deferred}) {
      const TrialOptions options{
          .compute = dtype, .table = &kernels::cpu_table(), .weight_grads = when};
      const TrialResult plain = run_trial(chain(kPlain, 0.2), options);
      HostKeeper all({}), some({"activation"}), linear({"linear"});
      const TrialResult away = run_trial(chain(kept_by(all), 0.2), options);
      check_same_bits(plain, away);
      CHECK(all.put == 8);
      CHECK(all.taken == all.put);  // for all that keep it together
      if (when == WeightGrads::now) CHECK(away.peak_bytes < plain.peak_bytes);
      check_same_bits(plain, run_trial(chain(kept_by(some), 0.2), options));
      CHECK(some.put > 0);
      CHECK(some.put < all.put);
      // The output of the norm, which two of them keep, and not what others keep, too.
      check_same_bits(plain, run_trial(chain(kept_by(linear), 0.2), options));
      CHECK(linear.put == 4);
      CHECK(linear.of_weight_parts == 4);
      CHECK(some.of_weight_parts == 0);
    }
  }
}

TEST_CASE("segments inside segments change no bit and lower the peak again") {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    const TrialOptions options{.compute = dtype, .table = &kernels::cpu_table()};
    const TrialResult plain = run_trial(chain(kTwice, 0.2), options);
    const TrialResult nested = run_trial(chain(kNested, 0.2), options);
    check_same_bits(plain, nested);
    CHECK(nested.peak_bytes < plain.peak_bytes);
  }
}

TEST_CASE("norms and activations that are computed again change no bit and lower the peak") {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    const TrialOptions options{.compute = dtype, .table = &kernels::cpu_table()};
    const TrialResult plain = run_trial(chain(kPlain), options);
    std::uint64_t least = plain.peak_bytes;
    for (const RecomputedOps& names : {RecomputedOps{"norm"}, RecomputedOps{"activation"},
                                       RecomputedOps{"norm", "activation"}}) {
      for (const WeightGrads when : {WeightGrads::now, WeightGrads::deferred}) {
        TrialOptions again = options;
        again.recomputed_ops = names;
        again.weight_grads = when;
        const TrialResult result = run_trial(chain(kPlain), again);
        check_same_bits(plain, result);
        if (when == WeightGrads::now) {
          CHECK(result.peak_bytes < plain.peak_bytes);
          least = std::min(least, result.peak_bytes);
          if (names.size() == 2) CHECK(result.peak_bytes == least);
        }
      }
    }
  }
}

TEST_CASE("a value that is computed again is computed once for all its readers") {
  for (const bool again : {false, true}) {
    Place place({.length = kRows},
                {.recomputed_ops = again ? RecomputedOps{"norm"} : RecomputedOps{}});
    const Forward forward = chain(kPlain).build(place);
    place.store().allocate(place.device(), {DType::f64, DType::f64, DType::f64}, true);
    place.store().initialize(0);
    Count norms("norm_forward");
    Tape tape;
    OpCtx ctx = place.context();
    ctx.tape = &tape;
    ctx.kernel.recorder = &norms;
    const std::vector<double> ones(kRows * kWidth, 1);
    const Var x = tape.leaf(place.tensor(ones, {kRows, kWidth}));
    const Outputs y = forward(ctx, std::vector{x});
    tape.seed(y.values[0], place.tensor(ones, {kRows, kWidth}));
    tape.backward(ctx, WeightGrads::now);
    CHECK(norms.count == (again ? 4 : 2));  // two links
  }
}

TEST_CASE("after the backward pass nothing saved is left") {
  for (const Wrap& wrap : {kPlain, kSegment, kNested}) {
    for (const RecomputedOps& names : {RecomputedOps{}, RecomputedOps{"norm", "activation"}}) {
      for (const WeightGrads when : {WeightGrads::now, WeightGrads::deferred}) {
        const TrialOptions options{.weight_grads = when, .recomputed_ops = names};
        CHECK(run_trial(chain(wrap, 0.2), options).kept_bytes == 0);
      }
    }
  }
}

TEST_CASE("the gradients of a recomputed segment are those of finite differences") {
  check_gradients(chain(kSegment, 0.2));
}

}  // namespace llmtrain::test
