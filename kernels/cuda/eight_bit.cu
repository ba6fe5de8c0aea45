// Updates with states of 8 bits, with the reference's bits: a warp for each block of a state.
#include "kernels/cuda/masters.cuh"
#include "kernels/cuda/rows.hpp"
#include "kernels/eight_bit.hpp"

namespace llmtrain::kernels::cuda {

namespace {

/// Elements of a block that a lane has.
constexpr int kOfLane = kDynamicBlock / 32;

__device__ const DynamicMap kMaps[kMaxEightBitStates] = {dynamic_map(true), dynamic_map(false)};

/// A map where all threads of the block read it fast.
struct SharedMap {
  float values[kDynamicCodes];
  /// The bounds as the tree in which DynamicMap::code_of() looks, level by level from 1 on: what
  /// lanes compare with at once lies in different banks, where ascending bounds would share one.
  float tree[kDynamicCodes];

  __device__ void load(const DynamicMap& map) {
    for (int i = static_cast<int>(threadIdx.x); i < kDynamicCodes; i += kMapThreads) {
      values[i] = (&map.values[0])[i];
      if (i == 0) continue;
      int level = 0;
      while (i >> (level + 1) != 0) ++level;
      const int above = 2 * (i - (1 << level)) + 1;  // in steps of this level
      tree[i] = (&map.bounds[0])[above * (kDynamicCodes >> (level + 1)) - 1];
    }
  }
  /// As DynamicMap::code_of(), by the same comparisons.
  __device__ __forceinline__ int code_of(float x) const {
    int node = 1;
#pragma unroll
    for (int step = kDynamicCodes / 2; step > 0; step /= 2) {
      node = 2 * node + (tree[node] < x ? 1 : 0);
    }
    return node - kDynamicCodes;
  }
};

__device__ __forceinline__ float largest_of_warp(float x) {
  for (int bits = 16; bits > 0; bits /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, bits));
  return x;
}

/// One parameter of a list.
template <class Rule, class T>
struct EightBitRow {
  static constexpr int kStates = kStatesOf<Rule>;
  Masters<T> masters;
  const T* gradient;
  RuleInStep<Rule, T> rule;
  std::uint8_t* codes[kStates];
  float* scales[kStates];

  __device__ EightBitRow(const EightBitUpdate::Row& row, DType type_of_copies,
                         const RuleInStep<Rule, T>& in_step)
      : masters(row, type_of_copies), gradient(static_cast<const T*>(row.gradient)), rule(in_step) {
#pragma unroll
    for (int k = 0; k < kStates; ++k) {
      codes[k] = static_cast<std::uint8_t*>(row.codes[k]);
      scales[k] = static_cast<float*>(row.scales[k]);
    }
  }

  /// V elements from i on; `states` are of this lane's all elements of the block.
  template <int V>
  __device__ void step(std::int64_t i, const SharedMap* maps, const float* scale,
                       float (*states)[kOfLane], int at) const {
    const auto gs = load_pack<V>(gradient + i);
    auto ps = masters.template load<V>(i);
    Pack<std::uint8_t, V> cs[kStates];
#pragma unroll
    for (int k = 0; k < kStates; ++k) cs[k] = load_pack<V>(codes[k] + i);
#pragma unroll
    for (int e = 0; e < V; ++e) {
      T of_element[kStates];
#pragma unroll
      for (int k = 0; k < kStates; ++k) of_element[k] = maps[k].values[cs[k].x[e]] * scale[k];
      ps.x[e] = rule.apply(ps.x[e], gs.x[e], of_element);
#pragma unroll
      for (int k = 0; k < kStates; ++k) states[k][at + e] = static_cast<float>(of_element[k]);
    }
    masters.store(i, ps, rule.update);
  }

