#include <algorithm>
#include <cmath>

#include <doctest/doctest.h>

#include "tests/support/formula.hpp"
#include "tests/support/gradcheck.hpp"
#include "tests/support/relative.hpp"

namespace llmtrain::test {

namespace {

struct AttentionCase {
  RowLayout rows{.length = 7};
  ops::HeadLayout heads{2, 2, 4};
  std::int64_t window = 0;
  double dropout = 0;
  double scale = 1.5;  // large enough for peaked probabilities
  double softcap = 0;
  bool alibi = false, sinks = false;
};

// The options of a case, and what they point to.
struct Extras {
  Tensor slopes;
  const ParameterGroup* sinks = nullptr;

  Extras(Place& place, const AttentionCase& c) {
    const std::int64_t heads = c.heads.num_heads;
    if (c.alibi) {
      const DType dtype = statistics_dtype(place.options().compute);
      slopes =
          place.tensor(std::vector<double>(static_cast<std::size_t>(heads), 0.25), {heads}, dtype);
    }
    if (c.sinks) {
      sinks = &place.store().declare({.name = "sinks", .shape = {heads}, .init = {}});
    }
  }
};

ops::AttentionOptions options_of(const AttentionCase& c) {
  return {.heads = c.heads,
          .scale = c.scale,
          .softcap = c.softcap,
          .window = c.window,
          .dropout = c.dropout,
          .dropout_name = "here"};
}

Problem attention(const AttentionCase& c) {
  return {.rows = c.rows,
          .inputs = {{c.rows.rows(), c.heads.cols()}},
          .build = [c](Place& place) -> Forward {
            const auto extras = std::make_shared<Extras>(place, c);
            return [c, extras](const OpCtx& ctx, std::span<const Var> x) -> Outputs {
              ops::AttentionOptions options = options_of(c);
              if (c.alibi) options.alibi = &extras->slopes;
              options.sinks = extras->sinks;
              return {{ops::attention(ctx, x[0], options)}};
            };
          }};
}

Problem rope(const RowLayout& rows, const ops::HeadLayout& heads, std::int64_t rotary_dim) {
  return {
      .rows = rows, .inputs = {{rows.rows(), heads.cols()}}, .build = [=](Place& place) -> Forward {
        const ops::RopeTables tables = place.rope_tables(rotary_dim);
        return [=](const OpCtx& ctx, std::span<const Var> x) -> Outputs {
          return {{ops::rope(ctx, x[0], heads, tables)}};
        };
      }};
}

}  // namespace

TEST_CASE("attention differentiates with many, few and one key-value head") {
  check_operation(attention({.heads = {2, 2, 4}}));
  check_operation(attention({.heads = {6, 2, 3}}));
  check_operation(attention({.heads = {4, 1, 5}}));
}

TEST_CASE("attention differentiates over several sequences of several documents") {
  check_operation(attention(
      {.rows = {.sequences = 3, .length = 7, .document_starts = {0, 2, 5}}, .heads = {4, 2, 3}}));
  check_operation(attention({.rows = {.sequences = 2, .length = 1}}));
}

TEST_CASE("attention differentiates through a window") {
  check_operation(attention({.rows = {.length = 13, .document_starts = {0, 8}}, .window = 3}));
  check_operation(attention({.rows = {.length = 5}, .window = 1}));
}

TEST_CASE("attention differentiates through a cap of its scores") {
  for (const double softcap : {0.5, 2.0}) {
    check_operation(attention({.heads = {4, 2, 3}, .softcap = softcap}));
    check_operation(attention({.window = 3, .dropout = 0.3, .softcap = softcap}));
  }
}

TEST_CASE("attention differentiates with ALiBi and with sinks") {
  const RowLayout rows{.sequences = 2, .length = 7, .document_starts = {0, 3}};
  check_operation(attention({.rows = rows, .heads = {4, 2, 3}, .alibi = true}));
  check_operation(attention({.rows = rows, .heads = {4, 2, 3}, .sinks = true}));
  check_operation(attention({.rows = rows,
                             .heads = {4, 1, 3},
                             .window = 2,
                             .dropout = 0.3,
                             .softcap = 2,
                             .alibi = true,
                             .sinks = true}));
}

TEST_CASE("a capped score is softcap tanh(score / softcap)") {
  // The second of two rows has the scores 4 and 0, and the values 1 and 0.
  const AttentionCase c{.rows = {.length = 2}, .heads = {1, 1, 1}, .scale = 2, .softcap = 3};
  Place place(c.rows, {});
  const Var x{place.tensor({0, 2, 1, 1, 0, 0}, {2, 3}), -1, nullptr};
  const double y = values_of(ops::attention(place.context(), x, options_of(c)).tensor).back();
  CHECK(std::abs(std::log(y / (1 - y)) - 3 * std::tanh(4.0 / 3)) < 1e-12);
}

TEST_CASE("attention differentiates through dropout on its probabilities") {
  check_operation(
      attention({.rows = {.sequences = 2, .length = 7}, .heads = {4, 2, 3}, .dropout = 0.3}));
}

TEST_CASE("attention drops nothing outside training") {
  const AttentionCase c{.rows = {.length = 7}, .dropout = 0.5};
  AttentionCase without = c;
  without.dropout = 0;
  Place place(c.rows, {});
  const std::vector<float> u = formula_weights("qkv", 7 * c.heads.cols(), 0, 1);
  const Var x{place.tensor({u.begin(), u.end()}, {7, c.heads.cols()}), -1, nullptr};
  OpCtx ctx = place.context();
  const std::vector<double> all = values_of(ops::attention(ctx, x, options_of(without)).tensor);
  CHECK(values_of(ops::attention(ctx, x, options_of(c)).tensor) != all);
  ctx.training = false;
  CHECK(values_of(ops::attention(ctx, x, options_of(c)).tensor) == all);
}

TEST_CASE("dropout of attention follows the sample, wherever its sequence stands") {
  const AttentionCase c{.rows = {.sequences = 2, .length = 4}, .dropout = 0.5};
  Place place(c.rows, {});
  const std::int64_t cols = c.heads.cols();
  const std::vector<float> u = formula_weights("qkv", 8 * cols, 0, 1);
  std::vector<double> qkv(u.begin(), u.end());
  OpCtx ctx = place.context();
  std::vector<double> y = values_of(
      ops::attention(ctx, {place.tensor(qkv, {8, cols}), -1, nullptr}, options_of(c)).tensor);
  std::rotate(qkv.begin(), qkv.begin() + 4 * cols, qkv.end());
  std::rotate(y.begin(), y.begin() + static_cast<std::int64_t>(y.size()) / 2, y.end());
  RowMap rows = place.rows();
  const std::vector<std::int64_t> samples{4, 3};
  rows.sample = place.device().allocate({2}, DType::i64, Category::activations, "samples");
  place.device().copy_from_host(rows.sample, std::as_bytes(std::span(samples)));
  ctx.rows = &rows;
  CHECK(values_of(ops::attention(ctx, {place.tensor(qkv, {8, cols}), -1, nullptr}, options_of(c))
                      .tensor) == y);
}

TEST_CASE("a query sees exactly the keys of its document up to itself, within the window") {
  const AttentionCase c{.rows = {.sequences = 2, .length = 7, .document_starts = {0, 3}},
                        .heads = {1, 1, 1},
                        .window = 3,
                        .scale = 0};  // every visible key weighs the same
  Place place(c.rows, {});
  std::vector<double> qkv;
  for (int row = 0; row < 14; ++row) {
    qkv.insert(qkv.end(), {0.5, 0.5, std::pow(2, row % 7) * (row < 7 ? 1 : 1000)});
  }
  const Var x{place.tensor(qkv, {14, 3}), -1, nullptr};
  const std::vector<double> y = values_of(ops::attention(place.context(), x, options_of(c)).tensor);
  const std::vector<double> expected{1, 1.5, 7.0 / 3, 8, 12, 56.0 / 3, 112.0 / 3};
  for (std::size_t i = 0; i < 14; ++i) {
    CHECK(y[i] == test::relative(expected[i % 7] * (i < 7 ? 1 : 1000), 1e-12));
  }
}

TEST_CASE("query heads read the key-value head of their group") {
  const AttentionCase c{.rows = {.length = 1}, .heads = {6, 3, 1}};
  Place place(c.rows, {});
  const Var x{place.tensor({1, 1, 1, 1, 1, 1, 1, 1, 1, 10, 20, 30}, {1, 12}), -1, nullptr};
  CHECK(values_of(ops::attention(place.context(), x, options_of(c)).tensor) ==
        std::vector<double>{10, 10, 20, 20, 30, 30});
}

TEST_CASE("rope differentiates, whole and part of a head, with positions that restart") {
  check_operation(rope({.length = 6}, {2, 2, 4}, 4));
  check_operation(rope({.sequences = 2, .length = 6, .document_starts = {0, 4}}, {4, 1, 6}, 6));
  check_operation(rope({.length = 6}, {2, 1, 6}, 2));
}

TEST_CASE("rope makes scores depend on the distance only and leaves the value alone") {
  const ops::HeadLayout heads{1, 1, 4};
  Place place({.length = 9, .document_starts = {0, 5}}, {});
  std::vector<double> qkv;
  for (int row = 0; row < 9; ++row) {
    qkv.insert(qkv.end(), {0.3, -0.7, 0.9, 0.4, 0.8, 0.2, -0.5, 0.6, 1, 2, 3, 4});
  }
  const Tensor x = place.tensor(qkv, {9, 12});
  const std::vector<double> y =
      values_of(ops::rope(place.context(), {x, -1, nullptr}, heads, place.rope_tables(4)).tensor);
  const auto score = [&](std::size_t q, std::size_t k) {
    double sum = 0;
    for (std::size_t d = 0; d < 4; ++d) sum += y[q * 12 + d] * y[k * 12 + 4 + d];
    return sum;
  };
  CHECK(score(4, 2) == test::relative(score(2, 0), 1e-12));
  CHECK(score(7, 5) == test::relative(score(2, 0), 1e-12));
  CHECK(std::abs(score(3, 2) - score(2, 2)) > 0.01);
  for (std::size_t row = 0; row < 9; ++row) {
    for (std::size_t d = 0; d < 4; ++d) CHECK(y[row * 12 + 8 + d] == static_cast<double>(d + 1));
  }
  // Position 0 is not turned, here and where the second document begins.
  for (const std::size_t row : {0, 5}) {
    for (std::size_t d = 0; d < 8; ++d) CHECK(y[row * 12 + d] == qkv[d]);
  }
}

TEST_CASE("decoding from a cache equals full attention, however the rows are cut") {
  for (const std::int64_t window : {0, 3}) {
    const AttentionCase c{.rows = {.length = 8}, .heads = {4, 2, 3}, .window = window};
    const std::int64_t cols = c.heads.cols();
    const std::vector<float> u = formula_weights("cached qkv", 8 * cols, 0, 1);
    const std::vector<double> qkv(u.begin(), u.end());
    Place whole(c.rows, {});
    const std::vector<double> expected = values_of(
        ops::attention(whole.context(), {whole.tensor(qkv, {8, cols}), -1, nullptr}, options_of(c))
            .tensor);
    for (const std::vector<std::int64_t>& cut :
         {std::vector<std::int64_t>{8}, {5, 3}, {1, 1, 1, 1, 1, 1, 1, 1}, {3, 1, 4}}) {
      Place place(c.rows, {});
      std::vector<std::int32_t> positions{0, 1, 2, 3, 4, 5, 6, 7, 8};
      ops::KvCache cache{.k = place.tensor(std::vector<double>(54), {9, 6}),
                         .v = place.tensor(std::vector<double>(54), {9, 6}),
                         .position = place.ints(positions),
                         .capacity = 9,
                         .length = 0};
      std::vector<double> found;
      for (const std::int64_t count : cut) {
        const std::int64_t begin = cache.length;
        const RowMap& all = place.rows();
        RowMap rows = all;
        rows.rows_per_sequence = count;
        rows.position = all.position.columns(begin, count);
        rows.document_begin = all.document_begin.columns(begin, count);
        OpCtx ctx = place.context();
        ctx.rows = &rows;
        const std::vector<double> part(qkv.begin() + begin * cols,
                                       qkv.begin() + (begin + count) * cols);
        const std::vector<double> y = values_of(
            ops::cached_attention(ctx, place.tensor(part, {count, cols}), options_of(c), cache));
        found.insert(found.end(), y.begin(), y.end());
        cache.length += count;
      }
      REQUIRE(found.size() == expected.size());
      for (std::size_t i = 0; i < found.size(); ++i) {
        CHECK(found[i] == test::relative(expected[i], 1e-12));
      }
    }
  }
}

}  // namespace llmtrain::test
