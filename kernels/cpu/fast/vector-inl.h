// Vectors of floats as the fast kernels use them. Included once per instruction set, after
// foreach_target.h (see Highway's "per-target" headers), hence the unusual guard.
#if defined(LLMTRAIN_VECTOR_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LLMTRAIN_VECTOR_INL_H
#undef LLMTRAIN_VECTOR_INL_H
#else
#define LLMTRAIN_VECTOR_INL_H
#endif

#include <cstdint>
#include <cstring>

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include "lib/tensor/dtype.hpp"

HWY_BEFORE_NAMESPACE();
namespace llmtrain::kernels::fast::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F = hn::ScalableTag<float>;
using V = hn::Vec<F>;
inline constexpr std::int64_t kLanes = hn::MaxLanes(F());

HWY_INLINE V constant(double value) { return hn::Set(F(), static_cast<float>(value)); }
HWY_INLINE V load(const float* p) { return hn::LoadU(F(), p); }
HWY_INLINE V load(const bf16* p) {
  const hn::Rebind<std::uint16_t, F> half;
  const auto bits = hn::LoadU(half, reinterpret_cast<const std::uint16_t*>(p));
  const hn::RebindToUnsigned<F> word;
  return hn::BitCast(F(), hn::ShiftLeft<16>(hn::PromoteTo(word, bits)));
}

/// As to_float() does. AVX2 is taken to have F16C, as Highway takes it; elsewhere a float of the
/// same digits is multiplied by the difference of the exponents, which is exact.
template <class D>
HWY_INLINE hn::Vec<D> widen_f16(D d, const f16* p) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  const hn::Rebind<hwy::float16_t, D> half;
  return hn::PromoteTo(d, hn::LoadU(half, reinterpret_cast<const hwy::float16_t*>(p)));
#else
  const hn::Rebind<std::uint16_t, D> half;
  const hn::RebindToSigned<D> word;
  const auto bits = hn::PromoteTo(word, hn::LoadU(half, reinterpret_cast<const std::uint16_t*>(p)));
  const auto magnitude = hn::And(bits, hn::Set(word, 0x7fff));
  const auto sign = hn::ShiftLeft<16>(hn::Sub(bits, magnitude));
  const auto digits = hn::BitCast(d, hn::ShiftLeft<13>(magnitude));
  const auto value = hn::BitCast(word, hn::Mul(digits, hn::Set(d, 0x1p112f)));
  const auto infinite = hn::Gt(magnitude, hn::Set(word, 0x7bff));
  const auto nan = hn::Gt(magnitude, hn::Set(word, 0x7c00));
  const auto exponent = hn::IfThenElseZero(infinite, hn::Set(word, 0x7f800000));
  const auto quiet = hn::IfThenElseZero(nan, hn::Set(word, 0x400000));
  return hn::BitCast(d, hn::Or(hn::Or(value, sign), hn::Or(exponent, quiet)));
#endif
}
HWY_INLINE V load(const f16* p) { return widen_f16(F(), p); }

HWY_INLINE void store(V v, float* p) { hn::StoreU(v, F(), p); }
/// Rounds exactly as to_f16() does.
HWY_INLINE void store(V v, f16* p) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  const hn::Rebind<hwy::float16_t, F> half;
  hn::StoreU(hn::DemoteTo(half, v), half, reinterpret_cast<hwy::float16_t*>(p));
#else
  const hn::RebindToSigned<F> word;
  const auto bits = hn::BitCast(word, v);
  const auto magnitude = hn::And(bits, hn::Set(word, 0x7fffffff));
  const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(word, 0x8000));
  const auto upper = hn::ShiftRight<13>(magnitude);
  const auto odd = hn::And(upper, hn::Set(word, 1));
  const auto half_way =
      hn::Add(hn::Sub(magnitude, hn::Set(word, 112 << 23)), hn::Add(odd, hn::Set(word, 0xfff)));
  const auto normal = hn::Min(hn::ShiftRight<13>(half_way), hn::Set(word, 0x7c00));
  // The units of 0.5 are those of subnormals: the sum rounds to them.
  const auto sum = hn::Add(hn::BitCast(F(), magnitude), hn::Set(F(), 0.5f));
  const auto subnormal = hn::Sub(hn::BitCast(word, sum), hn::Set(word, 0x3f000000));
  const auto quiet = hn::Or(hn::And(upper, hn::Set(word, 0x3ff)), hn::Set(word, 0x7e00));
  const auto is_small = hn::Lt(magnitude, hn::Set(word, 0x38800000));
  const auto is_nan = hn::Gt(magnitude, hn::Set(word, 0x7f800000));
  const auto number = hn::IfThenElse(is_small, subnormal, normal);
  const auto result = hn::Or(hn::IfThenElse(is_nan, quiet, number), sign);
  const hn::Rebind<std::uint16_t, F> half;
  hn::StoreU(hn::DemoteTo(half, result), half, reinterpret_cast<std::uint16_t*>(p));
