#include <doctest/doctest.h>

#include "tests/support/gradcheck.hpp"

namespace llmtrain::test {

namespace {

constexpr std::int64_t kHidden = 5;
const std::vector<std::int32_t> kIds{3, 0, 6, 3, 3, 1};

ParameterSpec table(std::string name, std::int64_t rows) {
  return {.name = std::move(name),
          .shape = {rows, kHidden},
          .role = ParameterRole::embedding,
          .init = {}};
}

}  // namespace

TEST_CASE("each id gives its row of the table") {
  Place place({.length = 3}, {});
  const ParameterGroup& w = place.store().declare(
      {.name = "tokens", .shape = {4, 2}, .role = ParameterRole::embedding, .init = {}});
  place.allocate_parameters(w, {0, 1, 10, 11, 20, 21, 30, 31});
  const Var y = ops::embedding(place.context(), place.ints({3, 0, 3}), w);
  CHECK(values_of(y.tensor) == std::vector<double>{30, 31, 0, 1, 30, 31});
}

TEST_CASE("rows looked up several times collect all gradients") {
  check_operation({.rows = {.length = 6}, .inputs = {}, .build = [](Place& place) -> Forward {
                     const ParameterGroup& w = place.store().declare(table("tokens", 7));
                     const Tensor ids = place.ints(kIds);
                     return [&w, ids](const OpCtx& ctx, std::span<const Var>) -> Outputs {
                       return {{ops::embedding(ctx, ids, w)}};
                     };
                   }});
}

TEST_CASE("tokens and positions each get the gradient by their own ids") {
  check_operation({.rows = {.length = 6, .document_starts = {0, 4}},
                   .inputs = {},
                   .build = [](Place& place) -> Forward {
                     const ParameterGroup& w = place.store().declare(table("tokens", 7));
                     const ParameterGroup& p = place.store().declare(table("positions", 6));
                     const Tensor ids = place.ints(kIds);
                     return [&w, &p, ids](const OpCtx& ctx, std::span<const Var>) -> Outputs {
                       return {{ops::embedding_sum(ctx, ids, w, ctx.rows->embedding_position, p)}};
                     };
                   }});
}

}  // namespace llmtrain::test
