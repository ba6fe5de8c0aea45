#include "tests/support/gradcheck.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include <doctest/doctest.h>

#include "tests/support/formula.hpp"

namespace llmtrain::test {

namespace {

constexpr std::int64_t kFirstSample = 3;
constexpr std::int64_t kEveryElement = 600;  // tensors up to this size
constexpr double kStep = 1e-3;

template <class T>
void upload(const Tensor& tensor, const std::vector<T>& values) {
  tensor.device().copy_from_host(tensor, std::as_bytes(std::span(values)));
}

std::vector<bf16> to_bf16s(const std::vector<double>& values) {
  std::vector<bf16> rounded(values.size());
  std::transform(values.begin(), values.end(), rounded.begin(),
                 [](double x) { return to_bf16(static_cast<float>(x)); });
  return rounded;
}

void write_values(const Tensor& tensor, const std::vector<double>& values) {
  if (tensor.dtype() == DType::f64) return upload(tensor, values);
  if (tensor.dtype() == DType::bf16) return upload(tensor, to_bf16s(values));
  upload(tensor, std::vector<float>(values.begin(), values.end()));
}

double widened(double x) { return x; }
double widened(bf16 x) { return to_float(x); }

template <class T>
std::vector<double> download(const Tensor& tensor) {
  std::vector<T> values(static_cast<std::size_t>(tensor.numel()));
  tensor.device().copy_to_host(std::as_writable_bytes(std::span(values)), tensor);
  std::vector<double> wide(values.size());
  std::transform(values.begin(), values.end(), wide.begin(), [](T x) { return widened(x); });
  return wide;
}

// offset + scale * u, u in (-1, 1) and at least 1/16 away from 0, rounded to bf16.
std::vector<double> fixed_values(const std::string& name, std::int64_t count, double offset = 0,
                                 double scale = 1) {
  const std::vector<float> u = formula_weights(name, count, 0, 1);
  std::vector<double> values(u.begin(), u.end());
  for (double& x : values) {
    x = std::copysign((1 + 15 * std::abs(x)) / 16, x);
    x = to_float(to_bf16(static_cast<float>(offset + scale * x)));
  }
  return values;
}

std::vector<double> parameter_values(const Parameter& p) {
  const double offset = p.role() == ParameterRole::norm ? 1 : 0;
  return fixed_values(p.name(), p.global_shape().numel(), offset, 0.5);
}

double norm_of(const std::vector<double>& x) {
  return std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0));
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

double largest_norm(const Results& results) {
  double largest = 0;
  for (const auto& [name, values] : results) largest = std::max(largest, norm_of(values));
  return largest;
}

// A problem in a place: its variables, which the caller may change, and the function of them.
class Trial {
 public:
  Trial(const Problem& problem, const TrialOptions& options)
      : problem_(&problem), place_(problem.rows, options), forward_(problem.build(place_)) {
    const DType wide = statistics_dtype(options.compute);
    place_.store().allocate(place_.device(), {options.compute, wide, wide}, true);
    for (std::size_t i = 0; i < problem.inputs.size(); ++i) {
      const std::string name = "input " + std::to_string(i);
      variables[name] = fixed_values(name, problem.inputs[i].numel());
    }
    for (const auto& p : place_.store().all()) variables[p->name()] = parameter_values(*p);
    write_parameters();
  }

  double value() {
    const OpCtx ctx = place_.context();
    const Outputs outputs = forward_(ctx, inputs(nullptr));
    return value_of(ctx, outputs);
  }

  TrialResult backward() {
    MemoryLedger& ledger = place_.device().ledger();
    for (const auto& group : place_.store().local_groups()) {
      write_values(group->grad(), std::vector<double>(group->grad().numel(), 0));
    }
    const std::uint64_t held = ledger.held_bytes();
    ledger.enter(Phase::step);
    TrialResult result;
    Tape tape;
    OpCtx ctx = place_.context();
    ctx.tape = &tape;
    std::vector<Var> leaves = inputs(&tape);
    Outputs outputs = forward_(ctx, leaves);
    for (Var& leaf : leaves) leaf.tensor.reset();
    seed(ctx, tape, outputs, result.outputs);
    outputs = {};
    tape.backward(ctx, place_.options().weight_grads);
    tape.run_weight_grads(ctx);
    for (std::size_t i = 0; i < leaves.size(); ++i) {
      const Tensor gradient = tape.take_gradient(leaves[i]);
      REQUIRE(gradient.defined());
      result.gradients["input " + std::to_string(i)] = values_of(gradient);
    }
    for (const auto& p : place_.store().all()) {
      if (p->is_trained()) result.gradients[p->name()] = values_of(p->grad());
    }
    result.peak_bytes = ledger.peak(Phase::step).total_bytes;
    result.kept_bytes = static_cast<std::int64_t>(ledger.held_bytes() - held);
    return result;
  }

