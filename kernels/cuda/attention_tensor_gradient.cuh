#pragma once
/// What both backward kernels on tensor cores share. There are two, so that every sum is one
/// block's in a fixed order and nothing is added to memory: seven products instead of five.

#include "kernels/cuda/attention_tensor.cuh"

namespace llmtrain::kernels::cuda {

template <class T>
struct GradientMatrices {
  Rows<const T> q, k, v, dout;
  Rows<T> dq, dk, dv;
  const float *lse, *delta;
};

/// Of a query and a key.
struct PairGradient {
  float p;   // probability after dropout
  float ds;  // gradient of the score, but for the scale
};

/// From the products q k^T and dout v^T. `visible` is what the masks say, `kept` what dropout says;
/// true where there are none.
template <bool kExtras>
__device__ __forceinline__ PairGradient gradient_of(const TensorHead<kExtras>& head, float product,
                                                    float dproduct, float lse2, float delta,
                                                    int q_position, int k_position, bool visible,
                                                    bool kept) {
  if constexpr (kExtras) {
    float slope;
    const float score = head.score(product, q_position, k_position, slope);
    const float p = visible ? exp2_fast(score - lse2) : 0;
    const float factor = kept ? head.args.kept : 0;
    return {p * factor, p * slope * fmaf(factor, dproduct, -delta)};
  } else {
    const float p = visible ? exp2_fast(fmaf(product, head.factor, -lse2)) : 0;
    return {p, p * (dproduct - delta)};
  }
}

}  // namespace llmtrain::kernels::cuda
