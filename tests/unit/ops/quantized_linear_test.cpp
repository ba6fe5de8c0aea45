// Linear layers in FP8: products of the numbers that codes stand for, what is kept and counted, and
// which layers are chosen.
#include "lib/ops/quantized_linear.hpp"

#include <cmath>

#include <doctest/doctest.h>

#include "kernels/code_matmul.hpp"
#include "lib/base/error.hpp"
#include "lib/param/quantized_layers.hpp"
#include "tests/support/formula.hpp"
#include "tests/support/gradcheck.hpp"
#include "tests/support/relative.hpp"

namespace llmtrain::test {

namespace {

constexpr std::int64_t kRows = 160, kIn = 208, kOut = 144;  // no whole blocks of 128

using Matrix = std::vector<double>;

Matrix matrix(std::string_view name, std::int64_t rows, std::int64_t cols, double scale) {
  const std::vector<float> values = formula_weights(name, rows * cols, 0, scale);
  return {values.begin(), values.end()};
}

ParameterSpec linear_spec(const std::string& name, std::int64_t out, std::int64_t in,
                          bool linear = true) {
  return {.name = name, .shape = {out, in}, .init = {}, .linear = linear};
}

// What the codes of a block stand for, with a scale from its amax (or a given one).
struct Fake {
  kernels::Quantizer quantizer;
  double scale = 0;  // 0: from the amax

  Matrix operator()(const Matrix& x, std::int64_t rows, std::int64_t cols) const {
    Matrix y(x.size());
    const std::int64_t down = quantizer.block.rows_of(rows), across = quantizer.block.cols_of(cols);
    for (std::int64_t r = 0; r < rows; r += down) {
      for (std::int64_t c = 0; c < cols; c += across) {
        const auto each = [&](const auto& f) {
          for (std::int64_t i = r; i < std::min(rows, r + down); ++i) {
            for (std::int64_t j = c; j < std::min(cols, c + across); ++j) {
              f(static_cast<std::size_t>(i * cols + j));
            }
          }
        };
        float amax = 0;
        each([&](std::size_t i) { amax = std::max(amax, std::abs(static_cast<float>(x[i]))); });
        const float max = quantizer.format.max;
        kernels::Scale s =
            kernels::scale_of_amax(max, amax, kernels::kMaxF32, quantizer.power_of_two);
        if (scale != 0) {
          s = {static_cast<float>(scale), 1 / static_cast<float>(scale)};
        }
        each([&](std::size_t i) {
          const auto code = kernels::encode(quantizer.format, static_cast<float>(x[i]) * s.scale);
          y[i] = kernels::decode(quantizer.format, code) * s.scale_inv;
        });
      }
    }
    return y;
  }
};

// a [m, k] (or its transpose) times b [k, n] (or its transpose).
Matrix product(const Matrix& a, bool a_transposed, const Matrix& b, bool b_transposed,
               std::int64_t m, std::int64_t n, std::int64_t k) {
  Matrix c(static_cast<std::size_t>(m * n));
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (std::int64_t l = 0; l < k; ++l) {
        sum += a[static_cast<std::size_t>(a_transposed ? l * m + i : i * k + l)] *
               b[static_cast<std::size_t>(b_transposed ? j * k + l : l * n + j)];
      }
      c[static_cast<std::size_t>(i * n + j)] = sum;
    }
  }
  return c;
}

void check_close(const Matrix& found, const Matrix& expected) {
  double largest = 0, error = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    largest = std::max(largest, std::abs(expected[i]));
    error = std::max(error, std::abs(found[i] - expected[i]));
  }
  CHECK(found.size() == expected.size());
  CHECK(error < 1e-5 * largest);
}

/// Layers of three blocks, of which the middle one is quantized.
struct Layers {
  Place place;
  std::vector<const ParameterGroup*> weights;
  std::optional<QuantizedLayers> quantized;

  explicit Layers(const QuantizationOptions& options, bool codes = false)
      : place({.length = kRows}, {.compute = DType::f32, .table = &kernels::cpu_table()}) {
    for (const int block : {0, 1, 2}) {
      weights.push_back(&place.store().declare(
          linear_spec("model.layers." + std::to_string(block) + ".mlp.up_proj.weight", kOut, kIn)));
    }
    place.store().allocate(place.device(), {DType::f32, DType::f32, DType::f32}, true);
    place.store().initialize(0);
    for (const ParameterGroup* group : weights) {
      const std::vector<float> values = formula_weights(group->name(), kOut * kIn, 0, 0.05);
      place.device().copy_from_host(group->compute(), std::as_bytes(std::span(values)));
    }
    quantized.emplace(place.context().kernel, options, place.store(), codes);
  }
  Matrix weight(int block) const {
    return values_of(weights[static_cast<std::size_t>(block)]->compute());
  }
};

