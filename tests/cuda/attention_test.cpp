#include "tests/cuda/attention_case.hpp"

using namespace llmtrain;
using namespace llmtrain::kernels;
using namespace llmtrain::kernels::gpu_trial;

namespace {

// Each feature alone, then several together; tiles have 16, 32 or 64 rows.
const std::vector<AttentionCase> kCases = {
    {.name = "causal", .tq = 70, .tk = 70},
    {.name = "one row", .tq = 1, .tk = 3, .heads = 16, .head_dim = 3, .q_begin = 2},
    {.name = "documents", .tq = 150, .tk = 150, .documents = {0, 20, 23, 70, 140}},
    {.name = "window", .tq = 150, .tk = 150, .window = 37},
    {.name = "groups", .sequences = 2, .tq = 37, .tk = 37, .heads = 6, .kv_heads = 2},
    {.name = "cache", .sequences = 2, .tq = 5, .tk = 133, .q_begin = 128},
    {.name = "later keys", .tq = 70, .tk = 100, .q_begin = 30, .k_begin = 64},
    {.name = "half a tile, all of it seen", .tq = 64, .tk = 96, .q_begin = 100},
    {.name = "nothing seen", .tq = 40, .tk = 33, .k_begin = 100},
    {.name = "scattered", .tq = 100, .tk = 130, .documents = {0, 50}, .scattered = true},
    {.name = "alibi", .tq = 70, .tk = 70, .alibi = true},
    {.name = "sink", .sequences = 2, .tq = 70, .tk = 70, .sink = true},
    {.name = "sink beside nothing", .tq = 33, .tk = 40, .sink = true, .k_begin = 16},
    {.name = "softcap", .tq = 70, .tk = 70, .softcap = 0.8},
    {.name = "dropout", .sequences = 2, .tq = 70, .tk = 70, .dropout = 0.3},
    {.name = "dropout of some heads",
     .sequences = 2,
     .tq = 70,
     .tk = 70,
     .dropout = 0.3,
     .first_head = 2,
     .layer_heads = 5},
    {.name = "negative scale", .tq = 40, .tk = 40, .scale = -0.5},
    {.name = "packs beside fours", .tq = 30, .tk = 30, .head_dim = 10, .fused = true},
    {.name = "odd head_dim", .tq = 70, .tk = 70, .head_dim = 33, .fused = true},
    {.name = "all",
     .sequences = 2,
     .tq = 77,
     .tk = 77,
     .heads = 4,
     .kv_heads = 2,
     .head_dim = 24,
     .window = 30,
     .softcap = 2,
     .alibi = true,
     .sink = true,
     .dropout = 0.2,
     .fused = true,
     .documents = {0, 10, 50}},
};

}  // namespace

TEST_CASE("a merge of attention to two sets of keys has the reference's values") {
  struct Case {
    std::int64_t sequences, tq, heads, head_dim, gap;
  };
  for (const Case& c : {Case{2, 5, 3, 64, 0}, Case{1, 33, 2, 24, 8}, Case{3, 1, 1, 6, 3}}) {
    for (const DType dtype : {DType::f64, DType::f32}) {
      compare(
          [&](Machine& m) {
            const Shape shape{c.sequences * c.tq, c.heads * c.head_dim};
            const Shape statistics{c.sequences, c.heads, c.tq};
            Values lse(static_cast<std::size_t>(statistics.numel()));
            Values part_lse = lse;
            for (std::size_t i = 0; i < lse.size(); ++i) {
              lse[i] = i % 3 == 0 ? -INFINITY : static_cast<double>(i % 7) - 3;
              part_lse[i] = i % 4 == 0 ? -INFINITY : static_cast<double>(i % 5) - 2;
            }
            const Tensor out = m.operand("out", shape, c.gap), part = m.operand("part", shape);
            const Tensor to = m.of(lse, statistics, m.compute());
            const Tensor part_to = m.of(part_lse, statistics, m.compute());
            m.run(AttentionMerge{.num_sequences = c.sequences,
                                 .num_heads = c.heads,
                                 .part_out = part,
                                 .part_lse = part_to,
                                 .out = out,
                                 .lse = to});
            return outputs(m, out, to);
          },
          dtype);
    }
  }
}

TEST_CASE("attention in fp64 and fp32 has the reference's values with every feature") {
  for (const AttentionCase& c : kCases) {
    for (const DType dtype : {DType::f64, DType::f32}) {
      compare_attention(c, dtype, {.times_reference = 3, .floor = 6},
                        {.times_reference = 3, .floor = 8});
    }
  }
}

TEST_CASE("attention in bf16 whose heads tensor cores do not take") {
  for (const std::int64_t head_dim : {12, 33, 135}) {
    for (const bool fused : {false, true}) {
      compare_attention({.name = "plain bf16",
                         .tq = 70,
                         .tk = 70,
                         .head_dim = head_dim,
                         .fused = fused,
                         .documents = {0, 31}},
                        DType::bf16, {}, {});
    }
  }
}

TEST_CASE("attention takes heads of up to 256 elements") {
  for (const std::int64_t head_dim : {64, 100, 128, 200, 256}) {
    for (const DType dtype : {DType::f64, DType::f32}) {
      compare_attention({.name = "wide heads",
                         .tq = 70,
                         .tk = 80,
                         .heads = 1,
                         .head_dim = head_dim,
                         .fused = head_dim == 100},
                        dtype, {.floor = 4}, {.floor = 8});
    }
  }
}

TEST_CASE("attention without sequences, queries or keys") {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    compare_attention({.name = "no sequences", .sequences = 0}, dtype, {}, {});
    compare_attention({.name = "no queries", .tq = 0, .sink = true}, dtype, {}, {});
    compare_attention({.name = "no keys", .tk = 0, .sink = true}, dtype, {}, {});
  }
}
