// Both gradients of norms in one reading of dy and s: a thread block goes through a row block, and
// its threads keep the sums of their columns in registers from row to row. Rows come to shared
// memory while those before them are computed with. Rows that are short, too long for that or
// unaligned, and heads beside others have a kernel for each gradient.
#include "kernels/cuda/norm_rows.cuh"
#include "kernels/cuda/row_blocks.cuh"
#include "kernels/cuda/rows.hpp"
#include "kernels/cuda/tensor_core.cuh"

namespace llmtrain::kernels::cuda {

namespace {

/// Threads of a block at most, each with one pack of a row or two.
constexpr int kMostThreads = 512;
/// In shorter rows threads would be without columns.
constexpr int kLeastPacks = 32;
/// Shared memory that a block may have on every GPU from sm_80 on, a little less than on the least.
constexpr std::size_t kMostShared = 96 << 10;

template <class T>
struct BackwardOperands {
  std::int64_t count;
  int width;
  const T *dy, *s, *dsum;  // dense rows; dsum may be null
  T* dx;
  Affine<T> weight;
  const Wide<T>*mean, *rstd;
  Wide<T> weight_offset, per_width;  // 1 / width
  Wide<T>*weight_sums, *bias_sums;   // [row blocks, width]; bias_sums may be null
};

/// Rows [begin, begin + count) on their way through shared memory: dy, s and dsum of kStages rows.
/// Every thread fetches the packs that it reads, so that for them nobody waits for others.
template <class T, int kStages>
class RowRing {
 public:
  static constexpr int V = kPack<T>;
  enum Part { dy, s, dsum };
  __device__ RowRing(const BackwardOperands<T>& op, std::int64_t begin, int count)
      : op_(op),
        begin_(begin),
        count_(count),
        row_(op.width * (op.dsum != nullptr ? 3 : 2)),
        ring_(dynamic_shared<T>()) {
    for (int i = 0; i + 1 < kStages; ++i) fetch(i);
  }
  /// Waits for this thread's packs of row i, and has a later one fetched.
  __device__ __forceinline__ void enter(int i) const {
    fetch(i + kStages - 1);
    wait_for_copies<kStages - 1>();
  }
  /// Of a row that was entered: columns [j, j + V).
  __device__ __forceinline__ void read(int i, Part part, int j, Wide<T> (&to)[V]) const {
    widen_bits<T>(load_bits<V>(at(i) + part * op_.width + j), to);
  }
  /// First column of this thread's k-th pack; whether the row has that.
  __device__ __forceinline__ int column(int k) const {
    return (k * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * V;
  }
  __device__ __forceinline__ bool has(int k) const { return column(k) < op_.width; }

 private:
  // A group of copies, empty behind the last row.
  __device__ __forceinline__ void fetch(int i) const {
    if (i < count_) {
      const std::int64_t row = (begin_ + i) * op_.width;
      for (int k = 0; has(k); ++k) {
        const int j = column(k);
        T* const to = at(i) + j;
        copy_async<16>(to, op_.dy + row + j, true);
        copy_async<16>(to + op_.width, op_.s + row + j, true);
        if (op_.dsum != nullptr) copy_async<16>(to + 2 * op_.width, op_.dsum + row + j, true);
      }
    }
    commit_copies();
  }
  __device__ __forceinline__ T* at(int i) const { return ring_ + i % kStages * row_; }

  const BackwardOperands<T>& op_;
  std::int64_t begin_;
  int count_, row_;
  T* ring_;
};

/// Sums over the block, by one barrier; every thread gets them. `of_warps` is shared memory that
/// nobody else touches before the next barrier. Any number of whole warps.
template <int N, class W>
__device__ __forceinline__ void sum_of_warps(W (&x)[N], W (&of_warps)[N][32]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warps = static_cast<int>(blockDim.x) / 32;
  for (int n = 0; n < N; ++n) {
    x[n] = sum_of_lanes(x[n]);
    if (lane == 0) of_warps[n][threadIdx.x / 32] = x[n];
  }
  __syncthreads();
  // Lanes in groups of 4 or 16 have the sums of all warps between them.
  const int group = warps <= 4 ? 4 : 16, place = lane % group;
  for (int n = 0; n < N; ++n) x[n] = sum_of_lanes(place < warps ? of_warps[n][place] : W{0}, group);
}

/// kPacks: of a row, each thread's. kCentred: with a mean, as LayerNorm has it.
///
/// With g = dy weight and n = (s - mean) rstd a row's dx is dsum + rstd (g - mean(g) - n mean(g
/// n)). Instructions are what short rows wait for: terms are fused where no bits are promised,
/// which are those of the weight sums.
template <class T, int kPacks, int kStages, bool kCentred>
__global__ void __launch_bounds__(kMostThreads, kPacks == 1 ? 2 : 1)
    backward_row_blocks(BackwardOperands<T> op) {
  using W = Wide<T>;
  using Ring = RowRing<T, kStages>;
  constexpr int V = Ring::V, kSums = kCentred ? 2 : 1;
  // Of a row, and of the next: a barrier lies between two uses of either.
  __shared__ W of_warps[2][kSums][32];
  const std::int64_t begin = std::int64_t{blockIdx.x} * kNormRowsPerBlock;
  const int count = static_cast<int>(std::min(op.count - begin, std::int64_t{kNormRowsPerBlock}));
  const Ring ring(op, begin, count);
  W weight[kPacks][V], weight_sums[kPacks][V] = {}, bias_sums[kPacks][V] = {};
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    if (!ring.has(k)) break;
    op.weight.load(ring.column(k), weight[k]);
    for (int e = 0; e < V; ++e) weight[k][e] += op.weight_offset;
  }
  W next_mean = kCentred ? op.mean[begin] : W{0}, next_rstd = op.rstd[begin];
  for (int i = 0; i < count; ++i) {
    ring.enter(i);
    const W mean = next_mean, rstd = next_rstd;
    if (i + 1 < count) {
      if constexpr (kCentred) next_mean = op.mean[begin + i + 1];
      next_rstd = op.rstd[begin + i + 1];
    }
    W sums[kSums] = {};  // of g n, and of g
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      if (!ring.has(k)) break;
      W dy[V], s[V];
      ring.read(i, Ring::dy, ring.column(k), dy);
      ring.read(i, Ring::s, ring.column(k), s);
      for (int e = 0; e < V; ++e) {
        const W n = (kCentred ? s[e] - mean : s[e]) * rstd, g = dy[e] * weight[k][e];
        weight_sums[k][e] += dy[e] * n;
        if constexpr (kCentred) bias_sums[k][e] += dy[e];
        sums[0] = std::fma(g, n, sums[0]);
        if constexpr (kCentred) sums[1] += g;
      }
    }
    sum_of_warps(sums, of_warps[i % 2]);
    // dx = dsum + rstd g + of_s (s - mean) + of_all
    const W of_s = -(sums[0] * op.per_width) * rstd * rstd;
    const W of_all = kCentred ? -(sums[kSums - 1] * op.per_width) * rstd : W{0};
    T* const dx = op.dx + (begin + i) * op.width;
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      if (!ring.has(k)) break;
      W dy[V], s[V], ds[V] = {};
      ring.read(i, Ring::dy, ring.column(k), dy);
      ring.read(i, Ring::s, ring.column(k), s);
      if (op.dsum != nullptr) ring.read(i, Ring::dsum, ring.column(k), ds);
      for (int e = 0; e < V; ++e) {
        W own = std::fma(kCentred ? s[e] - mean : s[e], of_s, dy[e] * weight[k][e] * rstd);
        if constexpr (kCentred) own += of_all;
        ds[e] += own;
      }
      store_pack(dx + ring.column(k), narrow_bits<T>(ds));
    }
  }
  const std::int64_t first = std::int64_t{blockIdx.x} * op.width;
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    if (!ring.has(k)) break;
    store_sums(op.weight_sums + first + ring.column(k), weight_sums[k]);
    if (kCentred && op.bias_sums != nullptr) {
      store_sums(op.bias_sums + first + ring.column(k), bias_sums[k]);
    }
  }
}

