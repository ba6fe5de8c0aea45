#include "kernels/attention.hpp"

#include <doctest/doctest.h>

#include "attention_case.hpp"
#include "lib/base/error.hpp"

namespace llmtrain::kernels {

namespace {

double weighted_sum(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// d sum(out * dout) / d x by central differences.
std::vector<double> numeric_gradient(const AttentionCase& c, AttentionData data,
                                     std::vector<double> AttentionData::*x) {
  AttentionRun run(c, DType::f64, cpu_reference_table());
  std::vector<double> gradient;
  for (double& value : data.*x) {
    const double kept = value;
    constexpr double kStep = 1e-5;
    value = kept + kStep;
    run.forward(data);
    const double above = weighted_sum(data.out, data.dout);
    value = kept - kStep;
    run.forward(data);
    const double below = weighted_sum(data.out, data.dout);
    value = kept;
    gradient.push_back((above - below) / (2 * kStep));
  }
  return gradient;
}

}  // namespace

TEST_CASE("attention is softmax(scale q k^T) v over what causality and documents leave") {
  // Scores by hand: one head of one component, q = k = 0, so that all visible keys weigh the same.
  AttentionCase c{.tq = 5, .tk = 5, .heads = 1, .head_dim = 1, .documents = {0, 3}};
  AttentionData data;
  data.q = data.k = {0, 0, 0, 0, 0};
  data.v = {1, 3, 8, 5, 7};
  data.dout = {1, 1, 1, 1, 1};
  data = run_attention(c, data, DType::f64, cpu_reference_table());
  CHECK(max_abs_difference(data.out, {1, 2, 4, 5, 6}) < 1e-15);
  const double two = std::log(2.0);
  CHECK(max_abs_difference(data.lse, {0, two, std::log(3.0), 0, two}) < 1e-15);
  CHECK(max_abs_difference(data.dv, {1 + 0.5 + 1.0 / 3, 0.5 + 1.0 / 3, 1.0 / 3, 1.5, 0.5}) < 1e-15);
}

TEST_CASE("the gradients of attention are those of finite differences") {
  const std::vector<AttentionCase> cases = {
      {.tq = 7, .tk = 7, .heads = 4, .kv_heads = 2, .head_dim = 4, .documents = {0, 3}},
      {.sequences = 2, .tq = 3, .tk = 7, .head_dim = 4, .window = 3, .q_begin = 4},
      {.tq = 6, .tk = 6, .head_dim = 2, .dropout = 0.3, .fused = true},
      {.tq = 4, .tk = 3, .head_dim = 2, .k_begin = 2},
  };
  for (const AttentionCase& c : cases) {
    const AttentionData data =
        run_attention(c, random_operands(c, DType::f64), DType::f64, cpu_reference_table());
    CHECK(max_abs_difference(data.dq, numeric_gradient(c, data, &AttentionData::q)) < 1e-8);
    CHECK(max_abs_difference(data.dk, numeric_gradient(c, data, &AttentionData::k)) < 1e-8);
    CHECK(max_abs_difference(data.dv, numeric_gradient(c, data, &AttentionData::v)) < 1e-8);
  }
}

}  // namespace llmtrain::kernels
