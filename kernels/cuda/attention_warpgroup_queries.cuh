#pragma once
/// The gradient of queries with wgmma: warpgroups of 64 queries, and the block walks over the keys.
/// Scores, their gradients and dq stay in registers.

#include "kernels/cuda/attention_tensor_gradient.cuh"
#include "kernels/cuda/attention_warpgroup.cuh"

namespace llmtrain::kernels::cuda {

namespace warpgroup_query_tiles {

constexpr int kRows = 64;  // queries of a warpgroup
/// Of a tile: what registers have room for beside dq.
template <int kDim>
constexpr int kKeys = kDim <= 64 ? 128 : 64;
constexpr int kSlots = 3;  // two of which a warpgroup may have in its products at a time
constexpr int kQueries = kRows * kGroups;  // of a block

template <class T, int kDim>
struct alignas(kPanelAlignment) Shared {
  using Rows = PanelTile<T, kDim, kRows>;
  using Keys = PanelTile<T, kDim, kKeys<kDim>>;
  Rows q[kGroups], dout[kGroups];
  Keys k[kSlots], v[kSlots];
  int position[kSlots][kKeys<kDim>];
  PhaseBarrier queries;
  SlotBarriers slots[kSlots];
};

template <int kDim>
using Walk = TileWalk<Side::keys, kKeys<kDim>, kQueries, kRows, float>;

/// The copying warp.
template <class T, int kDim>
__device__ __forceinline__ void copy_tiles(const AttentionArgs<float>& args,
                                           const GradientMaps& maps, Shared<T, kDim>& shared) {
  using Keys = typename Shared<T, kDim>::Keys;
  const QueryBlock place(args, kQueries);
  Walk<kDim> walk(args, place.sequence, place.first, place.first);
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
      const int row = step.tile * kKeys<kDim>;
      SlotBarriers& slot = shared.slots[at.slot];
      slot.open(at.parity, 2 * Keys::kBytes);
      shared.k[at.slot].copy(maps.k, place.group, row, place.sequence, slot.full);
      shared.v[at.slot].copy(maps.v, place.group, row, place.sequence, slot.full);
    }
    __syncwarp();
    at.advance();
  }
}

/// The warp that copies the positions of keys: each lane arrives by itself.
template <class T, int kDim>
__device__ __forceinline__ void copy_positions(const AttentionArgs<float>& args,
                                               Shared<T, kDim>& shared) {
  const QueryBlock place(args, kQueries);
  Walk<kDim> walk(args, place.sequence, place.first, place.first);
  RingPlace<kSlots> at;
  for (auto step = walk.next(0); !walk.done(step); step = walk.next(step.tile + 1)) {
    SlotBarriers& slot = shared.slots[at.slot];
    wait_for_phase(slot.empty, at.parity ^ 1u);
    for (int i = lane_of_warp(); i < kKeys<kDim>; i += 32) {
      shared.position[at.slot][i] = args.position(place.sequence, step.tile * kKeys<kDim> + i);
    }
    arrive(slot.full);
    at.advance();
  }
}

/// The sum of a warpgroup of queries, and what a tile of keys adds to it.
template <class T, int kDim, bool kExtras>
class QueryRows {
 public:
  /// `first_query`: the first of this warp.
  __device__ QueryRows(const AttentionArgs<float>& args, const GradientMatrices<T>& m,
                       Shared<T, kDim>& shared, int own, const QueryBlock& place, int first_query)
      : shared_(shared),
        own_(own),
        head_(args, place.sequence, place.head),
        ranges_{args.range(place.sequence, first_query + lane_of_warp() / 4),
                args.range(place.sequence, first_query + 8 + lane_of_warp() / 4)} {
    load(args, m, place.sequence, place.head, first_query, rows_);
  }

