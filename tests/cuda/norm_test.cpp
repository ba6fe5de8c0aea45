#include "kernels/norm.hpp"

#include <span>

#include "tests/cuda/machine.hpp"

using namespace llmtrain;
using namespace llmtrain::kernels;
using namespace llmtrain::kernels::gpu_trial;

namespace {

constexpr DType kTypes[] = {DType::f64, DType::f32, DType::bf16, DType::f16};
constexpr NormKind kKinds[] = {NormKind::layer_norm, NormKind::rms_norm};
/// Both kinds, which registers hold in kernels of their own; rows beyond them take their time on an
/// emulated GPU, and have one kernel, in which LayerNorm does all that RMSNorm does.
std::span<const NormKind> kinds_of(std::int64_t width) {
  return std::span(kKinds).first(width <= 16384 ? 2 : 1);
}

struct Case {
  std::int64_t rows, width;
};
// Every way over rows: lanes of a warp (fewer than all, all, several packs each), blocks of each
// size, rows that are read again, widths that no pack divides; rows that fill no block, and
// several.
const Case kCases[] = {{3, 1},    {5, 37},    {19, 64},   {17, 100}, {5, 256},  {6, 520},
                       {7, 1024}, {2, 1056},  {3, 1501},  {2, 2048}, {2, 3072}, {3, 4104},
                       {1, 8192}, {1, 16384}, {2, 16400}, {0, 64},   {70, 264}, {34, 776}};

View view_if(bool present, const Tensor& tensor) { return present ? tensor.view() : View{}; }

/// In what type a weight stands beside activations.
DType weight_type(const Machine& m, bool wide) {
  return wide ? m.or_double(DType::f32) : m.compute();
}

}  // namespace

TEST_CASE("norms of rows, with a residual and a bias and without") {
  for (const Case& c : kCases) {
    for (const NormKind kind : kinds_of(c.width)) {
      const bool centred = kind == NormKind::layer_norm;
      for (const DType dtype : kTypes) {
        CAPTURE(c.width);
        CAPTURE(centred);
        compare(
            [&](Machine& m) {
              const Shape shape{c.rows, c.width};
              const Tensor x = m.operand("x", shape), r = m.operand("r", shape);
              const Tensor weight =
                  m.normals("w", {c.width}, weight_type(m, centred), m.operand_type());
              const Tensor bias =
                  m.normals("b", {c.width}, weight_type(m, centred), m.operand_type());
              const Tensor y = m.output(shape), plain = m.output(shape);
              const Tensor mean = m.empty({c.rows}, m.wide()), rstd = m.empty({c.rows}, m.wide());
              // The sum takes the place of the residual.
              m.run(NormForward{.kind = kind,
                                .x = x,
                                .residual = r,
                                .sum = r,
                                .weight = weight,
                                .bias = bias,
                                .y = y,
                                .mean = view_if(centred, mean),
                                .rstd = rstd});
              // Statistics that rounding the sum did not touch.
              m.run(NormForward{.kind = kind,
                                .x = x,
                                .weight = weight,
                                .y = plain,
                                .mean = view_if(centred, mean),
                                .rstd = rstd,
                                .weight_offset = 1});
              std::vector<Output> all = outputs(m, plain, r, y, mean, rstd);
              all[3].of_magnitude = max_magnitude(m.read(x));
              return all;
            },
            // Of one value: a difference, three products and a sum are rounded, and its statistics.
            dtype, {.times_reference = 3, .floor = 6});
      }
    }
  }
}

TEST_CASE("the gradient of norms of rows, in place and beside the residual's") {
  for (const Case& c : kCases) {
    for (const NormKind kind : kinds_of(c.width)) {
      const bool centred = kind == NormKind::layer_norm;
      for (const DType dtype : kTypes) {
        CAPTURE(c.width);
        CAPTURE(centred);
        compare(
            [&](Machine& m) {
              const Shape shape{c.rows, c.width};
              const Tensor dy = m.operand("dy", shape), s = m.operand("s", shape);
              const Tensor dsum = m.operand("dsum", shape), dx = m.output(shape);
              const Tensor weight =
                  m.normals("w", {c.width}, weight_type(m, !centred), m.operand_type());
              const Tensor mean = m.wide_operand("mean", {c.rows});
              const Tensor rstd = m.wide_operand("rstd", {c.rows});
              const Tensor dweight = m.wide_operand("dw", {c.width});
              const Tensor dbias = m.wide_operand("db", {c.width});
              NormBackward grad{.kind = kind,
                                .dy = dy,
                                .s = s,
                                .weight = weight,
                                .mean = view_if(centred, mean),
                                .rstd = rstd,
                                .dx = dx,
                                .dweight = dweight,
                                .weight_offset = 0.5};
              m.run(grad);
              grad.dsum = dsum;
              grad.dx = dsum;
              grad.dbias = view_if(centred, dbias);
              m.run(grad);
              grad.dsum = dx;
              grad.dx = dy;
              m.run(grad);
              return outputs(m, dx, dsum, dy, dweight, dbias);
            },
            dtype);
      }
    }
  }
}

