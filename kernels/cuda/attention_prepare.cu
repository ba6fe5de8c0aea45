// What the kernels of attention need before they begin: extreme positions of granules of rows, and
// for the backward delta and the gradient of the sinks.
#include "kernels/attention_rule.hpp"
#include "kernels/cuda/attention.cuh"

namespace llmtrain::kernels::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kSinkThreads = 512;

/// One warp per granule, a lane per row; the granules of queries come first.
template <class W>
__global__ void __launch_bounds__(kThreads) bounds_kernel(AttentionArgs<W> args) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  std::int64_t granule = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const std::int64_t of_queries = static_cast<std::int64_t>(args.sequences) * args.query_granules;
  if (granule < of_queries) {
    const auto sequence = static_cast<int>(granule / args.query_granules);
    const auto first = static_cast<int>(granule % args.query_granules) * 32;
    const KeyRange range = args.range(sequence, first + lane);
    QueryBounds bounds{range.first, range.first, range.last, range.last};
    for (int n = 16; n > 0; n /= 2) bounds = join(bounds, of_lane(bounds, lane ^ n));
    if (lane == 0) args.query_bounds[granule] = bounds;
    return;
  }
  granule -= of_queries;
  if (granule >= static_cast<std::int64_t>(args.sequences) * args.key_granules) return;
  const auto sequence = static_cast<int>(granule / args.key_granules);
  const auto first = static_cast<int>(granule % args.key_granules) * 32;
  const int position = args.position(sequence, first + lane);
  KeyBounds bounds{position, position};
  for (int n = 16; n > 0; n /= 2) bounds = join(bounds, of_lane(bounds, lane ^ n));
  if (lane == 0) args.key_bounds[granule] = bounds;
}

/// Sixteen lanes per query row and head: one pack each at head_dim 128 in half width.
constexpr int kDeltaLanes = 16;

template <class T, int V>
__global__ void __launch_bounds__(kThreads)
    delta_kernel(AttentionArgs<Wide<T>> args, Rows<const T> out, Rows<const T> dout,
                 Wide<T>* delta) {
  using W = Wide<T>;
  const std::int64_t n =
      std::int64_t{blockIdx.x} * (kThreads / kDeltaLanes) + threadIdx.x / kDeltaLanes;
  const std::int64_t all = static_cast<std::int64_t>(args.sequences) * args.tq * args.heads;
  const bool real = n < all;
  const std::int64_t row = real ? n / args.heads : 0;
  const int head = real ? static_cast<int>(n % args.heads) : 0;
  W sum = 0;
  for (int d = static_cast<int>(threadIdx.x % kDeltaLanes) * V; d < args.head_dim;
       d += kDeltaLanes * V) {
    const std::int64_t at = static_cast<std::int64_t>(head) * args.head_dim + d;
    const auto a = load_pack<V>(out.row(row) + at), b = load_pack<V>(dout.row(row) + at);
    for (int i = 0; i < V; ++i) sum = fma(widen(a.x[i]), widen(b.x[i]), sum);
  }
  for (int bits = kDeltaLanes / 2; bits > 0; bits /= 2) sum += __shfl_xor_sync(~0u, sum, bits);
  if (real && threadIdx.x % kDeltaLanes == 0) {
    delta[args.statistic(static_cast<int>(row / args.tq), head, static_cast<int>(row % args.tq))] =
        sum;
  }
}

/// One block per head. The sum over all queries is long: in FP64, as on the CPU.
template <class W>
__global__ void __launch_bounds__(kSinkThreads)
    sink_kernel(AttentionArgs<W> args, const W* lse, const W* delta, W* dsink) {
  __shared__ double sums[kSinkThreads];
  using std::exp;
  const auto head = static_cast<int>(blockIdx.x);
  const W sink = args.sink_of(head);
  double sum = 0;
  for (int s = 0; s < args.sequences; ++s) {
    const std::int64_t row = args.statistic(s, head, 0);
    for (int i = static_cast<int>(threadIdx.x); i < args.tq; i += kSinkThreads) {
      sum += static_cast<double>(exp(sink - lse[row + i]) * delta[row + i]);
    }
  }
  sums[threadIdx.x] = sum;
  for (unsigned half = kSinkThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) dsink[head] = static_cast<W>(static_cast<double>(dsink[head]) - sums[0]);
}

int rows_of(const AttentionShape& shape, const View& side) {
  return static_cast<int>(side.rows() / std::max<std::int64_t>(1, shape.num_sequences));
}

