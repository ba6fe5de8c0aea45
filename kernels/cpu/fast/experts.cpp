#include "kernels/experts.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/fallback.hpp"
#include "kernels/cpu/fast/gemm.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/rows.hpp"
#include "kernels/expert_slots.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/fast/experts.cpp"
#include <hwy/foreach_target.h>  // NOLINT(build/include_order): first of the vector headers

#include "kernels/cpu/fast/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace llmtrain::kernels::fast::HWY_NAMESPACE {

void combine_rows_of(const CombineRows& op, std::int64_t begin, std::int64_t end) {
  const F f;
  const std::int64_t top_k = op.top_k();
  const auto* place = op.place.as<std::int32_t>();
  with_fast_type(op.x.dtype, [&]<class T>() {
    for (std::int64_t r = begin; r < end; ++r) {
      T* y = op.y.row<T>(r);
      for_vectors(op.y.cols(), [&](std::int64_t j, auto lanes) {
        V sum = hn::Zero(f);
        for (std::int64_t c = r * top_k; c < (r + 1) * top_k; ++c) {
          sum = hn::Add(sum, load(op.x.row<T>(place[c]) + j, lanes));
        }
        store(sum, y + j, lanes);
      });
    }
  });
}

}  // namespace llmtrain::kernels::fast::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llmtrain::kernels::fast {

HWY_EXPORT(combine_rows_of);

namespace {

constexpr std::int64_t kRows = 16;

void gather_rows(const KernelCtx& ctx, const GatherRows& op, const View&) {
  const std::int32_t filled = op.offsets.as<std::int32_t>()[op.offsets.numel() - 1];
  const auto bytes = static_cast<std::size_t>(op.y.cols()) * size_of(op.x.dtype);
  const auto row = [bytes](const View& view, std::int64_t i) {
    return view.as<std::byte>() + static_cast<std::size_t>(i) * bytes;
  };
  const std::int64_t top_k = op.top_k();
  parallel_blocks(ctx.threads, op.source.numel(), kRows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t p = begin; p < end; ++p) {
      if (p >= filled) {
        std::memset(row(op.y, p), 0, bytes);
      } else {
        const std::int64_t from = op.source.as<std::int32_t>()[p] / top_k;
        std::memcpy(row(op.y, p), row(op.x, from), bytes);
      }
    }
  });
}

void combine_rows(const KernelCtx& ctx, const CombineRows& op, const View& workspace) {
  if (op.x.dtype == DType::f64) return run_reference(ctx, op, workspace);
  parallel_blocks(ctx.threads, op.y.rows(), kRows, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(combine_rows_of)(op, begin, end);
  });
}

void take_rows(const KernelCtx& ctx, const TakeRows& op, const View& workspace) {
  const auto* from = op.from.as<std::int32_t>();
  // What has no slot is rare, and ends the run.
  if (std::find(from, from + op.y.rows(), AssignSlots::kNoSlot) != from + op.y.rows()) {
    return run_reference(ctx, op, workspace);
  }
  const auto bytes = static_cast<std::size_t>(op.y.cols()) * size_of(op.x.dtype);
  const auto row = [bytes](const View& view, std::int64_t i) {
    return view.as<std::byte>() + static_cast<std::size_t>(i) * bytes;
  };
  parallel_blocks(ctx.threads, op.y.rows(), kRows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      if (from[i] == AssignSlots::kEmpty) {
        std::memset(row(op.y, i), 0, bytes);
      } else {
        std::memcpy(row(op.y, i), row(op.x, from[i]), bytes);
      }
    }
  });
}

void grouped_matmul(const KernelCtx& ctx, const GroupedMatmul& op, const View& workspace) {
  if (op.a.dtype == DType::f64 || op.out() == 0 || op.in() == 0) {
    return run_reference(ctx, op, workspace);
  }
  const auto* offsets = op.offsets.as<std::int32_t>();
  for (std::int64_t e = 0; e < op.experts(); ++e) {
    if (offsets[e] == offsets[e + 1]) continue;
    gemm(op.of_expert(e, offsets[e], offsets[e + 1]), ctx.threads, workspace.data);
  }
  if (op.product == GroupedProduct::weight_grad || op.accumulate) return;
  const auto bytes = static_cast<std::size_t>(op.c.cols()) * size_of(op.c.dtype);
  for (std::int64_t p = offsets[op.experts()]; p < op.rows(); ++p) {
    const auto at = static_cast<std::size_t>(p * op.c.row_stride) * size_of(op.c.dtype);
    std::memset(op.c.as<std::byte>() + at, 0, bytes);
  }
}

}  // namespace

void add_experts_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<GatherRows, gather_rows>());
  rows.push_back(row_of<CombineRows, combine_rows>());
  rows.push_back(row_of<TakeRows, take_rows>());
  rows.push_back(row_of<GroupedMatmul, grouped_matmul>());
}

}  // namespace llmtrain::kernels::fast
#endif  // HWY_ONCE
