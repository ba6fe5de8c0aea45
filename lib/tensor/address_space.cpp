#include "lib/tensor/address_space.hpp"

#include <algorithm>
#include <iterator>

#include "lib/base/require.hpp"

namespace llmtrain {

AddressSpace::AddressSpace(std::uint64_t capacity) : capacity_(capacity / kAlignment * kAlignment) {
  if (capacity_ > 0) insert(0, capacity_);
}

std::optional<std::uint64_t> AddressSpace::take(std::uint64_t bytes) {
  bytes = round_up(bytes);
  const auto fit = by_size_.lower_bound({bytes, 0});
  if (fit == by_size_.end()) return std::nullopt;
  const auto [size, offset] = *fit;
  erase(by_offset_.find(offset));
  if (size > bytes) insert(offset + bytes, size - bytes);
  extent_ = std::max(extent_, offset + bytes);
  return offset;
}

void AddressSpace::give_back(std::uint64_t offset, std::uint64_t bytes) {
  bytes = round_up(bytes);
  require(offset + bytes <= capacity_, "block [{}, +{}) lies outside the arena", offset, bytes);
  auto next = by_offset_.lower_bound(offset);
  require(next == by_offset_.end() || offset + bytes <= next->first,
          "block [{}, +{}) returned twice", offset, bytes);
  if (next != by_offset_.end() && next->first == offset + bytes) {
    bytes += next->second;
    const auto merged = next++;
    erase(merged);
  }
  if (next != by_offset_.begin()) {
    const auto previous = std::prev(next);
    require(previous->first + previous->second <= offset, "block [{}, +{}) returned twice", offset,
            bytes);
    if (previous->first + previous->second == offset) {
      offset = previous->first;
      bytes += previous->second;
      erase(previous);
    }
  }
  insert(offset, bytes);
}

std::uint64_t AddressSpace::largest_free_block() const {
  return by_size_.empty() ? 0 : by_size_.rbegin()->first;
}

void AddressSpace::insert(std::uint64_t offset, std::uint64_t bytes) {
  by_offset_.emplace(offset, bytes);
  by_size_.emplace(bytes, offset);
}

void AddressSpace::erase(std::map<std::uint64_t, std::uint64_t>::iterator block) {
  by_size_.erase({block->second, block->first});
  by_offset_.erase(block);
}

}  // namespace llmtrain
