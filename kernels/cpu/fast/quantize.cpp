#include "kernels/quantize/quantize.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/fast/quantize.cpp"
#include <atomic>

#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/element.hpp"
#include "kernels/cpu/fallback.hpp"
#include "kernels/cpu/fast/philox-inl.h"
#include "kernels/cpu/fast/segments.hpp"
#include "kernels/cpu/fast/vector-inl.h"
#include "kernels/cpu/rows.hpp"

HWY_BEFORE_NAMESPACE();
namespace llmtrain::kernels::fast::HWY_NAMESPACE {
namespace {

using I = hn::RebindToSigned<F>;
using VI = hn::Vec<I>;
using Bytes = hn::Rebind<std::uint8_t, F>;

HWY_INLINE V larger(V a, V b) { return hn::IfThenElse(hn::Gt(a, b), a, b); }

/// Index of the first block of a row of blocks, and the columns of a block.
struct BlockRow {
  std::int64_t first, cols;
  BlockRow(const BlockShape& block, const View& matrix, std::int64_t row)
      : first(block.rows == 0 ? 0 : row / block.rows * block.across(matrix.cols())),
        cols(block.cols_of(matrix.cols())) {}
};

/// Of blocks that several threads may work on.
HWY_INLINE void raise(float& to, float value) {
  std::atomic_ref<float> shared(to);
  float now = shared.load(std::memory_order_relaxed);
  while (value > now && !shared.compare_exchange_weak(now, value, std::memory_order_relaxed)) {
  }
}

template <class T>
void amax_of_row(const BlockAmax& op, std::int64_t row) {
  const BlockRow blocks(op.block, op.x, row);
  const T* const x = op.x.row<T>(row);
  float* const amax = op.amax.as<float>() + blocks.first;
  const std::int64_t cols = op.x.cols();
  if (blocks.cols == 1) {
    for_vectors(cols, [&](std::int64_t j, auto lanes) HWY_ATTR {
      store(larger(hn::Abs(load(x + j, lanes)), load(amax + j, lanes)), amax + j, lanes);
    });
    return;
  }
  for (std::int64_t begin = 0, b = 0; begin < cols; begin += blocks.cols, ++b) {
    V largest = hn::Zero(F());
    for_vectors(std::min(blocks.cols, cols - begin), [&](std::int64_t j, auto lanes) HWY_ATTR {
      largest = larger(hn::Abs(load(x + begin + j, lanes)), largest);
    });
    raise(amax[b], hn::GetLane(hn::MaxOfLanes(F(), largest)));
  }
}

void block_amax(const BlockAmax& op, std::int64_t begin, std::int64_t end) {
  with_fast_type(op.x.dtype, [&]<class T>() {
    for (std::int64_t row = begin; row < end; ++row) amax_of_row<T>(op, row);
  });
}

struct ToNearest {
  HWY_INLINE V operator()(V steps, std::int64_t) const {
    const V shifter = hn::Set(F(), 0x1p23f);
    return hn::Sub(hn::Add(steps, shifter), shifter);
  }
};

/// By the words from `words` on.
struct ByWord {
  const unsigned char* words;
  HWY_INLINE V operator()(V steps, std::int64_t i) const {
    const hn::RebindToUnsigned<F> du;
    HWY_ALIGN std::uint32_t aligned[kLanes];
    std::memcpy(aligned, words + 4 * i, sizeof aligned);
    const VI upper = hn::BitCast(I(), hn::ShiftRight<8>(hn::Load(du, aligned)));
    const V chance = hn::Mul(hn::ConvertTo(F(), upper), hn::Set(F(), 0x1p-24f));
    const V below = hn::ConvertTo(F(), hn::ConvertTo(I(), steps));
    const V up = hn::Add(below, hn::Set(F(), 1.0f));
    return hn::IfThenElse(hn::Lt(chance, hn::Sub(steps, below)), up, below);
  }
};

/// encode_with() and decode() of a format, a vector at a time.
class Codec {
 public:
  explicit Codec(const NumberFormat& format)
      : format_(format),
        limit_(limit_of(format)),
        nan_value_(decode(format, static_cast<std::uint8_t>(format.nan))) {}

  struct Coded {
    VI code;
    V value;
    std::int64_t saturated;
  };