  // The derivative along `direction` of the variable `name`.
  double difference(const std::string& name, const std::vector<double>& direction) {
    const std::vector<double> start = variables.at(name);
    const auto at = [&](double t) {
      std::vector<double>& moved = variables.at(name);
      for (std::size_t i = 0; i < start.size(); ++i) moved[i] = start[i] + t * direction[i];
      write_parameters();
      return value();
    };
    const double h = kStep;
    const double slope = (at(-2 * h) - 8 * at(-h) + 8 * at(h) - at(2 * h)) / (12 * h);
    at(0);
    return slope;
  }

  std::map<std::string, std::vector<double>> variables;

 private:
  void write_parameters() {
    for (const auto& p : place_.store().all()) {
      const std::vector<double>& values = variables.at(p->name());
      if (p->master().dtype() == DType::f64) {
        place_.store().write(*p, std::as_bytes(std::span(values)));
      } else {
        const std::vector<float> narrow(values.begin(), values.end());
        place_.store().write(*p, std::as_bytes(std::span(narrow)));
      }
    }
  }

  std::vector<Var> inputs(Tape* tape) {
    std::vector<Var> vars;
    for (std::size_t i = 0; i < problem_->inputs.size(); ++i) {
      Tensor tensor =
          place_.tensor(variables.at("input " + std::to_string(i)), problem_->inputs[i]);
      vars.push_back(tape != nullptr ? tape->leaf(std::move(tensor))
                                     : Var{std::move(tensor), -1, nullptr});
    }
    return vars;
  }

  static std::string output_name(std::size_t i) { return "output " + std::to_string(i); }

  static double value_of(const OpCtx& ctx, const Outputs& outputs) {
    if (outputs.loss_sum.defined()) {
      const std::vector<double> losses = values_of(outputs.loss_sum);
      return ctx.step.grad_scale * std::accumulate(losses.begin(), losses.end(), 0.0);
    }
    double sum = 0;
    for (std::size_t i = 0; i < outputs.values.size(); ++i) {
      const std::vector<double> y = values_of(outputs.values[i].tensor);
      const std::vector<double> dy =
          fixed_values(output_name(i), static_cast<std::int64_t>(y.size()));
      sum = std::inner_product(y.begin(), y.end(), dy.begin(), sum);
    }
    return sum;
  }

  void seed(const OpCtx&, Tape& tape, const Outputs& outputs, Results& results) {
    for (std::size_t i = 0; i < outputs.values.size(); ++i) {
      const Var& y = outputs.values[i];
      results[output_name(i)] = values_of(y.tensor);
      if (outputs.loss_sum.defined()) {
        tape.seed_root(y);
      } else {
        tape.seed(y,
                  place_.tensor(fixed_values(output_name(i), y.tensor.numel()), y.tensor.shape()));
      }
    }
  }

  const Problem* problem_;
  Place place_;
  Forward forward_;
};

std::vector<double> differences(Trial& trial, const std::string& name) {
  const std::size_t n = trial.variables.at(name).size();
  std::vector<double> slopes(n);
  for (std::size_t i = 0; i < n; ++i) {
    std::vector<double> direction(n, 0);
    direction[i] = 1;
    slopes[i] = trial.difference(name, direction);
  }
  return slopes;
}

void check_direction(Trial& trial, const std::string& name, const std::vector<double>& gradient,
                     double limit) {
  std::vector<double> direction =
      fixed_values(name + " direction", static_cast<std::int64_t>(gradient.size()));
  const double length = norm_of(direction);
  for (double& x : direction) x /= length;
  const double expected = trial.difference(name, direction);
  const double found = std::inner_product(gradient.begin(), gradient.end(), direction.begin(), 0.0);
  CHECK(std::abs(found - expected) <= limit);
}

}  // namespace

std::vector<double> values_of(const Tensor& tensor) {
  if (tensor.dtype() == DType::f64) return download<double>(tensor);
  if (tensor.dtype() == DType::bf16) return download<bf16>(tensor);
  return download<float>(tensor);
}

Place::Place(const RowLayout& layout, TrialOptions options)
    : options_(std::move(options)),
      device_(make_cpu_memory(), std::uint64_t{1} << 28),
      mesh_({}, 0, self_factory()),
      store_(mesh_),
      layout_(layout) {
  std::vector<std::int64_t> token_id, sample;
  std::vector<std::int32_t> position, embedding_position, document_begin;
  for (std::int64_t s = 0; s < layout.sequences; ++s) {
    sample.push_back(kFirstSample + s);
    std::int32_t begin = 0;
    for (std::int32_t t = 0; t < layout.length; ++t) {
      if (std::ranges::count(layout.document_starts, t) > 0) begin = t;
      token_id.push_back((kFirstSample + s) * layout.length + t);
      position.push_back(t);
      document_begin.push_back(begin);
      embedding_position.push_back(layout.restart_positions ? t - begin : t);
    }
  }
  const Shape shape{layout.rows()};
  const auto ids = [&](const std::vector<std::int64_t>& values) {
    Tensor tensor = device_.allocate({static_cast<std::int64_t>(values.size())}, DType::i64,
                                     Category::activations, "rows");
    upload(tensor, values);
    return tensor;
  };
  rows_ = {.num_sequences = layout.sequences,
           .rows_per_sequence = layout.length,
           .seq_len = layout.length,
           .token_id = ids(token_id),
           .position = ints(position),
           .embedding_position = ints(embedding_position),
           .document_begin = ints(document_begin),
           .sample = ids(sample)};
}

