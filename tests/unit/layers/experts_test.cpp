#include "lib/layers/experts.hpp"

#include <cstring>

#include <doctest/doctest.h>

#include "tests/support/gradcheck.hpp"

namespace llmtrain::test {

namespace {

constexpr std::int64_t kHidden = 6;
constexpr kernels::RouterRule kGroups{.top_k = 3,
                                      .scores = kernels::RouterScores::sigmoid,
                                      .normalize = true,
                                      .scale = 2.5,
                                      .groups = 4,
                                      .kept_groups = 2};

layers::ExpertsConfig config(const kernels::RouterRule& rule) {
  return {.hidden_size = kHidden,
          .intermediate_size = 5,
          .activation = kernels::Activation::silu,
          .router = {.experts = 8, .rule = rule}};
}

Problem experts(const layers::ExpertsConfig& of) {
  const RowLayout rows{.sequences = 2, .length = 5};
  return {.rows = rows, .inputs = {{rows.rows(), kHidden}}, .build = [of](Place& place) -> Forward {
            const auto layer = std::make_shared<layers::Experts>(place.store(), "mlp", of);
            return [layer](const OpCtx& ctx, std::span<const Var> x) -> Outputs {
              return {{layer->forward(ctx, x[0])}};
            };
          }};
}

/// One layer behind another.
Problem two_layers(const layers::ExpertsConfig& of) {
  Problem problem = experts(of);
  problem.build = [of](Place& place) -> Forward {
    const auto first = std::make_shared<layers::Experts>(place.store(), "first", of);
    const auto second = std::make_shared<layers::Experts>(place.store(), "second", of);
    return [first, second](const OpCtx& ctx, std::span<const Var> x) -> Outputs {
      return {{second->forward(ctx, first->forward(ctx, x[0]))}};
    };
  };
  return problem;
}

}  // namespace

TEST_CASE("experts differentiate, with shared ones, groups and a bias of the choice") {
  check_operation(experts(config({.top_k = 2})));
  layers::ExpertsConfig all = config(kGroups);
  check_operation(experts(all));
  all.correction_bias = true;
  check_operation(experts(all));
  all.shared_size = 7;
  check_operation(experts(all));
}

TEST_CASE("experts with limited room differentiate") {
  layers::ExpertsConfig some = config({.top_k = 2});
  some.router.capacity_factor = 0.7;  // one of each sequence's five tokens
  check_operation(experts(some));
  some = config(kGroups);
  some.router.capacity_factor = 0.6;
  some.shared_size = 7;
  check_operation(experts(some));
}

TEST_CASE("what experts compute again changes no bit and lowers the peak") {
  layers::ExpertsConfig all = config(kGroups);
  all.shared_size = 7;
  for (const DType dtype : {DType::f64, DType::bf16}) {
    const TrialOptions options{.compute = dtype, .table = &kernels::cpu_table()};
    const TrialResult plain = run_trial(two_layers(all), options);
    std::uint64_t last = plain.peak_bytes;
    for (const RecomputedOps& names :
         {RecomputedOps{"up_proj"}, RecomputedOps{"activation", "up_proj"}}) {
      for (const WeightGrads when : {WeightGrads::deferred, WeightGrads::now}) {
        TrialOptions policy = options;
        policy.recomputed_ops = names;
        policy.weight_grads = when;
        const TrialResult result = run_trial(two_layers(all), policy);
        check_same_bits(plain, result);
        CHECK(result.kept_bytes == 0);
        // In bf16 what the products take at a time is most of the peak.
        if (when == WeightGrads::deferred || dtype == DType::bf16) continue;
        CHECK(result.peak_bytes < last);
        last = result.peak_bytes;
      }
    }
  }
}

TEST_CASE("a token that no expert has room for gets nothing, the others what they got before") {
  layers::ExpertsConfig all = config({.top_k = 1});
  layers::ExpertsConfig some = all;
  some.router.capacity_factor = 0.1;  // one token of each sequence
  Place place({.sequences = 2, .length = 5}, {});
  const layers::Experts dropless(place.store(), "mlp", all), limited(place.store(), "other", some);
  place.store().allocate(place.device(), {DType::f64, DType::f64, DType::f64}, false);
  place.store().initialize(3);
  for (const auto& p : place.store().all()) {
    std::string of = p->name();
    if (of.starts_with("other")) of.replace(0, 5, "mlp");
    place.store().write(*p, place.store().read(place.store().find(of)));
  }
  // All rows are multiples of one, so all choose the same expert, and the largest scores highest.
  const std::vector<double> factors{1, 3, 2, 3, 1, 2, 2, 1, 2, 1};
  std::vector<double> rows;
  for (const double factor : factors) {
    for (int j = 0; j < kHidden; ++j) rows.push_back(factor * (0.4 * ((5 * j) % 7) - 1));
  }
  const Var x{place.tensor(rows, {10, kHidden}), -1, nullptr};
  const OpCtx ctx = place.context();
  const std::vector<double> before = values_of(dropless.forward(ctx, x).tensor);
  const std::vector<double> after = values_of(limited.forward(ctx, x).tensor);
  for (std::size_t i = 0; i < after.size(); ++i) {
    const std::size_t row = i / kHidden;
    CHECK(before[i] != 0);
    CHECK(after[i] == (row == 1 || row == 5 ? before[i] : 0));
  }
  CHECK(values_of(limited.forward(ctx, x, false).tensor) == before);
}

TEST_CASE("what every token sees is added to what its experts return") {
  layers::ExpertsConfig all = config(kGroups);
  all.shared_size = 7;
  all.correction_bias = true;
  Place place({.sequences = 2, .length = 5}, {});
  const layers::Experts layer(place.store(), "mlp", all);
  all.shared_size = 0;
  const layers::Experts routed(place.store(), "routed", all);
  const layers::Mlp shared(place.store(), "alone",
                           {.hidden_size = kHidden,
                            .intermediate_size = 7,
                            .activation = kernels::Activation::silu,
                            .gated = true});
  place.store().allocate(place.device(), {DType::f64, DType::f64, DType::f64}, false);
  place.store().initialize(3);
  // The three parts have the values of the whole.
  for (const auto& p : place.store().all()) {
    std::string of = p->name();
    if (of.starts_with("routed")) of.replace(0, 6, "mlp");
    if (of.starts_with("alone")) of.replace(0, 5, "mlp.shared_experts");
    place.store().write(*p, place.store().read(place.store().find(of)));
  }
  std::vector<double> rows;
  for (int i = 0; i < 60; ++i) rows.push_back(0.1 * ((7 * i) % 23) - 1);
  const Var x{place.tensor(rows, {10, kHidden}), -1, nullptr};
  const OpCtx ctx = place.context();
  const std::vector<double> whole = values_of(layer.forward(ctx, x).tensor);
  const std::vector<double> a = values_of(routed.forward(ctx, x).tensor);
  const std::vector<double> b = values_of(shared.forward(ctx, x).tensor);
  for (std::size_t i = 0; i < whole.size(); ++i) CHECK(whole[i] == a[i] + b[i]);
  CHECK(b[0] != 0);
}

TEST_CASE("a correction bias has no gradient, no sink, and the dtype of masters") {
  layers::ExpertsConfig biased = config(kGroups);
  biased.correction_bias = true;
  Place place({}, {.compute = DType::bf16});
  const layers::Experts layer(place.store(), "mlp", biased);
  place.store().allocate(place.device(), {DType::bf16, DType::f32, DType::f32}, true);
  const Parameter& bias = place.store().find("mlp.gate.e_score_correction_bias");
  CHECK_FALSE(bias.is_trained());
  CHECK_FALSE(bias.grad().defined());
  CHECK_FALSE(bias.has_separate_copy());
  CHECK(bias.compute().dtype() == DType::f32);
  CHECK(bias.compute().numel() == 8);
  for (const ParameterGroup* group : place.store().local_groups()) {
    CHECK(group->members().front() != &bias);
  }
}

}  // namespace llmtrain::test
