#pragma once
/// What all kernels of attention share: the operands, which keys a query sees, which tiles can be
/// left out, dropout.
///
/// A tile that is not whole is filled up with rows that see nothing and keys that nobody sees, so
/// that no other test of bounds is needed: a missing key lies at position INT_MAX, a missing query
/// sees from INT_MAX to INT_MIN.

#include <climits>

#include "kernels/cuda/attention.hpp"
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/rules/attention.hpp"
#include "kernels/step_scalars.hpp"

namespace llmtrain::kernels::cuda {

/// Key positions that a query sees: first <= position <= last.
struct KeyRange {
  int first, last;
  __device__ bool contains(int position) const { return position >= first && position <= last; }
};

/// Extremes over some queries or keys.
struct QueryBounds {
  int min_first = INT_MAX, max_first = INT_MIN, min_last = INT_MAX, max_last = INT_MIN;
};
struct KeyBounds {
  int min = INT_MAX, max = INT_MIN;
};
static_assert(sizeof(QueryBounds) == 16 && sizeof(KeyBounds) == 8);

__device__ __forceinline__ QueryBounds join(const QueryBounds& a, const QueryBounds& b) {
  return {min(a.min_first, b.min_first), max(a.max_first, b.max_first), min(a.min_last, b.min_last),
          max(a.max_last, b.max_last)};
}
__device__ __forceinline__ KeyBounds join(const KeyBounds& a, const KeyBounds& b) {
  return {min(a.min, b.min), max(a.max, b.max)};
}
__device__ __forceinline__ QueryBounds of_lane(const QueryBounds& x, int lane) {
  return {__shfl_sync(~0u, x.min_first, lane), __shfl_sync(~0u, x.max_first, lane),
          __shfl_sync(~0u, x.min_last, lane), __shfl_sync(~0u, x.max_last, lane)};
}
__device__ __forceinline__ KeyBounds of_lane(const KeyBounds& x, int lane) {
  return {__shfl_sync(~0u, x.min, lane), __shfl_sync(~0u, x.max, lane)};
}

/// What some queries see of some keys.
__device__ __forceinline__ bool none_seen(const QueryBounds& q, const KeyBounds& k) {
  return k.max < q.min_first || k.min > q.max_last;
}
__device__ __forceinline__ bool all_seen(const QueryBounds& q, const KeyBounds& k) {
  return k.min >= q.max_first && k.max <= q.min_last;
}

/// Rows of results: of the operands' type T, or of Wide<T>, where they are parts of sums.
template <class T>
struct Results {
  void* data = nullptr;
  std::int64_t stride = 0;
  bool wide = false;

  Results() = default;
  explicit Results(const View& view)
      : data(view.data),
        stride(view.row_stride),
        wide(!std::is_same_v<T, Wide<T>> && view.dtype != dtype_of<T>) {}
  __device__ T* row(std::int64_t i) const { return static_cast<T*>(data) + i * stride; }
  __device__ Wide<T>* wide_row(std::int64_t i) const {
    return static_cast<Wide<T>*>(data) + i * stride;
  }
};

/// AttentionShape as device code reads it; W is the type of scores.
template <class W>
struct AttentionArgs {
  int sequences, tq, tk, heads, kv_heads, head_dim;
  W scale, softcap;
  const W* alibi;
  const void* sink;
  DType sink_type;
  std::int64_t window;
  const int *q_position, *q_document_begin, *k_position;
  const std::int64_t* q_sample;
  // Dropout: kept where the word is at least `threshold`, and multiplied with `kept`.
  bool drops;
  std::uint32_t threshold;
  W kept;
  PhiloxKey key;
  std::uint64_t step;
  const StepScalars* scalars;  // null: `step` counts
  std::int64_t seq_len;
  std::int64_t first_head, heads_of_layer;
  int query_granules, key_granules;
  QueryBounds* query_bounds;
  KeyBounds* key_bounds;

