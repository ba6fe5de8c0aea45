#include "lib/data/bpe_merger.hpp"

#include <algorithm>
#include <bit>
#include <functional>

namespace llmtrain::data {

namespace {

// Above this many symbols a queue beats scanning all pairs for every merge.
constexpr std::size_t kScanLimit = 96;

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return (std::uint64_t{static_cast<std::uint32_t>(left)} << 32) |
         static_cast<std::uint32_t>(right);
}

std::size_t slot_of(std::uint64_t key, std::size_t slot_count) {
  return static_cast<std::size_t>((key * 0x9E3779B97F4A7C15u) >> 20) & (slot_count - 1);
}

}  // namespace

BpeMerger::BpeMerger(std::span<const Merge> merges) : slots_(std::bit_ceil(2 * merges.size() + 2)) {
  merged_.reserve(merges.size());
  for (const Merge& m : merges) {
    const std::uint64_t key = pair_key(m.left, m.right);
    std::size_t at = slot_of(key, slots_.size());
    while (slots_[at].rank != kNoMerge && slots_[at].pair != key) {
      at = (at + 1) & (slots_.size() - 1);
    }
    slots_[at] = {key, static_cast<std::uint32_t>(merged_.size())};
    merged_.push_back(m.merged);
  }
}

std::uint32_t BpeMerger::rank(std::int32_t left, std::int32_t right) const {
  const std::uint64_t key = pair_key(left, right);
  std::size_t at = slot_of(key, slots_.size());
  while (slots_[at].rank != kNoMerge && slots_[at].pair != key) {
    at = (at + 1) & (slots_.size() - 1);
  }
  return slots_[at].rank;
}

void BpeMerger::merge(Scratch& scratch) const {
  if (merged_.empty()) return;
  if (scratch.symbols.size() <= kScanLimit) {
    merge_by_scan(scratch);
  } else {
    merge_by_queue(scratch);
  }
}

void BpeMerger::merge_by_scan(Scratch& scratch) const {
  auto& symbols = scratch.symbols;
  auto& ranks = scratch.ranks;  // ranks[i] of the pair (i, i + 1)
  std::size_t count = symbols.size();
  if (count < 2) return;
  ranks.resize(count - 1);
  for (std::size_t i = 0; i + 1 < count; ++i) ranks[i] = rank(symbols[i], symbols[i + 1]);
  while (count > 1) {
    const auto end = ranks.begin() + static_cast<std::ptrdiff_t>(count - 1);
    const auto best = std::min_element(ranks.begin(), end);
    if (*best == kNoMerge) break;
    const auto at = static_cast<std::size_t>(best - ranks.begin());
    symbols[at] = merged_[*best];
    std::move(symbols.begin() + static_cast<std::ptrdiff_t>(at + 2),
              symbols.begin() + static_cast<std::ptrdiff_t>(count),
              symbols.begin() + static_cast<std::ptrdiff_t>(at + 1));
    std::move(best + 1, end, best);
    --count;
    if (at + 1 < count) ranks[at] = rank(symbols[at], symbols[at + 1]);
    if (at > 0) ranks[at - 1] = rank(symbols[at - 1], symbols[at]);
  }
  symbols.resize(count);
}

void BpeMerger::merge_by_queue(Scratch& scratch) const {
  auto& symbols = scratch.symbols;
  auto& ranks = scratch.ranks;
  auto& next = scratch.next;
  auto& previous = scratch.previous;
  auto& queue = scratch.queue;
  const std::size_t count = symbols.size();
  const auto later = std::greater<std::pair<std::uint32_t, std::size_t>>();
  ranks.assign(count, kNoMerge);  // rank of the pair that starts at a symbol; stale entries differ
  next.resize(count);
  previous.resize(count);
  queue.clear();
  const auto refresh = [&](std::size_t at) {
    ranks[at] = next[at] < count ? rank(symbols[at], symbols[next[at]]) : kNoMerge;
    if (ranks[at] == kNoMerge) return;
    queue.emplace_back(ranks[at], at);
    std::push_heap(queue.begin(), queue.end(), later);
  };
  for (std::size_t i = 0; i < count; ++i) {
    next[i] = i + 1;
    previous[i] = i - 1;  // wraps to the maximum for the first symbol
  }
  for (std::size_t i = 0; i < count; ++i) refresh(i);
  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end(), later);
    const auto [best, at] = queue.back();
    queue.pop_back();
    if (ranks[at] != best) continue;
    const std::size_t gone = next[at];
    symbols[at] = merged_[best];
    ranks[gone] = kNoMerge;
    next[at] = next[gone];
    if (next[at] < count) previous[next[at]] = at;
    refresh(at);
    if (previous[at] < count) refresh(previous[at]);
  }
  std::size_t kept = 0;
  for (std::size_t at = 0; at < count; at = next[at]) symbols[kept++] = symbols[at];
  symbols.resize(kept);
}

}  // namespace llmtrain::data
