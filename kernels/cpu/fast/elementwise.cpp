#include "kernels/elementwise.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/fast/elementwise.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/activations.hpp"
#include "kernels/cpu/fallback.hpp"
#include "kernels/cpu/fast/philox-inl.h"
#include "kernels/cpu/fast/segments.hpp"
#include "kernels/cpu/fast/vector-inl.h"
#include "kernels/cpu/rows.hpp"
#include "kernels/optimizer.hpp"

HWY_BEFORE_NAMESPACE();
namespace llmtrain::kernels::fast::HWY_NAMESPACE {
namespace {

template <class T>
void add_as(const Add& op, const Segment& at) {
  const T* a = at.of<T>(op.a);
  const T* b = at.of<T>(op.b);
  T* y = at.of<T>(op.y);
  for_vectors(at.count, [&](std::int64_t i, auto lanes) HWY_ATTR {
    store(hn::Add(load(a + i, lanes), load(b + i, lanes)), y + i, lanes);
  });
}

void add(const Add& op, const Segment& at) {
  with_fast_type(op.a.dtype, [&]<class T>() { add_as<T>(op, at); });
}

template <class X, class Y>
void scale_cast_as(const ScaleCast& op, const Segment& at) {
  const X* x = at.of<X>(op.x);
  Y* y = at.of<Y>(op.y);
  const V scale = constant(op.scale);
  if (op.accumulate) {
    for_vectors(at.count, [&](std::int64_t i, auto lanes) HWY_ATTR {
      const V value = hn::Mul(scale, load(x + i, lanes));
      store(hn::Add(load(y + i, lanes), value), y + i, lanes);
    });
  } else {
    for_vectors(at.count, [&](std::int64_t i, auto lanes) HWY_ATTR {
      store(hn::Mul(scale, load(x + i, lanes)), y + i, lanes);
    });
  }
}

void scale_cast(const ScaleCast& op, const Segment& at) {
  with_fast_type(op.x.dtype, [&]<class X>() {
    with_fast_type(op.y.dtype, [&]<class Y>() { scale_cast_as<X, Y>(op, at); });
  });
}

/// Past the caches: what is larger than they are is not there any more when it is read, and a line
/// that is written whole need not be read first.
void fill_past_caches(const Fill& op, const Segment& at) {
  const V value = constant(op.value);
  float* const y = at.of<float>(op.y);
  for_vectors(at.count, [&](std::int64_t i, auto lanes) HWY_ATTR {
    if constexpr (std::is_same_v<decltype(lanes), Full>) {
      hn::Stream(value, F(), y + i);
    } else {
      store(value, y + i, lanes);
    }
  });
  hwy::FlushStream();
}

template <class T>
void fill_as(const Fill& op, const Segment& at) {
  const V value = constant(op.value);
  T* const y = at.of<T>(op.y);
  for_vectors(at.count, [&](std::int64_t i, auto lanes) HWY_ATTR { store(value, y + i, lanes); });
}

void fill(const Fill& op, const Segment& at) {
  constexpr std::int64_t kLarge = 1 << 20;
  if (op.y.dtype == DType::f32 && op.y.numel() >= kLarge &&
      reinterpret_cast<std::uintptr_t>(at.of<float>(op.y)) % (kLanes * sizeof(float)) == 0) {
    return fill_past_caches(op, at);
  }
  with_fast_type(op.y.dtype, [&]<class T>() { fill_as<T>(op, at); });
}

/// Elements that the activation and dropout kernels treat at a time, in the innermost cache.
constexpr std::int64_t kChunk = 512;
/// kChunk elements, and room for the last vectors.
using Chunk = float[kChunk + Lanes::kCount];

/// value[i] = f(x[i]), and slope[i] = f'(x[i]) if asked for; whole vectors, so up to
/// Lanes::kCount - 1 more.
template <Activation activation, bool with_slope>
void evaluate_as(const float* x_in, float* value, [[maybe_unused]] float* slope_out,
                 std::int64_t count) {
  using X = Lanes;
  for (std::int64_t i = 0; i < count; i += X::kCount) {
    const X x = load_lanes(x_in + i);
    X y(0.0);
    X slope(0.0);
#define ACTIVATION(id, names, ...)              \
  if constexpr (activation == Activation::id) { \
    __VA_ARGS__                                 \
  }
#include "kernels/activation_table.inc"
#undef ACTIVATION
    store(y, value + i);
    if constexpr (with_slope) store(slope, slope_out + i);
  }
}

void evaluate(Activation activation, const float* x, float* value, float* slope,
              std::int64_t count) {
  switch (activation) {
#define ACTIVATION(id, names, ...)                                                       \
  case Activation::id:                                                                   \
    return slope == nullptr ? evaluate_as<Activation::id, false>(x, value, slope, count) \
                            : evaluate_as<Activation::id, true>(x, value, slope, count);
#include "kernels/activation_table.inc"
#undef ACTIVATION
  }
}

/// Calls f(offset, x as floats, count) over a segment of x.
template <class T, class Body>
HWY_INLINE void for_chunks(const T* x, std::int64_t count, const Body& body) {
  HWY_ALIGN Chunk wide;
  for (std::int64_t begin = 0; begin < count; begin += kChunk) {
    const std::int64_t n = std::min(kChunk, count - begin);
    for_vectors(n, [&](std::int64_t i, auto lanes)
                       HWY_ATTR { store(load(x + begin + i, lanes), wide + i); });
    body(begin, wide, n);
  }
}

template <class T>
void activation_forward_as(const ActivationForward& op, const Segment& at) {
  const T* up = op.up.defined() ? at.of<T>(op.up) : nullptr;
  T* y = at.of<T>(op.y);
  HWY_ALIGN Chunk value;
  for_chunks(at.of<T>(op.x), at.count,
             [&](std::int64_t begin, const float* x, std::int64_t count) HWY_ATTR {
               evaluate(op.activation, x, value, nullptr, count);
               for_vectors(count, [&](std::int64_t i, auto lanes) HWY_ATTR {
                 V v = load(value + i);
                 if (up != nullptr) v = hn::Mul(v, load(up + begin + i, lanes));
                 store(v, y + begin + i, lanes);
               });
             });
}

void activation_forward(const ActivationForward& op, const Segment& at) {
  with_fast_type(op.x.dtype, [&]<class T>() { activation_forward_as<T>(op, at); });
}

template <class T>
void activation_backward_as(const ActivationBackward& op, const Segment& at) {
  const T* up = op.up.defined() ? at.of<T>(op.up) : nullptr;
  const T* dy = at.of<T>(op.dy);
  T* dx = at.of<T>(op.dx);
  T* dup = op.up.defined() ? at.of<T>(op.dup) : nullptr;
  HWY_ALIGN Chunk value;
  HWY_ALIGN Chunk slope;
  for_chunks(at.of<T>(op.x), at.count,
             [&](std::int64_t begin, const float* x, std::int64_t count) HWY_ATTR {
               evaluate(op.activation, x, value, slope, count);
               for_vectors(count, [&](std::int64_t i, auto lanes) HWY_ATTR {
                 const V d = load(dy + begin + i, lanes);
                 V result = hn::Mul(d, load(slope + i));
                 if (up != nullptr) {
                   result = hn::Mul(result, load(up + begin + i, lanes));
                   store(hn::Mul(d, load(value + i)), dup + begin + i, lanes);
                 }
                 store(result, dx + begin + i, lanes);
               });
             });
}

void activation_backward(const ActivationBackward& op, const Segment& at) {
  with_fast_type(op.x.dtype, [&]<class T>() { activation_backward_as<T>(op, at); });
}

template <class T>
void dropout_as(const Dropout& op, const Segment& at) {
  const hn::RebindToUnsigned<F> du;
  const T* x = at.of<T>(op.x);
  T* y = at.of<T>(op.y);
  const V scale = constant(1 / (1 - op.p));
  // (word + 1/2) / 2^32 >= p exactly when word >= p 2^32 - 1/2; both sides are exact in double.
  const auto threshold = hn::Set(du, static_cast<std::uint32_t>(std::ceil(op.p * 0x1p32 - 0.5)));
  const auto first =
      static_cast<std::uint64_t>(op.row_id.as<std::int64_t>()[at.row] * op.x.cols() + at.col);
  HWY_ALIGN std::uint64_t pairs[philox_pairs(kChunk)];
  for (std::int64_t begin = 0; begin < at.count; begin += kChunk) {
    const std::int64_t count = std::min(kChunk, at.count - begin);
    const std::uint64_t index = first + static_cast<std::uint64_t>(begin);
    const auto skip = static_cast<std::int64_t>(index % 4);
    philox_words(op.key, op.step_now(), index / 4, pairs, skip + count);
    const auto* words = reinterpret_cast<const unsigned char*>(pairs) + 4 * skip;
    for_vectors(count, [&](std::int64_t i, auto lanes) HWY_ATTR {
      HWY_ALIGN std::uint32_t aligned[kLanes];
      std::memcpy(aligned, words + 4 * i, sizeof aligned);
      const auto dropped = hn::RebindMask(F(), hn::Lt(hn::Load(du, aligned), threshold));
      const V scaled = hn::Mul(load(x + begin + i, lanes), scale);
      store(hn::IfThenZeroElse(dropped, scaled), y + begin + i, lanes);
    });
  }
}

void dropout(const Dropout& op, const Segment& at) {
  with_fast_type(op.x.dtype, [&]<class T>() { dropout_as<T>(op, at); });
}

}  // namespace
}  // namespace llmtrain::kernels::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llmtrain::kernels::fast {

