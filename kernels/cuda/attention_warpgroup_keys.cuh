#pragma once
/// The gradients of keys and values with wgmma: warpgroups of 64 keys, and the block walks over the
/// queries of all heads of its group. Scores are transposed (keys are the rows), so that they,
/// their gradients, dk and dv stay in registers.

#include "kernels/cuda/attention_tensor_gradient.cuh"
#include "kernels/cuda/attention_warpgroup.cuh"

namespace llmtrain::kernels::cuda {

namespace warpgroup_key_tiles {

constexpr int kRows = 64;     // keys of a warpgroup
constexpr int kQueries = 64;  // of a tile: what registers have room for beside dk and dv
constexpr int kSlots = 2;
constexpr int kKeys = kRows * kGroups;  // of a block

template <class T, int kDim>
struct alignas(kPanelAlignment) Shared {
  using Rows = PanelTile<T, kDim, kRows>;
  using Queries = PanelTile<T, kDim, kQueries>;
  Rows k[kGroups], v[kGroups];
  Queries q[kSlots], dout[kSlots];
  float lse[kSlots][kQueries], delta[kSlots][kQueries];
  PhaseBarrier keys;
  SlotBarriers slots[kSlots];
};

using Walk = GroupWalk<kQueries, kKeys, kRows>;

/// Which part of the problem a block has: early keys, which most queries see, begin first.
struct KeyBlock {
  int sequence, group, first;  // the first key