struct Step {
  Matrix y, dx, dw;
};

Matrix input() { return matrix("fp8 input", kRows, kIn, 3); }
Matrix gradient() { return matrix("fp8 gradient", kRows, kOut, 1e-3); }

/// Counts products.
class Products final : public kernels::Recorder {
 public:
  void record(const kernels::LaunchRecord& launch) override {
    of_codes += launch.name == kernels::CodeMatmul::name ? 1 : 0;
    of_numbers += launch.name == kernels::Matmul::name ? 1 : 0;
    quantizations += launch.name == kernels::Quantize::name ? 1 : 0;
    magnitudes += launch.name == kernels::BlockAmax::name ? 1 : 0;
  }
  int of_codes = 0, of_numbers = 0, quantizations = 0, magnitudes = 0;
};

Step run(Layers& layers, int block, bool recompute = false, WeightGrads when = WeightGrads::now,
         kernels::Recorder* recorder = nullptr) {
  const ParameterGroup& weight = *layers.weights[static_cast<std::size_t>(block)];
  OpCtx ctx = layers.place.context();
  ctx.quantized = &*layers.quantized;
  ctx.kernel.recorder = recorder;
  layers.quantized->scale_weights(ctx.kernel);
  Tape tape;
  ctx.tape = &tape;
  ctx.launch(kernels::Fill{.y = weight.grad(), .value = 0});
  const Var x = tape.leaf(layers.place.tensor(input(), {kRows, kIn}));
  const auto body = [&weight](const OpCtx& inner, const Var& in) {
    return ops::linear(inner, in, weight, nullptr);
  };
  const Var y = recompute ? recompute_segment(ctx, x, body) : body(ctx, x);
  tape.seed(y, layers.place.tensor(gradient(), {kRows, kOut}));
  tape.backward(ctx, when);
  const Matrix dx = values_of(tape.take_gradient(x));
  if (when == WeightGrads::deferred) tape.run_weight_grads(ctx);
  return {values_of(y.tensor), dx, values_of(weight.grad())};
}

void check_step(const Step& found, const Layers& layers, const QuantizationOptions& options,
                const std::vector<double>& scales) {
  const auto fake = [&](LinearOperand operand, bool along_rows) {
    return Fake{quantizer_of(options, operand, along_rows),
                scales.empty() ? 0 : scales[static_cast<std::size_t>(operand)]};
  };
  const Matrix w = layers.weight(1);
  const Matrix wq = fake(LinearOperand::weight, false)(w, kOut, kIn);
  const Matrix xq = fake(LinearOperand::input, false)(input(), kRows, kIn);
  const Matrix dyq = fake(LinearOperand::output_grad, false)(gradient(), kRows, kOut);
  check_close(found.y, product(xq, false, wq, true, kRows, kOut, kIn));
  check_close(found.dx, product(dyq, false, wq, false, kRows, kIn, kOut));
  const Matrix x_rows = fake(LinearOperand::input, true)(input(), kRows, kIn);
  const Matrix dy_rows = fake(LinearOperand::output_grad, true)(gradient(), kRows, kOut);
  check_close(found.dw, product(dy_rows, true, x_rows, false, kOut, kIn, kRows));
}

double largest(const Matrix& x) {
  double most = 0;
  for (const double value : x) most = std::max(most, std::abs(value));
  return most;
}

bool operator==(const Step& a, const Step& b) { return a.y == b.y && a.dx == b.dx && a.dw == b.dw; }

}  // namespace

TEST_CASE(
    "products of a layer in FP8 are those of the numbers that its operands' codes stand for") {
  for (const auto& [scaling, power_of_two] : {std::pair(OperandScaling::current, false),
                                              {OperandScaling::block, false},
                                              {OperandScaling::block, true}}) {
    CAPTURE(static_cast<int>(scaling));
    const QuantizationOptions options{.scaling = scaling, .power_of_two = power_of_two};
    Layers layers(options);
    const Step step = run(layers, 1);
    check_step(step, layers, options, {});
    // What is kept, computed again and deferred changes no bit.
    CHECK(run(layers, 1, true) == step);
    CHECK(run(layers, 1, false, WeightGrads::deferred) == step);
    const Matrix amax = values_of(layers.quantized->all_amax());
    CHECK(amax == Matrix{largest(input()), largest(layers.weight(1)), largest(gradient())});
    CHECK(values_of(layers.quantized->all_saturated()) == Matrix{0, 0, 0});
  }
}

