// Sums of squares in vectors. Included once per instruction set.
#if defined(LLMTRAIN_SQUARES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LLMTRAIN_SQUARES_INL_H
#undef LLMTRAIN_SQUARES_INL_H
#else
#define LLMTRAIN_SQUARES_INL_H
#endif

#include "kernels/cpu/fast/vector-inl.h"
#include "kernels/optimizer.hpp"

HWY_BEFORE_NAMESPACE();
namespace llmtrain::kernels::fast::HWY_NAMESPACE {

/// Sum of squares of at most one block, in the order that SquaredNorm prescribes.
inline float squared_norm(const float* g, std::int64_t count) {
  constexpr std::int64_t kWidth = SquaredNorm::kLanes;
  const hn::CappedTag<float, kWidth> d;
  using W = hn::Vec<decltype(d)>;
  constexpr std::int64_t kStep = hn::MaxLanes(decltype(d)());
  W sums[kWidth / kStep];
  for (W& sum : sums) sum = hn::Zero(d);
  std::int64_t e = 0;
  for (; e + kWidth <= count; e += kWidth) {
    for (std::int64_t part = 0; part < kWidth / kStep; ++part) {
      const W x = hn::LoadU(d, g + e + part * kStep);
      sums[part] = hn::Add(sums[part], hn::Mul(x, x));
    }
  }
  float lanes[kWidth];
  for (std::int64_t part = 0; part < kWidth / kStep; ++part) {
    hn::StoreU(sums[part], d, lanes + part * kStep);
  }
  for (; e < count; ++e) lanes[e % kWidth] += g[e] * g[e];
  for (std::int64_t width = kWidth / 2; width > 0; width /= 2) {
    for (std::int64_t i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

}  // namespace llmtrain::kernels::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