/// Bytes of a row in the ring.
template <class T>
std::size_t ring_row(const NormBackward& op) {
  return static_cast<std::size_t>(op.norms().width) * sizeof(T) * (op.dsum.defined() ? 3 : 2);
}

template <class T, int kPacks>
void launch_row_blocks(const KernelCtx& ctx, const NormBackward& op, const View& workspace) {
  using W = Wide<T>;
  const std::int64_t width = op.norms().width;
  const bool centred = op.kind == NormKind::layer_norm;
  auto* const sums = workspace.as<W>();
  const BackwardOperands<T> operands{
      .count = op.dy.rows(),
      .width = static_cast<int>(width),
      .dy = op.dy.as<T>(),
      .s = op.s.as<T>(),
      .dsum = op.dsum.as<T>(),
      .dx = op.dx.as<T>(),
      .weight = Affine<T>(op.weight),
      .mean = centred ? op.mean.as<W>() : nullptr,
      .rstd = op.rstd.as<W>(),
      .weight_offset = static_cast<W>(op.weight_offset),
      .per_width = 1 / static_cast<W>(width),
      .weight_sums = sums,
      .bias_sums = op.dbias.defined() ? sums + op.row_blocks() * width : nullptr};
  const auto threads = static_cast<unsigned>(ceil_div(width, kPacks * kPack<T> * 32) * 32);
  const auto launch = [&]<int kStages>() {
    const std::size_t shared = kStages * ring_row<T>(op);
    const auto kernel = centred ? backward_row_blocks<T, kPacks, kStages, true>
                                : backward_row_blocks<T, kPacks, kStages, false>;
    if (shared > kUnaskedShared) allow_shared(kernel, shared);
    launch_grid(ctx, {static_cast<unsigned>(op.row_blocks()), threads, shared}, kernel, operands);
  };
  3 * ring_row<T>(op) <= kMostShared ? launch.template operator()<3>()
                                     : launch.template operator()<2>();
}

