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
constexpr int kSlots = 3;     // two of which a warpgroup may have in its products at a time
constexpr int kKeys = kRows * kGroups;  // of a block

template <class T, int kDim>
struct alignas(kPanelAlignment) Shared {
  using Rows = PanelTile<T, kDim, kRows>;
  using Queries = PanelTile<T, kDim, kQueries>;
  Rows k[kGroups], v[kGroups];
  Queries q[kSlots], dout[kSlots];
  float lse[kSlots][kQueries], delta[kSlots][kQueries];
  KeyRange range[kSlots][kQueries];  // what each query sees
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

/// The warp that copies what is known of queries, whose rows begin anywhere: each lane arrives by
/// itself.
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
      shared.range[at.slot][i] = args.range(place.sequence, query);
    }
    arrive(slot.full);
    at.advance();
    step = walk.next(step.head, step.tile.tile + 1);
  }
}

/// The sums of a warpgroup of keys, and what a tile of queries adds to them.
template <class T, int kDim, bool kExtras>
class KeyRows {
 public:
  /// `row`: the first of this warp in the warpgroup's.
  __device__ KeyRows(const AttentionArgs<float>& args, Shared<T, kDim>& shared, int own,
                     const KeyBlock& place, int row)
      : args_(args),
        shared_(shared),
        own_(own),
        sequence_(place.sequence),
        positions_{position(place, row), position(place, row + 8)} {}

  /// Queues scores and their gradients, to be committed.
  __device__ __forceinline__ void multiply(int slot) {
    multiply_tiles(scores_, shared_.k[own_], shared_.q[slot]);
    multiply_tiles(dp_, shared_.v[own_], shared_.dout[slot]);
    commit_products();
  }
  /// From these, when they are there, what accumulate() multiplies.
  __device__ __forceinline__ void differentiate(int slot, int head, bool masked) {
    wait_for_products<0>(scores_, dp_);
    const auto range_of = [&](int column) { return shared_.range[slot][column]; };
    const auto position_of = [&](int r) { return positions_[r]; };
    differentiate_columns<T>(TensorHead<kExtras>(args_, sequence_, head), masked, range_of,
                             position_of, shared_.lse[slot], shared_.delta[slot], scores_, dp_, p_,
                             ds_);
  }
  __device__ __forceinline__ void accumulate(int slot) {
    fence_products(dv, dk, p_, ds_);
    accumulate_tile<kDim>(dv, p_, shared_.dout[slot]);
    accumulate_tile<kDim>(dk, ds_, shared_.q[slot]);
    commit_products();
  }
  template <int groups_left>
  __device__ __forceinline__ void wait() {
    wait_for_products<groups_left>(dv, dk);
    keep(p_);
    keep(ds_);
  }

  FragmentC dk[kDim / 8] = {}, dv[kDim / 8] = {};

 private:
  __device__ int position(const KeyBlock& place, int row) const {
    return args_.position(place.sequence, place.first + own_ * kRows + row + lane_of_warp() / 4);
  }

  const AttentionArgs<float>& args_;
  Shared<T, kDim>& shared_;
  int own_, sequence_;
  int positions_[2];
  FragmentC scores_[kQueries / 8], dp_[kQueries / 8];
  FragmentA p_[kQueries / 16], ds_[kQueries / 16];
};

/// A warpgroup that multiplies. It takes every tile that any of the block's keys are seen in, for
/// the other would wait for it; where registers have room, the scores of the next tile are queued
/// behind the sums of this one, so that the tensor cores have work in between.
template <class T, int kDim, bool kExtras>
__device__ __forceinline__ void differentiate(const AttentionArgs<float>& args,
                                              const GradientMatrices<T>& m, Shared<T, kDim>& shared,
                                              int own) {
  constexpr bool kAhead = kDim <= 64;
  const KeyBlock place(args);
  const int s = place.sequence;
  const int first_of_group = place.first + own * kRows;
  const int row = 16 * (warp_of_block() % 4);  // the first of this warp
  KeyRows<T, kDim, kExtras> rows(args, shared, own, place, row);
  Walk walk(args, s, place.group, place.first, first_of_group);
  auto step = uniform_group_step(walk.next(place.group * args.per_group(), 0));
  if (!walk.done(step)) {
    RingPlace<kSlots> at;
    wait_for_phase(shared.keys, 0);
    shared.slots[at.slot].wait(at.parity);
    fence_products();
    rows.multiply(at.slot);
    rows.differentiate(at.slot, step.head, !step.tile.all);
    step = uniform_group_step(walk.next(step.head, step.tile.tile + 1));
    while (!walk.done(step)) {
      const RingPlace<kSlots> before = at;
      at.advance();
      if constexpr (kAhead) shared.slots[at.slot].wait(at.parity);
      rows.accumulate(before.slot);
      if constexpr (kAhead) {
        rows.multiply(at.slot);
        rows.template wait<1>();
        shared.slots[before.slot].close();
      } else {
        rows.template wait<0>();
        shared.slots[before.slot].close();
        shared.slots[at.slot].wait(at.parity);
        fence_products();
        rows.multiply(at.slot);
      }
      rows.differentiate(at.slot, step.head, !step.tile.all);
      step = uniform_group_step(walk.next(step.head, step.tile.tile + 1));
    }
    rows.accumulate(at.slot);
    rows.template wait<0>();
  }
  sync_warpgroup(own);  // nobody reads keys and values any more, whose place the results take
  const std::int64_t k_row = static_cast<std::int64_t>(s) * args.tk;
  const std::int64_t at_k = static_cast<std::int64_t>(place.group) * args.head_dim;
  const ResultRows to{k_row, at_k, first_of_group + row, args.tk, args.head_dim};
  write_results<kDim>(m.dk, to, shared.k[own].elements, row, rows.dk, args.scale, args.scale);
  write_results<kDim>(m.dv, to, shared.v[own].elements, row, rows.dv, 1, 1);
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
