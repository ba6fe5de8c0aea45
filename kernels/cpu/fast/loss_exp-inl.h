// exp as softmax needs it. Included once per instruction set.
#if defined(LLMTRAIN_LOSS_EXP_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LLMTRAIN_LOSS_EXP_INL_H
#undef LLMTRAIN_LOSS_EXP_INL_H
#else
#define LLMTRAIN_LOSS_EXP_INL_H
#endif

#include "kernels/cpu/fast/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llmtrain::kernels::fast::HWY_NAMESPACE {

/// e^x for x <= 88 within 2 ulp, 0 where the result is below the normal numbers (x < -87.3), NaN
/// for NaN: half the work of exp(), because softmax subtracts the maximum first. Cody-Waite
/// reduction and the polynomial of Cephes' expf.
HWY_INLINE V softmax_exp(V x) {
  const F f;
  const hn::RebindToSigned<F> word;
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
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(word, shifted));
  y = hn::BitCast(f, hn::Add(hn::BitCast(word, y), exponent));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(f, -87.3f)), y);
}

}  // namespace llmtrain::kernels::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