TEST_CASE("a layer that multiplies codes has the products of the numbers that they stand for") {
  const QuantizationOptions options{.scaling = OperandScaling::current};
  Layers layers(options, true);
  Products products;
  const Step step = run(layers, 1, false, WeightGrads::now, &products);
  CHECK(products.of_codes == 3);
  CHECK(products.of_numbers == 0);
  CHECK(products.quantizations == 5);  // that of the output's gradient serves two products
  // Of the weight before the step; of the others, and into what the step reports of them.
  CHECK(products.magnitudes == 5);
  check_step(step, layers, options, {});
  CHECK(run(layers, 1, true) == step);
  CHECK(run(layers, 1, false, WeightGrads::deferred) == step);
  CHECK(values_of(layers.quantized->all_amax()) ==
        Matrix{largest(input()), largest(layers.weight(1)), largest(gradient())});
  // Layers that are not chosen, and sizes that no GPU takes, multiply numbers.
  Products others;
  run(layers, 0, false, WeightGrads::now, &others);
  CHECK(others.of_codes == 0);
  CHECK(layers.quantized->multiplies_codes(*layers.weights[1], kRows));
  CHECK_FALSE(layers.quantized->multiplies_codes(*layers.weights[1], kRows - 8));
  CHECK(layers.quantized->num_multiplying_codes(kRows) == 1);
  CHECK(layers.quantized->num_multiplying_codes(kRows - 8) == 0);
  CHECK(Layers(options).quantized->num_multiplying_codes(kRows) == 0);
}

TEST_CASE("codes by delayed scales are multiplied with these, and those beyond are counted once") {
  const QuantizationOptions options{.scaling = OperandScaling::delayed, .history = 3};
  Layers layers(options, true);
  const kernels::KernelCtx kernel = layers.place.context().kernel;
  check_step(run(layers, 1), layers, options, {1, 1, 1});
  for (const LinearOperand operand : {LinearOperand::input, LinearOperand::output_grad}) {
    kernels::launch(kernel, kernels::Fill{.y = layers.quantized->scale(0, operand), .value = 1e9});
  }
  layers.quantized->begin_step(kernel);
  run(layers, 1, true);
  const auto beyond = [](const Matrix& x, double limit) {
    return static_cast<double>(
        std::count_if(x.begin(), x.end(), [&](double v) { return std::abs(v) * 1e9 > limit; }));
  };
  CHECK(values_of(layers.quantized->all_saturated()) ==
        Matrix{beyond(input(), 464), 0, beyond(gradient(), 61440)});
}

TEST_CASE("layers that are not chosen, and what is no training, multiply operands as they are") {
  Layers layers({});
  const Step step = run(layers, 0);
  check_close(step.y, product(input(), false, layers.weight(0), true, kRows, kOut, kIn));
  check_close(step.dw, product(gradient(), true, input(), false, kOut, kIn, kRows));
  OpCtx ctx = layers.place.context();
  ctx.quantized = &*layers.quantized;
  ctx.training = false;
  const Var x{layers.place.tensor(input(), {kRows, kIn}), -1, nullptr};
  const Var y = ops::linear(ctx, x, *layers.weights[1], nullptr);
  check_close(values_of(y.tensor),
              product(input(), false, layers.weight(1), true, kRows, kOut, kIn));
}