  /// The block of `count` elements from `begin` on, by a warp.
  template <int V>
  __device__ void update(std::int64_t begin, int count, const SharedMap* maps) const {
    // Rounds are written out, so that states stay in registers; not where there are no packs: such
    // blocks are few, and would take registers from all others.
    [[maybe_unused]] constexpr int kRounds = V > 1 ? kOfLane / V : 1;
    const std::int64_t block = begin / kDynamicBlock;
    const int lane = static_cast<int>(threadIdx.x % 32);
    float scale[kStates], states[kStates][kOfLane] = {};
#pragma unroll
    for (int k = 0; k < kStates; ++k) scale[k] = scales[k][block];
#pragma unroll(kRounds)
    for (int at = 0; at < kOfLane; at += V) {
      const int i = lane * V + at * 32;
      if (i < count) step<V>(begin + i, maps, scale, states, at);
    }
#pragma unroll
    for (int k = 0; k < kStates; ++k) {
      float largest = 0;
#pragma unroll
      for (const float x : states[k]) largest = fmaxf(largest, fabsf(x));
      const DynamicScale whole(largest_of_warp(largest), count == kDynamicBlock);
#pragma unroll(kRounds)
      for (int at = 0; at < kOfLane; at += V) {
        const int i = lane * V + at * 32;
        Pack<std::uint8_t, V> cs;
#pragma unroll
        for (int e = 0; e < V; ++e) {
          const float x = whole.scaled(states[k][at + e]);
          cs.x[e] = static_cast<std::uint8_t>(maps[k].code_of(x));
        }
        if (i < count) store_pack(codes[k] + begin + i, cs);
      }
      if (lane == 0) scales[k][block] = whole.scale;
    }
  }
};

/// Thread blocks that shall share a multiprocessor. FP64 is for proofs.
template <class T>
constexpr int kMinBlocks = sizeof(T) == 8 ? 1 : 3;

/// A thread block per chunk, whose warps take one block of states after another.
template <class Rule, class T>
__global__ void __launch_bounds__(kMapThreads, kMinBlocks<T>)
    eight_bit_chunks(List<EightBitUpdate::Row> list, Rule rule, WeightDecay decay,
                     const UpdateDecision* decision, DType type_of_copies) {
  if (decision->apply == 0) return;
  __shared__ SharedMap maps[kStatesOf<Rule>];
  for (int k = 0; k < kStatesOf<Rule>; ++k) maps[k].load(kMaps[k]);
  __syncthreads();
  const EightBitUpdate::Row& row = list.row_at(blockIdx.x);
  const RuleInStep<Rule, T> in_step(rule, decay, row.lr_scale, row.weight_decay, *decision);
  const EightBitRow<Rule, T> of(row, type_of_copies, in_step);
  bool packs = takes_packs<T>(row, type_of_copies);
  for (int k = 0; k < kStatesOf<Rule>; ++k) packs = packs && lies_at(row.codes[k], kPack<T>);
  const std::int64_t chunk = (blockIdx.x - row.place.first_chunk) * kListChunk;
  const std::int64_t left = row.place.numel - chunk;
  const std::int64_t end = chunk + (left < kListChunk ? left : kListChunk);
  const std::int64_t first = chunk + threadIdx.x / 32 * kDynamicBlock;
  for (std::int64_t at = first; at < end; at += kMapThreads / 32 * kDynamicBlock) {
    if (packs && end - at >= kDynamicBlock) {
      of.template update<kPack<T>>(at, kDynamicBlock, maps);
    } else {
      const int count = static_cast<int>(end - at < kDynamicBlock ? end - at : kDynamicBlock);
      of.template update<1>(at, count, maps);
    }
  }
}

void eight_bit_update(const KernelCtx& ctx, const EightBitUpdate& op, const View&) {
  const List<EightBitUpdate::Row> list(op, op.tensors);
  const DType type_of_copies = op.tensors.front().to.compute_copy.dtype;
  std::visit(
      [&]<class Rule>(const Rule& rule) {
        launch_grid(ctx, list.grid(kMapThreads),
                    op.dtype() == DType::f64 ? eight_bit_chunks<Rule, double>
                                             : eight_bit_chunks<Rule, float>,
                    list, rule, op.decay, op.decision.as<UpdateDecision>(), type_of_copies);
      },
      op.rule);
}

}  // namespace

void add_eight_bit_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<EightBitUpdate, eight_bit_update>());
}

}  // namespace llmtrain::kernels::cuda