template <class T, class W>
void launch_delta(const KernelCtx& ctx, const AttentionBackward& op, const AttentionArgs<W>& args,
                  W* delta) {
  const bool packs =
      op.shape.head_dim % kPack<T> == 0 && rows_aligned(op.out, 16) && rows_aligned(op.dout, 16);
  const auto blocks =
      static_cast<unsigned>(ceil_div(op.q.rows() * op.shape.num_heads, kThreads / kDeltaLanes));
  launch_grid(ctx, {blocks, kThreads}, packs ? delta_kernel<T, kPack<T>> : delta_kernel<T, 1>, args,
              Rows<const T>(op.out), Rows<const T>(op.dout), delta);
}

}  // namespace

template <class W>
AttentionArgs<W> attention_args(const AttentionShape& shape, const View& q, const View& k,
                                const View& workspace) {
  const AttentionScratch scratch(shape, rows_of(shape, q), rows_of(shape, k), sizeof(W));
  auto* const bytes = static_cast<std::byte*>(workspace.data);
  const AttentionDropout& dropout = shape.dropout;
  return {
      .sequences = static_cast<int>(shape.num_sequences),
      .tq = rows_of(shape, q),
      .tk = rows_of(shape, k),
      .heads = static_cast<int>(shape.num_heads),
      .kv_heads = static_cast<int>(shape.num_kv_heads),
      .head_dim = static_cast<int>(shape.head_dim),
      .scale = static_cast<W>(shape.scale),
      .softcap = static_cast<W>(shape.softcap),
      .alibi = static_cast<const W*>(shape.alibi.data),
      .sink = shape.sink.data,
      .sink_type = shape.sink.dtype,
      .window = shape.window,
      .q_position = static_cast<const int*>(shape.q_position.data),
      .q_document_begin = static_cast<const int*>(shape.q_document_begin.data),
      .k_position = static_cast<const int*>(shape.k_position.data),
      .q_sample = static_cast<const std::int64_t*>(shape.q_sample.data),
      .drops = dropout.p > 0,
      .threshold = dropout_threshold(dropout.p),
      .kept = static_cast<W>(1 / (1 - dropout.p)),
      .key = dropout.key,
      .step = dropout.step,
      .scalars = static_cast<const StepScalars*>(dropout.scalars.data),
      .seq_len = dropout.seq_len,
      .first_head = dropout.first_head,
      .heads_of_layer = dropout.heads_of_layer(shape.num_heads),
      .query_granules = static_cast<int>(scratch.query_granules),
      .key_granules = static_cast<int>(scratch.key_granules),
      .query_bounds = reinterpret_cast<QueryBounds*>(bytes),
      .key_bounds = reinterpret_cast<KeyBounds*>(bytes + scratch.key_bounds),
  };
}

template <class W>
void find_bounds(const KernelCtx& ctx, const AttentionArgs<W>& args) {
  const std::int64_t granules =
      static_cast<std::int64_t>(args.sequences) * (args.query_granules + args.key_granules);
  launch_grid(ctx, {static_cast<unsigned>(ceil_div(granules, kWarps)), kThreads}, bounds_kernel<W>,
              args);
}

template <class W>
W* find_delta(const KernelCtx& ctx, const AttentionBackward& op, const AttentionArgs<W>& args,
              const View& workspace) {
  const AttentionScratch scratch(op.shape, args.tq, args.tk, sizeof(W));
  auto* const delta = reinterpret_cast<W*>(static_cast<std::byte*>(workspace.data) + scratch.delta);
  with_type(op.q.dtype, [&]<class T>() {
    if constexpr (std::is_same_v<Wide<T>, W>) launch_delta<T>(ctx, op, args, delta);
  });
  if (op.shape.sink.defined() && args.sequences > 0) {
    launch_grid(ctx, {static_cast<unsigned>(args.heads), kSinkThreads}, sink_kernel<W>, args,
                static_cast<const W*>(op.lse.data), static_cast<const W*>(delta),
                static_cast<W*>(op.dsink.data));
  }
  return delta;
}

template AttentionArgs<float> attention_args(const AttentionShape&, const View&, const View&,
                                             const View&);
template AttentionArgs<double> attention_args(const AttentionShape&, const View&, const View&,
                                              const View&);
template void find_bounds(const KernelCtx&, const AttentionArgs<float>&);
template void find_bounds(const KernelCtx&, const AttentionArgs<double>&);
template float* find_delta(const KernelCtx&, const AttentionBackward&, const AttentionArgs<float>&,
                           const View&);
template double* find_delta(const KernelCtx&, const AttentionBackward&,
                            const AttentionArgs<double>&, const View&);

}  // namespace llmtrain::kernels::cuda
