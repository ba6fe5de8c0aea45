#pragma once
/// Which pairs of a block of queries and a block of keys count, and which strips of the tile hold
/// any.

#include <algorithm>
#include <array>
#include <limits>

#include "kernels/attention_scratch.hpp"
#include "kernels/attention_rule.hpp"

namespace llmtrain::kernels::fast {

/// Rows or columns of a tile that are computed or left out together: the height of the register
/// block of the matrix products.
inline constexpr std::int64_t kStrip = 8;
inline constexpr std::int64_t kTile = kAttentionBlock;
inline constexpr std::int64_t kStrips = kTile / kStrip;

constexpr std::int64_t round_up(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

/// Rows [begin, end) of a block.
struct Span {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
  bool empty() const { return begin >= end; }
};

enum class Sight : std::uint8_t { none, some, all };

inline constexpr std::int32_t kLowest = std::numeric_limits<std::int32_t>::min();
inline constexpr std::int32_t kHighest = std::numeric_limits<std::int32_t>::max();
/// What the queries of an empty strip see, and where the keys of an empty strip are.
inline constexpr KeyRange kNoKeys = {kHighest, kLowest};

inline KeyRange hull(const KeyRange& a, const KeyRange& b) {
  return {std::min(a.first, b.first), std::max(a.last, b.last)};
}
inline bool meet(const KeyRange& a, const KeyRange& b) {
  return a.first <= b.last && b.first <= a.last;
}

/// Up to kTile keys: their positions, and the range of positions of every strip.
struct KeyBlock {
  std::int64_t begin = 0;  // row in the sequence
  std::int64_t rows = 0;
  alignas(64) std::array<std::int32_t, kTile> position;
  std::array<KeyRange, kStrips> strip;
  KeyRange any = kNoKeys;

  KeyBlock(const AttentionShape& shape, std::int64_t sequence, std::int64_t tk, std::int64_t block)
      : begin(block * kTile), rows(std::min(kTile, tk - begin)) {
    position.fill(kLowest);  // before every document: padding is never visible
    strip.fill(kNoKeys);
    const auto* source = shape.k_position.as<std::int32_t>() + sequence * tk + begin;
    for (std::int64_t j = 0; j < rows; ++j) {
      position[j] = source[j];
      strip[j / kStrip] = hull(strip[j / kStrip], {source[j], source[j]});
    }
    for (const KeyRange& range : strip) any = hull(any, range);
  }

  /// The strips that a query which sees `range` needs.
  Span seen_by(const KeyRange& range) const {
    Span span;
    for (std::int64_t s = 0; s < kStrips; ++s) {
      if (!meet(range, strip[s])) continue;
      if (span.empty()) span.begin = s * kStrip;
      span.end = std::min(rows, (s + 1) * kStrip);
    }
    return span;
  }
};

/// Up to kTile queries: what each sees, and the hull of what the queries of every strip see.
struct QueryBlock {
  std::int64_t begin = 0;
  std::int64_t rows = 0;
  alignas(64) std::array<std::int32_t, kTile> first;
  alignas(64) std::array<std::int32_t, kTile> last;
  std::array<KeyRange, kStrips> strip;
  KeyRange any = kNoKeys;
  KeyRange all = {kLowest, kHighest};

  QueryBlock(const AttentionShape& shape, std::int64_t sequence, std::int64_t tq,
             std::int64_t block)
      : begin(block * kTile), rows(std::min(kTile, tq - begin)) {
    first.fill(kNoKeys.first);
    last.fill(kNoKeys.last);
    strip.fill(kNoKeys);
    for (std::int64_t i = 0; i < rows; ++i) {
      const KeyRange range = visible_keys(shape, sequence * tq + begin + i);
      first[i] = range.first;
      last[i] = range.last;
      strip[i / kStrip] = hull(strip[i / kStrip], range);
      all = {std::max(all.first, range.first), std::min(all.last, range.last)};
    }
    for (const KeyRange& range : strip) any = hull(any, range);
  }

  Sight sight(const KeyBlock& keys) const {
    if (!meet(any, keys.any)) return Sight::none;
    return all.first <= keys.any.first && keys.any.last <= all.last ? Sight::all : Sight::some;
  }

  /// The hull of what rows [begin, end) see; both are multiples of kStrip.
  KeyRange seen(const Span& rows_seen) const {
    KeyRange range = kNoKeys;
    for (std::int64_t s = rows_seen.begin / kStrip; s * kStrip < rows_seen.end; ++s) {
      range = hull(range, strip[s]);
    }
    return range;
  }

  /// The strips that see a key of `positions`.
  Span seeing(const KeyRange& positions) const {
    Span span;
    for (std::int64_t s = 0; s < kStrips; ++s) {
      if (!meet(positions, strip[s])) continue;
      if (span.empty()) span.begin = s * kStrip;
      span.end = std::min(rows, (s + 1) * kStrip);
    }
    return span;
  }
};

}  // namespace llmtrain::kernels::fast