TEST_CASE("delayed scales are those of the step before, and numbers that do not fit are counted") {
  const QuantizationOptions options{.scaling = OperandScaling::delayed, .history = 3, .margin = 1};
  Layers layers(options);
  const kernels::KernelCtx kernel = layers.place.context().kernel;
  check_step(run(layers, 1), layers, options, {1, 1, 1});
  layers.quantized->end_step(kernel, {});
  const std::vector<double> scales{448.0f / static_cast<float>(largest(input())) / 2,
                                   448.0f / static_cast<float>(largest(layers.weight(1))) / 2,
                                   57344.0f / static_cast<float>(largest(gradient())) / 2};
  layers.quantized->begin_step(kernel);
  const Step second = run(layers, 1);
  check_step(second, layers, options, scales);
  CHECK(values_of(layers.quantized->all_saturated()) == Matrix{0, 0, 0});
  // A hundred times as large a scale: most numbers are beyond the format, in the recomputed pass
  // and in both products counted once.
  for (const LinearOperand operand : {LinearOperand::input, LinearOperand::output_grad}) {
    kernels::launch(kernel, kernels::Fill{.y = layers.quantized->scale(0, operand), .value = 1e9});
  }
  layers.quantized->begin_step(kernel);
  const Step third = run(layers, 1, true);
  const Matrix saturated = values_of(layers.quantized->all_saturated());
  const auto beyond = [](const Matrix& x, double limit) {
    return static_cast<double>(
        std::count_if(x.begin(), x.end(), [&](double v) { return std::abs(v) * 1e9 > limit; }));
  };
  CHECK(saturated[0] == beyond(input(), 464));
  CHECK(saturated[1] == 0);
  CHECK(saturated[2] == beyond(gradient(), 61440));
  CHECK_FALSE(third == second);
}

TEST_CASE("states of delayed scales are three numbers, and three histories, of each layer") {
  Layers layers({.scaling = OperandScaling::delayed, .history = 4, .include = {"*"}});
  const auto& states = layers.quantized->states();
  REQUIRE(states.size() == 9);
  CHECK(layers.quantized->state_names().size() == 9);
  CHECK(states[0].name == "model.layers.0.mlp.up_proj.weight#fp8_scale");
  CHECK(states[4].name == "model.layers.1.mlp.up_proj.weight#fp8_scale_inv");
  CHECK(states[8].name == "model.layers.2.mlp.up_proj.weight#fp8_history");
  CHECK(states[8].place.global_shape == Shape{3, 3});
  CHECK(states[8].is_first);
  run(layers, 2);
  layers.quantized->end_step(layers.place.context().kernel, {});
  const double most = largest(layers.weight(2));
  CHECK(values_of(states[6].tensor)[1] == 448.0f / static_cast<float>(most));
  CHECK(values_of(states[8].tensor) ==
        Matrix{0, 0, largest(input()), 0, 0, most, 0, 0, largest(gradient())});
  CHECK(Layers({.scaling = OperandScaling::delayed, .history = 1}).quantized->states().size() == 2);
  CHECK(Layers({.scaling = OperandScaling::current}).quantized->states().empty());
}

TEST_CASE("layers are chosen by the names of their weights") {
  Place place({.length = 1}, {});
  ParameterStore& store = place.store();
  store.declare(linear_spec("model.embed_tokens.weight", 4, 4, false));
  for (const int block : {0, 1, 2, 10}) {
    const std::string name = "model.layers." + std::to_string(block);
    store.declare({linear_spec(name + ".self_attn.q_proj.weight", 4, 4),
                   linear_spec(name + ".self_attn.k_proj.weight", 4, 4)});
    store.declare(linear_spec(name + ".mlp.down_proj.weight", 4, 4));
    store.declare(linear_spec(name + ".mlp.gate.weight", 4, 4, false));
  }
  store.allocate(place.device(), {}, true);
  const auto chosen = [&](std::vector<std::string> include, std::vector<std::string> exclude) {
    return QuantizedLayers(place.context().kernel,
                           {.include = std::move(include), .exclude = std::move(exclude)}, store)
        .names();
  };
  const std::vector<std::string> inner{
      "model.layers.1.self_attn.q_proj.weight", "model.layers.1.mlp.down_proj.weight",
      "model.layers.2.self_attn.q_proj.weight", "model.layers.2.mlp.down_proj.weight"};
  CHECK(chosen({}, {}) == inner);
  CHECK(chosen({"*"}, {}).size() == 8);
  CHECK(chosen({"*.10.*k_proj*"}, {}).size() == 5);  // with q_proj, whose product it shares
  CHECK(chosen({}, {"*down_proj*"}) == std::vector{inner[0], inner[2]});
  CHECK(chosen({"*"}, {"*.layers.1.*"}).size() == 6);
  CHECK_THROWS_AS(chosen({"*.mlp.gate.*"}, {}), RecipeError);
  CHECK_THROWS_AS(chosen({}, {"model.embed_tokens.weight"}), RecipeError);
  CHECK_THROWS_AS(chosen({}, {"*"}), RecipeError);
}

}  // namespace llmtrain::test
