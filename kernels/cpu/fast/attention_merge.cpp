#include <cmath>
#include <limits>

#include "kernels/cpu/fallback.hpp"
#include "kernels/cpu/fast/attention.hpp"
#include "kernels/cpu/parallel.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/fast/attention_merge.cpp"
#include <hwy/foreach_target.h>  // NOLINT(build/include_order): first of the vector headers

#include "kernels/cpu/fast/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llmtrain::kernels::fast::HWY_NAMESPACE {

/// All heads of one row.
void merge_row(const AttentionMerge& op, std::int64_t row) {
  const std::int64_t head_dim = op.out.cols() / op.num_heads;
  const std::int64_t tq = op.out.rows() / op.num_sequences;
  for (std::int64_t h = 0; h < op.num_heads; ++h) {
    const std::int64_t at = (row / tq * op.num_heads + h) * tq + row % tq;
    float& lse = op.lse.as<float>()[at];
    const float part_lse = op.part_lse.as<float>()[at];
    if (part_lse == -std::numeric_limits<float>::infinity()) continue;  // nothing to add
    const float max = std::max(lse, part_lse);
    const float weight = std::exp(lse - max), part_weight = std::exp(part_lse - max);
    const float sum = weight + part_weight;
    const V kept = hn::Set(F(), weight / sum), added = hn::Set(F(), part_weight / sum);
    float* out = op.out.row<float>(row) + h * head_dim;
    const float* part = op.part_out.row<float>(row) + h * head_dim;
    for_vectors(head_dim, [&](std::int64_t d, auto lanes) {
      const V term = hn::Mul(added, load(part + d, lanes));
      store(hn::MulAdd(kept, load(out + d, lanes), term), out + d, lanes);
    });
    lse = max + std::log(sum);
  }
}

}  // namespace llmtrain::kernels::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llmtrain::kernels::fast {

HWY_EXPORT(merge_row);

void attention_merge(const KernelCtx& ctx, const AttentionMerge& op, const View& workspace) {
  if (op.out.dtype == DType::f64) return run_reference(ctx, op, workspace);
  constexpr std::int64_t kRows = 16;
  parallel_blocks(ctx.threads, op.out.rows(), kRows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) HWY_DYNAMIC_DISPATCH(merge_row)(op, i);
  });
}

}  // namespace llmtrain::kernels::fast
#endif  // HWY_ONCE
