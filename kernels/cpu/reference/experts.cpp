#include "kernels/experts.hpp"

#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/cpu/element.hpp"
#include "kernels/cpu/router_row.hpp"
#include "kernels/cpu/rows.hpp"
#include "kernels/expert_slots.hpp"
#include "kernels/matmul.hpp"
#include "lib/base/require.hpp"

namespace llmtrain::kernels::reference {

namespace {

void group_by_expert(const KernelCtx&, const GroupByExpert& op, const View&) {
  const std::int64_t n = op.expert.numel(), experts = op.experts();
  const auto* expert = op.expert.as<std::int32_t>();
  auto *offsets = op.offsets.as<std::int32_t>(), *source = op.source.as<std::int32_t>();
  std::vector<std::int32_t> next(static_cast<std::size_t>(experts) + 1);  // the last: no expert's
  const auto slot_of = [&](std::int64_t c) {
    check_expert(GroupByExpert::name, c, expert[c], experts);
    return static_cast<std::size_t>(expert[c] < 0 ? experts : expert[c]);
  };
  for (std::int64_t c = 0; c < n; ++c) ++next[slot_of(c)];
  std::int32_t begin = 0;
  for (std::size_t e = 0; e < next.size(); ++e) {
    offsets[e] = begin;
    begin += std::exchange(next[e], begin);
  }
  for (std::int64_t c = 0; c < n; ++c) {
    const std::int32_t p = next[slot_of(c)]++;
    source[p] = static_cast<std::int32_t>(c);
    op.place.as<std::int32_t>()[c] = p;
  }
}

void gather_rows(const KernelCtx&, const GatherRows& op, const View&) {
  const std::int32_t end = op.offsets.as<std::int32_t>()[op.offsets.numel() - 1];
  const std::int64_t top_k = op.top_k();
  with_type(op.x.dtype, [&]<class T>() {
    for (std::int64_t p = 0; p < op.source.numel(); ++p) {
      T* y = op.y.row<T>(p);
      if (p >= end) {
        std::fill_n(y, op.y.cols(), T{});
      } else {
        std::copy_n(op.x.row<T>(op.source.as<std::int32_t>()[p] / top_k), op.y.cols(), y);
      }
    }
  });
}

void combine_rows(const KernelCtx&, const CombineRows& op, const View&) {
  const std::int64_t top_k = op.top_k();
  with_type(op.x.dtype, [&]<class T>() {
    for (std::int64_t r = 0; r < op.y.rows(); ++r) {
      for (std::int64_t j = 0; j < op.y.cols(); ++j) {
        Wide<T> sum = 0;
        for (std::int64_t c = r * top_k; c < (r + 1) * top_k; ++c) {
          sum += widen(op.x.row<T>(op.place.as<std::int32_t>()[c])[j]);
        }
        op.y.row<T>(r)[j] = narrow<T>(sum);
      }
    }
  });
}

void assign_slots(const KernelCtx&, const AssignSlots& op, const View&) {
  const auto* offsets = op.offsets.as<std::int32_t>();
  auto *source = op.source.as<std::int32_t>(), *expert = op.expert.as<std::int32_t>();
  auto* place = op.place.as<std::int32_t>();
  const std::int64_t experts = op.experts_of_rank(), slots = op.slots();
  std::fill_n(source, op.source.numel(), AssignSlots::kEmpty);
  std::fill_n(expert, op.source.numel(), AssignSlots::kEmpty);
  std::fill_n(place, op.place.numel(), AssignSlots::kEmpty);
  std::int64_t most = 0;
  for (std::int64_t e = 0; e < experts * op.ranks; ++e) {
    const std::int64_t rank = e / experts, first = offsets[rank * experts];
    most = std::max(most, offsets[e + 1] - first);
    for (std::int64_t p = offsets[e]; p < offsets[e + 1]; ++p) {
      const std::int64_t slot = rank * slots + p - first;
      const bool fits = p - first < slots;
      place[p] = fits ? static_cast<std::int32_t>(slot) : AssignSlots::kNoSlot;
      if (!fits) continue;
      source[slot] = static_cast<std::int32_t>(p);
      expert[slot] = static_cast<std::int32_t>(e - rank * experts);
    }
  }
  if (most <= slots || !op.needed.defined()) return;
  double& needed = *op.needed.as<double>();
  needed = std::max(needed, static_cast<double>(most) / op.even_rows);
}

void take_rows(const KernelCtx&, const TakeRows& op, const View&) {
  with_type(op.x.dtype, [&]<class T>() {
    for (std::int64_t i = 0; i < op.y.rows(); ++i) {
      const std::int32_t from = op.from.as<std::int32_t>()[i];
      require(from >= AssignSlots::kNoSlot && from < op.x.rows(), "{}: row {} of {}",
              TakeRows::name, from, op.x.rows());
      T* const y = op.y.row<T>(i);
      if (from >= 0) {
        std::copy_n(op.x.row<T>(from), op.y.cols(), y);
      } else {
        constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
        std::fill_n(y, op.y.cols(), narrow<T>(from == AssignSlots::kEmpty ? 0.0 : kNaN));
      }
    }
  });
}

void grouped_matmul(const KernelCtx& ctx, const GroupedMatmul& op, const View&) {
  const auto* offsets = op.offsets.as<std::int32_t>();
  for (std::int64_t e = 0; e < op.experts(); ++e) {
    if (offsets[e] == offsets[e + 1]) continue;
    const Matmul mm = op.of_expert(e, offsets[e], offsets[e + 1]);
    cpu_reference_table().find(Matmul::name)(ctx, &mm, View{});
  }
  if (op.product == GroupedProduct::weight_grad || op.accumulate) return;
  with_type(op.c.dtype, [&]<class T>() {
    for (std::int64_t p = offsets[op.experts()]; p < op.rows(); ++p) {
      std::fill_n(op.c.row<T>(p), op.c.cols(), T{});
    }
  });
}

}  // namespace

void add_experts_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<GroupByExpert, group_by_expert>());
  rows.push_back(row_of<GatherRows, gather_rows>());
  rows.push_back(row_of<CombineRows, combine_rows>());
  rows.push_back(row_of<AssignSlots, assign_slots>());
  rows.push_back(row_of<TakeRows, take_rows>());
  rows.push_back(row_of<GroupedMatmul, grouped_matmul>());
}

}  // namespace llmtrain::kernels::reference