/// True if it was launched: for rows that a ring suits.
template <class T>
bool in_one_pass(const KernelCtx& ctx, const NormBackward& op, const View& workspace) {
  const std::int64_t packs = op.norms().width / kPack<T>;
  if (op.head_dim != 0 || (op.dbias.defined() && op.kind != NormKind::layer_norm) ||
      packs < kLeastPacks || packs > 2 * kMostThreads || 2 * ring_row<T>(op) > kMostShared ||
      !packs_fit<T>(op.norms().width, op.dy, op.dsum, op.s, op.dx, op.weight)) {
    return false;
  }
  packs <= kMostThreads ? launch_row_blocks<T, 1>(ctx, op, workspace)
                        : launch_row_blocks<T, 2>(ctx, op, workspace);
  return true;
}

}  // namespace

void norm_backward(const KernelCtx& ctx, const NormBackward& op, const View& workspace) {
  const std::int64_t width = op.norms().width, blocks = op.row_blocks();
  with_type(op.dy.dtype, [&]<class T>() {
    bool done = false;
    if constexpr (!std::is_same_v<T, double>) done = in_one_pass<T>(ctx, op, workspace);
    if (!done) {
      norm_weight_sums(ctx, op, workspace);  // first: dx may take the place of dy
      norm_input_grad(ctx, op);
    }
    using W = Wide<T>;
    join(ctx, blocks, width, workspace.as<W>(), op.dweight.as<W>(), op.dbias.as<W>());
  });
}

}  // namespace llmtrain::kernels::cuda