  __device__ int per_group() const { return heads / kv_heads; }

  __device__ KeyRange range(int sequence, int i) const {
    if (i >= tq) return {INT_MAX, INT_MIN};
    const std::int64_t row = static_cast<std::int64_t>(sequence) * tq + i;
    const int position = q_position[row];
    std::int64_t first = q_document_begin[row];
    if (window > 0) first = max(first, position - window + 1);
    return {static_cast<int>(first), position};
  }
  __device__ int position(int sequence, int j) const {
    return j < tk ? k_position[static_cast<std::int64_t>(sequence) * tk + j] : INT_MAX;
  }
  __device__ std::int64_t statistic(int sequence, int head, int i) const {
    return (static_cast<std::int64_t>(sequence) * heads + head) * tq + i;
  }
  __device__ W sink_of(int head) const {
    switch (sink_type) {
      case DType::bf16:
        return static_cast<W>(widen(static_cast<const bf16*>(sink)[head]));
      case DType::f16:
        return static_cast<W>(widen(static_cast<const f16*>(sink)[head]));
      default:
        return static_cast<const W*>(sink)[head];
    }
  }
  __device__ W slope_of_alibi(int head) const { return alibi == nullptr ? W{0} : alibi[head]; }

  /// Bounds of `rows` rows from `begin` on, which is a multiple of them: a power of two.
  template <int rows>
  __device__ QueryBounds queries(int sequence, int begin) const {
    return bounds<rows>(query_bounds, query_granules, sequence, begin);
  }
  template <int rows>
  __device__ KeyBounds keys(int sequence, int begin) const {
    return bounds<rows>(key_bounds, key_granules, sequence, begin);
  }

  // ---- Dropout ----
  /// Index of (sample, head, q, 0) in the stream, by what is the same for a block.
  __device__ std::uint64_t dropout_rows(int sequence, int head) const {
    if (!drops) return 0;
    return static_cast<std::uint64_t>((q_sample[sequence] * heads_of_layer + first_head + head) *
                                      seq_len);
  }
  __device__ std::uint64_t dropout_index(std::uint64_t rows, int q_position, int position) const {
    return (rows + static_cast<std::uint64_t>(static_cast<std::int64_t>(q_position))) *
               static_cast<std::uint64_t>(seq_len) +
           static_cast<std::uint64_t>(static_cast<std::int64_t>(position));
  }
  __device__ std::uint64_t step_now() const {
    return scalars == nullptr ? step : static_cast<std::uint64_t>(scalars->step);
  }
  /// `now` is step_now(), read once.
  __device__ bool keeps(std::uint64_t now, std::uint64_t index) const {
    const PhiloxWords words = philox_block(key, now, index);
    return word_of(words, index) >= threshold;
  }
  /// The word of one of the four elements of a block; an index at run time would need memory.
  __device__ static std::uint32_t word_of(const PhiloxWords& words, std::uint64_t index) {
    const std::uint32_t low = (index & 1) != 0 ? words[1] : words[0];
    const std::uint32_t high = (index & 1) != 0 ? words[3] : words[2];
    return (index & 2) != 0 ? high : low;
  }

