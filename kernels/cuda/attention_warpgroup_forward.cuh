#pragma once
/// Attention of bf16 or fp16 (T) with wgmma, after FlashAttention-3 (arXiv 2407.08608): one warp
/// copies tiles, warpgroups of 64 queries each take turns to multiply, so that one's softmax runs
/// beside the other's products; and a warpgroup's own softmax beside its product with the values
/// before.

#include "kernels/cuda/attention_tensor_softmax.cuh"
#include "kernels/cuda/attention_warpgroup.cuh"
#include "kernels/cuda/tensor_map.hpp"

namespace llmtrain::kernels::cuda {

namespace warpgroup_forward_tiles {

constexpr int kRows = 64;                  // queries of a warpgroup
constexpr int kKeys = 128;                 // of a tile
constexpr int kSlots = 2;                  // for keys, and as many for values
constexpr int kQueries = kRows * kGroups;  // of a block

struct ForwardMaps {
  CUtensorMap q, k, v;
};

template <class T, int kDim>
struct alignas(kPanelAlignment) Shared {
  using Keys = PanelTile<T, kDim, kKeys>;
  PanelTile<T, kDim, kRows> q[kGroups];
  Keys k[kSlots], v[kSlots];
  PhaseBarrier queries;
  SlotBarriers of_k[kSlots], of_v[kSlots];
};

using Walk = TileWalk<Side::keys, kKeys, kQueries, kRows, float>;

/// The copying warp.
template <class T, int kDim>
__device__ __forceinline__ void copy_tiles(const AttentionArgs<float>& args,
                                           const ForwardMaps& maps, Shared<T, kDim>& shared) {
  using Tile = typename Shared<T, kDim>::Keys;
  const QueryBlock place(args, kQueries);
  Walk walk(args, place.sequence, place.first, place.first);
  auto step = walk.next(0);
  const bool copies = lane_of_warp() == 0;
  if (copies && !walk.done(step)) {
    arrive_expecting(shared.queries, sizeof shared.q);
    for (int i = 0; i < kGroups; ++i) {
      shared.q[i].copy(maps.q, place.head, place.first + i * kRows, place.sequence, shared.queries);
    }
  }
  RingPlace<kSlots> at;
  for (; !walk.done(step); step = walk.next(step.tile + 1)) {
    if (copies) {
      const int row = step.tile * kKeys;
      SlotBarriers& of_k = shared.of_k[at.slot];
      of_k.open(at.parity, Tile::kBytes);
      shared.k[at.slot].copy(maps.k, place.group, row, place.sequence, of_k.full);
      SlotBarriers& of_v = shared.of_v[at.slot];
      of_v.open(at.parity, Tile::kBytes);
      shared.v[at.slot].copy(maps.v, place.group, row, place.sequence, of_v.full);
    }
    __syncwarp();
    at.advance();
  }
}

/// Warpgroups queue their products one after the other: each has a named barrier for
/// its turn.
class Turns {
 public:
  /// `own`: among those that multiply. The first turn is the first one's, if there is any.
  __device__ Turns(int own, bool any) : own_(own) {
    if (any && own_ == kGroups - 1) give();
  }
  __device__ void wait() const { sync_named(kFirstTurn + own_, 2 * kWarpgroupThreads); }
  /// Not by the last one behind its last turn: nobody would wait for it.
  __device__ void give() const {
    arrive_at_named(kFirstTurn + (own_ + 1) % kGroups, 2 * kWarpgroupThreads);
  }
  __device__ bool is_last() const { return own_ == kGroups - 1; }

