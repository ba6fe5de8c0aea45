#include <cmath>

#include <doctest/doctest.h>

#include "tests/support/gradcheck.hpp"

namespace llmtrain::test {

namespace {

constexpr std::int64_t kRows = 5;
constexpr std::int64_t kHidden = 9;

struct NormCase {
  kernels::NormKind kind = kernels::NormKind::rms_norm;
  bool bias = false;
  bool residual = false;
  bool only_sum = false;  // the norm is computed, and nothing reads it
  double weight_offset = 0;
};

// An eps of the size of the variance, so that a misplaced eps is seen.
Problem norm(const NormCase& c) {
  return {
      .rows = {.length = kRows},
      .inputs = c.residual ? std::vector<Shape>{{kRows, kHidden}, {kRows, kHidden}}
                           : std::vector<Shape>{{kRows, kHidden}},
      .build = [c](Place& place) -> Forward {
        const ParameterGroup& w = place.store().declare(
            {.name = "weight", .shape = {kHidden}, .role = ParameterRole::norm, .init = {}});
        const ParameterGroup* b =
            c.bias
                ? &place.store().declare(
                      {.name = "bias", .shape = {kHidden}, .role = ParameterRole::bias, .init = {}})
                : nullptr;
        const ops::NormOptions options{c.kind, 0.25, c.weight_offset};
        return [=, &w](const OpCtx& ctx, std::span<const Var> x) -> Outputs {
          if (!c.residual) return {{ops::norm(ctx, x[0], w, b, options)}};
          const ops::NormResult r = ops::residual_norm(ctx, x[0], x[1], w, b, options);
          return c.only_sum ? Outputs{{r.sum}} : Outputs{{r.sum, r.y}};
        };
      }};
}

// One row through a norm with these weights.
std::vector<double> norm_of(kernels::NormKind kind, const std::vector<double>& row, double eps,
                            double weight_offset = 0) {
  Place place({.length = 1}, {});
  const auto cols = static_cast<std::int64_t>(row.size());
  const ParameterGroup& w = place.store().declare(
      {.name = "weight", .shape = {cols}, .role = ParameterRole::norm, .init = {}});
  std::vector<double> weights(row.size(), 1);
  weights.back() = 10;
  place.allocate_parameters(w, weights);
  const Var x{place.tensor(row, {1, cols}), -1, nullptr};
  return values_of(ops::norm(place.context(), x, w, nullptr, {kind, eps, weight_offset}).tensor);
}

}  // namespace

TEST_CASE("a row is divided by the root of its mean square or variance, eps included") {
  using kernels::NormKind;
  // 3^2 + 4^2 + 0 + 5^2 = 4 * 12.5; and 12.5 + 3.5 = 4^2.
  CHECK(norm_of(NormKind::rms_norm, {3, -4, 0, 5}, 3.5) == std::vector<double>{0.75, -1, 0, 12.5});
  CHECK(norm_of(NormKind::rms_norm, {3, -4, 0, 5}, 3.5, 1) ==
        std::vector<double>{1.5, -2, 0, 13.75});
  // A mean of 2 and a variance of 5; 5 + 11 = 4^2.
  CHECK(norm_of(NormKind::layer_norm, {-1, 5, 1, 3}, 11) ==
        std::vector<double>{-0.75, 0.75, -0.25, 2.5});
}

TEST_CASE("both norms differentiate, with and without residual and bias") {
  for (const auto kind : {kernels::NormKind::rms_norm, kernels::NormKind::layer_norm}) {
    for (const bool bias : {false, true}) {
      for (const bool residual : {false, true}) {
        CAPTURE(static_cast<int>(kind));
        CAPTURE(bias);
        CAPTURE(residual);
        check_operation(norm({kind, bias, residual}));
      }
    }
  }
}

TEST_CASE("a norm adds to the gradient that its input has from elsewhere, and to nobody else's") {
  // Recorded after the norm, walked back before it: another norm, whose gradient nobody shares, or
  // a sum, which has one tensor for both of its terms.
  for (const bool shared : {false, true}) {
    CAPTURE(shared);
    check_operation(
        {.rows = {.length = kRows},
         .inputs = {{kRows, kHidden}, {kRows, kHidden}},
         .build = [shared](Place& place) -> Forward {
           const ParameterGroup& w = place.store().declare(
               {.name = "weight", .shape = {kHidden}, .role = ParameterRole::norm, .init = {}});
           return [=, &w](const OpCtx& ctx, std::span<const Var> x) -> Outputs {
             const ops::NormOptions options{kernels::NormKind::rms_norm, 0.25, 0};
             Var y = ops::norm(ctx, x[0], w, nullptr, options);
             if (shared) return {{std::move(y), ops::add(ctx, x[0], x[1])}};
             Var z = ops::norm(ctx, x[0], w, nullptr, options);
             return {{std::move(y), std::move(z), ops::norm(ctx, x[1], w, nullptr, options)}};
           };
         }});
  }
}

TEST_CASE("norms over the heads of q and k differentiate, and leave v alone") {
  for (const std::int64_t kv_heads : {1, 2}) {
    CAPTURE(kv_heads);
    const ops::HeadLayout heads{.num_heads = 4, .num_kv_heads = kv_heads, .head_dim = 6};
    check_operation({.rows = {.length = kRows},
                     .inputs = {{kRows, heads.cols()}},
                     .build = [heads](Place& place) -> Forward {
                       const auto weight = [&](const char* name) {
                         return &place.store().declare({.name = name,
                                                        .shape = {heads.head_dim},
                                                        .role = ParameterRole::norm,
                                                        .init = {}});
                       };
                       const ParameterGroup* q = weight("q_norm");
                       const ParameterGroup* k = weight("k_norm");
                       return [=](const OpCtx& ctx, std::span<const Var> x) -> Outputs {
                         return {{ops::head_norm(ctx, x[0], heads, *q, *k, 0.25)}};
                       };
                     }});
  }
}

TEST_CASE("norms over heads and RoPE in one differentiate, and are those one after the other") {
  for (const std::int64_t rotary_dim : {6, 2}) {
    for (const std::int64_t kv_heads : {1, 2}) {
      const ops::HeadLayout heads{.num_heads = 4, .num_kv_heads = kv_heads, .head_dim = 6};
      const auto problem = [&](bool fused) -> Problem {
        return {.rows = {.sequences = 2, .length = 5, .document_starts = {0, 3}},
                .inputs = {{10, heads.cols()}},
                .build = [heads, rotary_dim, fused](Place& place) -> Forward {
                  const auto weight = [&](const char* name) {
                    return &place.store().declare({.name = name,
                                                   .shape = {heads.head_dim},
                                                   .role = ParameterRole::norm,
                                                   .init = {}});
                  };
                  const ParameterGroup* q = weight("q_norm");
                  const ParameterGroup* k = weight("k_norm");
                  const ops::RopeTables tables = place.rope_tables(rotary_dim);
                  return [=](const OpCtx& ctx, std::span<const Var> x) -> Outputs {
                    if (fused) {
                      return {{ops::head_norm_rope(ctx, x[0], heads, *q, *k, 0.25, tables)}};
                    }
                    const Var y = ops::head_norm(ctx, x[0], heads, *q, *k, 0.25);
                    return {{ops::rope(ctx, y, heads, tables)}};
                  };
                }};
      };
      check_operation(problem(true));
      const TrialResult fused = run_trial(problem(true), {}), apart = run_trial(problem(false), {});
      const auto check_equal = [](const Results& a, const Results& b) {
        for (const auto& [name, values] : b) {
          CAPTURE(name);
          REQUIRE(a.at(name).size() == values.size());
          for (std::size_t i = 0; i < values.size(); ++i) {
            CHECK(std::abs(a.at(name)[i] - values[i]) < 1e-13 * (1 + std::abs(values[i])));
          }
        }
      };
      check_equal(fused.outputs, apart.outputs);
      check_equal(fused.gradients, apart.gradients);
    }
  }
}

TEST_CASE("weights that count from one differentiate") {
  for (const auto kind : {kernels::NormKind::rms_norm, kernels::NormKind::layer_norm}) {
    check_operation(norm({.kind = kind, .residual = true, .weight_offset = 1}));
  }
}

TEST_CASE("a norm that nothing reads lets the gradient of the residual sum through") {
  check_operation(norm({.residual = true, .only_sum = true}));
}

}  // namespace llmtrain::test