#endif
}
/// Rounds exactly as to_bf16() does, subnormals and NaNs included, which the processor's own
/// instruction would not.
HWY_INLINE void store(V v, bf16* p) {
  const hn::RebindToUnsigned<F> word;
  const auto bits = hn::BitCast(word, v);
  const auto upper = hn::ShiftRight<16>(bits);
  const auto odd = hn::And(upper, hn::Set(word, 1u));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(word, 0x7fffu))));
  const auto quiet = hn::Or(upper, hn::Set(word, 0x40u));
  const auto result = hn::IfThenElse(hn::RebindMask(word, hn::IsNaN(v)), quiet, rounded);
  const hn::RebindToSigned<F> signed_word;
  const hn::Rebind<std::uint16_t, F> half;
  hn::StoreU(hn::DemoteTo(half, hn::BitCast(signed_word, result)), half,
             reinterpret_cast<std::uint16_t*>(p));
}

/// Number of lanes that a step of a loop covers: all of them, or the first few at the end of a row.
struct Full {};
struct First {
  std::int64_t count;
};

template <class T>
HWY_INLINE V load(const T* p, Full) {
  return load(p);
}
/// Lanes beyond `count` are zero.
template <class T>
HWY_INLINE V load(const T* p, First some) {
  T row[kLanes] = {};
  std::memcpy(row, p, static_cast<std::size_t>(some.count) * sizeof(T));
  return load(row);
}
template <class T>
HWY_INLINE void store(V v, T* p, Full) {
  store(v, p);
}
template <class T>
HWY_INLINE void store(V v, T* p, First some) {
  T row[kLanes];
  store(v, row);
  std::memcpy(p, row, static_cast<std::size_t>(some.count) * sizeof(T));
}

/// Calls f(offset, Full or First) over [0, count): one body serves whole vectors and the tail, so
/// that an element's result does not depend on where in a row it lies.
template <class Body>
HWY_INLINE void for_vectors(std::int64_t count, const Body& body) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) body(i, Full{});
  if (i < count) body(i, First{count - i});
}

/// v, with zero in the lanes that `some` leaves out: what a sum over a row may add.
HWY_INLINE V keep(V v, Full) { return v; }
HWY_INLINE V keep(V v, First some) {
  return hn::IfThenElseZero(hn::FirstN(F(), static_cast<std::size_t>(some.count)), v);
}
HWY_INLINE float sum_of_lanes(V v) { return hn::GetLane(hn::SumOfLanes(F(), v)); }

/// e^x within 2 ulp, 0 where it is below about 2e-38, NaN for NaN. It is infinite above 88.7 if it
/// `may_overflow`; else x <= 88, as in a softmax, which subtracts the maximum first. Cody-Waite
/// reduction and the polynomial of Cephes' expf.
template <bool may_overflow = true>
HWY_INLINE V exp(V x) {
  const F f;
  const hn::RebindToSigned<F> word;
  // The second operand is what comes out if one is NaN.
  if constexpr (may_overflow) x = hn::Min(hn::Set(f, 89.0f), x);
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
  const V shifter = hn::Set(f, 0x1.8p23f);
  const V shifted = hn::MulAdd(x, hn::Set(f, 1.44269504088896341f), shifter);
  const V n = hn::Sub(shifted, shifter);
  V r = hn::NegMulAdd(n, hn::Set(f, 0.693359375f), x);
  r = hn::NegMulAdd(n, hn::Set(f, -2.12194440e-4f), r);
  V y = hn::Set(f, 1.9875691500e-4f);
  y = hn::MulAdd(y, r, hn::Set(f, 1.3981999507e-3f));
  y = hn::MulAdd(y, r, hn::Set(f, 8.3334519073e-3f));
  y = hn::MulAdd(y, r, hn::Set(f, 4.1665795894e-2f));
  y = hn::MulAdd(y, r, hn::Set(f, 1.6666665459e-1f));
  y = hn::MulAdd(y, r, hn::Set(f, 5.0000001201e-1f));
  y = hn::Add(hn::MulAdd(y, hn::Mul(r, r), r), hn::Set(f, 1.0f));
  // The largest exponent is one too many for a float: its last doubling is a sum.
  if constexpr (may_overflow) y = hn::Mul(y, hn::Set(f, 0.5f));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(word, shifted));
  y = hn::BitCast(f, hn::Add(hn::BitCast(word, y), exponent));
  if constexpr (may_overflow) y = hn::Add(y, y);
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(f, may_overflow ? -86.6f : -87.3f)), y);
}

