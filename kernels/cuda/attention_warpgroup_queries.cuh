#pragma once
/// The gradient of queries with wgmma: warpgroups of 64 queries, and the block walks over the keys.
/// Scores, their gradients and dq stay in registers.

#include "kernels/cuda/attention_tensor_gradient.cuh"
#include "kernels/cuda/attention_warpgroup.cuh"

namespace llmtrain::kernels::cuda {

namespace warpgroup_query_tiles {

constexpr int kRows = 64;  // queries of a warpgroup
constexpr int kKeys = 64;  // of a tile: what registers have room for beside dq
constexpr int kSlots = 2;
constexpr int kQueries = kRows * kGroups;  // of a block

template <class T, int kDim>
struct alignas(kPanelAlignment) Shared {
  using Rows = PanelTile<T, kDim, kRows>;
  using Keys = PanelTile<T, kDim, kKeys>;
  Rows q[kGroups], dout[kGroups];
  Keys k[kSlots], v[kSlots];
  PhaseBarrier queries;
  SlotBarriers slots[kSlots];
};

using Walk = TileWalk<Side::keys, kKeys, kQueries, kRows, float>;

/// The copying warp.
template <class T, int kDim>
__device__ __forceinline__ void copy_tiles(const AttentionArgs<float>& args,
                                           const GradientMaps& maps, Shared<T, kDim>& shared) {
  using Keys = typename Shared<T, kDim>::Keys;
  const QueryBlock place(args, kQueries);
  Walk walk(args, place.sequence, place.first, place.first);
  auto step = walk.next(0);
  const bool copies = lane_of_warp() == 0;
  if (copies && !walk.done(step)) {
    arrive_expecting(shared.queries, sizeof shared.q + sizeof shared.dout);
    for (int i = 0; i < kGroups; ++i) {
      const int row = place.first + i * kRows;
      shared.q[i].copy(maps.q, place.head, row, place.sequence, shared.queries);
      shared.dout[i].copy(maps.dout, place.head, row, place.sequence, shared.queries);
    }
  }
  RingPlace<kSlots> at;
  for (; !walk.done(step); step = walk.next(step.tile + 1)) {
    if (copies) {
      const int row = step.tile * kKeys;
      SlotBarriers& slot = shared.slots[at.slot];
      slot.open(at.parity, 2 * Keys::kBytes);
      shared.k[at.slot].copy(maps.k, place.group, row, place.sequence, slot.full);
      shared.v[at.slot].copy(maps.v, place.group, row, place.sequence, slot.full);
    }
    __syncwarp();
    at.advance();
  }
}

/// A warpgroup that multiplies.
template <class T, int kDim, bool kExtras>
__device__ __forceinline__ void differentiate(const AttentionArgs<float>& args,
                                              const GradientMatrices<T>& m, Shared<T, kDim>& shared,
                                              int own) {
  const QueryBlock place(args, kQueries);
  const int s = place.sequence;
  const int first_of_group = place.first + own * kRows;
  const int row = 16 * (warp_of_block() % 4);  // the first of this warp
  const int first_query = first_of_group + row;
  const TensorHead<kExtras> head(args, s, place.head);
  RowStatistics<1> rows;
  load(args, m, s, place.head, first_query, rows);
  FragmentC dq[kDim / 8] = {};
  Walk walk(args, s, place.first, first_of_group);
  auto step = uniform_step(walk.next(0));
  if (!walk.done(step)) wait_for_phase(shared.queries, 0);
  for (RingPlace<kSlots> at; !walk.done(step); at.advance()) {
    shared.slots[at.slot].wait(at.parity);
    if (step.some) {
      FragmentC scores[1][kKeys / 8], dp[1][kKeys / 8];
      FragmentA ds[kKeys / 16];
      fence_products();
      multiply_tiles(scores[0], shared.q[own], shared.k[at.slot]);
      multiply_tiles(dp[0], shared.dout[own], shared.v[at.slot]);
      commit_products();
      wait_for_products<0>(scores[0], dp[0]);
      differentiate_rows(head, s, first_query, step.tile * kKeys, !step.all, rows, scores, dp);
      round_to_a<T>(dp[0], ds);
      fence_products(dq, ds);
      accumulate_tile<kDim>(dq, ds, shared.k[at.slot]);
      commit_products();
      wait_for_products<0>(dq);
      keep(ds);
    }
    shared.slots[at.slot].close();
    step = uniform_step(walk.next(step.tile + 1));
  }
  sync_warpgroup(own);  // nobody reads queries any more, whose place the results take
  const ResultRows to{static_cast<std::int64_t>(s) * args.tq,
                      static_cast<std::int64_t>(place.head) * args.head_dim, first_query, args.tq,
                      args.head_dim};
  write_results<kDim>(m.dq, to, shared.q[own].elements, row, dq, args.scale, args.scale);
}

template <class T, int kDim, bool kExtras>
__global__ void __launch_bounds__(kBlockThreads, 1)
    queries_kernel(AttentionArgs<float> args, const __grid_constant__ GradientMaps maps,
                   GradientMatrices<T> m) {
  if constexpr (kHasWarpgroups) {
    Shared<T, kDim>& shared = *aligned_shared<Shared<T, kDim>>();
    if (threadIdx.x == 0) {
      initialise(shared.queries, 1);
      for (SlotBarriers& slot : shared.slots) slot.initialise_both(0, 4 * kGroups);
      fence_initialisation();
    }
    __syncthreads();
    const int warpgroup = warpgroup_of_block();
    if (warpgroup == 0) {
      release_registers<kCopierRegisters>();
      if (warp_of_block() == 0) copy_tiles(args, maps, shared);
    } else {
      take_registers<kRegisters>();
      differentiate<T, kDim, kExtras>(args, m, shared, warpgroup - 1);
    }
  }
}

template <class T, int kDim>
void gradient(const KernelCtx& ctx, const AttentionArgs<float>& args, const GradientMaps& maps,
              const GradientMatrices<T>& m) {
  constexpr std::size_t kShared = sizeof(Shared<T, kDim>) + kPanelAlignment;
  const std::int64_t blocks = ceil_div(args.tq, kQueries) * args.sequences * args.heads;
  const auto kernel =
      has_extras(args) ? queries_kernel<T, kDim, true> : queries_kernel<T, kDim, false>;
  allow_shared(kernel, kShared);
  launch_grid(ctx, {static_cast<unsigned>(blocks), kBlockThreads, kShared}, kernel, args, maps, m);
}

}  // namespace warpgroup_query_tiles

}  // namespace llmtrain::kernels::cuda
