#pragma once
/// The backward with wgmma: bounds and delta, then dq, then dk and dv. Two kernels, so that every
/// sum is one warpgroup's in a fixed order, and all operands that are computed stay in registers:
/// seven products instead of five.

#include "kernels/cuda/attention_warpgroup_keys.cuh"
#include "kernels/cuda/attention_warpgroup_queries.cuh"
#include "kernels/cuda/tensor_map.hpp"

namespace llmtrain::kernels::cuda {

template <class T, int kDim>
bool warpgroup_backward(const KernelCtx& ctx, const AttentionBackward& op, const View& workspace,
                        std::string& why) {
  const auto args = attention_args<float>(op.shape, op.q, op.k, workspace);
  if (args.sequences == 0) return true;
  const HeadsLayout of_q{args.sequences, args.tq, args.heads, args.head_dim};
  const HeadsLayout of_k{args.sequences, args.tk, args.kv_heads, args.head_dim};
  // Both kernels copy 64 rows at a time; nothing where one side has none.
  constexpr int kRows = warpgroup_query_tiles::kRows;
  static_assert(kRows == warpgroup_query_tiles::kKeys && kRows == warpgroup_key_tiles::kRows &&
                kRows == warpgroup_key_tiles::kQueries);
  GradientMaps maps{};
  if (args.tq > 0 && args.tk > 0 &&
      !(describe_heads(op.q, of_q, kRows, maps.q, why) &&
        describe_heads(op.dout, of_q, kRows, maps.dout, why) &&
        describe_heads(op.k, of_k, kRows, maps.k, why) &&
        describe_heads(op.v, of_k, kRows, maps.v, why))) {
    return false;
  }
  find_bounds(ctx, args);
  const GradientMatrices<T> m{Rows<const T>(op.q),
                              Rows<const T>(op.k),
                              Rows<const T>(op.v),
                              Rows<const T>(op.dout),
                              Results<T>(op.dq),
                              Results<T>(op.dk),
                              Results<T>(op.dv),
                              static_cast<const float*>(op.lse.data),
                              find_delta(ctx, op, args, workspace)};
  warpgroup_query_tiles::gradient<T, kDim>(ctx, args, maps, m);
  warpgroup_key_tiles::gradient<T, kDim>(ctx, args, maps, m);
  return true;
}

}  // namespace llmtrain::kernels::cuda
