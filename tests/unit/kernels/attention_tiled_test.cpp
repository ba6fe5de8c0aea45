#include <doctest/doctest.h>
#include <hwy/targets.h>

#include "tests/support/rounding.hpp"
#include "tests/unit/kernels/attention_case.hpp"

namespace llmtrain::kernels {

namespace {

double max_abs(const std::vector<double>& values) {
  double max = 0;
  for (const double x : values) {
    if (std::isfinite(x)) max = std::max(max, std::abs(x));
  }
  return max;
}

/// The rule of FlashAttention-3's tests: the error against fp64 is at most twice that of the plain
/// kernel in the same dtype, plus a few roundings of the largest element and of the terms, which
/// are of order one where the sum cancels.
void check_parity(const std::vector<double>& tiled, const std::vector<double>& plain,
                  const std::vector<double>& exact, DType dtype, const std::string& what) {
  CAPTURE(what);
  const double epsilon = dtype == DType::f32 ? 0x1p-23 : test::rounding_of(dtype);
  CHECK(max_abs_difference(tiled, exact) <=
        2 * max_abs_difference(plain, exact) + 2 * epsilon * max_abs(exact) + 0x1p-20);
}

void check_parity(const AttentionCase& c) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const AttentionData operands = random_operands(c, dtype);
    const AttentionData exact = run_attention(c, operands, DType::f64, cpu_reference_table());
    const AttentionData plain = run_attention(c, operands, dtype, cpu_reference_table());
    const AttentionData tiled = run_attention(c, operands, dtype, cpu_table());
    CAPTURE(to_string(dtype));
    check_parity(tiled.out, plain.out, exact.out, dtype, "out");
    check_parity(tiled.lse, plain.lse, exact.lse, DType::f32, "lse");
    check_parity(tiled.dq, plain.dq, exact.dq, dtype, "dq");
    check_parity(tiled.dk, plain.dk, exact.dk, dtype, "dk");
    check_parity(tiled.dv, plain.dv, exact.dv, dtype, "dv");
    if (c.sink) check_parity(tiled.dsink, plain.dsink, exact.dsink, dtype, "dsink");
  }
}

}  // namespace

TEST_CASE("tiled attention is as exact as the plain kernel for every head size and odd lengths") {
  for (const std::int64_t head_dim : {1, 8, 16, 40, 64, 80, 128, 256}) {
    CAPTURE(head_dim);
    check_parity({.tq = 37, .tk = 37, .head_dim = head_dim});
  }
  for (const std::int64_t t : {1, 7, 8, 9, 63, 64, 65, 128, 131, 200}) {
    CAPTURE(t);
    check_parity({.tq = t, .tk = t, .heads = 1, .head_dim = 24});
  }
}

TEST_CASE(
    "tiled attention is as exact as the plain kernel for shared heads and several sequences") {
  check_parity({.sequences = 2, .tq = 70, .tk = 70, .heads = 2, .kv_heads = 2, .head_dim = 16});
  check_parity({.sequences = 3, .tq = 70, .tk = 70, .heads = 8, .kv_heads = 1, .head_dim = 16});
  check_parity({.tq = 131, .tk = 131, .heads = 8, .kv_heads = 4, .head_dim = 8});
}

TEST_CASE("tiled attention respects documents at, before and inside the edges of blocks") {
  for (const std::int32_t edge : {1, 8, 60, 63, 64, 65, 100, 128, 192}) {
    CAPTURE(edge);
    check_parity({.tq = 200, .tk = 200, .heads = 1, .head_dim = 8, .documents = {0, edge}});
  }
  check_parity({.sequences = 2,
                .tq = 257,
                .tk = 257,
                .head_dim = 8,
                .documents = {0, 3, 4, 64, 70, 71, 140, 256}});
}

TEST_CASE("tiled attention respects windows") {
  for (const std::int64_t window : {1, 2, 16, 64, 65, 150, 1000}) {
    CAPTURE(window);
    check_parity(
        {.tq = 197, .tk = 197, .heads = 1, .head_dim = 8, .window = window, .documents = {0, 90}});
  }
}

