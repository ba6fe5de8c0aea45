// Small matrix products of attention, and how blocks of rows get into scratch. Included once per
// instruction set.
#if defined(LLMTRAIN_ATTENTION_PRODUCTS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LLMTRAIN_ATTENTION_PRODUCTS_INL_H
#undef LLMTRAIN_ATTENTION_PRODUCTS_INL_H
#else
#define LLMTRAIN_ATTENTION_PRODUCTS_INL_H
#endif

#include "kernels/cpu/fast/attention_tile.hpp"
#include "kernels/cpu/fast/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llmtrain::kernels::fast::HWY_NAMESPACE {

/// Positions as floats, exact below 2^24; the padding's are far below all others.
HWY_INLINE V float_positions(const std::int32_t* position) {
  return hn::ConvertTo(F(), hn::LoadU(hn::RebindToSigned<F>(), position));
}
HWY_INLINE V float_position(std::int32_t position) {
  return hn::Set(F(), static_cast<float>(position));
}

/// What a product does with the old value of c: ignores it, adds to it, or multiplies row m by
/// decay[m] and adds.
enum class Into { fresh, sum, decayed };

/// Left operand: element (m, k) is data[m * row + k * depth].
struct Left {
  const float* data;
  std::int64_t row;
  std::int64_t depth;
  Left at(std::int64_t m, std::int64_t k) const { return {data + m * row + k * depth, row, depth}; }
};
/// Right operand and result: row-major.
struct Right {
  const float* data;
  std::int64_t row;
};
struct Result {
  float* data;
  std::int64_t row;
};

/// Rows and vectors of a register block: as many accumulators as hide the latency of two
/// multiply-add units, in a shape that loads less often than it multiplies.
inline constexpr int kBlockRows = HWY_TARGET <= HWY_AVX3 ? 8 : 4;
inline constexpr int kBlockVectors = 2;
static_assert(kStrip % kBlockRows == 0);

/// c (kBlockRows rows, kVectors vectors) from a (kBlockRows x depth) and b (depth x kVectors
/// vectors).
template <Into kInto, int kVectors>
HWY_INLINE void block_product(const Left& a, const Right& b, const Result& c, std::int64_t depth,
                              [[maybe_unused]] const float* decay) {
  const F f;
  V sum[kBlockRows][kVectors];
#pragma GCC unroll 8
  for (int m = 0; m < kBlockRows; ++m) {
#pragma GCC unroll 8
    for (int n = 0; n < kVectors; ++n) sum[m][n] = hn::Zero(f);
  }
  const float* left = a.data;
  const float* right = b.data;
  for (std::int64_t k = 0; k < depth; ++k, left += a.depth, right += b.row) {
    V row[kVectors];
#pragma GCC unroll 8
    for (int n = 0; n < kVectors; ++n) row[n] = hn::LoadU(f, right + n * kLanes);
#pragma GCC unroll 8
    for (int m = 0; m < kBlockRows; ++m) {
      const V factor = hn::Set(f, left[m * a.row]);
#pragma GCC unroll 8
      for (int n = 0; n < kVectors; ++n) sum[m][n] = hn::MulAdd(factor, row[n], sum[m][n]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < kBlockRows; ++m) {
#pragma GCC unroll 8
    for (int n = 0; n < kVectors; ++n) {
      float* out = c.data + m * c.row + n * kLanes;
      V value = sum[m][n];
      if constexpr (kInto == Into::sum) value = hn::Add(hn::LoadU(f, out), value);
      if constexpr (kInto == Into::decayed) {
        value = hn::MulAdd(hn::LoadU(f, out), hn::Set(f, decay[m]), value);
      }
      hn::StoreU(value, f, out);
    }
  }
}

/// c (rows x cols) from a (rows x depth) and b (depth x cols). Rows are computed in whole strips
/// and columns in whole vectors, so a, b and c must be that large; what lies beyond is of no
/// meaning.
template <Into kInto>
HWY_NOINLINE void product(const Left& a, const Right& b, const Result& c, std::int64_t rows,
                          std::int64_t cols, std::int64_t depth, const float* decay = nullptr) {
  for (std::int64_t n = 0; n < cols;) {
    const bool wide = n + kBlockVectors * kLanes <= round_up(cols, kLanes);
    for (std::int64_t m = 0; m < rows; m += kBlockRows) {
      const Right right = {b.data + n, b.row};
      const Result result = {c.data + m * c.row + n, c.row};
      const float* factors = decay == nullptr ? nullptr : decay + m;
      if (wide) {
        block_product<kInto, kBlockVectors>(a.at(m, 0), right, result, depth, factors);
      } else {
        block_product<kInto, 1>(a.at(m, 0), right, result, depth, factors);
      }
    }
    n += wide ? kBlockVectors * kLanes : kLanes;
  }
}

/// Copies `rows` rows of head_dim elements, `stride` apart, to rows of attention_columns(head_dim)
/// floats, with zeros in the columns and in the rows (up to a whole strip) that pad them.
template <class T>
HWY_NOINLINE void stage(const T* source, std::int64_t stride, std::int64_t rows,
                        std::int64_t head_dim, float* target) {
  const std::int64_t columns = attention_columns(head_dim);
  for (std::int64_t i = 0; i < rows; ++i) {
    float* row = target + i * columns;
    for_vectors(head_dim, [&](std::int64_t d, auto lanes) {
      store(load(source + i * stride + d, lanes), row + d, lanes);
    });
    std::fill(row + head_dim, row + columns, 0.0f);
  }
  std::fill(target + rows * columns, target + round_up(rows, kStrip) * columns, 0.0f);
}

/// target[d][i] = scale * source[i][d] for `rows` staged rows, zeros for i up to kTile. Targets
/// have kTile columns.
HWY_NOINLINE inline void stage_transposed(const float* source, std::int64_t rows,
                                          std::int64_t head_dim, float scale, float* target) {
  const std::int64_t columns = attention_columns(head_dim);
  for (std::int64_t d = 0; d < head_dim; ++d) {
    float* row = target + d * kTile;
    for (std::int64_t i = 0; i < rows; ++i) row[i] = scale * source[i * columns + d];
    std::fill(row + rows, row + kTile, 0.0f);
  }
}

}  // namespace llmtrain::kernels::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