  template <class Round>
  HWY_INLINE Coded operator()(V y, const Round& round, std::int64_t i) const {
    const I word;
    const V magnitude = hn::Abs(y), max = hn::Set(F(), format_.max);
    const V within = hn::IfThenElse(hn::Gt(magnitude, max), max, magnitude);
    const VI exponent = hn::ShiftRight<23>(hn::BitCast(word, within));
    const int first = format_.least_exponent + format_.mantissa_bits;
    const VI binade = hn::Max(hn::Sub(exponent, hn::Set(word, 127 + first)), hn::Zero(word));
    const VI least = hn::Add(binade, hn::Set(word, 127 + format_.least_exponent));
    const V step = hn::BitCast(F(), hn::ShiftLeft<23>(least));
    const V steps_per_one = hn::BitCast(F(), hn::ShiftLeft<23>(hn::Sub(hn::Set(word, 254), least)));
    const V steps = round(hn::Mul(within, steps_per_one), i);
    const auto is_nan = hn::IsNaN(y);
    VI code = hn::Add(hn::ShiftLeftSame(binade, format_.mantissa_bits), hn::ConvertTo(word, steps));
    code = hn::IfThenElse(hn::RebindMask(word, is_nan), hn::Set(word, format_.nan),
                          with_sign(code, y));
    const V value =
        hn::IfThenElse(is_nan, hn::Set(F(), nan_value_), with_sign(hn::Mul(steps, step), y));
    return {code, value,
            static_cast<std::int64_t>(hn::CountTrue(F(), hn::Gt(magnitude, hn::Set(F(), limit_))))};
  }

 private:
  HWY_INLINE VI with_sign(VI code, V y) const {
    const I word;
    const auto negative = hn::Lt(hn::BitCast(word, y), hn::Zero(word));
    const auto bit = static_cast<std::int32_t>(format_.sign_bit());
    const VI signed_code = format_.twos_complement ? hn::And(hn::Sub(hn::Set(word, 2 * bit), code),
                                                             hn::Set(word, 2 * bit - 1))
                                                   : hn::Or(code, hn::Set(word, bit));
    return hn::IfThenElse(negative, signed_code, code);
  }

  /// Two's complement has one zero.
  HWY_INLINE V with_sign(V value, V y) const {
    const V with = hn::CopySign(value, y);
    return format_.twos_complement ? hn::Add(with, hn::Zero(F())) : with;
  }

  NumberFormat format_;
  float limit_, nan_value_;
};

HWY_INLINE void store_codes(VI codes, std::uint8_t* to, Full) {
  const Bytes bytes;
  hn::StoreU(hn::DemoteTo(bytes, codes), bytes, to);
}
HWY_INLINE void store_codes(VI codes, std::uint8_t* to, First some) {
  std::uint8_t row[kLanes];
  store_codes(codes, row, Full{});
  std::memcpy(to, row, static_cast<std::size_t>(some.count));
}

/// `count` elements of a row whose scales are one, or one for each column.
template <class T, class Y>
struct Run {
  const T* x;
  const float *scale, *scale_inv;
  bool per_column;
  std::uint8_t* codes;  // or null
  Y* y;                 // or null

  HWY_INLINE Run from(std::int64_t col, std::int64_t block) const {
    return {x + col,
            scale + block,
            scale_inv == nullptr ? nullptr : scale_inv + block,
            per_column,
            codes == nullptr ? nullptr : codes + col,
            y == nullptr ? nullptr : y + col};
  }