  __device__ explicit KeyBlock(const AttentionArgs<float>& args) {
    const int tiles = (args.tk + kKeys - 1) / kKeys;
    first = static_cast<int>(blockIdx.x) % tiles * kKeys;
    const int n = static_cast<int>(blockIdx.x) / tiles;
    group = n % args.kv_heads;
    sequence = n / args.kv_heads;
  }
};

/// The warp that copies matrices.
template <class T, int kDim>
__device__ __forceinline__ void copy_tiles(const AttentionArgs<float>& args,
                                           const GradientMaps& maps, Shared<T, kDim>& shared) {
  using Queries = typename Shared<T, kDim>::Queries;
  const KeyBlock place(args);
  const int s = place.sequence;
  Walk walk(args, s, place.group, place.first, place.first);
  auto step = walk.next(place.group * args.per_group(), 0);
  const bool copies = lane_of_warp() == 0;
  if (copies && !walk.done(step)) {
    arrive_expecting(shared.keys, sizeof shared.k + sizeof shared.v);
    for (int i = 0; i < kGroups; ++i) {
      const int row = place.first + i * kRows;
      shared.k[i].copy(maps.k, place.group, row, s, shared.keys);
      shared.v[i].copy(maps.v, place.group, row, s, shared.keys);
    }
  }
  RingPlace<kSlots> at;
  while (!walk.done(step)) {
    if (copies) {
      const int row = step.tile.tile * kQueries;
      SlotBarriers& slot = shared.slots[at.slot];
      slot.open(at.parity, 2 * Queries::kBytes);
      shared.q[at.slot].copy(maps.q, step.head, row, s, slot.full);
      shared.dout[at.slot].copy(maps.dout, step.head, row, s, slot.full);
    }
    __syncwarp();
    at.advance();
    step = walk.next(step.head, step.tile.tile + 1);
  }
}

/// The warp that copies statistics, whose rows begin anywhere: each lane arrives by itself.
template <class T, int kDim>
__device__ __forceinline__ void copy_statistics(const AttentionArgs<float>& args,
                                                const GradientMatrices<T>& m,
                                                Shared<T, kDim>& shared) {
  const KeyBlock place(args);
  Walk walk(args, place.sequence, place.group, place.first, place.first);
  auto step = walk.next(place.group * args.per_group(), 0);
  RingPlace<kSlots> at;
  while (!walk.done(step)) {
    SlotBarriers& slot = shared.slots[at.slot];
    wait_for_phase(slot.empty, at.parity ^ 1u);
    for (int i = lane_of_warp(); i < kQueries; i += 32) {
      const int query = step.tile.tile * kQueries + i;
      const bool real = query < args.tq;
      const std::int64_t from = real ? args.statistic(place.sequence, step.head, query) : 0;
      shared.lse[at.slot][i] = real ? m.lse[from] : 0;
      shared.delta[at.slot][i] = real ? m.delta[from] : 0;
    }
    arrive(slot.full);
    at.advance();
    step = walk.next(step.head, step.tile.tile + 1);
  }
}

/// A warpgroup that multiplies.
template <class T, int kDim, bool kExtras>
__device__ __forceinline__ void differentiate(const AttentionArgs<float>& args,
                                              const GradientMatrices<T>& m, Shared<T, kDim>& shared,
                                              int own) {
  const KeyBlock place(args);
  const int s = place.sequence;
  const int first_of_group = place.first + own * kRows;
  const int row = 16 * (warp_of_block() % 4);  // the first of this warp
  const int first_key = first_of_group + row;
  FragmentC dk[kDim / 8] = {}, dv[kDim / 8] = {};
  Walk walk(args, s, place.group, place.first, first_of_group);
  auto step = uniform_group_step(walk.next(place.group * args.per_group(), 0));
  if (!walk.done(step)) wait_for_phase(shared.keys, 0);
  for (RingPlace<kSlots> at; !walk.done(step); at.advance()) {
    shared.slots[at.slot].wait(at.parity);
    if (step.tile.some) {
      const TensorHead<kExtras> head(args, s, step.head);
      FragmentC scores[kQueries / 8], dp[kQueries / 8];
      FragmentA p[kQueries / 16], ds[kQueries / 16];
      fence_products();
      multiply_tiles(scores, shared.k[own], shared.q[at.slot]);
      multiply_tiles(dp, shared.v[own], shared.dout[at.slot]);
      commit_products();
      wait_for_products<0>(scores, dp);
      differentiate_columns<T>(head, s, step.tile.tile * kQueries, first_key, !step.tile.all,
                               shared.lse[at.slot], shared.delta[at.slot], scores, dp, p, ds);
      fence_products(dv, dk, p, ds);
      accumulate_tile<kDim>(dv, p, shared.dout[at.slot]);
      accumulate_tile<kDim>(dk, ds, shared.q[at.slot]);
      commit_products();
      wait_for_products<0>(dv, dk);
      keep(p);
      keep(ds);
    }
    shared.slots[at.slot].close();
    step = uniform_group_step(walk.next(step.head, step.tile.tile + 1));
  }
  sync_warpgroup(own);  // nobody reads keys and values any more, whose place the results take
  const std::int64_t k_row = static_cast<std::int64_t>(s) * args.tk;
  const std::int64_t at_k = static_cast<std::int64_t>(place.group) * args.head_dim;
  const ResultRows to{k_row, at_k, first_key, args.tk, args.head_dim};
  write_results<kDim>(m.dk, to, shared.k[own].elements, row, dk, args.scale, args.scale);
  write_results<kDim>(m.dv, to, shared.v[own].elements, row, dv, 1, 1);
}

template <class T, int kDim, bool kExtras>
__global__ void __launch_bounds__(kBlockThreads, 1)
    keys_kernel(AttentionArgs<float> args, const __grid_constant__ GradientMaps maps,
                GradientMatrices<T> m) {
  if constexpr (kHasWarpgroups) {
    Shared<T, kDim>& shared = *aligned_shared<Shared<T, kDim>>();
    if (threadIdx.x == 0) {
      initialise(shared.keys, 1);
      for (SlotBarriers& slot : shared.slots) slot.initialise_both(32, 4 * kGroups);
      fence_initialisation();
    }
    __syncthreads();
    const int warpgroup = warpgroup_of_block();
    if (warpgroup == 0) {
      release_registers<kCopierRegisters>();
      if (warp_of_block() == 0) copy_tiles(args, maps, shared);
      if (warp_of_block() == 1) copy_statistics(args, m, shared);
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
  const std::int64_t blocks = ceil_div(args.tk, kKeys) * args.sequences * args.kv_heads;
  const auto kernel = has_extras(args) ? keys_kernel<T, kDim, true> : keys_kernel<T, kDim, false>;
  allow_shared(kernel, kShared);
  launch_grid(ctx, {static_cast<unsigned>(blocks), kBlockThreads, kShared}, kernel, args, maps, m);
}

}  // namespace warpgroup_key_tiles

}  // namespace llmtrain::kernels::cuda