 private:
  static constexpr int kFirstTurn = 1 + kGroups;  // behind those of sync_warpgroup()
  int own_;
};

/// A warpgroup that multiplies. Longer than a function should be: the order of products and waits
/// is what it is about.
template <class T, int kDim, bool kExtras>
__device__ __forceinline__ void attend(const AttentionArgs<float>& args,
                                       const ForwardMatrices<T>& m, Shared<T, kDim>& shared,
                                       int own) {
  const QueryBlock place(args, kQueries);
  const int s = place.sequence;
  const int first_of_group = place.first + own * kRows;
  const int warp = warp_of_block() % 4;
  const int first_query = first_of_group + 16 * warp;  // of this warp
  const TensorHead<kExtras> head(args, s, place.head);
  PanelTile<T, kDim, kRows>& q = shared.q[own];
  Statistics<1> rows;
  begin(args, place.head, rows);
  FragmentC out[1][kDim / 8] = {};
  Walk walk(args, s, place.first, first_of_group);
  auto step = uniform_step(walk.next(0));
  const bool any = !walk.done(step);
  const Turns turns(own, any);
  FragmentA p[kKeys / 16];
  float decay[1][2];
  const auto to_probabilities = [&](FragmentC(&scores)[1][kKeys / 8]) {
    adjust(head, s, first_query, step.tile * kKeys, !step.all, scores);
    const bool moved = probabilities(kExtras ? 1 : head.factor, scores, rows, decay);
    if constexpr (kExtras) {
      if (args.drops) drop(head, s, first_query, step.tile * kKeys, scores);
    }
    return moved;
  };
  RingPlace<kSlots> at;
  if (any) {
    FragmentC scores[1][kKeys / 8];
    wait_for_phase(shared.queries, 0);
    shared.of_k[0].wait(0);
    turns.wait();
    fence_products();
    multiply_tiles(scores[0], q, shared.k[0]);
    commit_products();
    const auto next = uniform_step(walk.next(step.tile + 1));
    if (!turns.is_last() || !walk.done(next)) turns.give();
    wait_for_products<0>(scores[0]);
    shared.of_k[0].close();
    to_probabilities(scores);
    round_to_a<T>(scores[0], p);
    step = next;
  }
  while (!walk.done(step)) {
    const auto next = uniform_step(walk.next(step.tile + 1));
    const RingPlace<kSlots> before = at;
    at.advance();
    FragmentC scores[1][kKeys / 8];
    shared.of_k[at.slot].wait(at.parity);
    turns.wait();
    fence_products();
    multiply_tiles(scores[0], q, shared.k[at.slot]);
    commit_products();
    shared.of_v[before.slot].wait(before.parity);
    fence_products(out[0], p);
    accumulate_tile<kDim>(out[0], p, shared.v[before.slot]);
    commit_products();
    if (!turns.is_last() || !walk.done(next)) turns.give();
    wait_for_products<1>(scores[0]);
    shared.of_k[at.slot].close();
    const bool moved = to_probabilities(scores);
    // All of this beside the product: each sum needs all probabilities of its row.
    touch(scores[0]);
    compute_first(rows.sum[0][0], rows.sum[0][1]);
    wait_for_products<0>(out[0]);
    keep(p);
    shared.of_v[before.slot].close();
    if (moved) rescale(decay, out);
    round_to_a<T>(scores[0], p);
    step = next;
  }
  if (any) {
    shared.of_v[at.slot].wait(at.parity);
    fence_products(out[0], p);
    accumulate_tile<kDim>(out[0], p, shared.v[at.slot]);
    commit_products();
    wait_for_products<0>(out[0]);
    keep(p);
  }
  sync_warpgroup(own);  // nobody reads queries any more, whose place the results take
  finish<kDim>(args, m, s, place.head, first_query, q.elements, 16 * warp, rows, out);
}

template <class T, int kDim, bool kExtras>
__global__ void __launch_bounds__(kBlockThreads, 1)
    forward_kernel(AttentionArgs<float> args, const __grid_constant__ ForwardMaps maps,
                   ForwardMatrices<T> m) {
  if constexpr (kHasWarpgroups) {
    Shared<T, kDim>& shared = *aligned_shared<Shared<T, kDim>>();
    if (threadIdx.x == 0) {
      constexpr int kWarps = 4 * kGroups;
      initialise(shared.queries, 1);
      for (SlotBarriers& slot : shared.of_k) slot.initialise_both(0, kWarps);
      for (SlotBarriers& slot : shared.of_v) slot.initialise_both(0, kWarps);
      fence_initialisation();
    }
    __syncthreads();
    const int warpgroup = warpgroup_of_block();
    if (warpgroup == 0) {
      release_registers<kCopierRegisters>();
      if (warp_of_block() == 0) copy_tiles(args, maps, shared);
    } else {
      take_registers<kRegisters>();
      attend<T, kDim, kExtras>(args, m, shared, warpgroup - 1);
    }
  }
}

}  // namespace warpgroup_forward_tiles

template <class T, int kDim>
bool warpgroup_forward(const KernelCtx& ctx, const AttentionForward& op, const View& workspace,
                       std::string& why) {
  using namespace warpgroup_forward_tiles;
  const auto args = attention_args<float>(op.shape, op.q, op.k, workspace);
  if (args.sequences == 0 || args.tq == 0) return true;
  ForwardMaps maps{};
  const HeadsLayout of_q{args.sequences, args.tq, args.heads, args.head_dim};
  const HeadsLayout of_k{args.sequences, args.tk, args.kv_heads, args.head_dim};
  // Without keys nothing is copied.
  if (args.tk > 0 && !(describe_heads(op.q, of_q, kRows, maps.q, why) &&
                       describe_heads(op.k, of_k, kKeys, maps.k, why) &&
                       describe_heads(op.v, of_k, kKeys, maps.v, why))) {
    return false;
  }
  find_bounds(ctx, args);
  const ForwardMatrices<T> m{Rows<const T>(op.q), Rows<const T>(op.k), Rows<const T>(op.v),
                             Results<T>(op.out), static_cast<float*>(op.lse.data)};
  constexpr std::size_t kShared = sizeof(Shared<T, kDim>) + kPanelAlignment;
  const std::int64_t blocks = ceil_div(args.tq, kQueries) * args.sequences * args.heads;
  const auto kernel =
      has_extras(args) ? forward_kernel<T, kDim, true> : forward_kernel<T, kDim, false>;
  allow_shared(kernel, kShared);
  launch_grid(ctx, {static_cast<unsigned>(blocks), kBlockThreads, kShared}, kernel, args, maps, m);
  return true;
}

}  // namespace llmtrain::kernels::cuda
