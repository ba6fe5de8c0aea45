// Copies of a product's operands into panels. Included once per instruction set, like
// vector-inl.h, hence the unusual guard.
#if defined(LLMTRAIN_GEMM_PACK_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LLMTRAIN_GEMM_PACK_INL_H
#undef LLMTRAIN_GEMM_PACK_INL_H
#else
#define LLMTRAIN_GEMM_PACK_INL_H
#endif

#include <algorithm>

#include <hwy/cache_control.h>

#include "kernels/cpu/fallback.hpp"
#include "kernels/cpu/fast/gemm_blocks.hpp"
#include "kernels/cpu/fast/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llmtrain::kernels::fast::HWY_NAMESPACE {

HWY_INLINE float widened(float x) { return x; }
template <class T>
HWY_INLINE float widened(T x) {
  return to_float(x);
}

#if HWY_TARGET == HWY_SCALAR

template <std::int64_t width, class T>
void copy_across(const T* from, float* to) {
  for (std::int64_t i = 0; i < width; ++i) to[i] = widened(from[i]);
}

template <std::int64_t width, class T>
void copy_along(const T* from, std::int64_t line_stride, std::int64_t count, float* to) {
  for (std::int64_t p = 0; p < count; ++p) {
    for (std::int64_t i = 0; i < width; ++i) to[p * width + i] = widened(from[i * line_stride + p]);
  }
}

#else

/// Four floats, whatever the width of a vector.
using Quad = hn::Full128<float>;
using Four = hn::Vec<Quad>;

HWY_INLINE Four load_four(const float* p) { return hn::LoadU(Quad(), p); }
HWY_INLINE Four load_four(const bf16* p) {
  const hn::Rebind<std::uint16_t, Quad> half;
  const hn::RebindToUnsigned<Quad> word;
  const auto bits = hn::LoadU(half, reinterpret_cast<const std::uint16_t*>(p));
  return hn::BitCast(Quad(), hn::ShiftLeft<16>(hn::PromoteTo(word, bits)));
}

HWY_INLINE Four load_four(const f16* p) { return widen_f16(Quad(), p); }

/// The first or the last two of `v`.
HWY_INLINE void store_lower(Four v, float* p) {
  const hn::Half<Quad> two;
  hn::StoreU(hn::LowerHalf(two, v), two, p);
}
HWY_INLINE void store_upper(Four v, float* p) {
  const hn::Half<Quad> two;
  hn::StoreU(hn::UpperHalf(two, v), two, p);
}

HWY_INLINE void store_two(const float* from, float* to) {
  const hn::Half<Quad> two;
  hn::StoreU(hn::LoadU(two, from), two, to);
}
template <class T>
HWY_INLINE void store_two(const T* from, float* to) {
  to[0] = to_float(from[0]);
  to[1] = to_float(from[1]);
}

/// Element p of `width` lines that lie side by side.
template <std::int64_t width, class T>
HWY_INLINE void copy_across(const T* from, float* to) {
  for (std::int64_t i = 0; i + 4 <= width; i += 4) hn::StoreU(load_four(from + i), Quad(), to + i);
  if constexpr (width % 4 == 2) store_two(from + width - 2, to + width - 2);
}

/// Four elements of four lines, each of which lies in one piece, into a panel of `width` lines.
template <std::int64_t width, class T>
HWY_INLINE void turn_four(const T* line, std::int64_t line_stride, float* to) {
  const Quad d;
  const Four r0 = load_four(line), r1 = load_four(line + line_stride);
  const Four r2 = load_four(line + 2 * line_stride), r3 = load_four(line + 3 * line_stride);
  const Four even = hn::InterleaveLower(d, r0, r2), odd = hn::InterleaveLower(d, r1, r3);
  const Four even2 = hn::InterleaveUpper(d, r0, r2), odd2 = hn::InterleaveUpper(d, r1, r3);
  hn::StoreU(hn::InterleaveLower(d, even, odd), d, to);
  hn::StoreU(hn::InterleaveUpper(d, even, odd), d, to + width);
  hn::StoreU(hn::InterleaveLower(d, even2, odd2), d, to + 2 * width);
  hn::StoreU(hn::InterleaveUpper(d, even2, odd2), d, to + 3 * width);
}