TEST_CASE("tiled attention caps its scores, within windows, documents and dropout too") {
  for (const double softcap : {0.5, 3.0, 50.0}) {
    CAPTURE(softcap);
    check_parity({.tq = 150, .tk = 150, .head_dim = 8, .softcap = softcap, .q_scale = 4});
    check_parity({.sequences = 2,
                  .tq = 131,
                  .tk = 131,
                  .heads = 4,
                  .head_dim = 20,
                  .window = 70,
                  .softcap = softcap,
                  .dropout = 0.2,
                  .documents = {0, 40}});
  }
}

TEST_CASE("tiled attention knows the distance and the sink, alone and with everything else") {
  for (const bool alibi : {true, false}) {
    CAPTURE(alibi);
    check_parity({.tq = 150, .tk = 150, .head_dim = 8, .alibi = alibi, .sink = true});
    check_parity({.tq = 150, .tk = 150, .head_dim = 8, .alibi = true, .sink = !alibi});
    check_parity({.sequences = 2,
                  .tq = 131,
                  .tk = 131,
                  .heads = 4,
                  .head_dim = 20,
                  .window = 70,
                  .softcap = 3,
                  .alibi = alibi,
                  .sink = true,
                  .dropout = 0.2,
                  .documents = {0, 40}});
    check_parity(
        {.tq = 20, .tk = 131, .head_dim = 8, .alibi = alibi, .sink = true, .q_begin = 111});
  }
}

TEST_CASE("a query that sees nothing leaves all probability to the sink") {
  const AttentionCase c{
      .tq = 70, .tk = 70, .heads = 1, .head_dim = 8, .sink = true, .k_begin = 1000};
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    const AttentionData data = run_attention(c, random_operands(c, DType::f32), DType::f32, *table);
    const double sink = rounded(normals("sink", 1, 2), DType::bf16)[0];
    CHECK(data.out == std::vector<double>(70 * 8, 0));
    CHECK(data.lse == std::vector<double>(70, sink));
    CHECK(data.dsink == std::vector<double>(1, AttentionRun::kOldDsink));
  }
}

TEST_CASE("tiled attention takes queries and keys that stand anywhere in the sample") {
  // A cache: the queries are the last rows; one query; queries before, between and after the keys.
  check_parity({.tq = 1, .tk = 131, .heads = 4, .kv_heads = 2, .head_dim = 16, .q_begin = 130});
  check_parity({.tq = 5, .tk = 131, .heads = 4, .kv_heads = 2, .head_dim = 16, .q_begin = 126});
  check_parity({.tq = 100, .tk = 37, .head_dim = 8, .q_begin = 0, .k_begin = 50});
  check_parity({.tq = 100, .tk = 137, .head_dim = 8, .q_begin = 1000, .k_begin = 0});
  check_parity({.tq = 64, .tk = 64, .head_dim = 8, .q_begin = 0, .k_begin = 64});
  check_parity({.tq = 150, .tk = 150, .head_dim = 8, .documents = {0, 40}, .rotated = true});
  check_parity({.tq = 150, .tk = 150, .head_dim = 8, .window = 20, .rotated = true});
}

TEST_CASE("a query that sees nothing gives zero, minus infinity and no gradient") {
  const AttentionCase c{.tq = 70, .tk = 70, .heads = 1, .head_dim = 8, .k_begin = 10};
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    const AttentionData data = run_attention(c, random_operands(c, DType::f32), DType::f32, *table);
    for (std::size_t i = 0; i < 10; ++i) {
      CHECK(data.lse[i] == -INFINITY);
      for (std::size_t d = 0; d < 8; ++d) {
        CHECK(data.out[i * 8 + d] == 0);
        CHECK(data.dq[i * 8 + d] == 0);
      }
    }
    CHECK(std::isfinite(data.lse[10]));
  }
}

TEST_CASE("tiled attention reads and writes columns of fused buffers and nothing between them") {
  const AttentionCase c{
      .sequences = 2, .tq = 75, .tk = 75, .heads = 4, .kv_heads = 2, .head_dim = 20, .fused = true};
  check_parity(c);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    AttentionRun run(c, dtype, cpu_table());
    AttentionData data = random_operands(c, dtype);
    run.forward(data);
    run.backward(data);
    CHECK(run.gap_untouched());
  }
}