HWY_EXPORT(add);
HWY_EXPORT(scale_cast);
HWY_EXPORT(fill);
HWY_EXPORT(activation_forward);
HWY_EXPORT(activation_backward);
HWY_EXPORT(dropout);

namespace {

void run_add(const KernelCtx& ctx, const Add& op, const View& workspace) {
  if (op.a.dtype == DType::f64) return run_reference(ctx, op, workspace);
  for_segments(ctx.threads, {&op.a, &op.b, &op.y}, [&](const Segment& at) {
    HWY_DYNAMIC_DISPATCH(add)(op, at);
  });
}

void run_scale_cast(const KernelCtx& ctx, const ScaleCast& op, const View& workspace) {
  if (op.x.dtype == DType::f64 || op.y.dtype == DType::f64) {
    return run_reference(ctx, op, workspace);
  }
  for_segments(ctx.threads, {&op.x, &op.y}, [&](const Segment& at) {
    HWY_DYNAMIC_DISPATCH(scale_cast)(op, at);
  });
}

void run_normalize(const KernelCtx& ctx, const Normalize& op, const View& workspace) {
  run_scale_cast(ctx, op.as_scale_cast(*op.squared_norm.as<double>()), workspace);
}

void run_scale_update(const KernelCtx& ctx, const ScaleUpdate& op, const View& workspace) {
  const UpdateDecision& decision = *op.decision.as<UpdateDecision>();
  if (decision.applies()) run_scale_cast(ctx, op.as_scale_cast(decision), workspace);
}

void run_fill(const KernelCtx& ctx, const Fill& op, const View& workspace) {
  if (op.y.dtype == DType::f64 || op.y.dtype == DType::u8) return run_reference(ctx, op, workspace);
  for_segments(ctx.threads, {&op.y}, [&](const Segment& at) {
    HWY_DYNAMIC_DISPATCH(fill)(op, at);
  });
}

void run_activation_forward(const KernelCtx& ctx, const ActivationForward& op,
                            const View& workspace) {
  if (op.x.dtype == DType::f64) return run_reference(ctx, op, workspace);
  for_segments(ctx.threads, {&op.x, &op.up, &op.y}, [&](const Segment& at) {
    HWY_DYNAMIC_DISPATCH(activation_forward)(op, at);
  });
}

void run_activation_backward(const KernelCtx& ctx, const ActivationBackward& op,
                             const View& workspace) {
  if (op.x.dtype == DType::f64) return run_reference(ctx, op, workspace);
  for_segments(ctx.threads, {&op.x, &op.up, &op.dy, &op.dx, &op.dup}, [&](const Segment& at) {
    HWY_DYNAMIC_DISPATCH(activation_backward)(op, at);
  });
}

void run_dropout(const KernelCtx& ctx, const Dropout& op, const View& workspace) {
  if (op.x.dtype == DType::f64) return run_reference(ctx, op, workspace);
  for_row_segments(ctx.threads, op.x, [&](const Segment& at) {
    HWY_DYNAMIC_DISPATCH(dropout)(op, at);
  });
}

}  // namespace

void add_elementwise_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<Add, run_add>());
  rows.push_back(row_of<ScaleCast, run_scale_cast>());
  rows.push_back(row_of<Normalize, run_normalize>());
  rows.push_back(row_of<ScaleUpdate, run_scale_update>());
  rows.push_back(row_of<Fill, run_fill>());
  rows.push_back(row_of<ActivationForward, run_activation_forward>());
  rows.push_back(row_of<ActivationBackward, run_activation_backward>());
  rows.push_back(row_of<Dropout, run_dropout>());
}

}  // namespace llmtrain::kernels::fast
#endif
