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