 private:
  template <int rows, class Bounds>
  __device__ static Bounds bounds(const Bounds* all, int granules, int sequence, int begin) {
    constexpr int kGranule = static_cast<int>(kAttentionGranule);
    const Bounds* const mine = all + static_cast<std::int64_t>(sequence) * granules;
    const int first = begin / kGranule;
    Bounds result = mine[first];
    for (int n = 1; n < rows / kGranule; ++n) {
      result = first + n < granules ? join(result, mine[first + n]) : missing(result);
    }
    return result;
  }
  // A tile with missing rows is never seen as a whole.
  __device__ static QueryBounds missing(const QueryBounds& b) {
    return join(b, {INT_MAX, INT_MAX, INT_MIN, INT_MIN});
  }
  __device__ static KeyBounds missing(const KeyBounds& b) { return join(b, {INT_MAX, INT_MAX}); }
};

/// Derivative and value of a capped score.
template <class W>
__device__ __forceinline__ W cap_slope(W score, W cap) {
  const W t = score / cap;
  return 1 - t * t;
}

enum class Side : std::uint8_t { queries, keys };

/// Walks upwards over the tiles of kTile rows of one side that may meet a block's kOwn rows of the
/// other side, and says what a part of these, kPart rows, has of them. All lanes of a warp call it
/// together, and all warps of a block find the same tiles.
template <Side side, int kTile, int kOwn, int kPart, class W>
class TileWalk {
 public:
  struct Step {
    int tile;
    bool some, all;  // whether the part may see something, whether it sees everything
  };
  /// `own` and `part`: first rows.
  __device__ TileWalk(const AttentionArgs<W>& args, int sequence, int own, int part)
      : args_(args), sequence_(sequence), own_(own), part_(part) {}
  __device__ bool done(const Step& step) const { return step.tile >= tiles(); }
  /// The first from `tile` on.
  __device__ Step next(int tile) {
    while (tile < tiles()) {
      if (tile < base_ || tile >= base_ + 32) look(tile & ~31);
      const unsigned rest = meets_ & (~0u << (tile - base_));
      if (rest != 0) {
        const int n = __ffs(static_cast<int>(rest)) - 1;
        return {base_ + n, (some_ >> n & 1) != 0, (all_ >> n & 1) != 0};
      }
      tile = base_ + 32;
    }
    return {tile, false, false};
  }

 private:
  __device__ int tiles() const {
    return ((side == Side::keys ? args_.tk : args_.tq) + kTile - 1) / kTile;
  }
  /// Lane l looks at tile base + l.
  __device__ void look(int base) {
    base_ = base;
    const int tile = base + static_cast<int>(threadIdx.x % 32);
    bool meets = false, some = false, all = false;
    if (tile < tiles()) {
      const bool real = part_ < (side == Side::keys ? args_.tq : args_.tk);
      if constexpr (side == Side::keys) {
        const KeyBounds keys = args_.template keys<kTile>(sequence_, tile * kTile);
        meets = !none_seen(args_.template queries<kOwn>(sequence_, own_), keys);
        if (real) {
          const QueryBounds part = args_.template queries<kPart>(sequence_, part_);
          some = !none_seen(part, keys);
          all = all_seen(part, keys);
        }
      } else {
        const QueryBounds queries = args_.template queries<kTile>(sequence_, tile * kTile);
        meets = !none_seen(queries, args_.template keys<kOwn>(sequence_, own_));
        if (real) {
          const KeyBounds part = args_.template keys<kPart>(sequence_, part_);
          some = !none_seen(queries, part);
          all = all_seen(queries, part);
        }
      }
    }
    meets_ = __ballot_sync(~0u, meets);
    some_ = __ballot_sync(~0u, some);
    all_ = __ballot_sync(~0u, all);
  }

  const AttentionArgs<W>& args_;
  int sequence_, own_, part_;
  int base_ = INT_MAX;
  unsigned meets_ = 0, some_ = 0, all_ = 0;
};

// ---- The host's side
// -----------------------------------------------------------------------------

/// Operands of the forward and of the backward for the kernels; `workspace` is laid out by
/// AttentionScratch.
template <class W>
AttentionArgs<W> attention_args(const AttentionShape& shape, const View& q, const View& k,
                                const View& workspace);

/// Fills in the bounds of all granules.
template <class W>
void find_bounds(const KernelCtx& ctx, const AttentionArgs<W>& args);
/// delta = rowsum(dout * out), [S, H, Tq], at the place that AttentionScratch gives it; and dsink.
template <class W>
W* find_delta(const KernelCtx& ctx, const AttentionBackward& op, const AttentionArgs<W>& args,
              const View& workspace);

}  // namespace llmtrain::kernels::cuda
