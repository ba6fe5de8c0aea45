#include "lib/tensor/address_space.hpp"

#include <algorithm>
#include <iterator>

#include "lib/base/require.hpp"

namespace llmtrain {

AddressSpace::AddressSpace(std::uint64_t capacity)
    : capacity_(capacity / kAlignment * kAlignment) {}

std::optional<std::uint64_t> AddressSpace::take(std::uint64_t bytes) {
  bytes = round_up(bytes);
  const auto fit = by_size_.lower_bound({bytes, 0});
  if (fit == by_size_.end()) {
    if (bytes > capacity_ - top_) return std::nullopt;
    const std::uint64_t offset = top_;
    top_ += bytes;
    extent_ = std::max(extent_, top_);
    return offset;
  }
  const auto [size, offset] = *fit;
  erase_gap(by_offset_.find(offset));
  if (size > bytes) insert_gap(offset + bytes, size - bytes);
  return offset;
}

void AddressSpace::give_back(std::uint64_t offset, std::uint64_t bytes) {
  bytes = round_up(bytes);
  require(offset + bytes <= top_, "block [{}, +{}) lies outside the blocks in use", offset, bytes);
  auto next = by_offset_.lower_bound(offset);
  require(next == by_offset_.end() || offset + bytes <= next->first,
          "block [{}, +{}) returned twice", offset, bytes);
  if (next != by_offset_.end() && next->first == offset + bytes) {
    bytes += next->second;
    const auto merged = next++;
    erase_gap(merged);
  }
  if (next != by_offset_.begin()) {
    const auto previous = std::prev(next);
    require(previous->first + previous->second <= offset, "block [{}, +{}) returned twice", offset,
            bytes);
    if (previous->first + previous->second == offset) {
      offset = previous->first;
      bytes += previous->second;
      erase_gap(previous);
    }
  }
  if (offset + bytes == top_) {
    top_ = offset;
  } else {
    insert_gap(offset, bytes);
  }
}

std::uint64_t AddressSpace::largest_free_block() const {
  return std::max(capacity_ - top_, by_size_.empty() ? 0 : by_size_.rbegin()->first);
}

void AddressSpace::insert_gap(std::uint64_t offset, std::uint64_t bytes) {
  by_offset_.emplace(offset, bytes);
  by_size_.emplace(bytes, offset);
}

void AddressSpace::erase_gap(std::map<std::uint64_t, std::uint64_t>::iterator block) {
  by_size_.erase({block->second, block->first});
  by_offset_.erase(block);
}

}  // namespace llmtrain
