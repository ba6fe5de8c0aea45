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
  // Blocks copy 64 rows of their own, and tiles of the other side.
  constexpr int kOwn = warpgroup_query_tiles::kRows;
  static_assert(kOwn == warpgroup_key_tiles::kRows);
  GradientMaps of_queries{}, of_keys{};
  const auto describe = [&](GradientMaps& maps, int rows_of_q, int rows_of_k) {
    return describe_heads(op.q, of_q, rows_of_q, maps.q, why) &&
           describe_heads(op.dout, of_q, rows_of_q, maps.dout, why) &&
           describe_heads(op.k, of_k, rows_of_k, maps.k, why) &&
           describe_heads(op.v, of_k, rows_of_k, maps.v, why);
  };
  // Nothing where one side has none.
  if (args.tq > 0 && args.tk > 0 &&
      !(describe(of_queries, kOwn, warpgroup_query_tiles::kKeys<kDim>) &&
        describe(of_keys, warpgroup_key_tiles::kQueries, kOwn))) {
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
  warpgroup_query_tiles::gradient<T, kDim>(ctx, args, of_queries, m);
  warpgroup_key_tiles::gradient<T, kDim>(ctx, args, of_keys, m);
  return true;
}

}  // namespace llmtrain::kernels::cuda