OpCtx Place::context() {
  OpCtx ctx{.kernel = {.device = &device_, .table = options_.table, .threads = 2},
            .training = true,
            .mesh = &mesh_,
            .rows = &rows_,
            .step = {.seed = 11, .step = 5, .grad_scale = 0.25},
            .recomputed_ops = &options_.recomputed_ops};
  return ctx;
}

Tensor Place::tensor(const std::vector<double>& values, const Shape& shape) {
  return tensor(values, shape, options_.compute);
}

Tensor Place::tensor(const std::vector<double>& values, const Shape& shape, DType dtype) {
  Tensor tensor = device_.allocate(shape, dtype, Category::activations, "values");
  write_values(tensor, values);
  return tensor;
}

Tensor Place::ints(const std::vector<std::int32_t>& values) {
  Tensor tensor = device_.allocate({static_cast<std::int64_t>(values.size())}, DType::i32,
                                   Category::activations, "ints");
  upload(tensor, values);
  return tensor;
}

void Place::allocate_parameters(const ParameterGroup& group, const std::vector<double>& values) {
  const DType wide = options_.compute == DType::f64 ? DType::f64 : DType::f32;
  store_.allocate(device_, {options_.compute, wide, wide}, true);
  write_values(group.compute(), values);
}

ops::RopeTables Place::rope_tables(std::int64_t rotary_dim, double theta) {
  const std::int64_t half = rotary_dim / 2;
  std::vector<double> cosine, sine;
  for (std::int64_t p = 0; p < layout_.length; ++p) {
    for (std::int64_t i = 0; i < half; ++i) {
      const double angle =
          static_cast<double>(p) *
          std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(rotary_dim));
      cosine.push_back(std::cos(angle));
      sine.push_back(std::sin(angle));
    }
  }
  const DType dtype = statistics_dtype(options_.compute);
  const Shape shape{layout_.length, half};
  return {tensor(cosine, shape, dtype), tensor(sine, shape, dtype), rotary_dim};
}

TrialResult run_trial(const Problem& problem, const TrialOptions& options) {
  return Trial(problem, options).backward();
}

void check_gradients(const Problem& problem, double tolerance) {
  Trial trial(problem, {});
  const Results gradients = trial.backward().gradients;
  const double floor = 1e-3 * largest_norm(gradients);
  REQUIRE(floor > 0);
  for (const auto& [name, gradient] : gradients) {
    CAPTURE(name);
    check_direction(trial, name, gradient, tolerance * std::max(norm_of(gradient), floor));
    if (static_cast<std::int64_t>(gradient.size()) > kEveryElement) continue;
    const std::vector<double> expected = differences(trial, name);
    CHECK(distance(gradient, expected) <= tolerance * std::max(norm_of(expected), floor));
  }
}

namespace {

void check_same_bits(const Results& a, const Results& b) {
  REQUIRE(a.size() == b.size());
  for (const auto& [name, values] : a) {
    CAPTURE(name);
    const std::vector<double>& other = b.at(name);
    REQUIRE(values.size() == other.size());
    CHECK(std::memcmp(values.data(), other.data(), values.size() * sizeof(double)) == 0);
  }
}

void check_errors(const Results& fast, const Results& plain, const Results& exact, double factor,
                  double least) {
  const double floor = 1e-3 * largest_norm(exact);
  for (const auto& [name, values] : exact) {
    CAPTURE(name);
    const double scale = std::max(norm_of(values), floor);
    const double error = distance(plain.at(name), values) / scale;
    CHECK(distance(fast.at(name), values) / scale <= std::max(factor * error, least));
  }
}

}  // namespace

void check_same_bits(const TrialResult& a, const TrialResult& b) {
  check_same_bits(a.outputs, b.outputs);
  check_same_bits(a.gradients, b.gradients);
}

void check_fast_path(const Problem& problem) {
  const TrialResult exact = run_trial(problem, {});
  for (const DType dtype : {DType::f32, DType::bf16}) {
    CAPTURE(to_string(dtype));
    const TrialResult plain = run_trial(problem, {.compute = dtype});
    const TrialResult fast = run_trial(problem, {.compute = dtype, .table = &kernels::cpu_table()});
    const double factor = dtype == DType::f32 ? 4 : 2;
    const double least = dtype == DType::f32 ? 1e-5 : 0;
    check_errors(fast.outputs, plain.outputs, exact.outputs, factor, least);
    check_errors(fast.gradients, plain.gradients, exact.gradients, factor, least);
  }
}

void check_operation(const Problem& problem) {
  check_gradients(problem);
  check_fast_path(problem);
  for (const DType dtype : {DType::f64, DType::bf16}) {
    const TrialOptions now{.compute = dtype, .table = &kernels::cpu_table()};
    TrialOptions deferred = now;
    deferred.weight_grads = WeightGrads::deferred;
    check_same_bits(run_trial(problem, now), run_trial(problem, deferred));
  }
}

}  // namespace llmtrain::test
