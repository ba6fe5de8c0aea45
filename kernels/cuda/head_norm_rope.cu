// Norms of the heads of q and k with RoPE behind them. A head belongs to a few lanes of a warp.
// Lane l has pack l of the half that turns with a pack of the other half, so that both lie in one
// thread's registers, and global memory is read once; heads that no packs divide, and those of
// which a part does not turn, are read again for each pass.
#include <algorithm>

#include "kernels/cuda/norm_rows.cuh"
#include "kernels/cuda/row_blocks.cuh"
#include "kernels/cuda/rows.hpp"
#include "kernels/head_norm_rope.hpp"

namespace llmtrain::kernels::cuda {

namespace {

constexpr int kHeadThreads = 128;
/// Heads of one row that a thread of the forward turns by the same angles.
constexpr int kForwardHeads = 4;

/// How the lanes of a head walk over its pairs (columns i and half + i) and over the rest behind
/// them. Held: a head is one pack of pairs for each lane, without a rest.
template <int V, bool kHeld>
struct HeadWalk {
  int half, head_dim;
  int lanes;  // of a head; a power of two

  __device__ int lane() const { return static_cast<int>(threadIdx.x) & (lanes - 1); }
  __device__ int group() const { return static_cast<int>(threadIdx.x) / lanes; }
  __host__ __device__ int groups() const { return kHeadThreads / lanes; }
  /// f(first column of a pack).
  template <class F>
  __device__ __forceinline__ void for_pairs(const F& f) const {
    if constexpr (kHeld) {
      if (lane() * V < half) f(lane() * V);
    } else {
      for (int i = lane() * V; i < half; i += lanes * V) f(i);
    }
  }
  /// f(column).
  template <class F>
  __device__ __forceinline__ void for_rest(const F& f) const {
    if constexpr (!kHeld) {
      for (int j = 2 * half + lane(); j < head_dim; j += lanes) f(j);
    }
  }
};

/// A pack of pairs.
template <class T, int V>
struct Pairs {
  Pack<T, V> a, b;
};
template <int V, class T>
__device__ __forceinline__ Pairs<T, V> load_pairs(const T* head, int i, int half) {
  return {load_pack<V>(head + i), load_pack<V>(head + half + i)};
}
/// This lane's pairs of a head that is held; lanes without any read the last.
template <int V, bool kHeld, class T>
__device__ __forceinline__ Pairs<T, V> load_pairs(const HeadWalk<V, kHeld>& walk, const T* head) {
  return load_pairs<V>(head, std::min(walk.lane() * V, walk.half - V), walk.half);
}

/// Cosines and sines of packs of pairs; NaN where the position has no row in the tables.
template <class W>
struct Angles {
  const W *cosine, *sine;
  const std::int32_t* position;
  std::int64_t max_position;