TEST_CASE("dropout of attention keeps the same elements in every kernel") {
  for (const std::int64_t t : {37, 100, 132}) {  // rows of the stream aligned to its blocks or not
    CAPTURE(t);
    check_parity({.sequences = 2, .tq = t, .tk = t, .dropout = 0.3, .documents = {0, 30}});
  }
  // Later queries against earlier keys draw what they would draw in the whole.
  check_parity({.tq = 20, .tk = 80, .dropout = 0.5, .q_begin = 60});
  check_parity(
      {.sequences = 2, .tq = 70, .tk = 70, .dropout = 0.3, .first_head = 2, .layer_heads = 5});

  const AttentionCase c{.tq = 64, .tk = 64, .heads = 1, .head_dim = 8, .dropout = 0.9};
  AttentionCase none = c;
  none.dropout = 0;
  const AttentionData operands = random_operands(c, DType::f32);
  CHECK(max_abs_difference(run_attention(c, operands, DType::f32, cpu_table()).out,
                           run_attention(none, operands, DType::f32, cpu_table()).out) > 0.1);
}

TEST_CASE("dropout of attention follows the step in memory where there is one") {
  AttentionCase c{.tq = 37, .tk = 37, .dropout = 0.3};
  for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
    c.step_in_memory = false;
    const AttentionData operands = random_operands(c, DType::f32);
    const AttentionData given = run_attention(c, operands, DType::f32, *table);
    c.step_in_memory = true;
    const AttentionData found = run_attention(c, operands, DType::f32, *table);
    CHECK(found.out == given.out);
    CHECK(found.dq == given.dq);
    CHECK(found.dv == given.dv);
  }
}

TEST_CASE("peaked probabilities and large scores keep their precision") {
  const AttentionCase c{.tq = 131, .tk = 131, .heads = 2, .head_dim = 16, .q_scale = 30};
  const AttentionData data =
      run_attention(c, random_operands(c, DType::f64), DType::f64, cpu_reference_table());
  CHECK(max_abs(data.lse) > 50);  // log of a sum of at most 131 terms
  check_parity(c);
}

TEST_CASE("attention over two parts of the keys, joined by their log-sums, is attention over all") {
  const AttentionCase whole{
      .tq = 100, .tk = 100, .heads = 4, .kv_heads = 2, .head_dim = 16, .documents = {0, 33}};
  constexpr std::int64_t kCut = 48;
  const std::int64_t kv_cols = whole.kv_heads * whole.head_dim;
  const AttentionData all =
      run_attention(whole, random_operands(whole, DType::f32), DType::f32, cpu_table());

  std::vector<AttentionData> part(2, all);
  std::vector<AttentionCase> side(2, whole);
  side[0].tk = kCut;
  side[1].tk = whole.tk - kCut;
  side[1].k_begin = kCut;
  for (std::size_t n = 0; n < 2; ++n) {
    const std::int64_t begin = n == 0 ? 0 : kCut * kv_cols;
    const std::int64_t end = begin + side[n].tk * kv_cols;
    part[n].k.assign(all.k.begin() + begin, all.k.begin() + end);
    part[n].v.assign(all.v.begin() + begin, all.v.begin() + end);
    AttentionRun(side[n], DType::f32, cpu_table()).forward(part[n]);
  }

  AttentionData joined = all;
  for (std::int64_t i = 0; i < whole.tq; ++i) {
    for (std::int64_t h = 0; h < whole.heads; ++h) {
      const auto at = static_cast<std::size_t>(h * whole.tq + i);
      const double a = part[0].lse[at];
      const double b = part[1].lse[at];
      const double lse = std::max(a, b) + std::log1p(std::exp(-std::abs(a - b)));
      joined.lse[at] = lse;
      for (std::int64_t d = 0; d < whole.head_dim; ++d) {
        const auto o = static_cast<std::size_t>((i * whole.heads + h) * whole.head_dim + d);
        joined.out[o] = part[0].out[o] * std::exp(a - lse) + part[1].out[o] * std::exp(b - lse);
      }
    }
  }
  CHECK(max_abs_difference(joined.out, all.out) < 2e-6);
  CHECK(max_abs_difference(joined.lse, all.lse) < 2e-6);

  std::vector<double> dq(all.dq.size()), dk, dv;
  for (std::size_t n = 0; n < 2; ++n) {
    part[n].out = joined.out;
    part[n].lse = joined.lse;
    AttentionRun(side[n], DType::f32, cpu_table()).backward(part[n]);
    for (std::size_t i = 0; i < dq.size(); ++i) dq[i] += part[n].dq[i];
    dk.insert(dk.end(), part[n].dk.begin(), part[n].dk.end());
    dv.insert(dv.end(), part[n].dv.begin(), part[n].dv.end());
  }
  CHECK(max_abs_difference(dq, all.dq) < 1e-5);
  CHECK(max_abs_difference(dk, all.dk) < 1e-5);
  CHECK(max_abs_difference(dv, all.dv) < 1e-5);
}

