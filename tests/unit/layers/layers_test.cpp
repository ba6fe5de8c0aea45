#include <cmath>

#include <doctest/doctest.h>

#include "lib/layers/attention.hpp"
#include "lib/layers/mlp.hpp"
#include "lib/layers/norm.hpp"
#include "tests/support/gradcheck.hpp"
#include "tests/support/relative.hpp"

namespace llmtrain::test {

namespace {

constexpr std::int64_t kHidden = 6;

// A layer that maps [rows, hidden] to one value.
template <class Make>
Problem of_layer(const RowLayout& rows, const Make& make) {
  return {
      .rows = rows, .inputs = {{rows.rows(), kHidden}}, .build = [make](Place& place) -> Forward {
        const auto layer = make(place);
        return [layer](const OpCtx& ctx, std::span<const Var> x) -> Outputs {
          return {{layer->forward(ctx, x[0])}};
        };
      }};
}

// Owns the tables that the layer points to.
struct AttentionWithTables {
  ops::RopeTables tables;
  layers::Attention attention;

  AttentionWithTables(Place& place, const layers::AttentionConfig& config, bool rope)
      : tables(place.rope_tables(config.heads.head_dim)),
        attention(place.store(), "attention", config, rope ? &tables : nullptr) {}
  Var forward(const OpCtx& ctx, const Var& x) const { return attention.forward(ctx, x); }
};

Problem attention(const RowLayout& rows, const layers::AttentionConfig& config, bool rope) {
  return of_layer(rows, [=](Place& place) {
    return std::make_shared<AttentionWithTables>(place, config, rope);
  });
}

Problem mlp(const layers::MlpConfig& config) {
  return of_layer({.length = 7}, [=](Place& place) {
    return std::make_shared<layers::Mlp>(place.store(), "mlp", config);
  });
}

}  // namespace

TEST_CASE("a linear layer with several outputs differentiates") {
  for (const bool bias : {false, true}) {
    check_operation(of_layer({.length = 7}, [=](Place& place) {
      return std::make_shared<layers::Linear>(
          place.store(), std::vector<layers::LinearOutput>{{"one", 4}, {"two", 3}},
          layers::LinearOptions{.in_features = kHidden, .bias = bias});
    }));
  }
}

TEST_CASE("norm layers differentiate") {
  for (const auto kind : {kernels::NormKind::rms_norm, kernels::NormKind::layer_norm}) {
    for (const bool bias : {false, true}) {
      check_operation(of_layer({.length = 7}, [=](Place& place) {
        return std::make_shared<layers::Norm>(place.store(), "norm", kHidden, bias,
                                              ops::NormOptions{kind, 1e-5});
      }));
    }
  }
}

TEST_CASE("attention layers differentiate, with learned positions and with rope") {
  check_operation(attention({.sequences = 2, .length = 5},
                            {.hidden_size = kHidden,
                             .heads = {2, 2, 3},
                             .qkv_bias = true,
                             .output_bias = true,
                             .dropout = 0.2},
                            false));
  check_operation(attention({.length = 7, .document_starts = {0, 3}},
                            {.hidden_size = kHidden, .heads = {4, 2, 4}, .window = 3}, true));
  check_operation(attention({.length = 7},
                            {.hidden_size = kHidden, .heads = {3, 1, 2}, .qkv_bias = true}, true));
}

TEST_CASE("MLPs differentiate, plain and gated") {
  check_operation(mlp({.hidden_size = kHidden,
                       .intermediate_size = 10,
                       .activation = kernels::Activation::gelu_pytorch_tanh,
                       .bias = true}));
  check_operation(mlp({.hidden_size = kHidden,
                       .intermediate_size = 9,
                       .activation = kernels::Activation::silu,
                       .gated = true}));
}

TEST_CASE("layers declare their parameters in the roles that weight decay asks for") {
  Place place({}, {});
  const layers::Attention attention(
      place.store(), "attention",
      {.hidden_size = kHidden, .heads = {2, 1, 3}, .qkv_bias = true, .output_bias = true}, nullptr);
  const layers::Norm norm(place.store(), "norm", kHidden, true, {});
  CHECK(place.store().all().size() == 10);
  for (const auto& p : place.store().all()) {
    CAPTURE(p->name());
    const bool bias = p->name().ends_with(".bias");
    const bool in_norm = p->name().starts_with("norm.");
    CHECK(p->role() == (bias      ? ParameterRole::bias
                        : in_norm ? ParameterRole::norm
                                  : ParameterRole::matrix));
  }
}

TEST_CASE("attention scales its scores by one over the root of the head width") {
  // One head of width 4; q, k and v are the row itself.
  const layers::AttentionConfig config{.hidden_size = 4, .heads = {1, 1, 4}};
  Place place({.length = 2}, {});
  const layers::Attention layer(place.store(), "attention", config, nullptr);
  place.store().allocate(place.device(), {DType::f64, DType::f64, DType::f64}, false);
  const std::vector<double> identity{1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1};
  for (const auto& p : place.store().all()) {
    place.store().write(*p, std::as_bytes(std::span(identity)));
  }
  const Var x{place.tensor({0, 0, 0, 1, 2, 0, 0, 0}, {2, 4}), -1, nullptr};
  const Tensor y = layer.forward(place.context(), x).tensor;
  std::vector<double> values(8);
  place.device().copy_to_host(std::as_writable_bytes(std::span(values)), y);
  // Scores of the second row: 0 and 2 * 2 / sqrt(4).
  const double second = 1 / (1 + std::exp(-2.0));
  CHECK(values[4] == test::relative(2 * second, 1e-12));
  CHECK(values[7] == test::relative(1 - second, 1e-12));
}

}  // namespace llmtrain::test