  /// Queues scores and their gradients, to be committed.
  __device__ __forceinline__ void multiply(int slot) {
    multiply_tiles(scores_[0], shared_.q[own_], shared_.k[slot]);
    multiply_tiles(dp_[0], shared_.dout[own_], shared_.v[slot]);
    commit_products();
  }
  /// From these, when they are there, what accumulate() multiplies.
  __device__ __forceinline__ void differentiate(int slot, bool masked) {
    wait_for_products<0>(scores_[0], dp_[0]);
    const auto range_of = [&](int r) { return ranges_[r]; };
    const auto positions_of = [&](int column) {
      return load_pack<2>(shared_.position[slot] + column);
    };
    differentiate_rows(head_, masked, range_of, positions_of, rows_, scores_, dp_);
    round_to_a<T>(dp_[0], ds_);
  }
  __device__ __forceinline__ void accumulate(int slot) {
    fence_products(dq, ds_);
    accumulate_tile<kDim>(dq, ds_, shared_.k[slot]);
    commit_products();
  }
  template <int groups_left>
  __device__ __forceinline__ void wait() {
    wait_for_products<groups_left>(dq);
    keep(ds_);
  }

  FragmentC dq[kDim / 8] = {};

 private:
  Shared<T, kDim>& shared_;
  int own_;
  TensorHead<kExtras> head_;
  KeyRange ranges_[2];
  RowStatistics<1> rows_;
  FragmentC scores_[1][kKeys<kDim> / 8], dp_[1][kKeys<kDim> / 8];
  FragmentA ds_[kKeys<kDim> / 16];
};

/// A warpgroup that multiplies. It takes every tile that any of the block's queries see, for the
/// other would wait for it; the scores of the next tile are queued behind the sum of this one, so
/// that the tensor cores have work in between.
template <class T, int kDim, bool kExtras>
__device__ __forceinline__ void differentiate(const AttentionArgs<float>& args,
                                              const GradientMatrices<T>& m, Shared<T, kDim>& shared,
                                              int own) {
  const QueryBlock place(args, kQueries);
  const int s = place.sequence;
  const int first_of_group = place.first + own * kRows;
  const int row = 16 * (warp_of_block() % 4);  // the first of this warp
  QueryRows<T, kDim, kExtras> rows(args, m, shared, own, place, first_of_group + row);
  Walk<kDim> walk(args, s, place.first, first_of_group);
  auto step = uniform_step(walk.next(0));
  if (!walk.done(step)) {
    RingPlace<kSlots> at;
    wait_for_phase(shared.queries, 0);
    shared.slots[at.slot].wait(at.parity);
    fence_products();
    rows.multiply(at.slot);
    rows.differentiate(at.slot, !step.all);
    step = uniform_step(walk.next(step.tile + 1));
    while (!walk.done(step)) {
      const RingPlace<kSlots> before = at;
      at.advance();
      shared.slots[at.slot].wait(at.parity);
      rows.accumulate(before.slot);
      rows.multiply(at.slot);
      rows.template wait<1>();
      shared.slots[before.slot].close();
      rows.differentiate(at.slot, !step.all);
      step = uniform_step(walk.next(step.tile + 1));
    }
    rows.accumulate(at.slot);
    rows.template wait<0>();
  }
  sync_warpgroup(own);  // nobody reads queries any more, whose place the results take
  const ResultRows to{static_cast<std::int64_t>(s) * args.tq,
                      static_cast<std::int64_t>(place.head) * args.head_dim, first_of_group + row,
                      args.tq, args.head_dim};
  write_results<kDim>(m.dq, to, shared.q[own].elements, row, rows.dq, args.scale, args.scale);
}

template <class T, int kDim, bool kExtras>
__global__ void __launch_bounds__(kBlockThreads, 1)
    queries_kernel(AttentionArgs<float> args, const __grid_constant__ GradientMaps maps,
                   GradientMatrices<T> m) {
  if constexpr (kHasWarpgroups) {
    Shared<T, kDim>& shared = *aligned_shared<Shared<T, kDim>>();
    if (threadIdx.x == 0) {
      initialise(shared.queries, 1);
      for (SlotBarriers& slot : shared.slots) slot.initialise_both(32, 4 * kGroups);
      fence_initialisation();
    }
    __syncthreads();
    const int warpgroup = warpgroup_of_block();
    if (warpgroup == 0) {
      release_registers<kCopierRegisters>();
      if (warp_of_block() == 0) copy_tiles(args, maps, shared);
      if (warp_of_block() == 1) copy_positions(args, shared);
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