TEST_CASE("the bits of tiled attention do not depend on the number of threads") {
  const std::vector<AttentionCase> cases = {
      {.tq = 300, .tk = 300, .heads = 4, .kv_heads = 1, .head_dim = 16, .documents = {0, 100}},
      {.sequences = 2, .tq = 131, .tk = 131, .heads = 8, .kv_heads = 8, .head_dim = 24},
      {.tq = 200, .tk = 500, .head_dim = 8, .window = 90, .dropout = 0.2, .q_begin = 300},
  };
  for (const AttentionCase& c : cases) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      const AttentionData operands = random_operands(c, dtype);
      const AttentionData one = run_attention(c, operands, dtype, cpu_table(), 1);
      for (const int threads : {2, 3, 7}) {
        CAPTURE(threads);
        const AttentionData many = run_attention(c, operands, dtype, cpu_table(), threads);
        CHECK(same_bits(one.out, many.out));
        CHECK(same_bits(one.lse, many.lse));
        CHECK(same_bits(one.dq, many.dq));
        CHECK(same_bits(one.dk, many.dk));
        CHECK(same_bits(one.dv, many.dv));
      }
    }
  }
}

TEST_CASE("tiled attention is as exact on every instruction set that this machine has") {
  const std::int64_t own = hwy::SupportedTargets();
  for (std::int64_t targets = own; targets != 0; targets &= targets - 1) {
    const std::int64_t target = targets & -targets;
    CAPTURE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(target);
    check_parity({.sequences = 2,
                  .tq = 75,
                  .tk = 75,
                  .heads = 4,
                  .kv_heads = 2,
                  .head_dim = 20,
                  .window = 40,
                  .fused = true,
                  .documents = {0, 30}});
    check_parity({.tq = 20, .tk = 131, .head_dim = 64, .dropout = 0.3, .q_begin = 111});
    check_parity({.tq = 64, .tk = 131, .head_dim = 64, .dropout = 0.3, .q_begin = 67});
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  CHECK(hwy::SupportedTargets() == own);
}

TEST_CASE("attention over nothing is nothing") {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    for (const KernelTable* table : {&cpu_reference_table(), &cpu_table()}) {
      const AttentionCase no_keys{.tq = 3, .tk = 0, .heads = 1, .head_dim = 2};
      const AttentionData data =
          run_attention(no_keys, random_operands(no_keys, dtype), dtype, *table);
      CHECK(data.out == std::vector<double>(6, 0.0));
      CHECK(data.dq == std::vector<double>(6, 0.0));
      CHECK(data.lse == std::vector<double>(3, -INFINITY));
      const AttentionCase no_queries{.tq = 0, .tk = 3, .heads = 1, .head_dim = 2};
      CHECK(run_attention(no_queries, random_operands(no_queries, dtype), dtype, *table).dk ==
            std::vector<double>(6, 0.0));
      const AttentionCase no_sequence{.sequences = 0};
      run_attention(no_sequence, random_operands(no_sequence, dtype), dtype, *table);
    }
  }
}

}  // namespace llmtrain::kernels
