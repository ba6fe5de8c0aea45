#include "kernels/loss.hpp"
#include "tests/cuda/machine.hpp"

using namespace llmtrain;
using namespace llmtrain::kernels;
using namespace llmtrain::kernels::gpu_trial;

namespace {

constexpr DType kTypes[] = {DType::f64, DType::f32, DType::bf16, DType::f16};

using Ids = std::vector<std::int32_t>;

/// Ids below `vocab`, of which every `often`-th is 3.
Ids ids_of(std::int64_t rows, std::int32_t vocab, std::int64_t often) {
  Ids result;
  std::uint32_t state = 5;
  for (std::int64_t i = 0; i < rows; ++i) {
    state = state * 1664525 + 1013904223;
    result.push_back(i % often == 0 ? 3 : static_cast<std::int32_t>((state >> 8) % vocab));
  }
  return result;
}

struct Case {
  std::int64_t rows, hidden;
  std::int32_t vocab;
  std::int64_t often;
};

}  // namespace

TEST_CASE("look-ups have the reference's bits") {
  for (const Case& c : {Case{1, 1, 4, 2}, Case{37, 64, 9, 5}, Case{70, 37, 50, 9},
                        Case{5, 2056, 20, 3}, Case{3, 4101, 20, 3}, Case{0, 8, 4, 1}}) {
    for (const DType dtype : kTypes) {
      CAPTURE(c.hidden);
      compare(
          [&](Machine& m) {
            const Tensor table = m.operand("table", {c.vocab, c.hidden});
            const Tensor y = m.output({c.rows, c.hidden});
            const Tensor id = m.integers(ids_of(c.rows, c.vocab, c.often));
            m.run(EmbeddingForward{.id = id, .table = table, .y = y});
            m.run(EmbeddingForward{.id = id, .table = table, .y = y, .accumulate = true});
            // As one part of a vocabulary, whose other parts have some of the ids.
            const Tensor part = m.output({c.rows, c.hidden});
            EmbeddingForward op{.id = id,
                                .table = table.row_range(1, c.vocab / 2),
                                .y = part,
                                .part = {.first = 1, .whole = c.vocab}};
            m.run(op);
            op.accumulate = true;
            m.run(op);
            return outputs(m, y, part);
          },
          dtype, {.same_bits = true});
    }
  }
}

TEST_CASE("gradients of tables have the reference's bits") {
  // No id twice, ids across warps and launches, one id everywhere, columns of several slices.
  for (const Case& c : {Case{1, 1, 4, 2}, Case{60, 64, 9, 5}, Case{120, 5, 400, 301},
                        Case{20, 2056, 9, 2}, Case{150, 8, 5, 1}, Case{0, 8, 4, 1}}) {
    for (const DType dtype : kTypes) {
      CAPTURE(c.rows);
      compare(
          [&](Machine& m) {
            const Tensor dy = m.operand("dy", {c.rows, c.hidden});
            const Tensor dtable = m.wide_operand("dtable", {c.vocab, c.hidden});
            const Tensor id = m.integers(ids_of(c.rows, c.vocab, c.often));
            m.run(EmbeddingBackward{.id = id, .dy = dy, .dtable = dtable});
            m.run(EmbeddingBackward{.id = id,
                                    .dy = dy,
                                    .dtable = dtable.row_range(1, c.vocab / 2),
                                    .part = {.first = 1, .whole = c.vocab}});
            return outputs(m, dtable);
          },
          dtype, {.same_bits = true});
    }
  }
}

TEST_CASE("gradients of more rows than a launch takes stay in order") {
  // Rows without an entry cost an emulated GPU little.
  constexpr std::size_t kRows = 4500;
  Ids ids(kRows, -1);
  for (const std::size_t row : {5, 6, 31, 32, 700, 4060, 4095, 4096, 4097, 4400, 4499}) {
    ids[row] = row % 3 == 0 ? 0 : 1;
  }
  Machine m(Place::gpu, DType::f32, DType::f32);
  const Tensor dy = m.operand("dy", {kRows, 4}), dtable = m.wide_operand("dtable", {2, 4});
  const Values upstream = m.read(dy);
  Values expected = m.read(dtable);
  for (std::size_t i = 0; i < 4 * kRows; ++i) {
    if (ids[i / 4] < 0) continue;
    double& sum = expected[static_cast<std::size_t>(ids[i / 4]) * 4 + i % 4];
    sum = static_cast<float>(sum) + static_cast<float>(upstream[i]);
  }
  const Tensor id = m.integers(ids);
  m.run(EmbeddingBackward{.id = id, .dy = dy, .dtable = dtable});
  CHECK(max_difference(m.read(dtable), expected) == 0);
}

TEST_CASE("ids that the table does not have are never followed") {
  Machine m(Place::gpu, DType::bf16, DType::bf16);
  const Tensor table = m.operand("table", {4, 16}), dy = m.operand("dy", {4, 16});
  const Tensor y = m.output({4, 16}), dtable = m.zeros({4, 16}, DType::f32);
  const Tensor id = m.integers(Ids{4, 0, -1, 2147483647});
  m.run(EmbeddingForward{.id = id, .table = table, .y = y});
  m.run(EmbeddingBackward{.id = id, .dy = dy, .dtable = dtable});
  const Values looked_up = m.read(y), gradient = m.read(dtable), upstream = m.read(dy);
  for (std::size_t i = 0; i < 64; ++i) {
    CHECK(std::isnan(looked_up[i]) == (i / 16 != 1));
    CHECK(gradient[i] == (i < 16 ? upstream[16 + i] : 0));
  }
}