  template <class Round>
  HWY_INLINE std::int64_t quantize(const Codec& codec, const Round& round,
                                   std::int64_t count) const {
    std::int64_t saturated = 0;
    for_vectors(count, [&](std::int64_t i, auto lanes) HWY_ATTR {
      const V factor = per_column ? load(scale + i, lanes) : hn::Set(F(), *scale);
      const auto coded = codec(hn::Mul(load(x + i, lanes), factor), round, i);
      saturated += coded.saturated;
      if (codes != nullptr) store_codes(coded.code, codes + i, lanes);
      if (y == nullptr) return;
      const V inverse = per_column ? load(scale_inv + i, lanes) : hn::Set(F(), *scale_inv);
      store(hn::Mul(coded.value, inverse), y + i, lanes);
    });
    return saturated;
  }
};

/// Elements that are rounded by chance at a time.
constexpr std::int64_t kWords = 512;

template <class T, class Y>
std::int64_t quantize_row(const Quantize& op, const Codec& codec, std::int64_t row) {
  const BlockRow blocks(op.block, op.x, row);
  const std::int64_t cols = op.x.cols();
  const bool per_column = blocks.cols == 1;
  const Run<T, Y> all{op.x.row<T>(row),
                      op.scale.as<float>() + blocks.first,
                      op.y.defined() ? op.scale_inv.as<float>() + blocks.first : nullptr,
                      per_column,
                      op.codes.defined() ? op.codes.row<std::uint8_t>(row) : nullptr,
                      op.y.defined() ? op.y.row<Y>(row) : nullptr};
  const std::int64_t piece = per_column ? cols : blocks.cols;
  std::int64_t saturated = 0;
  HWY_ALIGN std::uint64_t pairs[philox_pairs(kWords)];
  for (std::int64_t begin = 0; begin < cols; begin += piece) {
    const std::int64_t count = std::min(piece, cols - begin);
    const auto run = all.from(begin, per_column ? begin : begin / piece);
    if (!op.rounding.stochastic) {
      saturated += run.quantize(codec, ToNearest{}, count);
      continue;
    }
    for (std::int64_t i = 0; i < count; i += kWords) {
      const std::int64_t some = std::min(kWords, count - i);
      const std::uint64_t index = op.index_of_row(row) + static_cast<std::uint64_t>(begin + i);
      const auto skip = static_cast<std::int64_t>(index % 4);
      philox_words(op.rounding.key, op.rounding.step_now(), index / 4, pairs, skip + some);
      const ByWord round{reinterpret_cast<const unsigned char*>(pairs) + 4 * skip};
      saturated += run.from(i, per_column ? i : 0).quantize(codec, round, some);
    }
  }
  return saturated;
}

std::int64_t quantize(const Quantize& op, std::int64_t begin, std::int64_t end) {
  const Codec codec(op.format);
  std::int64_t saturated = 0;
  with_fast_type(op.x.dtype, [&]<class T>() {
    with_fast_type(op.y.defined() ? op.y.dtype : op.x.dtype, [&]<class Y>() {
      for (std::int64_t row = begin; row < end; ++row) {
        saturated += quantize_row<T, Y>(op, codec, row);
      }
    });
  });
  return saturated;
}

HWY_INLINE VI load_codes(const std::uint8_t* from, Full) {
  const Bytes bytes;
  return hn::PromoteTo(I(), hn::LoadU(bytes, from));
}
HWY_INLINE VI load_codes(const std::uint8_t* from, First some) {
  std::uint8_t row[kLanes] = {};
  std::memcpy(row, from, static_cast<std::size_t>(some.count));
  return load_codes(row, Full{});
}

template <class Y>
void dequantize_row(const Dequantize& op, const float* values, std::int64_t row) {
  const BlockRow blocks(op.block, op.y, row);
  const std::int64_t cols = op.y.cols();
  const std::uint8_t* const codes = op.codes.row<std::uint8_t>(row);
  const float* const scale_inv = op.scale_inv.as<float>() + blocks.first;
  Y* const y = op.y.row<Y>(row);
  const bool per_column = blocks.cols == 1;
  const std::int64_t piece = per_column ? cols : blocks.cols;
  for (std::int64_t begin = 0, b = 0; begin < cols; begin += piece, ++b) {
    for_vectors(std::min(piece, cols - begin), [&](std::int64_t i, auto lanes) HWY_ATTR {
      const V inverse = per_column ? load(scale_inv + i, lanes) : hn::Set(F(), scale_inv[b]);
      const V value = hn::GatherIndex(F(), values, load_codes(codes + begin + i, lanes));
      store(hn::Mul(value, inverse), y + begin + i, lanes);
    });
  }
}

void dequantize(const Dequantize& op, const float* values, std::int64_t begin, std::int64_t end) {
  with_fast_type(op.y.dtype, [&]<class Y>() {
    for (std::int64_t row = begin; row < end; ++row) dequantize_row<Y>(op, values, row);
  });
}

}  // namespace
}  // namespace llmtrain::kernels::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llmtrain::kernels::fast {

HWY_EXPORT(block_amax);
HWY_EXPORT(quantize);
HWY_EXPORT(dequantize);

namespace {

/// Rows that one thread takes at a time.
std::int64_t rows_at_once(const View& matrix) {
  return std::max<std::int64_t>(1, kElementsPerBlock / std::max<std::int64_t>(1, matrix.cols()));
}

void run_block_amax(const KernelCtx& ctx, const BlockAmax& op, const View&) {
  std::int64_t rows = rows_at_once(op.x);
  if (op.block.rows > 0) {
    rows = (rows + op.block.rows - 1) / op.block.rows * op.block.rows;
  } else if (op.block.cols_of(op.x.cols()) == 1) {
    rows = std::max<std::int64_t>(1, op.x.rows());
  }
  parallel_blocks(ctx.threads, op.x.rows(), rows, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(block_amax)(op, begin, end);
  });
}

void run_quantize(const KernelCtx& ctx, const Quantize& op, const View& workspace) {
  // What a product of codes takes, which no CPU has: for proofs.
  if (op.transposed.defined()) return run_reference(ctx, op, workspace);
  std::atomic<std::int64_t> saturated = 0;
  parallel_blocks(ctx.threads, op.x.rows(), rows_at_once(op.x),
                  [&](std::int64_t begin, std::int64_t end) {
                    saturated += HWY_DYNAMIC_DISPATCH(quantize)(op, begin, end);
                  });
  if (op.saturated.defined()) *op.saturated.as<double>() += static_cast<double>(saturated);
}

void run_dequantize(const KernelCtx& ctx, const Dequantize& op, const View&) {
  const std::array<float, 256> values = decode_table(op.format);
  parallel_blocks(ctx.threads, op.y.rows(), rows_at_once(op.y),
                  [&](std::int64_t begin, std::int64_t end) {
                    HWY_DYNAMIC_DISPATCH(dequantize)(op, values.data(), begin, end);
                  });
}

}  // namespace

void add_quantize_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<BlockAmax, run_block_amax>());
  rows.push_back(row_of<Quantize, run_quantize>());
  rows.push_back(row_of<Dequantize, run_dequantize>());
}

}  // namespace llmtrain::kernels::fast
#endif