TEST_CASE("norms of heads in strided rows") {
  for (const auto& [heads, width, gap] :
       {std::array<std::int64_t, 3>{3, 64, 8}, {2, 128, 0}, {5, 6, 3}, {1, 40, 16}, {2, 2048, 8}}) {
    for (const NormKind kind : kinds_of(width)) {
      const bool centred = kind == NormKind::layer_norm;
      for (const DType dtype : kTypes) {
        CAPTURE(width);
        compare(
            [&, heads = heads, width = width, gap = gap](Machine& m) {
              constexpr std::int64_t kRows = 7;
              const Shape shape{kRows, heads * width};
              const Tensor x = m.operand("x", shape, gap), dy = m.operand("dy", shape, gap + 8);
              const Tensor y = m.output(shape, gap), dx = m.output(shape, gap + 16);
              const Tensor weight = m.operand("w", {width});
              const Tensor mean = m.wide_operand("mean", {kRows * heads});
              const Tensor rstd = m.wide_operand("rstd", {kRows * heads});
              const Tensor dweight = m.wide_operand("dw", {width});
              m.run(NormBackward{.kind = kind,
                                 .dy = dy,
                                 .s = x,
                                 .weight = weight,
                                 .mean = view_if(centred, mean),
                                 .rstd = rstd,
                                 .dx = dx,
                                 .dweight = dweight,
                                 .head_dim = width});
              m.run(NormForward{.kind = kind,
                                .x = x,
                                .weight = weight,
                                .y = y,
                                .mean = view_if(centred, mean),
                                .rstd = rstd,
                                .head_dim = width});
              return outputs(m, y, dx, mean, rstd, dweight);
            },
            dtype);
      }
    }
  }
}

TEST_CASE("the weight gradient of norms has the reference's bits") {
  struct WeightCase {
    std::int64_t rows, heads, width, gap;
  };
  // Fewer rows than a row block, several blocks, more blocks than are fetched together; rows that
  // one kernel reads for both gradients, with one pack and several for a thread.
  for (const WeightCase& c : {WeightCase{1, 1, 1, 0},
                              {63, 1, 37, 0},
                              {64, 1, 64, 0},
                              {200, 1, 264, 0},
                              {70, 1, 768, 0},
                              {33, 1, 4104, 0},
                              {32, 1, 8192, 0},
                              {0, 1, 8, 0},
                              {43, 3, 16, 8},
                              {50, 5, 6, 3},
                              {70, 1, 24, 8},
                              {70, 1, 24, 3},
                              {kNormRowsPerBlock * 129 + 5, 1, 40, 0}}) {
    for (const NormKind kind : kKinds) {
      const bool centred = kind == NormKind::layer_norm;
      for (const DType dtype : kTypes) {
        CAPTURE(c.rows);
        compare(
            [&](Machine& m) {
              const Shape shape{c.rows, c.heads * c.width};
              const Tensor dy = m.operand("dy", shape, c.gap), s = m.operand("s", shape, c.gap);
              const Tensor mean = m.wide_operand("mean", {c.rows * c.heads});
              const Tensor rstd = m.wide_operand("rstd", {c.rows * c.heads});
              const Tensor dweight = m.wide_operand("dw", {c.width});
              const Tensor dbias = m.wide_operand("db", {c.width});
              const Tensor weight = m.operand("w", {c.width}), dx = m.output(shape, c.gap);
              NormBackward grad{.kind = kind,
                                .dy = dy,
                                .s = s,
                                .weight = weight,
                                .mean = view_if(centred, mean),
                                .rstd = rstd,
                                .dx = dx,
                                .dweight = dweight,
                                .head_dim = c.gap == 0 ? 0 : c.width};
              m.run(grad);
              grad.dbias = dbias;
              m.run(grad);
              return outputs(m, dweight, dbias);
            },
            dtype, {.same_bits = true});
      }
    }
  }
}