  template <int V>
  __device__ __forceinline__ void load(std::int64_t row, int half, int i, W (&c)[V],
                                       W (&s)[V]) const {
    constexpr int kPart = V < kPack<W> ? V : kPack<W>;
    const std::int64_t at = position[row];
    const bool known = at >= 0 && at < max_position;
    for (int part = 0; part < V; part += kPart) {
      Pack<W, kPart> cosines, sines;
      if (known) {
        cosines = load_pack<kPart>(cosine + at * half + i + part);
        sines = load_pack<kPart>(sine + at * half + i + part);
      }
      for (int e = 0; e < kPart; ++e) {
        c[part + e] = known ? cosines.x[e] : static_cast<W>(NAN);
        s[part + e] = known ? sines.x[e] : static_cast<W>(NAN);
      }
    }
  }
};

template <class T>
struct ForwardOperands {
  std::int64_t rows;
  int heads, q_heads;
  Rows<const T> x;
  Rows<T> y;
  Affine<T> q_weight, k_weight;
  Wide<T>* rstd;
  Angles<Wide<T>> angles;
  Wide<T> eps;
};

/// kForwardHeads heads of one row for each group of lanes.
template <class T, int V, bool kHeld>
__global__ void __launch_bounds__(kHeadThreads)
    norm_and_turn(ForwardOperands<T> op, HeadWalk<V, kHeld> walk) {
  using W = Wide<T>;
  const int groups_of_row = (op.heads + kForwardHeads - 1) / kForwardHeads;
  const std::int64_t item = std::int64_t{blockIdx.x} * walk.groups() + walk.group();
  // Lanes without heads look at the last row and write nothing.
  const bool live = item < op.rows * groups_of_row;
  const std::int64_t row = live ? item / groups_of_row : op.rows - 1;
  const int first =
      live ? static_cast<int>(item - row * groups_of_row) * kForwardHeads : op.heads - 1;
  const auto x_at = [&](int h) {
    return op.x.row(row) + std::min(first + h, op.heads - 1) * walk.head_dim;
  };

  Pairs<T, V> held[kForwardHeads];
  W cosine[V], sine[V];
  if constexpr (kHeld) {
#pragma unroll
    for (int h = 0; h < kForwardHeads; ++h) held[h] = load_pairs(walk, x_at(h));
    op.angles.load(row, walk.half, std::min(walk.lane() * V, walk.half - V), cosine, sine);
  }
  const auto pairs_at = [&](int h, int i) {
    if constexpr (kHeld) return held[h];
    return load_pairs<V>(x_at(h), i, walk.half);
  };
#pragma unroll
  for (int h = 0; h < kForwardHeads; ++h) {
    W square = 0;
    const auto add = [&](T x) { square += widen(x) * widen(x); };
    walk.for_pairs([&](int i) {
      const Pairs<T, V> pairs = pairs_at(h, i);
      for (int e = 0; e < V; ++e) {
        add(pairs.a.x[e]);
        add(pairs.b.x[e]);
      }
    });
    walk.for_rest([&](int j) { add(x_at(h)[j]); });
    const W mean = sum_of_lanes(square, walk.lanes) / static_cast<W>(walk.head_dim);
    const W rstd = 1 / std::sqrt(mean + op.eps);
    const int head = first + h;
    if (!live || head >= op.heads) continue;
    if (walk.lane() == 0) op.rstd[row * op.heads + head] = rstd;
    // A reference to either would put all operands into memory.
    Affine<T> weight = op.q_weight;
    if (head >= op.q_heads) weight = op.k_weight;
    T* const y = op.y.row(row) + head * walk.head_dim;
    walk.for_pairs([&](int i) {
      const Pairs<T, V> pairs = pairs_at(h, i);
      if constexpr (!kHeld) op.angles.load(row, walk.half, i, cosine, sine);
      W of_a[V], of_b[V];
      weight.load(i, of_a);
      weight.load(walk.half + i, of_b);
      Pairs<T, V> turned;
      for (int e = 0; e < V; ++e) {
        const W p = widen(pairs.a.x[e]) * rstd * of_a[e], q = widen(pairs.b.x[e]) * rstd * of_b[e];
        turned.a.x[e] = narrow<T>(p * cosine[e] - q * sine[e]);
        turned.b.x[e] = narrow<T>(q * cosine[e] + p * sine[e]);
      }
      store_pack(y + i, turned.a);
      store_pack(y + walk.half + i, turned.b);
    });
    walk.for_rest([&](int j) {
      W w[1];
      weight.load(j, w);
      y[j] = narrow<T>(widen(x_at(h)[j]) * rstd * w[0]);
    });
  }
}

/// The heads of q, or of k, of all rows.
template <class T>
struct BackwardPart {
  std::int64_t count;
  int first, per_row;  // heads of a row
  Affine<T> weight;
};

template <class T>
struct BackwardOperands {
  int heads;
  std::int64_t q_blocks;  // the first of the grid; the others are k's
  BackwardPart<T> q, k;
  Rows<const T> dy, x;
  Rows<T> dx;
  const Wide<T>* rstd;
  Angles<Wide<T>> angles;
  Wide<T>* sums;  // [blocks, head_dim]
};

/// One row block of heads: their input gradients, and the sum of what they add to their weight's,
/// in ascending order. In rounds of as many heads as the block has groups of lanes; what these add
/// meets in shared memory, where each column has a thread that adds it up.
template <class T, int V, bool kHeld>
__global__ void __launch_bounds__(kHeadThreads)
    turn_back(BackwardOperands<T> op, HeadWalk<V, kHeld> walk) {
  using W = Wide<T>;
  W* const sums = dynamic_shared<W>();
  W* const terms = sums + walk.head_dim;  // [groups, head_dim]
  const bool of_q = blockIdx.x < op.q_blocks;
  const BackwardPart<T>& part = of_q ? op.q : op.k;
  const std::int64_t begin = (blockIdx.x - (of_q ? 0 : op.q_blocks)) * kRowsPerBlock;
  const int count = static_cast<int>(std::min(part.count - begin, std::int64_t{kRowsPerBlock}));
  const auto for_columns = [&](const auto& f) {
    for (int j = static_cast<int>(threadIdx.x); j < walk.head_dim; j += kHeadThreads) f(j);
  };
  for_columns([&](int j) { sums[j] = 0; });
  for (int round = 0; round < count; round += walk.groups()) {
    // Lanes without a head look at the block's last and write nothing.
    const bool live = round + walk.group() < count;
    const std::int64_t p = begin + std::min(round + walk.group(), count - 1);
    const std::int64_t row = p / part.per_row;
    const int head = part.first + static_cast<int>(p - row * part.per_row);
    const T* const dy = op.dy.row(row) + head * walk.head_dim;
    const T* const x = op.x.row(row) + head * walk.head_dim;
    const W rstd = op.rstd[row * op.heads + head];
    W* const own_terms = terms + walk.group() * walk.head_dim;

    Pairs<T, V> held_dy, held_x;
    if constexpr (kHeld) {
      held_dy = load_pairs(walk, dy);
      held_x = load_pairs(walk, x);
    }
    // f(i, g, h, n, m): gradients of what turned, and what was normalised, of a pack of pairs.
    const auto for_terms = [&](const auto& f) {
      walk.for_pairs([&](int i) {
        if constexpr (!kHeld) {
          held_dy = load_pairs<V>(dy, i, walk.half);
          held_x = load_pairs<V>(x, i, walk.half);
        }
        W cosine[V], sine[V], g[V], h[V], n[V], m[V];
        op.angles.load(row, walk.half, i, cosine, sine);
        for (int e = 0; e < V; ++e) {
          const W a = widen(held_dy.a.x[e]), b = widen(held_dy.b.x[e]), back = -sine[e];
          g[e] = a * cosine[e] - b * back;
          h[e] = b * cosine[e] + a * back;
          n[e] = widen(held_x.a.x[e]) * rstd;
          m[e] = widen(held_x.b.x[e]) * rstd;
        }
        f(i, g, h, n, m);
      });
    };
    W sum = 0;
    for_terms([&](int i, const W(&g)[V], const W(&h)[V], const W(&n)[V], const W(&m)[V]) {
      W of_a[V], of_b[V], a[V], b[V];
      part.weight.load(i, of_a);
      part.weight.load(walk.half + i, of_b);
      for (int e = 0; e < V; ++e) {
        a[e] = g[e] * n[e];
        b[e] = h[e] * m[e];
        sum += g[e] * of_a[e] * n[e] + h[e] * of_b[e] * m[e];
      }
      store_sums(own_terms + i, a);
      store_sums(own_terms + walk.half + i, b);
    });
    walk.for_rest([&](int j) {
      W w[1];
      part.weight.load(j, w);
      const W g = widen(dy[j]), n = widen(x[j]) * rstd;
      own_terms[j] = g * n;
      sum += g * w[0] * n;
    });
    const W mean = sum_of_lanes(sum, walk.lanes) / static_cast<W>(walk.head_dim);
    if (live) {
      T* const dx = op.dx.row(row) + head * walk.head_dim;
      for_terms([&](int i, const W(&g)[V], const W(&h)[V], const W(&n)[V], const W(&m)[V]) {
        W of_a[V], of_b[V];
        part.weight.load(i, of_a);
        part.weight.load(walk.half + i, of_b);
        Pairs<T, V> result;
        for (int e = 0; e < V; ++e) {
          result.a.x[e] = narrow<T>(rstd * (g[e] * of_a[e] - n[e] * mean));
          result.b.x[e] = narrow<T>(rstd * (h[e] * of_b[e] - m[e] * mean));
        }
        store_pack(dx + i, result.a);
        store_pack(dx + walk.half + i, result.b);
      });
      walk.for_rest([&](int j) {
        W w[1];
        part.weight.load(j, w);
        dx[j] = narrow<T>(rstd * (widen(dy[j]) * w[0] - widen(x[j]) * rstd * mean));
      });
    }
    __syncthreads();
    for_columns([&](int j) {
      for (int r = 0; r < std::min(walk.groups(), count - round); ++r) {
        sums[j] += terms[r * walk.head_dim + j];
      }
    });
    __syncthreads();
  }
  for_columns([&](int j) { op.sums[std::int64_t{blockIdx.x} * walk.head_dim + j] = sums[j]; });
}

template <class T>
Angles<Wide<T>> angles_of(const NormedHeads& heads) {
  return {.cosine = heads.cosine.as<Wide<T>>(),
          .sine = heads.sine.as<Wide<T>>(),
          .position = heads.position.as<std::int32_t>(),
          .max_position = heads.cosine.rows()};
}

/// Calls f with the walk that suits the heads; `aligned` says that all rows begin at multiples of
/// 16 bytes.
template <class T, class F>
void with_head_walk(const NormedHeads& heads, bool aligned, const F& f) {
  constexpr int V = kPack<T>;
  const auto half = static_cast<int>(heads.rotary_dim / 2);
  const auto head_dim = static_cast<int>(heads.head_dim);
  if (aligned && heads.rotary_dim == heads.head_dim && half % V == 0 && half / V <= 32) {
    int lanes = 1;
    while (lanes < half / V) lanes *= 2;
    return f(HeadWalk<V, true>{half, head_dim, lanes});
  }
  f(HeadWalk<1, false>{half, head_dim, 32});
}

template <class... Views>
bool all_aligned(const Views&... views) {
  return (... && rows_aligned(views, 16));
}

void head_norm_rope(const KernelCtx& ctx, const HeadNormRope& op, const View&) {
  const NormRows norms = op.norms();
  if (norms.count(op.x) == 0) return;
  with_type(op.x.dtype, [&]<class T>() {
    const ForwardOperands<T> operands{.rows = op.x.rows(),
                                      .heads = static_cast<int>(norms.heads),
                                      .q_heads = static_cast<int>(op.heads.q_heads),
                                      .x = Rows<const T>(op.x),
                                      .y = Rows<T>(op.y),
                                      .q_weight = Affine<T>(op.q_weight),
                                      .k_weight = Affine<T>(op.k_weight),
                                      .rstd = op.rstd.as<Wide<T>>(),
                                      .angles = angles_of<T>(op.heads),
                                      .eps = static_cast<Wide<T>>(op.eps)};
    const bool aligned =
        all_aligned(op.x, op.y, op.q_weight, op.k_weight, op.heads.cosine, op.heads.sine);
    with_head_walk<T>(op.heads, aligned, [&]<int V, bool kHeld>(HeadWalk<V, kHeld> walk) {
      const std::int64_t items = operands.rows * ceil_div(norms.heads, kForwardHeads);
      launch_grid(ctx, {static_cast<unsigned>(ceil_div(items, walk.groups())), kHeadThreads},
                  norm_and_turn<T, V, kHeld>, operands, walk);
    });
  });
}

void head_norm_rope_backward(const KernelCtx& ctx, const HeadNormRopeBackward& op,
                             const View& workspace) {
  const std::int64_t q_heads = op.heads.q_heads, k_heads = op.norms().heads - q_heads;
  if (op.dy.rows() == 0) return;
  with_type(op.dy.dtype, [&]<class T>() {
    using W = Wide<T>;
    const auto part = [&](std::int64_t count, std::int64_t first, std::int64_t per_row,
                          const View& weight) {
      return BackwardPart<T>{.count = count,
                             .first = static_cast<int>(first),
                             .per_row = static_cast<int>(per_row),
                             .weight = Affine<T>(weight)};
    };
    auto* const sums = workspace.as<W>();
    const std::int64_t q_blocks = num_row_blocks(op.num_q()), k_blocks = num_row_blocks(op.num_k());
    const BackwardOperands<T> operands{.heads = static_cast<int>(op.norms().heads),
                                       .q_blocks = q_blocks,
                                       .q = part(op.num_q(), 0, q_heads, op.q_weight),
                                       .k = part(op.num_k(), q_heads, k_heads, op.k_weight),
                                       .dy = Rows<const T>(op.dy),
                                       .x = Rows<const T>(op.x),
                                       .dx = Rows<T>(op.dx),
                                       .rstd = op.rstd.as<W>(),
                                       .angles = angles_of<T>(op.heads),
                                       .sums = sums};
    const bool aligned =
        all_aligned(op.dy, op.x, op.dx, op.q_weight, op.k_weight, op.heads.cosine, op.heads.sine);
    with_head_walk<T>(op.heads, aligned, [&]<int V, bool kHeld>(HeadWalk<V, kHeld> walk) {
      const std::size_t shared =
          static_cast<std::size_t>((walk.groups() + 1) * walk.head_dim) * sizeof(W);
      if (shared > kUnaskedShared) allow_shared(turn_back<T, V, kHeld>, shared);
      launch_grid(ctx, {static_cast<unsigned>(q_blocks + k_blocks), kHeadThreads, shared},
                  turn_back<T, V, kHeld>, operands, walk);
    });
    const std::int64_t width = op.heads.head_dim;
    join<W>(ctx, q_blocks, width, sums, op.dq_weight.as<W>(), nullptr);
    join<W>(ctx, k_blocks, width, sums + q_blocks * width, op.dk_weight.as<W>(), nullptr);
  });
}

}  // namespace

void add_head_norm_rope_rows(std::vector<KernelRow>& rows) {
  rows.push_back(row_of<HeadNormRope, head_norm_rope>());
  rows.push_back(row_of<HeadNormRopeBackward, head_norm_rope_backward>());
}

}  // namespace llmtrain::kernels::cuda