/// Within 3 ulp.
HWY_INLINE V tanh(V x) { return hn::IfThenElse(hn::IsNaN(x), x, hn::Tanh(F(), x)); }

/// cap * tanh(x / cap).
HWY_INLINE V soft_cap(V x, float cap) {
  return hn::Mul(hn::Set(F(), cap), tanh(hn::Mul(x, hn::Set(F(), 1 / cap))));
}
/// Its derivative, from its value.
HWY_INLINE V soft_cap_slope(V capped, float cap) {
  const V t = hn::Mul(capped, hn::Set(F(), 1 / cap));
  return hn::NegMulAdd(t, t, hn::Set(F(), 1.0f));
}

/// coefficients[0] + coefficients[1] x + ...
template <std::size_t n>
HWY_INLINE V polynomial(V x, const double (&coefficients)[n]) {
  V sum = constant(coefficients[n - 1]);
  for (std::size_t i = n - 1; i-- > 0;) sum = hn::MulAdd(sum, x, constant(coefficients[i]));
  return sum;
}

/// The error function, within 1.1 ulp: x + x p(x^2) up to 1, beyond it 1 - exp(-|x| q(|x|)). Both
/// polynomials are minimax fits to the relative error of erf, q on [0.9, 4].
HWY_INLINE V erf(V x) {
  constexpr double p[] = {0.12837916573209235,   -0.37612625841634156, 0.11283585303018984,
                          -0.026853817655732214, 0.00518833783517419,  -0.0008010279206802048,
                          7.854136850733197e-05};
  constexpr double q[] = {1.1286370661346332,    0.6351980757156956,    0.106158969886285,
                          -0.023694485961025562, 0.0036102974450415294, -0.0003148452785851073,
                          1.0431625090784937e-05};
  const V near = hn::MulAdd(polynomial(hn::Mul(x, x), p), x, x);
  const V t = hn::Min(hn::Abs(x), constant(10));  // erf is 1 long before
  const V complement = exp<false>(hn::Neg(hn::Mul(t, polynomial(t, q))));
  const V far = hn::CopySign(hn::Sub(constant(1), complement), x);
  return hn::IfThenElse(hn::Gt(hn::Abs(x), constant(1)), far, near);
}

/// Two vectors that read like a number, for formulas shared with scalar code. A formula is a long
/// chain of dependent instructions: of two chains, one works while the other waits.
struct Lanes {
  static constexpr std::int64_t kCount = 2 * kLanes;
  V low, high;
  HWY_INLINE Lanes(V low_lanes, V high_lanes) : low(low_lanes), high(high_lanes) {}
  explicit HWY_INLINE Lanes(double value) : low(constant(value)), high(low) {}
};
struct LanesMask {
  hn::Mask<F> low, high;
};
HWY_INLINE Lanes load_lanes(const float* p) { return {load(p), load(p + kLanes)}; }
HWY_INLINE void store(Lanes x, float* p) {
  store(x.low, p);
  store(x.high, p + kLanes);
}
HWY_INLINE Lanes operator+(Lanes a, Lanes b) {
  return {hn::Add(a.low, b.low), hn::Add(a.high, b.high)};
}
HWY_INLINE Lanes operator-(Lanes a, Lanes b) {
  return {hn::Sub(a.low, b.low), hn::Sub(a.high, b.high)};
}
HWY_INLINE Lanes operator*(Lanes a, Lanes b) {
  return {hn::Mul(a.low, b.low), hn::Mul(a.high, b.high)};
}
HWY_INLINE Lanes operator/(Lanes a, Lanes b) {
  return {hn::Div(a.low, b.low), hn::Div(a.high, b.high)};
}
HWY_INLINE Lanes operator-(Lanes a) { return {hn::Neg(a.low), hn::Neg(a.high)}; }
HWY_INLINE LanesMask operator<(Lanes a, Lanes b) {
  return {hn::Lt(a.low, b.low), hn::Lt(a.high, b.high)};
}
HWY_INLINE LanesMask operator>(Lanes a, Lanes b) { return b < a; }
HWY_INLINE Lanes select(LanesMask condition, Lanes yes, Lanes no) {
  return {hn::IfThenElse(condition.low, yes.low, no.low),
          hn::IfThenElse(condition.high, yes.high, no.high)};
}
HWY_INLINE Lanes exp(Lanes x) { return {exp(x.low), exp(x.high)}; }
HWY_INLINE Lanes tanh(Lanes x) { return {tanh(x.low), tanh(x.high)}; }
HWY_INLINE Lanes erf(Lanes x) { return {erf(x.low), erf(x.high)}; }

}  // namespace llmtrain::kernels::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
