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

HWY_INLINE void store(V v, float* p) { hn::StoreU(v, F(), p); }
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

/// e^x, within 1.1 ulp; inf above 88.7, 0 below -104, NaN for NaN.
HWY_INLINE V exp(V x) {
  const V e = hn::Exp(F(), hn::Min(x, constant(104)));
  return hn::IfThenElse(hn::IsNaN(x), x, e);
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
  const V complement = hn::Exp(F(), hn::Neg(hn::Mul(t, polynomial(t, q))));
  const V far = hn::CopySign(hn::Sub(constant(1), complement), x);
  return hn::IfThenElse(hn::Gt(hn::Abs(x), constant(1)), far, near);
}

/// A vector that reads like a number, for formulas shared with scalar code.
struct Lanes {
  V v;
  explicit HWY_INLINE Lanes(V value) : v(value) {}
  explicit HWY_INLINE Lanes(double value) : v(constant(value)) {}
};
HWY_INLINE Lanes operator+(Lanes a, Lanes b) { return Lanes(hn::Add(a.v, b.v)); }
HWY_INLINE Lanes operator-(Lanes a, Lanes b) { return Lanes(hn::Sub(a.v, b.v)); }
HWY_INLINE Lanes operator*(Lanes a, Lanes b) { return Lanes(hn::Mul(a.v, b.v)); }
HWY_INLINE Lanes operator/(Lanes a, Lanes b) { return Lanes(hn::Div(a.v, b.v)); }
HWY_INLINE Lanes operator-(Lanes a) { return Lanes(hn::Neg(a.v)); }
HWY_INLINE hn::Mask<F> operator<(Lanes a, Lanes b) { return hn::Lt(a.v, b.v); }
HWY_INLINE hn::Mask<F> operator>(Lanes a, Lanes b) { return hn::Gt(a.v, b.v); }
HWY_INLINE Lanes select(hn::Mask<F> condition, Lanes yes, Lanes no) {
  return Lanes(hn::IfThenElse(condition, yes.v, no.v));
}
HWY_INLINE Lanes exp(Lanes x) { return Lanes(exp(x.v)); }
HWY_INLINE Lanes tanh(Lanes x) { return Lanes(tanh(x.v)); }
HWY_INLINE Lanes erf(Lanes x) { return Lanes(erf(x.v)); }

}  // namespace llmtrain::kernels::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