/// Four elements of two lines.
template <std::int64_t width, class T>
HWY_INLINE void turn_two(const T* line, std::int64_t line_stride, float* to) {
  const Quad d;
  const Four r0 = load_four(line), r1 = load_four(line + line_stride);
  const Four lower = hn::InterleaveLower(d, r0, r1), upper = hn::InterleaveUpper(d, r0, r1);
  store_lower(lower, to);
  store_upper(lower, to + width);
  store_lower(upper, to + 2 * width);
  store_upper(upper, to + 3 * width);
}

/// Elements [p, p + count) of `width` lines, each of which lies in one piece; count is a multiple
/// of four. A few lines at a time: at distances like 4 KiB they share a set of the cache, which has
/// not room for all of them.
template <std::int64_t width, class T>
HWY_INLINE void copy_along(const T* from, std::int64_t line_stride, std::int64_t count, float* to) {
  static_assert(width % 2 == 0);
  for (std::int64_t i = 0; i + 4 <= width; i += 4) {
    for (std::int64_t p = 0; p < count; p += 4) {
      turn_four<width>(from + i * line_stride + p, line_stride, to + p * width + i);
    }
  }
  if constexpr (width % 4 == 2) {
    constexpr std::int64_t i = width - 2;
    for (std::int64_t p = 0; p < count; p += 4) {
      turn_two<width>(from + i * line_stride + p, line_stride, to + p * width + i);
    }
  }
}

#endif

/// Elements [begin, end) of `count` lines, one by one.
template <class T>
void copy_slowly(const T* x, const GemmOperand& like, std::int64_t count, std::int64_t begin,
                 std::int64_t end, std::int64_t width, float* panel) {
  for (std::int64_t p = begin; p < end; ++p) {
    for (std::int64_t i = 0; i < count; ++i) {
      panel[p * width + i] = widened(x[i * like.line_stride + p * like.depth_stride]);
    }
  }
}

/// How far before a row is copied it is asked for, where rows lie apart.
inline constexpr std::int64_t kRowsAhead = 8;

/// Elements [begin, end) of all lines of a full panel.
template <std::int64_t width, class T>
HWY_INLINE void copy_panel(const T* x, const GemmOperand& like, std::int64_t begin,
                           std::int64_t end, float* panel) {
  constexpr std::int64_t kLine = 64 / sizeof(T);  // elements of a cache line
  if (like.line_stride == 1) {
    for (std::int64_t p = begin; p < end; ++p) {
      // Rows are too far apart for the processor to read ahead by itself.
      const T* const ahead = x + (p + kRowsAhead) * like.depth_stride;
      for (std::int64_t i = 0; i < width; i += kLine) hwy::Prefetch(ahead + i);
      copy_across<width>(x + p * like.depth_stride, panel + p * width);
    }
  } else if (like.depth_stride == 1) {
    std::int64_t p = begin;
    while (p + 4 <= end) {
      const std::int64_t count = std::min(kLine, (end - p) / 4 * 4);
      // The next panel's lines: each is too short for the processor to read ahead by itself.
      for (std::int64_t i = 0; i < width; ++i)
        hwy::Prefetch(x + p + (width + i) * like.line_stride);
      copy_along<width>(x + p, like.line_stride, count, panel + p * width);
      p += count;
    }
    copy_slowly(x, like, width, p, end, width, panel);
  } else {
    copy_slowly(x, like, width, begin, end, width, panel);
  }
}

template <std::int64_t width, class T>
void pack_elements(const GemmOperand& from, std::int64_t lines, std::int64_t depth, float* panels) {
  // Lines side by side lie in as many pages as they have elements: so few at a time, over all
  // panels, that the processor reads ahead in each.
  const std::int64_t step = from.line_stride == 1 ? 8 : depth;
  const auto* const x = reinterpret_cast<const T*>(from.data);
  const std::int64_t full = lines / width * width;
  for (std::int64_t begin = 0; begin < depth; begin += step) {
    const std::int64_t end = std::min(depth, begin + step);
    for (std::int64_t i = 0; i < full; i += width) {
      copy_panel<width>(x + i * from.line_stride, from, begin, end, panels + i * depth);
    }
  }
  if (full < lines) {
    float* const panel = panels + full * depth;
    std::fill_n(panel, width * depth, 0.0F);
    copy_slowly(x + full * from.line_stride, from, lines - full, 0, depth, width, panel);
  }
}

template <std::int64_t width>
void pack(const GemmOperand& from, std::int64_t lines, std::int64_t depth, float* panels) {
  with_fast_type(from.dtype,
                 [&]<class T>() { pack_elements<width, T>(from, lines, depth, panels); });
}

}  // namespace llmtrain::kernels::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
